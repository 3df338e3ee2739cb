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

const CONTROLS = /((?:(?![\n\t])[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}])+)/gu;

/** How characters without a shape are written: \x1b, \u202e. */
function escaped(text) {
  return Array.from(text, (character) => {
    const code = character.codePointAt(0);
    const [mark, digits] = code < 0x100 ? ["x", 2] : code < 0x10000 ? ["u", 4] : ["U", 8];
    return `\\${mark}${code.toString(16).padStart(digits, "0")}`;
  }).join("");
}

/** A number with so many digits and a true minus; a dash for null. */
function fixed(number, digits) {
  return number === null ? "\u2013" : number.toFixed(digits).replace("-", "\u2212");
}

/** The text in one line, for a label. */
function plain(text) {
  return String(text).replaceAll(/\s+/g, " ").replace(CONTROLS, escaped);
}

/** Nodes that show the text whole, with what has no shape, or turns the direction of writing, made visible. */
function visible(text) {
  const nodes = document.createDocumentFragment();
  const parts = text.replaceAll("\r\n", "\n").split(CONTROLS);
  nodes.append(...parts.map((part, k) => (k % 2 ? el("span", { class: "control" }, escaped(part)) : part)));
  return nodes;
}

/** A box that shows a text whole. */
function textBox(label, ...nodes) {
  return el("div", { class: "text", dir: "auto", tabindex: "0", role: "region", "aria-label": label }, ...nodes);
}

const MOST_COMPARED = 4_000_000;

/** Nodes that show what became of a text, word by word. */
function diff(before, after) {
  const [a, b] = [before, after].map((text) => text.match(/\s*\S+|\s+$/gu) ?? []);
  if (a.length * b.length > MOST_COMPARED) return visible(after);
  const nodes = document.createDocumentFragment();
  const add = (tag, word) => nodes.append(el(tag, {}, visible(word)));
  const shared = longestShared(a, b);
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i].trim() === b[j].trim()) {
      add("span", b[j++]);
      i++;
    } else if (j >= b.length || (i < a.length && shared(i + 1, j) >= shared(i, j + 1))) add("del", a[i++]);
    else add("ins", b[j++]);
  }
  return nodes;
}

/** How many words two lists have in common, in order, behind the places i and j: a function of both. */
function longestShared(a, b) {
  const width = b.length + 1;
  const lengths = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--) {
      const at = i * width + j;
      const longer = Math.max(lengths[at + width], lengths[at + 1]);
      lengths[at] = a[i].trim() === b[j].trim() ? lengths[at + width + 1] + 1 : longer;
    }
  return (i, j) => lengths[i * width + j];
}

/** A table of texts and numbers; of many rows the first ones. */
function dataTable({ title, columns, rows }, most = 500) {
  const cell = (value) => (typeof value === "number" ? String(Math.round(value * 1e4) / 1e4) : plain(value ?? "–"));
  const line = (tag, values) => el("tr", {}, ...values.map((value, k) => el(k ? tag : "th", {}, cell(value))));
  const caption = rows.length > most ? `${title}: the first ${most} of ${rows.length} rows` : title;
  return el("table", { class: "mini" },
    el("caption", {}, plain(caption)),
    el("thead", {}, line("th", columns)),
    el("tbody", {}, ...rows.slice(0, most).map((row) => line("td", row))));
}
