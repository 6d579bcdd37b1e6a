// Markdown as elements. Text stays text: there is no HTML in it that a browser would read, no image
// is asked for, and a link is shown with its address, and leads nowhere.
const LOOKS_MARKED = /(^|\n)(#{1,6} |```|~~~|[-*+] |\d+[.)] |> |\|.*\|)|\*\*[^*\n]+\*\*|`[^`\n]+`/;
const INLINE = /(`+)([^`]|[^`].*?[^`])\1(?!`)|\*\*([^*\n]+)\*\*|__([^_\n]+)__|\*([^*\s][^*\n]*)\*|!?\[([^\]\n]*)\]\(([^)\s]+)\)/g;
const RULES = [
  [/^(#{1,6}) +(.*)$/, (found, draw) => element("h5", { class: `h${found[1].length}` }, draw(found[2]))],
  [/^ {0,3}([-*_])( *\1){2,}$/, () => element("hr")],
];
const LISTED = /^( *)([-*+]|\d+[.)]) +(.*)$/, QUOTED = /^ {0,3}> ?(.*)$/, FENCE = /^ {0,3}(```+|~~~+)(.*)$/;

function inline(text, query) {
  const parts = [];
  let from = 0;
  for (const found of text.matchAll(INLINE)) {
    parts.push(...marked(text.slice(from, found.index), query));
    const [all, , code, strong, other, weak, label, address] = found;
    const inner = (kind, words) => element(kind, null, marked(words, query));
    if (code != null) parts.push(inner("code", code));
    else if (strong != null || other != null) parts.push(inner("b", strong ?? other));
    else if (weak != null) parts.push(inner("i", weak));
    else parts.push(element("span", { class: "link", title: address }, marked(label || address, query)), ...marked(` (${address})`, query));
    from = found.index + all.length;
  }
  parts.push(...marked(text.slice(from), query));
  return parts;
}

function markdown(text, query) {
  const lines = text.split("\n"), made = [], draw = (words) => inline(words, query);
  let words = [];
  const flush = () => { if (words.length) made.push(element("p", null, draw(words.join("\n")))); words = []; };
  for (let at = 0; at < lines.length; at += 1) {
    const line = lines[at], fence = FENCE.exec(line), rule = RULES.find(([shape]) => shape.test(line));
    if (fence) {
      flush();
      const inside = [];
      for (at += 1; at < lines.length && !lines[at].trim().startsWith(fence[1]); at += 1) inside.push(lines[at]);
      made.push(element("pre", { class: "code", title: fence[2].trim() }, marked(inside.join("\n"), query)));
    } else if (rule) {
      flush();
      made.push(rule[1](rule[0].exec(line), draw));
    } else if (LISTED.test(line) || QUOTED.test(line)) {
      flush();
      const shape = LISTED.test(line) ? LISTED : QUOTED, items = [];
      for (; at < lines.length && shape.test(lines[at]); at += 1) items.push(shape.exec(lines[at]));
      at -= 1;
      made.push(shape === QUOTED ? element("blockquote", null, draw(items.map(([, inner]) => inner).join("\n")))
        : element("ul", null, items.map(([, indent, mark, inner]) => element("li", { class: `in${Math.min(3, indent.length >> 1)}` }, `${/\d/.test(mark) ? mark : "•"} `, draw(inner)))));
    } else if (!line.trim()) flush();
    else words.push(line);
  }
  flush();
  return element("div", { class: "said markdown" }, made);
}
