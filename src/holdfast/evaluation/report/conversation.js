// One conversation, drawn when it is opened: the letters are those of timeline.py.
function block(name) {
  const found = document.getElementById(name);
  return found ? JSON.parse(found.textContent) : null;
}

// Text with what was searched for marked in it.
function marked(text, query) {
  if (!query) return [text];
  const parts = [], low = text.toLowerCase();
  if (low.length !== text.length) return [text];
  let from = 0;
  for (let at = low.indexOf(query); at >= 0 && parts.length < 400; at = low.indexOf(query, from)) {
    parts.push(text.slice(from, at), element("mark", null, text.slice(at, at + query.length)));
    from = at + query.length;
  }
  parts.push(text.slice(from));
  return parts;
}

function pretty(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

function seconds(value) {
  return value ? `${short(value, 3)} s` : "";
}

function levelOf(logprob) {
  const bounds = [-0.05, -0.3, -0.7, -1.5, -3];
  let level = 0;
  while (level < bounds.length && logprob < bounds[level]) level += 1;
  return level;
}

function coloured([pieces, logprobs]) {
  const box = element("pre", { class: "tokens" });
  let joint = 0, held = 0;
  pieces.forEach((piece, place) => {
    const logprob = logprobs[place];
    joint += logprob;
    held += 1;
    if (piece === "") return; // Part of a character: the token that completes it shows all of them.
    const told = `${JSON.stringify(piece)}\nlogprob ${joint.toFixed(3)}, p ${Math.exp(joint).toPrecision(3)}${held > 1 ? `, ${held} tokens` : ""}`;
    box.append(element("span", { class: `lp${levelOf(joint)}`, title: told }, piece));
    joint = 0;
    held = 0;
  });
  return box;
}

class Conversation {
  constructor(place, { tokens, query, plain }) {
    this.query = query;
    this.plain = plain;
    this.data = block(`c${place}`);
    this.pieces = tokens ? block(`t${place}`) : null;
  }

  text(text, kind) {
    if (!kind && !this.plain && LOOKS_MARKED.test(text)) return markdown(text, this.query);
    return element("pre", { class: kind || "said" }, marked(text, this.query));
  }

  fold(kind, title, open, ...inside) {
    return element("details", { class: `fold ${kind}`, open: open || this.holds(inside) }, element("summary", null, title), ...inside);
  }

  // What was searched for is never hidden in a fold.
  holds(parts) {
    return Boolean(this.query) && parts.flat().some((part) => part instanceof Element && part.querySelector("mark"));
  }

  item(kind, who, path, facts, ...inside) {
    const deep = path.includes(".") ? " deep" : "";
    const told = facts.filter(Boolean).map((fact) => element("span", null, fact));
    const step = path ? element("span", { title: "its step in the journal" }, `#${path}`) : null;
    return element("section", { class: `item ${kind}${deep}` }, element("div", { class: "who" }, element("b", null, who), step, told), ...inside);
  }

  draw() {
    if (!this.data) return null;
    const [truth, items, tools] = this.data;
    const made = items.map((item) => DRAW[item[0]].call(this, item));
    if (tools.length) {
      made.unshift(this.fold("tools", many(tools.length, "tool"), false,
        ...tools.map(([name, schema]) => this.fold("call", name, false, this.text(pretty(schema), "mono")))));
    }
    if (truth) made.unshift(this.fold("", "ground truth", false, this.text(truth, "")));
    return made;
  }
}

const DRAW = {
  m([, role, text, name]) {
    return this.item(role, name ? `${role} (${name})` : role, "", [], this.text(text));
  },
  a([, path, text, reasoning, calls, tokens, finish, spent, tries, mean, versions, broken, role]) {
    const facts = [`${whole.format(tokens)} tokens`, finish, seconds(spent), tries > 1 && `${tries} tries`,
      mean != null && `mean logprob ${mean.toFixed(3)}`, versions && `version ${versions}`];
    const pieces = this.pieces && this.pieces[path];
    const inside = pieces ? [coloured(pieces)] : [
      reasoning && this.fold("reasoning", "reasoning", false, this.text(reasoning, "")),
      text && this.text(text),
      ...calls.map(([name, given]) => this.fold("call", `calls ${name}`, false, this.text(pretty(given), "mono"))),
    ];
    if (broken) inside.unshift(element("p", { class: "soft" }, `the prompt was rendered anew: ${broken}`));
    return this.item("assistant", role || "assistant", path, facts, ...inside);
  },
  t([, path, name, given, content, error, spent, reward]) {
    const facts = [error ? element("span", { class: "badge bad" }, error) : content == null ? "no result yet" : "ok",
      seconds(spent), reward != null && `reward ${short(reward)}`];
    return this.item("tool", `tool ${name}`, path, facts,
      this.fold("call", this.brief(given, content), false,
        element("h4", null, "arguments"), this.text(pretty(given), "mono"),
        element("h4", null, "result"), this.text(content || "", "mono")));
  },
  e([, path, action, seen, reward, ends, error, spent]) {
    const facts = [`reward ${short(reward)}`, ends, error && element("span", { class: "badge bad" }, error), seconds(spent)];
    return this.item("environment", "environment step", path, facts,
      this.fold("", this.brief(action, seen), false,
        element("h4", null, "action"), this.text(action, "mono"),
        element("h4", null, "observation"), this.text(seen, "mono")));
  },
  o([, path, seed, seen]) {
    return this.item("environment", "environment opened", path, [seed && `seed ${seed}`], this.text(seen, "mono"));
  },
  v([, path, name, value]) {
    return this.item("value", `value ${name}`, path, [], this.fold("", "recorded once", false, this.text(pretty(value), "mono")));
  },
  k([, path, reason, difference]) {
    return this.item("fork", "forked on replay", path, [reason], difference && this.fold("", "difference", false, this.text(difference, "mono")));
  },
  f([, cause, phase, attempt, step, line, traceback]) {
    const facts = [`${cause}, ${phase}`, attempt && `attempt ${attempt}`, step && `at step ${step}`];
    return this.item("failure", "failure", "", facts, this.text(line, "mono"), this.fold("", "traceback", false, this.text(traceback, "mono")));
  },
  s([, reward, metrics, reasons, details]) {
    return this.item("scored", reward == null ? "no valid score" : `score ${short(reward)}`, "", metrics.map(([name, value]) => `${name} ${short(value)}`),
      ...reasons.map(([name, text]) => this.text(name ? `${name}: ${text}` : text)),
      details && this.fold("", "all that the scorer said", false, this.text(pretty(details), "mono")));
  },
};

Conversation.prototype.brief = function (given, answer) {
  const cut = (text) => (text.length > 90 ? `${text.slice(0, 90)}…` : text).replaceAll("\n", " ");
  return answer == null ? cut(given) : `${cut(given)} → ${cut(answer)}`;
};
