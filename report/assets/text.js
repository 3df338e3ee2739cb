// Elements, and text of others put into them: as text, never as markup.
"use strict";

/** An element; attributes of `on…` are listeners, children are nodes or text. */
function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const CONTROLS = /(?:(?![\n\t])[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}])+/gu;

/** How characters without a shape are written: \x1b, \u202e. */
function escaped(text) {
  return Array.from(text, (character) => {
    const code = character.codePointAt(0);
    if (code < 0x100) return "\\x" + code.toString(16).padStart(2, "0");
    return code < 0x10000 ? "\\u" + code.toString(16).padStart(4, "0") : "\\U" + code.toString(16).padStart(8, "0");
  }).join("");
}

/** A number with so many digits and a true minus; a dash for null. */
function fixed(number, digits) {
  return number === null ? "\u2013" : number.toFixed(digits).replace("-", "\u2212");
}

/** The text in one line, for a label. */
function plain(text) {
  return text.replaceAll(/\s+/g, " ").replace(CONTROLS, escaped);
}

/** Nodes that show the text whole, with what has no shape, or turns the direction of writing, made visible. */
function visible(text) {
  const nodes = document.createDocumentFragment();
  let done = 0;
  const shown = text.replaceAll("\r\n", "\n");
  for (const found of shown.matchAll(CONTROLS)) {
    nodes.append(shown.slice(done, found.index));
    nodes.append(el("span", { class: "control" }, escaped(found[0])));
    done = found.index + found[0].length;
  }
  nodes.append(shown.slice(done));
  return nodes;
}

/** A box that shows a text whole. */
function textBox(label, ...nodes) {
  return el("div", { class: "text", dir: "auto", tabindex: "0", role: "region", "aria-label": label }, ...nodes);
}

const MOST_COMPARED = 4_000_000;

/** Words that two texts share, and those that one has: [kind, text], kind one of "=", "-" and "+"; null: too long. */
function wordDiff(before, after) {
  const a = before.match(/\s+|[^\s]+/gu) ?? [];
  const b = after.match(/\s+|[^\s]+/gu) ?? [];
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  const [left, right] = [a.slice(start, a.length - end), b.slice(start, b.length - end)];
  if (left.length * right.length > MOST_COMPARED) return null;
  const middle = longestShared(left, right);
  return joined([...a.slice(0, start).map((w) => ["=", w]), ...middle, ...a.slice(a.length - end).map((w) => ["=", w])]);
}

/** By the longest common subsequence. */
function longestShared(a, b) {
  const width = b.length + 1;
  const lengths = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      lengths[i * width + j] =
        a[i] === b[j] ? lengths[(i + 1) * width + j + 1] + 1 : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
  const found = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) found.push(["=", a[i++], j++]);
    else if (j >= b.length || (i < a.length && lengths[(i + 1) * width + j] >= lengths[i * width + j + 1])) found.push(["-", a[i++]]);
    else found.push(["+", b[j++]]);
  }
  return found;
}

/** Changes side by side, what was there before what came; blanks alone between changes are changed, too. */
function joined(parts) {
  const found = [];
  let [removed, added] = ["", ""];
  const flush = () => {
    if (removed) found.push(["-", removed]);
    if (added) found.push(["+", added]);
    [removed, added] = ["", ""];
  };
  parts.forEach(([kind, text], k) => {
    const isBetween = kind === "=" && (removed || added) && /^\s+$/.test(text) && k + 1 < parts.length && parts[k + 1][0] !== "=";
    if (kind === "-" || isBetween) removed += text;
    if (kind === "+" || isBetween) added += text;
    if (kind !== "=" || isBetween) return;
    flush();
    if (found.at(-1)?.[0] === "=") found.at(-1)[1] += text;
    else found.push(["=", text]);
  });
  flush();
  return found;
}

/** A box that shows what became of a text; where it is too long to compare, the new one. */
function diffBox(label, before, after) {
  const parts = wordDiff(before, after);
  if (parts === null) return textBox(label, el("em", {}, "Too long to be compared; this is the new text:"), "\n", visible(after));
  const tags = { "=": "span", "-": "del", "+": "ins" };
  return textBox(label, ...parts.map(([kind, text]) => el(tags[kind], {}, visible(text))));
}

/** A table of texts and numbers; long ones are cut, and say so. */
function dataTable(caption, columns, rows, most = 500) {
  const cell = (value) => (typeof value === "number" ? String(Math.round(value * 1e4) / 1e4) : value == null ? "–" : plain(String(value)));
  const head = el("tr", {}, ...columns.map((name) => el("th", { scope: "col" }, plain(name))));
  const body = rows.slice(0, most).map((row) =>
    el("tr", {}, ...row.map((value, k) => (k ? el("td", {}, cell(value)) : el("th", { scope: "row" }, cell(value))))),
  );
  const told = rows.length > most ? `${caption}: the first ${most} of ${rows.length} rows` : caption;
  return el("table", { class: "mini" }, el("caption", {}, plain(told)), el("thead", {}, head), el("tbody", {}, ...body));
}
