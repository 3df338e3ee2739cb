// The browser of transitions: search, filters, pages of results, and one transition whole.
"use strict";

const PAGE = 25;
const FILTERS = { outcome: "Outcome", category: "Category", mutator: "Mutator", lane: "Lane", mission: "Mission", team: "Policy", guard: "Guard queries" };
const ALL = "\u0000";

function stepsBrowser(section, data) {
  const { columns, texts } = data;
  const count = columns.lane.length;
  const number = d3.format(",");
  const text = (name, k) => texts[columns[name][k]];
  const value = (name, k) => (name === "lane" ? String(columns.lane[k]) : text(name, k));
  const episode = (k) => ["mission", "team", "lane", "episode_number"].map((name) => columns[name][k]).join();
  const byEpisode = d3.group(d3.range(count), episode);
  let [found, page, current, timer] = [[], 0, -1, 0];

  const soon = () => { clearTimeout(timer); timer = setTimeout(filter, 120); };
  const search = el("input", { type: "search", placeholder: "in queries, rewordings and replies", oninput: soon });
  const selects = Object.entries(FILTERS).map(([name, title]) => {
    const counts = d3.rollups(d3.range(count), (each) => each.length, (k) => value(name, k));
    counts.sort((a, b) => (name === "lane" ? a[0] - b[0] : b[1] - a[1]));
    const options = counts.map(([each, n]) => el("option", { value: each }, `${plain(each) || "none"} (${n})`));
    return { name, title, select: el("select", { onchange: filter }, el("option", { value: ALL }, "all"), ...options) };
  }).filter(({ select }) => select.options.length > 2);
  const result = el("p", { class: "hint", role: "status", "aria-live": "polite" });
  const body = el("tbody");
  const turn = (by) => () => { page += by; list(); };
  const earlier = el("button", { type: "button", onclick: turn(-1) }, "Previous");
  const later = el("button", { type: "button", onclick: turn(1) }, "Next");
  const where = el("span");
  const opened = el("p", { class: "unseen", role: "status", "aria-live": "polite" });
  const detail = el("div", { class: "detail", role: "region", "aria-label": "Transition", tabindex: "-1" });
  const heads = ["#", "mutator", "outcome", "reward", "query"].map((name) => el("th", { scope: "col", class: name === "reward" && "number" }, name));
  const key = (name) => el("span", {}, el("kbd", {}, name), " ");
  const filters = selects.map(({ title, select }) => el("label", {}, title, select));
  section.append(
    el("div", { class: "filters" }, el("label", { class: "search" }, "Search", search), ...filters),
    result,
    el("div", { class: "browser" },
      el("div", { class: "listing" },
        el("table", {}, el("caption", {}, "Results"), el("thead", {}, el("tr", {}, ...heads)), body),
        el("div", { class: "pager" }, earlier, where, later),
        el("p", { class: "hint" }, key("j"), key("k"), "next and previous result, ", key("←"), key("→"), "step by step through the episode")),
      detail),
    opened,
  );
  section.addEventListener("keydown", (event) => {
    const steps = current < 0 ? [] : byEpisode.get(episode(current));
    const move = { j: [found, 1], k: [found, -1], ArrowRight: [steps, 1], ArrowLeft: [steps, -1] }[event.key];
    if (!move || event.ctrlKey || event.altKey || event.metaKey || event.target.closest("input, select")) return;
    event.preventDefault();
    const [among, by] = move;
    const next = among[among.indexOf(current) + by];
    if (next !== undefined) go(next);
  });
  filter();

  function filter() {
    const words = search.value.toLowerCase();
    const matching = words ? texts.map((each) => each.toLowerCase().includes(words)) : null;
    const matches = (k) => !matching || ["original_query", "mutated_query", "reply"].some((name) => matching[columns[name][k]]);
    found = d3.range(count).filter((k) => selects.every(({ name, select }) => [ALL, value(name, k)].includes(select.value)) && matches(k));
    page = 0;
    const episodes = number(new Set(found.map(episode)).size);
    result.textContent = `${number(found.length)} of ${number(count)} transitions, in ${episodes} episodes`;
    list();
    if (found.length) open(found[0]);
    else detail.replaceChildren(el("p", {}, "No transition is like that."));
  }

  function list() {
    body.replaceChildren(...found.slice(page * PAGE, (page + 1) * PAGE).map((k) => {
      const [mutator, outcome] = [plain(text("mutator", k)), text("outcome", k)];
      const click = () => {
        go(k);
        if (detail.getBoundingClientRect().top > innerHeight * 0.7) detail.scrollIntoView(); // below the results
      };
      const label = `Transition ${data.first_line + k}: ${mutator}, ${outcome}`;
      return el("tr", { "data-place": k, onclick: click },
        el("th", { scope: "row" }, el("button", { type: "button", "aria-label": label }, String(data.first_line + k))),
        el("td", {}, mutator),
        el("td", { class: outcome.split(" ")[0] }, outcome),
        el("td", { class: "number" }, columns.unscored[k] ? "–" : fixed(columns.reward[k], 2)),
        el("td", {}, el("bdi", {}, plain(text("original_query", k)).slice(0, 90))));
    }));
    const pages = Math.max(1, Math.ceil(found.length / PAGE));
    where.textContent = `page ${page + 1} of ${pages}`;
    earlier.disabled = page === 0;
    later.disabled = page + 1 >= pages;
    mark();
  }

  function mark() {
    for (const row of body.rows) row.ariaCurrent = Number(row.dataset.place) === current ? "true" : null;
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

  /** Where the rest of a text is that is too long for the page. */
  function cutNote(name, k) {
    const length = data.cut[columns[name][k]];
    if (!length) return "";
    const link = el("a", { href: data.href }, "transitions.jsonl");
    return el("p", { class: "cut" }, `cut: ${number(length)} characters, line ${data.first_line + k} of `, link);
  }

  function open(k) {
    current = k;
    mark();
    const [original, before, after] = ["original_query", "query_before", "mutated_query"].map((name) => text(name, k));
    const [mutator, outcome] = [plain(text("mutator", k)), text("outcome", k)];
    const at = `Lane ${columns.lane[k]}, episode ${columns.episode_number[k] + 1}: step ${stepNumber(k)} (row ${columns.row[k]})`;
    const facts = [
      ["outcome", outcome + (columns.success[k] ? ", success" : "")],
      ["reward", columns.unscored[k] ? "none" : fixed(columns.reward[k], 3)],
      ["rewording", columns.adopted[k] ? "adopted" : `not adopted: ${plain(text("rejected", k)) || "unknown"}`],
      ["similarity to the original", fixed(columns.intent_similarity[k], 3)],
      ["tokens read, written", `${columns.prompt_tokens[k]}, ${columns.completion_tokens[k]}`],
      ["category", plain(text("category", k)) || "–"],
      ["guard query", text("guard", k)],
      ["mission", plain(text("mission", k))],
      ["policy", plain(text("team", k))],
      ["error", plain(text("error", k))],
    ].filter(([, each]) => each !== "");
    const steps = byEpisode.get(episode(k)).map((each) => {
      const its = text("outcome", each);
      const label = `${stepNumber(each)} ${plain(text("mutator", each))} `;
      const open = { type: "button", "aria-current": each === k ? "step" : null, onclick: () => go(each) };
      return el("li", {}, el("button", open, label, el("span", { class: its.split(" ")[0] }, its)));
    });
    const parts = Object.entries(JSON.parse(text("reward_parts", k))).map(([name, each]) =>
      el("tr", {}, el("th", { scope: "row" }, plain(name)), el("td", { class: "number" }, fixed(each, 4))));
    const box = (title, label, name, nodes) => [el("h4", {}, title), textBox(label, nodes, cutNote(name, k))];
    detail.replaceChildren(
      el("h4", {}, at),
      el("ol", { class: "episode", "aria-label": "Steps of the episode" }, ...steps),
      el("dl", { class: "facts" }, ...facts.map(([name, each]) => el("div", {}, el("dt", {}, name), el("dd", {}, el("bdi", {}, each))))),
      cutNote("error", k),
      ...box("From the original query to the rewording", "The rewording, compared with the original", "mutated_query", diff(original, after)),
      ...(before === original ? [] : box("The query before this step", "The query before this step", "query_before", visible(before))),
      ...box(`Reply${columns.reply_truncated[k] ? ", cut off by the server" : ""}`, "Reply", "reply", visible(text("reply", k) || "(empty)")),
      ...(parts.length ? [el("h4", {}, "The reward's parts"), el("table", { class: "mini" }, el("tbody", {}, ...parts))] : []),
    );
    detail.scrollTop = 0;
    opened.textContent = `${at}: ${mutator}, ${outcome}`;
  }
}
