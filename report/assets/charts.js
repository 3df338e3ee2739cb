// Draws the charts of report/charts.py; each function fills a place and returns what draws it anew.
"use strict";

const MOST_BARS = 3000;
const color = (k) => `var(--c${k % 14})`; // report/charts.py keeps to as many names; runs may be more
const percent = d3.format(".0%");
const unique = (values) => [...new Set(values)];
const short = (name, most) => (name.length > most ? `…${name.slice(1 - most)}` : name);

/** The rows of a chart as objects, by column. */
const records = (chart) =>
  chart.rows.map((row) => Object.fromEntries(chart.columns.map((name, k) => [name, row[k]])));

/** Put a drawing of Observable Plot into a place, with a name for those who do not see it. */
function plot(place, name, options) {
  const { x, height, ...others } = options;
  const room = x.label ? 12 : 0;
  const drawing = Plot.plot({
    className: "plot",
    width: Math.max(240, place.clientWidth),
    height: height + room,
    marginTop: 12,
    marginRight: 14,
    marginBottom: 28 + room,
    x: { labelAnchor: "center", labelArrow: "none", labelOffset: 34, ...x },
    r: { type: "identity" },
    opacity: { type: "identity" },
    ...others,
  });
  drawing.setAttribute("role", "img");
  drawing.setAttribute("aria-label", plain(name));
  for (const mark of drawing.querySelectorAll("g[aria-label]")) {
    mark.setAttribute("class", mark.getAttribute("aria-label")); // names of marks are for nobody's ears
    mark.removeAttribute("aria-label");
  }
  place.replaceChildren(drawing);
}

function named(tag, name, k, ...before) {
  const swatch = el("span", { class: "swatch", "aria-hidden": "true" });
  swatch.style.background = color(k);
  return el(tag, {}, ...before, swatch, el("bdi", {}, plain(name)));
}

const legend = (names) => el("ul", { class: "legend" }, ...names.map((name, k) => named("li", name, k)));
const controls = (title, choices) => el("fieldset", { class: "controls" }, el("legend", {}, title), ...choices);

/** A choice between axes, where there are several; calls `choose` with the name of one. */
function axisChoice(axes, choose) {
  if (axes.length < 2) return [];
  const group = `axis-${document.querySelectorAll("fieldset").length}`;
  const choices = axes.map((axis, k) => {
    const input = el("input", { type: "radio", name: group, checked: k === 0, onchange: () => choose(axis) });
    return el("label", {}, input, axis);
  });
  return [controls("Over", choices)];
}

/** The rows of each panel of a chart, and where they are drawn. */
function panelsOf(place, chart) {
  const panels = d3.groups(records(chart), (row) => row.panel).map(([title, rows]) => {
    const target = el("div", {});
    return { title, rows, target, box: el("div", { class: "panel" }, el("p", {}, el("bdi", {}, plain(title))), target) };
  });
  place.append(el("div", { class: chart.wide ? "" : "panels" }, ...panels.map((panel) => panel.box)));
  return panels;
}

function curves(place, chart) {
  const axes = chart.columns.slice(2, -3);
  const hidden = new Set();
  let axis = axes[0];
  const draw = () => panels.forEach((panel) => drawPanel(panel, chart, axis, hidden));
  place.append(...axisChoice(axes, (name) => { axis = name; draw(); }));
  if (chart.choices) {
    const choices = unique(chart.rows.map((row) => row[1])).map((name, k) => {
      const change = (event) => { hidden[event.target.checked ? "delete" : "add"](name); draw(); };
      return named("label", name, k, el("input", { type: "checkbox", checked: true, onchange: change }));
    });
    place.append(controls("Lines", choices));
  }
  const panels = panelsOf(place, chart);
  for (const panel of panels) {
    panel.names = unique(panel.rows.map((row) => row.series));
    if (panel.names.length > 1 && !chart.choices && !chart.wide) panel.box.append(legend(panel.names));
  }
  return draw;
}

function drawPanel({ title, rows, names, target }, chart, axis, hidden) {
  const known = rows.filter((row) => row.value !== null && !hidden.has(row.series));
  if (!known.length) return target.replaceChildren(el("p", { class: "says" }, "Nothing to show."));
  const ends = d3.extent(known, (row) => row[axis]);
  const points = known.flatMap((row) => {
    const across = row[axis] === null; // a line from one end to the other
    return (across ? ends : [row[axis]]).map((x) => ({ ...row, x, across }));
  });
  const along = points.filter((p) => !p.across);
  const counts = d3.rollup(along, (own) => own.length, (p) => p.series);
  const band = points.filter((p) => p.low !== null && p.high !== null);
  const isShare = chart.percents.includes(title);
  const domain = isShare ? [0, 1] : chart.domain ?? valueDomain(points, band);
  const paint = (p) => color(names.indexOf(p.series));
  const at = { x: "x", y: "value" };
  const area = { x: "x", y1: "low", y2: "high", z: "series", clip: true };
  const line = { ...at, z: "series", stroke: paint };
  const labels = chart.wide ? endLabels(points, ends[1], target.clientWidth) : [];
  const marginRight = 14 + 6.2 * (d3.max(labels, (label) => label.text.length) ?? 0);
  const ticks = Math.max(2, Math.floor((target.clientWidth - marginRight) / 80));
  const tip = (p) => [plain(p.series), p.across ? [] : `${axis} ${d3.format(",")(p.x)}`, withEnds(p, isShare)].flat().join("\n");
  plot(target, `${chart.title}: ${title}, over ${axis}`, {
    height: chart.wide ? 320 : 190,
    marginLeft: 46,
    marginRight,
    x: { label: axis, type: chart.log ? "log" : "linear", base: 2, ticks, tickFormat: chart.log ? String : "~s" },
    y: { label: null, grid: true, ticks: 4, domain, tickFormat: isShare ? "%" : undefined },
    marks: [
      Plot.areaY(band, { ...area, fill: paint, fillOpacity: chart.wide ? 0.11 : 0.16 }),
      Plot.lineY(points.filter((p) => p.across), { ...line, strokeWidth: 1.6, strokeDasharray: "6 3" }),
      Plot.lineY(along, { ...line, strokeWidth: 2 }),
      Plot.ruleX(band.filter((p) => counts.get(p.series) === 1), { ...area, stroke: paint, strokeWidth: 2 }),
      Plot.dot(along.filter((p) => counts.get(p.series) <= 12), { ...at, fill: paint, r: (p) => (counts.get(p.series) === 1 ? 4.5 : 2.4) }),
      Plot.text(labels, { x: "x", y: "y", text: "text", dx: 9, textAnchor: "start", fill: paint, fontWeight: 600 }),
      Plot.tip(points, (chart.wide ? Plot.pointer : Plot.pointerX)({ ...at, title: tip })),
    ],
  });
}

/** From the least to the most that is drawn; a band much wider than usual is cut, so that the line can be read. */
function valueDomain(points, band) {
  const [least, most] = d3.extent(points, (p) => p.value);
  const room = Math.max(0.6 * (most - least), d3.median(band, (p) => p.high - p.low) ?? 0);
  return [Math.max(least - room, d3.min(points, (p) => p.low ?? p.value)), Math.min(most + room, d3.max(points, (p) => p.high ?? p.value))];
}

function withEnds({ value, low, high }, isShare) {
  const show = d3.format(isShare ? ".1%" : ".3~f");
  return show(value) + (low === null || high === null ? "" : ` [${show(low)}, ${show(high)}]`);
}

/** The name and the last value of each line, behind its end, moved apart from the top down and up again. */
function endLabels(points, x, width) {
  const most = Math.floor((width * (width < 600 ? 0.36 : 0.25)) / 6.2) - 5;
  const gap = 0.06;
  const labels = [...d3.group(points, (p) => p.series)].map(([series, own]) => {
    const { value } = own.at(-1);
    return { series, x, y: value, text: `${short(plain(series), most)} ${percent(value)}` };
  }).sort((a, b) => b.y - a.y);
  labels.forEach((label, k) => { if (k) label.y = Math.min(label.y, labels[k - 1].y - gap); });
  labels.reverse().forEach((label, k) => { label.y = Math.max(label.y, k * gap); });
  return labels;
}

/** How shares of mutators are stacked. */
const stacked = (names) => ({
  z: "mutator",
  order: names,
  fill: (row) => color(names.indexOf(row.mutator)),
  title: (row) => `${plain(row.mutator)}\n${percent(row.share)}`,
});

function areas(place, chart) {
  const axes = chart.columns.slice(0, -2);
  const rows = records(chart);
  const names = unique(rows.map((row) => row.mutator));
  const target = el("div", { class: "wide" });
  let axis = axes[0];
  const draw = () => {
    plot(target, `${chart.title}, over ${axis}`, {
      height: 260,
      marginLeft: 46,
      x: { label: axis, tickFormat: "~s" },
      y: { label: null, tickFormat: "%", domain: [0, 1], ticks: 5 },
      marks: [Plot.areaY(rows, { ...stacked(names), x: axis, y: "share", fillOpacity: 0.85, tip: "xy" })],
    });
  };
  place.append(...axisChoice(axes, (name) => { axis = name; draw(); }), target, legend(names));
  return draw;
}

/** An axis of policies. */
const policies = (rows) =>
  ({ label: null, domain: unique(rows.map((row) => row.policy)), tickSize: 0, tickFormat: (name) => short(plain(name), 18) });

function bars(place, chart) {
  const rows = records(chart);
  const names = unique(rows.map((row) => row.mutator));
  const target = el("div", { class: "wide" });
  place.append(target, legend(names));
  return () => plot(target, chart.title, {
    height: 46 + unique(rows.map((row) => row.policy)).length * 30,
    marginLeft: 118,
    x: { label: null, tickFormat: "%", domain: [0, 1] },
    y: policies(rows),
    marks: [Plot.barX(rows, { ...stacked(names), y: "policy", x: "share", inset: 0.5, tip: true })],
  });
}

function forest(place, chart) {
  const panels = panelsOf(place, chart);
  return () => panels.forEach(({ title, rows, target }) => {
    const known = rows.filter((row) => row.value !== null);
    const share = chart.percents.includes(title) ? { domain: [0, 1], tickFormat: "%" } : {};
    const describe = (row) => `${plain(row.policy)}\n${withEnds(row, Boolean(share.domain))}`;
    plot(target, `${chart.title}: ${title}`, {
      height: 46 + known.length * 28,
      marginLeft: 118,
      x: { label: null, grid: true, ticks: 4, inset: 6, ...share },
      y: policies(known),
      marks: [
        Plot.ruleY(known.filter((row) => row.low !== null), { y: "policy", x1: "low", x2: "high", stroke: color(0), strokeWidth: 2 }),
        Plot.dot(known, { y: "policy", x: "value", fill: color(0), r: 4.5, title: describe, tip: "y" }),
      ],
    });
  });
}

function heat(place, chart) {
  const target = el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": chart.title });
  place.append(target);
  const cells = records(chart).map((row) => ({
    ...row,
    category: row.category || "no category",
    n: row["scored steps"],
    share: row.successes / row["scored steps"],
  }));
  const columns = unique(cells.map((cell) => cell.category));
  const rows = d3.groupSort(cells, (own) => -d3.sum(own, (c) => c.successes) / d3.sum(own, (c) => c.n), (c) => c.mutator);
  const at = { x: "category", y: "mutator", fill: "currentColor" };
  const axis = { label: null, tickFormat: (name) => short(plain(name), 26), tickSize: 0 };
  const title = (c) => `${plain(c.mutator)}, ${plain(c.category)}\n${c.successes} of ${c.n}`;
  return () => plot(target, chart.title, {
    width: Math.min(Math.max(target.clientWidth, 170 + columns.length * 58), 190 + columns.length * 130),
    height: 110 + rows.length * 30,
    marginLeft: 170,
    marginBottom: 86,
    x: { ...axis, domain: columns, tickRotate: columns.length > 1 ? -32 : 0 },
    y: { ...axis, domain: rows },
    marks: [
      Plot.cell(cells, { ...at, fill: color(0), fillOpacity: (c) => 0.04 + 0.62 * c.share, inset: 1, title, tip: true }),
      Plot.text(cells, { ...at, text: (c) => percent(c.share), dy: -5 }),
      Plot.text(cells, { ...at, text: (c) => `n ${c.n}`, fillOpacity: 0.75, fontSize: 9.5, dy: 7 }),
    ],
  });
}

function slots(place, chart) {
  const [overview, detail] = [el("div", { class: "wide" }), el("div", { class: "wide" })];
  const lanes = records(chart).map((lane) => ({ name: plain(lane.lane), model: lane.model }));
  const names = lanes.map((lane) => lane.name);
  const models = unique(lanes.map((lane) => lane.model));
  const bin = chart.span_s / chart.busy[0].length;
  const bins = chart.busy.flatMap((shares, k) => shares.map((busy, place) => ({ ...lanes[k], busy, from: place * bin })));
  const calls = chart.calls?.flatMap((own, k) => own.map(([begin, lasted]) => ({ ...lanes[k], begin, lasted, end: begin + lasted })));
  const tickFormat = (name) => short(name, 24);
  const frame = {
    marginLeft: Math.min(150, 16 + 6.4 * d3.max(names, (name) => tickFormat(name).length)),
    y: { label: null, domain: names, tickSize: 0, tickFormat },
  };
  let length = chart.span_s * Math.min(1, 500 / (calls?.length ?? 1)); // some 500 calls
  let from = (chart.span_s - length) / 3;
  const draw = () => {
    const until = from + length;
    plot(overview, "How busy each lane was over the whole run", {
      ...frame,
      height: 46 + names.length * 15,
      x: { label: "seconds", domain: [0, chart.span_s] },
      marks: [
        Plot.barX(bins.filter((each) => each.busy), {
          ...{ y: "name", x1: "from", x2: (each) => each.from + bin, inset: 0, insetTop: 1, insetBottom: 1 },
          ...{ fill: color(2), fillOpacity: (each) => 0.12 + 0.88 * each.busy },
        }),
        calls ? Plot.ruleX([from, until], { stroke: "var(--accent)", strokeWidth: 1.5 }) : null,
      ],
    });
    if (!calls) return;
    const found = calls.filter((call) => call.begin < until && call.end > from);
    const span = `${from.toFixed(2)} s to ${until.toFixed(2)} s`;
    slide.setAttribute("aria-valuetext", span);
    count.textContent = `${found.length} calls from ${span}${found.length > MOST_BARS ? `; ${MOST_BARS} are drawn: zoom in` : ""}`;
    plot(detail, `Each call from ${span}`, {
      ...frame,
      height: 46 + names.length * 20,
      x: { label: "seconds", domain: [from, until] },
      marks: [
        Plot.ruleY(names, { stroke: "var(--line)" }),
        Plot.barX(found.slice(0, MOST_BARS), {
          ...{ y: "name", x1: (c) => Math.max(from, c.begin), x2: (c) => Math.min(until, c.end), insetTop: 3, insetBottom: 3 },
          ...{ fill: (c) => color(models.indexOf(c.model)), title: (c) => `${plain(c.model)}\n${(1000 * c.lasted).toFixed(1)} ms`, tip: true },
        }),
      ],
    });
  };
  const move = () => { from = (slide.value / 1000) * (chart.span_s - length); draw(); };
  const zoom = (factor) => () => { length = Math.min(chart.span_s, Math.max(chart.span_s / 2000, length * factor)); move(); };
  const slide = el("input", { type: "range", min: 0, max: 1000, value: 333, oninput: move });
  const button = (title, factor) => el("button", { type: "button", onclick: zoom(factor) }, title);
  const count = el("p", { class: "says", role: "status" });
  const window_ = el("div", { class: "controls" }, el("label", {}, "From ", slide), button("Zoom in", 0.5), button("Zoom out", 2));
  place.append(overview, ...(calls ? [window_, detail, legend(models), count] : []));
  return draw;
}

function lineage(place, chart) {
  const target = el("div", { class: "wide" });
  const births = records(chart);
  const path = ancestry(births, chart.best);
  const isStrong = (birth) => path.includes(birth);
  const paint = (birth) => color(Number(isStrong(birth)));
  const scored = births.filter((birth) => birth.fitness !== null);
  const links = scored
    .flatMap((birth) => birth.parents.map((k) => ({ birth, parent: births[k], strong: isStrong(birth) && isStrong(births[k]) })))
    .filter((link) => link.parent.fitness !== null);
  const line = { x1: (l) => l.parent.generation, y1: (l) => l.parent.fitness, x2: (l) => l.birth.generation, y2: (l) => l.birth.fitness };
  const how = (birth) => plain(birth.steps.join(", ")) || "a seed";
  const title = (birth) => `${how(birth)}${birth.stopped ? " (stopped early)" : ""}\n${plain(birth.prompt).slice(0, 240)}`;
  const last = d3.max(births, (birth) => birth.generation);
  const steps = path.map((birth, k) => el("li", {},
    el("strong", {}, `Generation ${birth.generation}`), `, ${how(birth)}, fitness ${fixed(birth.fitness, 3)}`,
    k ? textBox(`What changed in step ${k + 1}`, diff(path[k - 1].prompt, birth.prompt)) : textBox("The seed", visible(birth.prompt))));
  place.append(target, el("h4", {}, "How the best prompt came about"), el("ol", {}, ...steps));
  return () => plot(target, chart.title, {
    height: 320,
    marginLeft: 46,
    x: { label: "generation", ticks: last < 15 ? d3.range(last + 1) : 10, tickFormat: "d", inset: 8 },
    y: { label: "fitness", grid: true, inset: 6 },
    marks: [
      Plot.link(links.filter((link) => !link.strong), { ...line, stroke: "var(--soft)", strokeOpacity: 0.35 }),
      Plot.link(links.filter((link) => link.strong), { ...line, stroke: color(1), strokeWidth: 2.4 }),
      Plot.dot(scored, {
        ...{ x: "generation", y: "fitness", r: (birth) => (isStrong(birth) ? 5 : 3.2), title, tip: "xy" },
        ...{ fill: (birth) => (birth.stopped ? "var(--paper)" : paint(birth)), stroke: paint },
      }),
    ],
  });
}

/** From a seed to the best prompt, by the fitter parent each time. */
function ancestry(births, best) {
  const path = [];
  let birth = births.find((each) => each.prompt === best);
  while (birth) {
    path.unshift(birth);
    birth = d3.greatest(birth.parents.map((k) => births[k]), (each) => each.fitness ?? 0);
  }
  return path;
}

const KINDS = { curves, areas, bars, forest, heat, slots, lineage };
