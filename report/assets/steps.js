// The browser of transitions: search, filters, pages of results, and one transition whole.
"use strict";

const PAGE = 25;
const FILTERS = [["outcome", "Outcome"], ["category", "Category"], ["mutator", "Mutator"], ["lane", "Lane"], ["mission", "Mission"], ["team", "Policy"], ["guard", "Queries"]];
const QUERIES = ["to be answered", "guard: to be refused"];

function stepsBrowser(section, data, id) {
  const { columns, texts } = data;
  const count = columns.lane.length;
  const text = (name, k) => texts[columns[name][k]];
  const has = (name, k) => Boolean((columns.flags[k] >> data.truths.indexOf(name)) & 1);
  const values = { lane: (k) => String(columns.lane[k]), guard: (k) => QUERIES[Number(has("guard", k))] };
  const value = (name, k) => values[name]?.(k) ?? text(name, k);
  const byEpisode = d3.group(d3.range(count), (k) => columns.episode[k]);
  let found = d3.range(count);
  let page = 0;
  let current = -1;

  const search = el("input", { type: "search", placeholder: "in queries, rewordings and replies", oninput: debounced(filter) });
  const selects = FILTERS.map(([name, title]) => [name, title, choices(name)]).filter(([, , values]) => values.length > 1).map(([name, title, values]) => {
    const options = values.map(([each, n]) => el("option", { value: each }, `${plain(each) || "none"} (${n})`));
    return [name, title, el("select", { onchange: filter }, el("option", { value: "\u0000" }, "all"), ...options)];
  });
  const told = el("p", { class: "hint", role: "status", "aria-live": "polite" });
  const body = el("tbody");
  const [earlier, later] = [el("button", { type: "button", onclick: () => turn(-1) }, "Previous"), el("button", { type: "button", onclick: () => turn(1) }, "Next")];
  const where = el("span");
  const opened = el("p", { class: "unseen", role: "status", "aria-live": "polite" });
  const detail = el("div", { class: "detail", role: "region", "aria-label": "Transition", tabindex: "-1" });
  const heads = [["#", "12%"], ["mutator", "27%"], ["outcome", "21%"], ["reward", "13%"], ["query", "", "less"]];

  section.append(
    el("div", { class: "filters" }, el("label", { class: "search" }, "Search", search), ...selects.map(([, title, select]) => el("label", {}, title, select))),
    told,
    el("div", { class: "browser" },
      el("div", { class: "listing" },
        el("table", {},
          el("caption", {}, "Results"),
          el("thead", {}, el("tr", {}, ...heads.map(([name, width, kind]) => sized(el("th", { scope: "col", class: kind ?? (name === "reward" && "number") }, name), width)))),
          body),
        el("div", { class: "pager" }, earlier, where, later),
        el("p", { class: "hint" }, el("kbd", {}, "j"), " ", el("kbd", {}, "k"), " next and previous result, ", el("kbd", {}, "←"), " ", el("kbd", {}, "→"), " step by step through the episode")),
      detail),
    opened,
  );
  section.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target.closest("input, select")) return;
    const move = { j: () => along(1), k: () => along(-1), ArrowRight: () => through(1), ArrowLeft: () => through(-1) }[event.key];
    if (move) { event.preventDefault(); move(); }
  });
  filter();

  function choices(name) {
    const counts = d3.rollup(d3.range(count), (each) => each.length, (k) => value(name, k));
    const sorted = [...counts].sort((a, b) => (name === "lane" ? a[0] - b[0] : b[1] - a[1]));
    return sorted;
  }

  function filter() {
    const wanted = selects.map(([name, , select]) => [name, select.value]).filter(([, each]) => each !== "\u0000");
    const words = search.value.toLowerCase();
    const matching = words ? texts.map((each) => each.toLowerCase().includes(words)) : null;
    const matches = (k) => !matching || ["original_query", "mutated_query", "reply"].some((name) => matching[columns[name][k]]);
    found = d3.range(count).filter((k) => wanted.every(([name, each]) => value(name, k) === each) && matches(k));
    page = 0;
    const episodes = new Set(found.map((k) => columns.episode[k])).size;
    told.textContent = `${d3.format(",")(found.length)} of ${d3.format(",")(count)} transitions, in ${d3.format(",")(episodes)} episodes`;
    list();
    found.length ? open(found[0]) : detail.replaceChildren(el("p", {}, "No transition is like that."));
  }

  function list() {
    const shown = found.slice(page * PAGE, (page + 1) * PAGE);
    body.replaceChildren(...shown.map((k) => {
      const outcome = text("outcome", k);
      const label = `Transition ${k + 1}: ${plain(text("mutator", k))}, ${outcome}`;
      return el("tr", { "data-place": k, onclick: () => { go(k); reveal(); } },
        el("th", { scope: "row" }, el("button", { type: "button", "aria-label": label }, String(k + 1))),
        el("td", {}, plain(text("mutator", k))),
        el("td", { class: outcome.split(" ")[0] }, outcome),
        el("td", { class: "number" }, has("unscored", k) ? "–" : fixed(columns.reward[k], 2)),
        el("td", { class: "less" }, el("bdi", {}, plain(text("original_query", k)).slice(0, 90))));
    }));
    const pages = Math.max(1, Math.ceil(found.length / PAGE));
    where.textContent = `page ${page + 1} of ${pages}`;
    earlier.disabled = page === 0;
    later.disabled = page + 1 >= pages;
    mark();
  }

  /** Where the transition stands below the results, go there. */
  function reveal() {
    if (detail.getBoundingClientRect().top > innerHeight * 0.7) detail.scrollIntoView();
  }

  function turn(by) { page += by; list(); }

  function mark() {
    for (const row of body.rows) {
      if (Number(row.dataset.place) === current) row.setAttribute("aria-current", "true");
      else row.removeAttribute("aria-current");
    }
  }

  function along(by) {
    const next = found[found.indexOf(current) + by];
    if (next !== undefined) go(next);
  }

  function through(by) {
    const steps = byEpisode.get(columns.episode[current]) ?? [];
    const next = steps[steps.indexOf(current) + by];
    if (next !== undefined) go(next);
  }

  /** Open one, on its page, and stay where keys step on: what had the focus may be gone. */
  function go(k) {
    const its = Math.floor(found.indexOf(k) / PAGE);
    if (its >= 0 && its !== page) { page = its; list(); }
    open(k);
    if (!section.contains(document.activeElement)) detail.focus({ preventScroll: true });
  }

  /** `3`, or `3, attempt 2` where the first came to nothing. */
  function stepNumber(k) {
    const attempt = columns.attempt[k];
    return `${columns.step_number[k] + 1}${attempt ? `, attempt ${attempt + 1}` : ""}`;
  }

  function open(k) {
    current = k;
    mark();
    const steps = byEpisode.get(columns.episode[k]);
    const [original, before, after] = ["original_query", "query_before", "mutated_query"].map((name) => text(name, k));
    const outcome = text("outcome", k);
    const number = (name, digits) => fixed(columns[name][k], digits);
    const at = `Lane ${columns.lane[k]}, episode ${columns.episode_number[k] + 1}: step ${stepNumber(k)} (row ${columns.row[k]})`;
    const told = [
      ["outcome", outcome + (has("success", k) ? ", success" : "")], ["reward", has("unscored", k) ? "none" : number("reward", 3)],
      ["rewording", has("adopted", k) ? "adopted" : `not adopted: ${plain(text("rejected", k)) || "unknown"}`], ["similarity to the original", number("intent_similarity", 3)],
      ["tokens read, written", `${columns.prompt_tokens[k]}, ${columns.completion_tokens[k]}`], ["category", plain(text("category", k)) || "–"],
      ["query", has("guard", k) ? QUERIES[1] : ""], ["mission", plain(text("mission", k))], ["policy", plain(text("team", k))], ["error", plain(text("error", k))],
    ].filter(([, each]) => each !== "");
    const parts = Object.entries(data.reward_parts[columns.parts[k]]);
    detail.replaceChildren(
      el("h4", {}, at),
      el("ol", { class: "episode", "aria-label": "Steps of the episode" }, ...steps.map((each) =>
        el("li", {}, el("button", { type: "button", "aria-current": each === k ? "step" : null, onclick: () => go(each) }, `${stepNumber(each)} ${plain(text("mutator", each))} `, el("span", { class: text("outcome", each).split(" ")[0] }, text("outcome", each)))))),
      el("dl", { class: "facts" }, ...told.map(([name, each]) => el("div", {}, el("dt", {}, name), el("dd", {}, el("bdi", {}, each))))),
      el("h4", {}, "From the original query to the rewording"), diffBox("The rewording, compared with the original", original, after),
      ...(before === original ? [] : [el("h4", {}, "The query before this step"), textBox("The query before this step", visible(before))]),
      el("h4", {}, `Reply${has("reply_truncated", k) ? ", cut off" : ""}`), textBox("Reply", visible(text("reply", k) || "(empty)")),
      ...(parts.length ? [el("h4", {}, "The reward's parts"), el("table", { class: "mini" }, el("tbody", {}, ...parts.map(([name, each]) => el("tr", {}, el("th", { scope: "row" }, plain(name)), el("td", { class: "number" }, fixed(each, 4))))))] : []),
    );
    detail.scrollTop = 0;
    opened.textContent = `${at}: ${plain(text("mutator", k))}, ${outcome}`;
  }
}

function sized(element, width) {
  if (width) element.style.width = width;
  return element;
}

function debounced(action) {
  let timer = 0;
  return () => { clearTimeout(timer); timer = setTimeout(action, 120); };
}
