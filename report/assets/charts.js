// Draws the charts; each function gets a place, a chart (see report/charts.py) and returns the data as a table.
"use strict";

const color = (k) => `var(--c${k % 14})`; // report/charts.py keeps to as many names; runs may be more
const percent = d3.format(".0%");

/** Put a drawing of Observable Plot into a place, with a name for those who do not see it. */
function plot(place, name, options) {
  const axis = { labelAnchor: "center", labelArrow: "none", labelOffset: 34 };
  const { x, height, ...others } = options;
  const room = x.label ? 12 : 0;
  const margins = { marginTop: 12, marginRight: 14, marginBottom: 28 + room };
  const drawing = Plot.plot({ className: "plot", ...margins, height: height + room, x: { ...axis, ...x }, ...others });
  drawing.setAttribute("role", "img");
  drawing.setAttribute("aria-label", plain(name));
  for (const mark of drawing.querySelectorAll("g[aria-label]")) {
    mark.setAttribute("class", mark.getAttribute("aria-label")); // names of marks are for nobody's ears
    mark.removeAttribute("aria-label");
  }
  place.replaceChildren(drawing);
}

function legend(names) {
  return el(
    "ul",
    { class: "legend" },
    ...names.map((name, k) => {
      const swatch = el("span", { class: "swatch", "aria-hidden": "true" });
      swatch.style.background = color(k);
      return el("li", {}, swatch, el("bdi", {}, plain(name)));
    }),
  );
}

/** A choice between the axes that a chart has; calls `draw` with the number of the one chosen. */
function axisChoice(chart, id, draw) {
  if (chart.axes.length < 2) return [];
  const choices = chart.axes.map((axis, k) =>
    el("label", {}, el("input", { type: "radio", name: id, checked: k === 0, onchange: () => draw(k) }), axis),
  );
  return [el("fieldset", { class: "controls" }, el("legend", {}, "Over"), ...choices)];
}

function curves(place, chart, id) {
  const names = [...new Set(chart.panels.flatMap((panel) => panel.series.map((series) => series.name)))];
  const hidden = new Set();
  const panels = chart.panels.map((panel) => [panel, el("div", {})]);
  const alike = chart.panels.every((panel) => panel.series.length === names.length);
  let axis = 0;
  const draw = () => {
    for (const [panel, target] of panels) drawPanel(target, chart, panel, axis, alike ? names : panel.series.map((s) => s.name), hidden);
  };
  const choice = axisChoice(chart, id, (k) => { axis = k; draw(); });
  if (chart.compares) choice.push(seriesChoice(names, hidden, draw));
  else if (alike && names.length > 1) choice.push(legend(names));
  const boxes = panels.map(([panel, target]) => {
    const own = !alike && panel.series.length > 1 ? [legend(panel.series.map((series) => series.name))] : [];
    return el("div", { class: "panel" }, el("p", {}, el("bdi", {}, plain(panel.title))), target, ...own);
  });
  place.append(...choice, el("div", { class: "panels" }, ...boxes));
  const rows = chart.panels.flatMap((panel) => panel.series.flatMap((series) => series.points.map(([x, ...rest]) => [panel.title, series.name, ...x, ...rest])));
  return { draw, columns: ["panel", "series", ...chart.axes, "value", "low", "high"], rows };
}

function seriesChoice(names, hidden, draw) {
  const choices = names.map((name, k) => {
    const swatch = el("span", { class: "swatch", "aria-hidden": "true" });
    swatch.style.background = color(k);
    const change = (event) => { event.target.checked ? hidden.delete(name) : hidden.add(name); draw(); };
    return el("label", {}, el("input", { type: "checkbox", checked: true, onchange: change }), swatch, el("bdi", {}, plain(name)));
  });
  return el("fieldset", { class: "controls" }, el("legend", {}, "Runs"), ...choices);
}

function drawPanel(target, chart, panel, axis, names, hidden) {
  const points = panel.series.filter((series) => !hidden.has(series.name)).flatMap((series) =>
    series.points.filter(([, value]) => value !== null).map(([x, value, low, high]) => ({ name: series.name, x: x[axis], value, low, high })),
  );
  if (!points.length) return target.replaceChildren(el("p", { class: "says" }, "Nothing to show."));
  const paint = (point) => color(names.indexOf(point.name));
  const [least, most] = [d3.min(points, (p) => p.value), d3.max(points, (p) => p.value)];
  const band = points.filter((p) => p.low !== null && p.high !== null);
  // A band may be endless where little is known: what is wider than usual is cut, so that the line can be read.
  const room = Math.max((most - least || Math.abs(most) || 1) * 0.6, d3.median(band, (p) => p.high - p.low) ?? 0);
  const domain = panel.percent ? [0, 1] : chart.domain ?? [Math.max(least - room, d3.min(points, (p) => p.low ?? p.value)), Math.min(most + room, d3.max(points, (p) => p.high ?? p.value))];
  if (domain[0] === domain[1]) [domain[0], domain[1]] = [domain[0] - Math.abs(most || 1) / 2, domain[1] + Math.abs(most || 1) / 2];
  const clip = (value) => Math.min(domain[1], Math.max(domain[0], value));
  const few = points.length / panel.series.length <= 12;
  plot(target, `${chart.title}: ${panel.title}, over ${chart.axes[axis]}`, {
    width: Math.max(240, target.clientWidth),
    height: 190,
    marginLeft: 46,
    x: { label: chart.axes[axis], type: chart.log ? "log" : "linear", base: 2, ticks: Math.max(2, Math.floor(target.clientWidth / 70)), tickFormat: chart.log ? String : "~s" },
    y: { label: null, grid: true, ticks: 4, domain, tickFormat: panel.percent ? "%" : undefined },
    marks: [
      Plot.areaY(band, { x: "x", y1: (p) => clip(p.low), y2: (p) => clip(p.high), z: "name", fill: paint, fillOpacity: 0.16 }),
      Plot.lineY(points, { x: "x", y: "value", z: "name", stroke: paint, strokeWidth: 1.8 }),
      few ? Plot.dot(points, { x: "x", y: "value", fill: paint, r: 2.4 }) : null,
      Plot.tip(points, Plot.pointerX({ x: "x", y: "value", title: (p) => pointTitle(p, panel, chart.axes[axis]) })),
    ],
  });
}

function pointTitle(point, panel, axis) {
  const shown = panel.percent ? d3.format(".1%") : d3.format(".3~f");
  const ends = point.low !== null && point.high !== null ? ` [${shown(point.low)}, ${shown(point.high)}]` : "";
  return `${plain(point.name)}\n${axis} ${d3.format(",")(point.x)}\n${shown(point.value)}${ends}`;
}

function shares(place, chart, id) {
  const target = el("div", { class: "wide" });
  let axis = 0;
  const draw = () => {
    const points = chart.points.flatMap(([x, of]) => of.map((share, k) => ({ x: x[axis], share, k })));
    plot(target, `${chart.title}, over ${chart.axes[axis]}`, {
      width: Math.max(300, target.clientWidth),
      height: 260,
      marginLeft: 46,
      x: { label: chart.axes[axis], tickFormat: "~s" },
      y: { label: null, tickFormat: "%", domain: [0, 1], ticks: 5 },
      marks: [
        Plot.areaY(points, { x: "x", y: "share", z: "k", fill: (p) => color(p.k), fillOpacity: 0.85, order: "k" }),
        Plot.tip(points, Plot.pointer(Plot.stackY({ x: "x", y: "share", z: "k", order: "k", title: (p) => `${plain(chart.names[p.k])}\n${percent(p.share)}` }))),
      ],
    });
  };
  place.append(...axisChoice(chart, id, (k) => { axis = k; draw(); }), target, legend(chart.names));
  return { draw, columns: [...chart.axes, ...chart.names], rows: chart.points.map(([x, of]) => [...x, ...of]) };
}

function heat(place, chart) {
  const target = el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": chart.title });
  const cells = chart.cells.map(([mutator, category, successes, n]) => ({ mutator: plain(mutator), category: plain(category) || "no category", successes, n }));
  const columns = [...new Set(cells.map((cell) => cell.category))];
  const rows = [...new Set(cells.map((cell) => cell.mutator))];
  const total = (mutator) => { const own = cells.filter((c) => c.mutator === mutator); return d3.sum(own, (c) => c.successes) / d3.sum(own, (c) => c.n); };
  rows.sort((a, b) => total(b) - total(a));
  const label = (text) => (text.length > 26 ? `${text.slice(0, 25)}…` : text);
  const draw = () => {
    const wide = Math.max(target.clientWidth, 170 + columns.length * 58);
    plot(target, chart.title, {
      width: Math.min(wide, 190 + columns.length * 130),
      height: 110 + rows.length * 30,
      marginLeft: 170,
      marginBottom: 86,
      x: { label: null, domain: columns, tickFormat: label, tickRotate: columns.length > 1 ? -32 : 0, tickSize: 0 },
      y: { label: null, domain: rows, tickFormat: label, tickSize: 0 },
      marks: [
        Plot.cell(cells, { x: "category", y: "mutator", fill: "var(--c0)", fillOpacity: (c) => 0.04 + (0.62 * c.successes) / c.n, inset: 1, title: (c) => `${c.mutator}, ${c.category}\n${c.successes} of ${c.n}`, tip: true }),
        Plot.text(cells, { x: "category", y: "mutator", text: (c) => percent(c.successes / c.n), fill: "currentColor", dy: -5 }),
        Plot.text(cells, { x: "category", y: "mutator", text: (c) => `n ${c.n}`, fill: "currentColor", fillOpacity: 0.75, fontSize: 9.5, dy: 7 }),
      ],
    });
  };
  place.append(target);
  return { draw, columns: ["mutator", "category", "successes", "scored steps"], rows: cells.map((c) => [c.mutator, c.category, c.successes, c.n]) };
}

function forest(place, chart) {
  const panels = chart.panels.map((panel) => [panel, el("div", {})]);
  const draw = () => {
    for (const [panel, target] of panels) {
      const rows = panel.rows.filter(([, value]) => value !== null).map(([name, value, low, high]) => ({ name: plain(name), value, low, high }));
      plot(target, `${chart.title}: ${panel.title}`, {
        width: Math.max(280, target.clientWidth),
        height: 46 + rows.length * 28,
        marginLeft: 118,
        x: { label: null, grid: true, ticks: 4, inset: 6, domain: panel.percent ? [0, 1] : undefined, tickFormat: panel.percent ? "%" : undefined },
        y: { label: null, domain: rows.map((row) => row.name), tickSize: 0 },
        marks: [
          Plot.axisY({ label: null, tickSize: 0, lineWidth: 9, textOverflow: "ellipsis-end" }),
          Plot.ruleY(rows.filter((row) => row.low !== null && row.high !== null), { y: "name", x1: "low", x2: "high", stroke: "var(--c0)", strokeWidth: 2 }),
          Plot.dot(rows, { y: "name", x: "value", fill: "var(--c0)", r: 4.5 }),
          Plot.tip(rows, Plot.pointerY({ y: "name", x: "value", title: (r) => pointTitle({ ...r, x: 0 }, panel, "").replace("\n 0", "") })),
        ],
      });
    }
  };
  place.append(el("div", { class: "panels" }, ...panels.map(([panel, target]) => el("div", { class: "panel" }, el("p", {}, panel.title), target))));
  return { draw, columns: ["policy", "measure", "value", "low", "high"], rows: chart.panels.flatMap((panel) => panel.rows.map(([name, ...rest]) => [name, panel.title, ...rest])) };
}

function bars(place, chart) {
  const target = el("div", { class: "wide" });
  const parts = chart.rows.flatMap(([name, of]) => of.map((share, k) => ({ name: plain(name), share, k })));
  const draw = () => plot(target, chart.title, {
    width: Math.max(300, target.clientWidth),
    height: 46 + chart.rows.length * 30,
    marginLeft: 118,
    x: { label: null, tickFormat: "%", domain: [0, 1] },
    y: { label: null, domain: chart.rows.map(([name]) => plain(name)), tickSize: 0 },
    marks: [
      Plot.axisY({ label: null, tickSize: 0, lineWidth: 9, textOverflow: "ellipsis-end" }),
      Plot.barX(parts, { y: "name", x: "share", z: "k", order: "k", fill: (p) => color(p.k), inset: 0.5, title: (p) => `${plain(chart.names[p.k])}\n${percent(p.share)}`, tip: true }),
    ],
  });
  place.append(target, legend(chart.names));
  return { draw, columns: ["policy", ...chart.names], rows: chart.rows.map(([name, of]) => [name, ...of]) };
}

const MOST_BARS = 3000;

function slots(place, chart, id) {
  const overview = el("div", { class: "wide" });
  const window_ = el("div", { class: "wide" });
  const told = el("p", { class: "says", role: "status" });
  const servers = new Set(chart.lanes.map((lane) => lane.server));
  const names = chart.lanes.map((lane) => `${servers.size > 1 ? `${plain(lane.server).replace(/^https?:\/\//, "")} ` : ""}${plain(lane.model)} ${lane.number}`);
  const short = (name) => (name.length > 24 ? `…${name.slice(-23)}` : name);
  const parts = chart.lanes[0].busy.length;
  let length = Math.min(chart.span_s, Math.max(chart.span_s / 200, (chart.span_s * 60 * chart.lanes.length) / chart.count / 8));
  let from = (chart.span_s - length) / 3;
  const margin = Math.min(150, 16 + 6.4 * d3.max(names, (name) => short(name).length));

  const drawOverview = () => {
    const bins = chart.lanes.flatMap((lane, k) => lane.busy.map((busy, bin) => ({ name: names[k], busy, from: (bin * chart.span_s) / parts, to: ((bin + 1) * chart.span_s) / parts })));
    plot(overview, "How busy each lane was over the whole run", {
      width: Math.max(320, overview.clientWidth), height: 46 + chart.lanes.length * 15, marginLeft: margin,
      x: { label: "seconds", domain: [0, chart.span_s] }, y: { label: null, domain: names, tickSize: 0, tickFormat: short },
      marks: [
        Plot.barX(bins.filter((bin) => bin.busy), { y: "name", x1: "from", x2: "to", fill: "var(--c2)", fillOpacity: (bin) => 0.12 + 0.88 * bin.busy, inset: 0, insetTop: 1, insetBottom: 1 }),
        chart.is_whole ? Plot.ruleX([from, Math.min(chart.span_s, from + length)], { stroke: "var(--accent)", strokeWidth: 1.5 }) : null,
      ],
    });
  };
  const drawWindow = () => {
    const until = from + length;
    const found = chart.lanes.flatMap((lane, k) => lane.calls.filter(([begin, lasted]) => begin < until && begin + lasted > from).map(([begin, lasted]) => ({ name: names[k], begin: Math.max(from, begin), end: Math.min(until, begin + lasted), lasted, model: chart.models.indexOf(lane.model) })));
    const shown = found.slice(0, MOST_BARS);
    told.textContent = `${found.length} calls from ${from.toFixed(2)} s to ${until.toFixed(2)} s` + (found.length > MOST_BARS ? `; ${MOST_BARS} are drawn: zoom in` : "");
    plot(window_, `Each call from ${from.toFixed(2)} to ${until.toFixed(2)} seconds`, {
      width: Math.max(320, window_.clientWidth), height: 46 + chart.lanes.length * 20, marginLeft: margin,
      x: { label: "seconds", domain: [from, until] }, y: { label: null, domain: names, tickSize: 0, tickFormat: short },
      marks: [
        Plot.ruleY(names, { stroke: "var(--line)" }),
        Plot.barX(shown, { y: "name", x1: "begin", x2: "end", fill: (b) => color(b.model), insetTop: 3, insetBottom: 3, insetLeft: 0.4, insetRight: 0.4, title: (b) => `${plain(chart.models[b.model])}\n${(1000 * b.lasted).toFixed(1)} ms`, tip: true }),
      ],
    });
  };
  const draw = () => {
    slide.setAttribute("aria-valuetext", `${from.toFixed(2)} s to ${(from + length).toFixed(2)} s`);
    drawOverview();
    if (chart.is_whole) drawWindow();
  };
  const zoom = (factor) => { length = Math.min(chart.span_s, Math.max(chart.span_s / 2000, length * factor)); from = Math.min(from, chart.span_s - length); slide.value = (1000 * from) / Math.max(1e-9, chart.span_s - length); draw(); };
  const slide = el("input", { type: "range", min: 0, max: 1000, value: 333, id: `${id}-from`, oninput: (event) => { from = (event.target.value / 1000) * (chart.span_s - length); draw(); } });
  place.append(overview);
  if (chart.is_whole) place.append(
    el("div", { class: "controls" }, el("label", { for: `${id}-from` }, "From"), slide, el("button", { type: "button", onclick: () => zoom(0.5) }, "Zoom in"), el("button", { type: "button", onclick: () => zoom(2) }, "Zoom out")),
    window_, legend(chart.models), told,
  );
  return { draw, columns: ["lane", "busy share"], rows: chart.lanes.map((lane, k) => [names[k], d3.mean(lane.busy)]) };
}

function lineage(place, chart) {
  const target = el("div", { class: "wide" });
  const births = chart.births.map((birth, k) => ({ ...birth, k }));
  const path = ancestry(births, chart.best);
  const strong = new Set(path.map((birth) => birth.k));
  const scored = births.filter((birth) => birth.fitness !== null);
  const links = scored.flatMap((birth) => birth.parents.map((k) => births[k]).filter((parent) => parent.fitness !== null).map((parent) => ({ parent, birth, strong: strong.has(birth.k) && strong.has(parent.k) })));
  const line = (some, options) => Plot.link(some, { x1: (l) => l.parent.generation, y1: (l) => l.parent.fitness, x2: (l) => l.birth.generation, y2: (l) => l.birth.fitness, ...options });
  const draw = () => plot(target, chart.title, {
    width: Math.max(320, target.clientWidth), height: 320, marginLeft: 46,
    x: { label: "generation", ticks: d3.max(births, (b) => b.generation) < 15 ? d3.range(d3.max(births, (b) => b.generation) + 1) : 10, tickFormat: "d", inset: 8 },
    y: { label: "fitness", grid: true, inset: 6 },
    marks: [
      line(links.filter((l) => !l.strong), { stroke: "var(--soft)", strokeOpacity: 0.35 }),
      line(links.filter((l) => l.strong), { stroke: "var(--c1)", strokeWidth: 2.4 }),
      Plot.dot(scored, { x: "generation", y: "fitness", r: (b) => (strong.has(b.k) ? 5 : 3.2), fill: (b) => (strong.has(b.k) ? "var(--c1)" : b.stopped ? "var(--paper)" : "var(--c0)"), stroke: (b) => (strong.has(b.k) ? "var(--c1)" : "var(--c0)") }),
      Plot.tip(scored, Plot.pointer({ x: "generation", y: "fitness", title: (b) => `${b.steps.join(", ") || "seed"}${b.stopped ? " (stopped early)" : ""}\n${plain(b.prompt).slice(0, 240)}` })),
    ],
  });
  const steps = path.map((birth, k) => el("li", {},
    el("strong", {}, `Generation ${birth.generation}`), `, ${plain(birth.steps.join(", ")) || "a seed"}, fitness ${birth.fitness === null ? "–" : birth.fitness.toFixed(3)}`,
    k ? diffBox(`What changed in step ${k + 1}`, path[k - 1].prompt, birth.prompt) : textBox("The seed", visible(birth.prompt))));
  place.append(target, el("h4", {}, "How the best prompt came about"), el("ol", { class: "ancestry" }, ...steps));
  return { draw, columns: ["birth", "generation", "parents", "steps", "fitness", "stopped", "prompt"], rows: births.map((b) => [b.k, b.generation, b.parents.join(", "), b.steps.join(", "), b.fitness, b.stopped, b.prompt]) };
}

/** From a seed to the best prompt, by the fitter parent each time. */
function ancestry(births, best) {
  let birth = births.filter((b) => b.prompt === best).sort((a, b) => a.k - b.k)[0];
  const path = [];
  while (birth) {
    path.unshift(birth);
    birth = birth.parents.map((k) => births[k]).sort((a, b) => (b.fitness ?? 0) - (a.fitness ?? 0))[0];
  }
  return path;
}

const KINDS = { curves, shares, heat, forest, bars, slots, lineage };
