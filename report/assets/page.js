// Puts the page together: what is on the screen is drawn, the rest waits.
"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent);

const theme = document.getElementById("theme");
const root = document.documentElement.style;
const isDark = () => (root.colorScheme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const showTheme = () => { theme.ariaPressed = isDark(); };
theme.addEventListener("click", () => { root.colorScheme = isDark() ? "light" : "dark"; showTheme(); });
showTheme();

/** Draw a figure, and again when its width changes. */
function drawFigure(figure) {
  const chart = DATA.charts[figure.dataset.chart];
  const place = figure.querySelector(".drawing");
  const draw = KINDS[chart.kind](place, chart);
  const table = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Data: ${chart.title}` });
  const details = el("details", {}, el("summary", {}, "The same as a table"), table);
  details.addEventListener("toggle", () => { if (!table.firstChild) table.append(dataTable(chart)); });
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

function show(part) {
  waiting.unobserve(part);
  if (part.matches("figure")) drawFigure(part);
  else stepsBrowser(part, DATA.steps[part.dataset.steps]);
}

const waiting = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => show(entry.target)),
  { rootMargin: "400px" },
);
for (const part of document.querySelectorAll("figure, [data-steps]")) waiting.observe(part);
addEventListener("beforeprint", () => document.querySelectorAll("figure:not(:has(details))").forEach(show));
