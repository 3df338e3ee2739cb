// Puts the page together: what is looked at is drawn, the rest waits.
"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent);

const theme = document.getElementById("theme");
const root = document.documentElement;
const dark = () => (root.style.colorScheme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const showTheme = () => theme.setAttribute("aria-pressed", String(dark()));
theme.addEventListener("click", () => { root.style.colorScheme = dark() ? "light" : "dark"; showTheme(); });
showTheme();

/** Draw a figure, and again when its width changes. */
function drawFigure(figure) {
  const { group, chart: number } = figure.dataset;
  const chart = (group === "together" ? DATA.together : DATA.runs[group].charts)[number];
  const place = figure.querySelector(".drawing");
  const { draw, columns, rows } = KINDS[chart.kind](place, chart, `chart-${group}-${number}`);
  const table = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Data: ${chart.title}` });
  const details = el("details", {}, el("summary", {}, "The same as a table"), table);
  details.addEventListener("toggle", () => { if (details.open && !table.firstChild) table.append(dataTable(chart.title, columns, rows)); });
  figure.append(details);
  let width = 0;
  const fit = () => {
    if (!place.clientWidth || place.clientWidth === width) return;
    width = place.clientWidth;
    draw();
  };
  fit();
  new ResizeObserver(fit).observe(place);
}

const waiting = new IntersectionObserver((entries) => {
  for (const entry of entries.filter((each) => each.isIntersecting)) {
    waiting.unobserve(entry.target);
    const number = entry.target.dataset.steps;
    if (number === undefined) drawFigure(entry.target);
    else stepsBrowser(entry.target, DATA.runs[number].steps, `steps-${number}`);
  }
}, { rootMargin: "400px" });
const parts = document.querySelectorAll("figure, [data-steps]");
for (const each of parts) waiting.observe(each);
addEventListener("beforeprint", () => {
  for (const each of parts) if (each.matches("figure") && !each.querySelector("details")) { waiting.unobserve(each); drawFigure(each); }
});

const chosen = document.getElementById("run");
if (chosen) {
  const runs = document.querySelectorAll("section.run");
  const show = () => runs.forEach((run, k) => { run.hidden = k !== Number(chosen.value); });
  chosen.addEventListener("change", show);
  const choose = (number) => { chosen.value = number; show(); };
  for (const link of document.querySelectorAll("a[data-run]")) link.addEventListener("click", () => choose(link.dataset.run));
  /** Show the run that the address names, as in report.html#run-2. */
  const follow = () => {
    const run = /^#run-\d+$/.test(location.hash) ? document.querySelector(location.hash) : null;
    if (run?.matches("section.run")) { choose([...runs].indexOf(run)); run.scrollIntoView(); }
  };
  addEventListener("hashchange", follow);
  show();
  follow();
}
