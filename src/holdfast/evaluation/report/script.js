// The page: overview, filters, the list, and the conversation that is open.
const [TASK, SAMPLE, STATUS, SCORE, TURNS, TOKENS, SECONDS, DISTURBED, CAUSE, REASON, METRICS, SETTLED, INPUT, TARGET, ANSWER] = Array(15).keys();
const INDEX = block("index");
const ROWS = INDEX.rows, SUMMARY = INDEX.summary;
const BATCH = 150, SLICE = 14;
const at = (name) => document.getElementById(name);
const many = (number, what) => `${short(number)} ${what}${number === 1 ? "" : "s"}`;
const nameOf = (row) => `${row[TASK]}/${row[SAMPLE]}`;
const page = { found: [], drawn: 0, open: -1, tokens: false, plain: false, query: "", asked: 0 };
const KINDS = { FAILED: "bad", TRUNCATED: "warn" };

// --- overview

function drawTop() {
  const passed = SUMMARY.passed, [value, ...rest] = INDEX.score.split(" ");
  const when = SUMMARY.timestamp ? new Date(SUMMARY.timestamp * 1000).toISOString().slice(0, 16).replace("T", " ") + " UTC" : "";
  const sampling = Object.entries(INDEX.sampling || {}).map(([name, one]) => `${name} ${typeof one === "object" ? JSON.stringify(one) : one}`);
  const facts = [SUMMARY.model && `model ${SUMMARY.model}`, ...sampling, when, SUMMARY.journal].filter(Boolean).join(" · ");
  const score = SUMMARY.agg_score == null ? [element("strong", null, "no score")]
    : [element("strong", null, value), element("p", null, rest.join(" ").replace(/^[,\s]+/, ""))];
  at("top").append(
    element("div", { class: "name" }, element("h1", null, SUMMARY.run), element("p", null, facts),
      passed == null ? "" : element("p", null, element("span", { class: `badge ${passed ? "good" : "bad"}` }, passed ? "passed" : "failed"), ` ${SUMMARY.reason}`)),
    element("div", { class: "score" }, ...score),
    element("button", { id: "theme", type: "button", click: turnLight, title: "dark or light (d)" }, "◐"),
  );
}

function card(title, wide, ...inside) {
  return element("section", { class: wide ? "card wide" : "card" }, element("h2", null, title), ...inside);
}

function table(pairs) {
  return element("table", null, element("tbody", null, pairs.map(([name, value]) => element("tr", null, element("td", null, name), element("td", null, value)))));
}

function counted(name, number, parts) {
  const told = Object.entries(parts || {}).map(([what, total]) => [`· ${what}`, short(total)]);
  return number ? [[name, short(number)], ...told] : [];
}

function estimate(one) {
  return !one.standard_error ? `${short(one.value)} (n=${one.rows})` : `${short(one.value)} ± ${short(one.standard_error, 2)} (n=${one.rows})`;
}

function usageText(used) {
  const part = (number, what) => (number ? ` (${short(number)} ${what})` : "");
  return `${short(used.prompt_tokens)} of prompts${part(used.cached_tokens, "cached")}, ${short(used.completion_tokens)} of replies${part(used.reasoning_tokens, "reasoning")}`;
}

function costText(cost) {
  const missing = cost.unpriced.length ? `, without ${cost.unpriced.join(", ")}: no price` : "";
  return `${short(cost.amount, 6)} ${cost.currency}${missing}`;
}

function drawOverview() {
  const scores = ROWS.map((row) => row[SCORE]).filter((score) => score != null);
  if (INDEX.unlisted) at("overview").append(element("p", { class: "card wide" }, `The run is large: ${short(ROWS.length)} of its ${short(SUMMARY.rows)} rows are in this file, those of failures, the slowest, and others evenly spread. Charts are drawn from them; other numbers are of all rows.`));
  const cards = [card("Rows", false, table([
    ["tasks × samples", `${short(SUMMARY.tasks)} × ${short(SUMMARY.samples)}`],
    ["scored", `${short(SUMMARY.scored)} of ${short(SUMMARY.rows)}`],
    ...counted("truncated by the policy", SUMMARY.truncated, SUMMARY.truncated_by_reason),
    ...counted("failed for good", SUMMARY.failed, SUMMARY.failed_by_cause),
    ...counted("without a score", SUMMARY.unscored), ...counted("not settled yet", SUMMARY.unsettled),
    ...counted("refills", INDEX.refills),
    ["turns, sampled tokens", `${short(SUMMARY.turns)}, ${short(SUMMARY.sampled_tokens)}`],
    ...Object.entries(SUMMARY.usage).map(([model, used]) => [`· tokens of ${model}`, usageText(used)]),
    ...(SUMMARY.cost ? [["cost", costText(SUMMARY.cost)]] : []),
  ]))];
  if (scores.length) cards.push(card("Scores", false, histogram(scores, "Scores", pickScores)));
  cards.push(...INDEX.training.flatMap(drawTraining), ...numbers());
  for (const [title, column] of [["Sampled tokens per row", TOKENS], ["Seconds per row", SECONDS]]) {
    const values = ROWS.map((row) => row[column]).filter((value) => value > 0);
    if (values.length > 1) cards.push(card(title, false, histogram(values, title)));
  }
  if (INDEX.slowest.length) {
    cards.push(card("Slowest", false, table(INDEX.slowest.slice(0, 6).map((place) => [
      element("button", { class: "link", type: "button", click: () => reveal(place) }, nameOf(ROWS[place])), `${short(ROWS[place][SECONDS], 3)} s`]))));
  }
  if (INDEX.roots.length) cards.push(card("Failures by root cause", true, ...INDEX.roots.map(drawRoot)));
  at("overview").append(...cards);
}

// What a trainer made of the run, and the learning curve.
function drawTraining(one) {
  const behind = Object.entries(one.staleness), all = behind.reduce((sum, [, rows]) => sum + rows, 0);
  const mean = behind.reduce((sum, [by, rows]) => sum + by * rows, 0) / all;
  const made = [card(`Training (${one.consumer})`, false, table([
    ["steps", short(one.steps)], ["groups trained", short(one.groups.trained)],
    ["groups dismissed", short(one.groups.dismissed)],
    ...Object.entries(one.dismissed).map(([reason, total]) => [`· ${reason}`, short(total)]),
    ["groups open", short(one.groups.open)], ["admission of tasks", one.sealed ? "over" : "open"],
    ...(one.newest ? [["weight versions", short(one.versions)], ["· the newest", one.newest]] : []),
    ...(all ? [["staleness, mean and most", `${short(mean, 3)}, ${short(Math.max(...behind.map(([by]) => +by)))}`]] : []),
  ]))];
  const curves = [["training", one.rewards], ["held out", one.held_out]].filter(([, points]) => points.length);
  if (curves.length) made.push(card("Mean reward by step", true, lineChart(curves, "Mean reward by step")));
  return made;
}

function numbers() {
  const made = [];
  const rates = [...Object.entries(SUMMARY.pass_at || {}).map(([k, value]) => [`pass@${k}`, short(value, 3)]),
    ...Object.entries(SUMMARY.pass_all || {}).filter(([k]) => k !== "1").map(([k, value]) => [`pass^${k}`, short(value, 3)])];
  if (rates.length) made.push(card("Of several samples", false, table(rates)));
  if (SUMMARY.disturbed) {
    made.push(card("Clean against disturbed", false, table([
      ...(SUMMARY.clean ? [["clean", estimate(SUMMARY.clean)]] : []), ["retried or interrupted", estimate(SUMMARY.disturbed)]])));
  }
  const metrics = Object.entries(SUMMARY.metrics_agg || {}).map(([name, one]) => [
    name, !one.standard_error ? short(one.mean) : `${short(one.mean)} ± ${short(one.standard_error, 2)}`]);
  if (metrics.length) made.push(card("Metrics", false, table(metrics)));
  return made;
}

function drawRoot(root) {
  const place = ROWS.findIndex((row) => nameOf(row) === root.example);
  return element("details", { class: "root" },
    element("summary", null, element("span", { class: `badge ${root.permanent ? "bad" : "warn"}` }, `${root.cause}, ${root.phase}`),
      ` ${short(root.failures)} × ${root.message} `, element("span", { class: "soft" }, root.permanent ? `${short(root.permanent)} for good` : "made good by retries")),
    element("p", { class: "soft" }, "for instance ", element("button", { class: "link", type: "button", click: () => reveal(place) }, root.example)),
    element("pre", null, root.traceback));
}

function pickScores(low, high) {
  at("low").value = low;
  at("high").value = high;
  at("browse").scrollIntoView();
  filter();
}

// --- filters

const ONLY = {
  "all rows": () => true,
  "retried or interrupted": (row) => row[DISTURBED] === 1,
  clean: (row) => row[DISTURBED] === 0,
  "without a score": (row) => row[SCORE] == null,
};
const ORDERS = {
  "in order": null,
  "lowest score": (a, b) => (a[SCORE] ?? Infinity) - (b[SCORE] ?? Infinity),
  "highest score": (a, b) => (b[SCORE] ?? -Infinity) - (a[SCORE] ?? -Infinity),
  slowest: (a, b) => b[SECONDS] - a[SECONDS],
  "most tokens": (a, b) => b[TOKENS] - a[TOKENS],
  "most turns": (a, b) => b[TURNS] - a[TURNS],
};

function cheap() {
  const status = at("status").value, only = ONLY[at("only").value];
  const bound = (name) => (at(name).value === "" ? null : Number(at(name).value));
  const low = bound("low"), high = bound("high");
  return (row) => (!status || row[STATUS] === status) && only(row)
    && (low == null || (row[SCORE] != null && row[SCORE] >= low)) && (high == null || (row[SCORE] != null && row[SCORE] <= high));
}

// In slices, so that typing never waits for a search through everything.
async function filter() {
  const mine = ++page.asked, fits = cheap(), query = at("search").value.trim().toLowerCase();
  const inJson = JSON.stringify(query).slice(1, -1).replaceAll("<", "\\u003c");
  const found = [];
  let since = performance.now();
  for (let place = 0; place < ROWS.length; place += 1) {
    if (performance.now() - since > SLICE) {
      await new Promise((resume) => { setTimeout(resume); });
      if (mine !== page.asked) return;
      since = performance.now();
    }
    const row = ROWS[place];
    if (fits(row) && (!query || said(row, place, query, inJson))) found.push(place);
  }
  const order = ORDERS[at("order").value];
  if (order) found.sort((a, b) => order(ROWS[a], ROWS[b]) || a - b);
  page.query = query;
  page.found = found;
  drawList();
  const first = found.includes(page.open) ? page.open : found[0];
  if (first !== undefined) open(first);
  at("count").textContent = `${whole.format(found.length)} of ${whole.format(ROWS.length)} rows`;
}

function said(row, place, query, inJson) {
  if (`${nameOf(row)}\n${row[REASON]}\n${row[CAUSE]}`.toLowerCase().includes(query)) return true;
  const text = at(`c${place}`);
  return text != null && text.textContent.toLowerCase().includes(inJson);
}

// --- the list

const more = new IntersectionObserver((seen) => { if (seen.some((one) => one.isIntersecting)) drawMore(); }, { rootMargin: "600px" });

function drawList() {
  at("list").replaceChildren();
  at("list").scrollTop = 0;
  page.drawn = 0;
  if (!page.found.length) at("list").append(element("p", { class: "empty" }, "No row is like that."));
  drawMore();
}

function drawMore() {
  more.disconnect();
  const grouped = SUMMARY.samples > 1 && !ORDERS[at("order").value];
  const places = page.found.slice(page.drawn, page.drawn + BATCH);
  const next = places.map((place) => drawRow(place, grouped));
  places.forEach((place, number) => {
    const before = page.found[page.drawn + number - 1];
    const starts = grouped && (before === undefined || ROWS[before][TASK] !== ROWS[place][TASK]);
    at("list").append(...(starts ? [drawTask(place)] : []), next[number]);
  });
  page.drawn += next.length;
  if (page.drawn < page.found.length) more.observe(next[next.length - 1]);
}

const SCORES = new Map();
for (const row of ROWS) if (row[SCORE] != null) SCORES.set(row[TASK], [...(SCORES.get(row[TASK]) || []), row[SCORE]]);

// The head of a task's samples: what all of them were asked, and how they did.
function drawTask(place) {
  const row = ROWS[place], scores = SCORES.get(row[TASK]) || [];
  const mean = scores.length ? scores.reduce((sum, score) => sum + score, 0) / scores.length : null;
  return element("div", { class: "task" }, element("b", null, row[TASK]),
    element("span", { class: "mean", title: "mean score" }, mean == null ? "–" : short(mean)), ...preview(row, [["input", INPUT], ["target", TARGET]]));
}

function preview(row, columns) {
  return columns.filter(([, column]) => row[column]).map(([name, column]) =>
    element("span", { class: `preview ${name}`, title: row[column] }, element("i", null, name), ` ${row[column]}`));
}

function drawRow(place, grouped) {
  const row = ROWS[place];
  const columns = grouped ? [["answer", ANSWER]] : [["input", INPUT], ["target", TARGET], ["answer", ANSWER]];
  const badge = element("span", { class: `badge ${KINDS[row[STATUS]] || ""}` }, row[STATUS].toLowerCase());
  return element("button", { class: "row", type: "button", "data-place": place, "aria-current": String(place === page.open), click: () => open(place) },
    element("span", { class: "id" }, nameOf(row)),
    element("span", { class: "number" }, row[SCORE] == null ? "–" : short(row[SCORE])),
    element("span", { class: "facts" }, `${many(row[TURNS], "turn")}, ${many(row[TOKENS], "token")}${row[DISTURBED] ? " · retried" : ""}${row[REASON] ? ` · ${row[REASON]}` : ""}`),
    element("span", { class: "facts" }, badge), ...preview(row, columns));
}

function buttonOf(place) {
  return at("list").querySelector(`[data-place="${place}"]`);
}

// --- the conversation

function open(place) {
  buttonOf(page.open)?.setAttribute("aria-current", "false");
  page.open = place;
  while (!buttonOf(place) && page.drawn < page.found.length) drawMore();
  const button = buttonOf(place);
  button?.setAttribute("aria-current", "true");
  if (button) keepInSight(button);
  const row = ROWS[place], talk = new Conversation(place, page), items = talk.draw();
  at("detail").replaceChildren(head(row, Boolean(at(`t${place}`))), element("div", { id: "items" }, items || leftOut(row)));
  at("detail").scrollTop = 0;
  // The address of the page is now that of the row: to be kept, or sent.
  history.replaceState(null, "", linkOf(row));
}

function linkOf(row) {
  return `#${encodeURIComponent(row[TASK])}/${row[SAMPLE]}`;
}

// The row that the page's address names; -1: none.
function linked() {
  return ROWS.findIndex((row) => linkOf(row) === location.hash);
}

// Not `scrollIntoView`, which on a small screen moves the whole page.
function keepInSight(button) {
  const list = at("list"), seen = list.getBoundingClientRect(), own = button.getBoundingClientRect();
  if (own.top < seen.top) list.scrollTop -= seen.top - own.top;
  else if (own.bottom > seen.bottom) list.scrollTop += own.bottom - seen.bottom;
}

function leftOut(row) {
  return element("p", { class: "empty" }, "This conversation is left out, to keep the file small. ",
    element("span", { class: "mono" }, `holdfast show '${SUMMARY.run}' '${nameOf(row)}' --journal ${SUMMARY.journal || "FILE"}`), " shows it.");
}

function head(row, hasTokens) {
  const score = row[SCORE] == null ? "no score" : `score ${short(row[SCORE])}`;
  const metrics = INDEX.metrics.map((name, place) => (row[METRICS][place] == null ? "" : `${name} ${short(row[METRICS][place])}`)).filter(Boolean);
  const facts = [score, ...metrics, many(row[TURNS], "turn"), many(row[TOKENS], "token"), row[SECONDS] && `${short(row[SECONDS], 3)} s`,
    row[DISTURBED] && "retried or interrupted", !row[SETTLED] && "not settled yet", row[REASON]];
  return element("div", { class: "head" }, element("h3", null, element("a", { href: linkOf(row), title: "the link to this row" }, nameOf(row))),
    element("div", { class: "line" }, element("span", { class: `badge ${KINDS[row[STATUS]] || ""}` }, row[STATUS].toLowerCase()),
      facts.filter(Boolean).map((fact) => element("span", null, fact))),
    element("div", { class: "line" },
      hasTokens && element("button", { id: "tokens", type: "button", "aria-pressed": String(page.tokens), click: turnTokens, title: "replies token by token, coloured by logprob (t)" }, "tokens"),
      element("button", { id: "plain", type: "button", "aria-pressed": String(page.plain), click: turnPlain, title: "texts as they were sent, without markdown (m)" }, "plain"),
      element("button", { id: "unfold", type: "button", click: unfold, title: "unfold or fold everything (o)" }, "unfold all"),
      hasTokens && page.tokens && legend()));
}

function legend() {
  const words = ["certain", "−0.05", "−0.3", "−0.7", "−1.5", "below −3"];
  return element("span", { class: "legend", title: "logprob" }, words.map((word, level) => element("span", { class: `lp${level}` }, word)));
}

function turnTokens() {
  page.tokens = !page.tokens;
  open(page.open);
}

function turnPlain() {
  page.plain = !page.plain;
  open(page.open);
}

function unfold() {
  const folds = [...at("items").querySelectorAll("details")], all = folds.every((one) => one.open);
  for (const one of folds) one.open = !all;
  at("unfold").textContent = all ? "unfold all" : "fold all";
}

function reveal(place) {
  at("filters").reset();
  at("browse").scrollIntoView();
  page.open = place;
  filter();
}

function step(by) {
  const now = page.found.indexOf(page.open), next = page.found[Math.max(0, Math.min(page.found.length - 1, now + by))];
  if (next !== undefined && next !== page.open) open(next);
}

// --- keys and start

function turnLight() {
  const dark = getComputedStyle(document.documentElement).colorScheme === "dark";
  document.documentElement.dataset.theme = dark ? "light" : "dark";
}

const KEYS = { j: () => step(1), k: () => step(-1), t: () => at("tokens")?.click(), m: turnPlain, o: () => at("unfold")?.click(), d: turnLight, "/": () => at("search").focus() };

function start() {
  drawTop();
  drawOverview();
  const statuses = [...new Set(ROWS.map((row) => row[STATUS]))].sort();
  at("status").append(element("option", { value: "" }, "any status"), ...statuses.map((one) => element("option", { value: one }, one.toLowerCase())));
  at("only").append(...Object.keys(ONLY).map((one) => element("option", null, one)));
  at("order").append(...Object.keys(ORDERS).map((one) => element("option", null, one)));
  let soon;
  at("filters").addEventListener("input", () => { clearTimeout(soon); soon = setTimeout(filter, 120); });
  at("filters").addEventListener("reset", () => setTimeout(filter));
  at("filters").addEventListener("submit", (event) => { event.preventDefault(); filter(); });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.closest?.("input, select, textarea");
    if (typing) { if (event.key === "Escape") event.target.blur(); return; }
    const act = KEYS[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  window.addEventListener("hashchange", () => { if (linked() >= 0 && linked() !== page.open) reveal(linked()); });
  page.open = linked();
  filter();
}

start();
