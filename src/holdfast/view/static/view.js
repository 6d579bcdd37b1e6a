// The pages work without this script. It keeps them up to date, and adds keys and buttons.
"use strict";

const status = (text) => { document.getElementById("status").textContent = text; };

// --- the token: our command opens the page with it behind the #, which no server sees

if (location.hash.startsWith("#token=")) {
  sessionStorage.setItem("token", location.hash.slice(7));
  history.replaceState(null, "", location.pathname + location.search);
}

const token = () => {
  let known = sessionStorage.getItem("token");
  if (!known) {
    known = prompt(`This changes the journal. Give the token in ${document.body.dataset.tokenFile}`);
    if (known) sessionStorage.setItem("token", known.trim());
  }
  return (known || "").trim();
};

const act = async (form) => {
  const body = Object.fromEntries(new FormData(form).entries());
  const headers = { "Content-Type": "application/json", Authorization: `Bearer ${token()}` };
  const answer = await fetch(form.dataset.action, { method: "POST", headers, body: JSON.stringify(body) });
  const said = await answer.json();
  if (answer.status === 401) sessionStorage.removeItem("token");
  if (!answer.ok) return status(`Not done: ${said.error}`);
  if (said.location) { location.assign(said.location); return; }
  location.reload();
};

// --- live: an event says that the page has changed, and its parts are loaded again

const isOpen = (root) => new Map([...root.querySelectorAll("details[id]")].map((each) => [each.id, each.open]));

const replacePart = (part, fresh) => {
  if (part.innerHTML === fresh.innerHTML) return;
  const folds = isOpen(part);
  const focused = part.contains(document.activeElement) ? document.activeElement.id : "";
  part.replaceChildren(...fresh.childNodes);
  for (const each of part.querySelectorAll("details[id]")) {
    if (folds.has(each.id)) each.open = folds.get(each.id);
  }
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
};

const loadAgain = async () => {
  const answer = await fetch(location.href);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (!answer.ok) return status(fresh.querySelector("[role=alert]")?.textContent || "The page is gone.");
  for (const part of document.querySelectorAll("[data-live]")) {
    const other = fresh.getElementById(part.id);
    if (other) replacePart(part, other);
  }
  for (const part of fresh.querySelectorAll("section[data-live]")) {
    if (!document.getElementById(part.id)) insertPart(part);
  }
  status("");
};

const insertPart = (part) => {
  const before = part.previousElementSibling && document.getElementById(part.previousElementSibling.id);
  if (before) before.after(part);
};

let events = null;
let seen = null;
const follow = () => {
  const topic = document.body.dataset.topic;
  if (!topic || document.hidden || events) return;
  events = new EventSource(`/events?topic=${encodeURIComponent(topic)}`);
  events.onmessage = (event) => {
    if (seen !== null && seen !== event.data) loadAgain().catch(() => status("The server does not answer."));
    seen = event.data;
  };
  events.onerror = () => { status("The server does not answer: the page may be out of date."); };
  events.onopen = () => { if (seen !== null) { seen = ""; } status(""); };
};
document.addEventListener("visibilitychange", () => {
  if (document.hidden && events) { events.close(); events = null; } else follow();
});
follow();

// --- buttons, filters and long texts

document.addEventListener("click", async (event) => {
  const copied = event.target.closest("[data-copy]");
  if (copied) {
    await navigator.clipboard.writeText(copied.dataset.copy);
    copied.textContent = "copied";
  }
  const fork = event.target.closest("[data-fork]");
  if (fork) {
    const form = document.getElementById("fork");
    form.open = true;
    form.querySelector("[name=at]").value = fork.dataset.fork;
    form.querySelector(`[name=${fork.dataset.field}]`).focus();
  }
  const more = event.target.closest("a.more");
  if (more && !event.metaKey && !event.ctrlKey) {
    event.preventDefault();
    const answer = await fetch(more.href);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    more.replaceWith(...(fresh.getElementById("piece")?.childNodes || []));
  }
});
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.dataset.action) {
    event.preventDefault();
    status("Working …");
    act(form).catch((error) => status(`Not done: ${error}`));
  } else if (form.method === "get") {
    for (const field of form.querySelectorAll("input, select")) if (!field.value) field.disabled = true;
  }
});
document.addEventListener("change", (event) => {
  if (event.target.closest("form[data-auto]") && event.target.matches("select, [type=checkbox]")) event.target.form.requestSubmit();
});

// --- keys

const items = () => [...document.querySelectorAll("[data-item]")].filter((each) => each.getClientRects().length);
const step = (by) => {
  const all = items();
  const now = all.indexOf(document.activeElement?.closest("[data-item]"));
  const next = all[Math.min(Math.max(now + by, 0), all.length - 1)];
  if (!next) return;
  next.tabIndex = -1;
  next.focus();
  next.scrollIntoView({ block: "nearest" });
};
const fold = () => {
  const folds = [...(document.activeElement?.closest("[data-item]") || document).querySelectorAll("details")];
  const own = document.activeElement?.closest("details");
  if (own) folds.push(own);
  const open = folds.some((each) => !each.open);
  for (const each of folds) each.open = open;
};
const KEYS = {
  j: () => step(1),
  k: () => step(-1),
  o: () => document.activeElement?.closest("[data-item]")?.querySelector("a")?.click(),
  f: fold,
  "/": () => (document.querySelector("[data-search]") || document.querySelector("input[type=search]"))?.focus(),
};
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input, select, textarea");
  if (event.key === "Escape" && typing) event.target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key]();
});

// --- a search goes on in parts, until it is stopped

let searching = false;
const searchOn = async (button) => {
  searching = !searching;
  button.textContent = searching ? "stop" : "search on until stopped";
  while (searching) {
    const next = document.getElementById("next-part");
    if (!next || document.querySelectorAll("#hits > *").length >= 500) break;
    const answer = await fetch(next.href);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.getElementById("hits").append(...fresh.getElementById("hits").children);
    document.getElementById("scan").replaceChildren(...fresh.getElementById("scan").childNodes);
    const further = fresh.getElementById("next-part");
    if (!further) { next.remove(); button.remove(); break; }
    next.href = further.getAttribute("href");
  }
  searching = false;
  button.textContent = "search on until stopped";
};
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-search-on]");
  if (button) searchOn(button).catch((error) => status(`The search ended: ${error}`));
});
