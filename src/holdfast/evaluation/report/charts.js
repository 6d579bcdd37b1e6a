"use strict";
// Everything that came from outside reaches the page as text nodes or attributes that hold no
// code: `element` is the only way in.
function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, String(value));
  }
  for (const child of children.flat()) {
    if (child != null && child !== false && child !== "") made.append(child);
  }
  return made;
}

function drawn(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else made.setAttribute(name, String(value));
  }
  made.append(...children);
  return made;
}

const whole = new Intl.NumberFormat("en");
function short(value, digits) {
  if (value == null) return "–";
  if (Number.isInteger(value)) return whole.format(value);
  return Math.abs(value) >= 1000 ? whole.format(Math.round(value)) : String(+value.toPrecision(digits || 4));
}

// Equal bins over the range; few distinct values get a bin each.
function binsOf(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
  const distinct = [...new Set(values)].sort((a, b) => a - b);
  if (distinct.length <= 6) return distinct.map((value) => ({ low: value, high: value, count: 0 }));
  const number = 20, width = (high - low) / number;
  return Array.from({ length: number }, (_, place) => ({
    low: low + place * width, high: place === number - 1 ? high : low + (place + 1) * width, count: 0,
  }));
}

function binned(values) {
  const bins = binsOf(values), single = bins[0].low === bins[0].high;
  const first = bins[0].low, width = bins.length > 1 ? (bins[bins.length - 1].high - first) / bins.length : 1;
  for (const value of values) {
    const place = single ? bins.findIndex((bin) => bin.low === value)
      : Math.min(bins.length - 1, Math.floor((value - first) / width));
    bins[place].count += 1;
  }
  return bins;
}

// `pick(low, high)`: what a bar does when it is clicked or entered; without it, it does nothing.
function histogram(values, label, pick) {
  const bins = binned(values), most = Math.max(...bins.map((bin) => bin.count));
  const width = 300, height = 96, base = 78, gap = bins.length > 6 ? 1 : 8;
  const each = width / bins.length, broad = Math.max(1, Math.min(each - gap, 72));
  const middle = (place) => (place + .5) * each;
  const bars = bins.map((bin, place) => {
    const tall = bin.count ? Math.max(2, (bin.count / most) * (base - 14)) : 0;
    const range = bin.low === bin.high ? short(bin.low) : `${short(bin.low)} to ${short(bin.high)}`;
    const words = `${range}: ${whole.format(bin.count)}`;
    const attributes = {
      class: "bar", x: middle(place) - broad / 2, y: base - tall, width: broad, height: tall, rx: 2,
    };
    if (pick && bin.count) {
      const act = () => pick(bin.low, bin.high);
      Object.assign(attributes, {
        tabindex: 0, role: "button", "aria-label": words, click: act,
        keydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); act(); } },
      });
    }
    return drawn("rect", attributes, drawn("title", {}, words));
  });
  const texts = bins.length > 6
    ? [drawn("text", { x: 0, y: 93 }, short(bins[0].low)), drawn("text", { x: width, y: 93, "text-anchor": "end" }, short(bins[bins.length - 1].high))]
    : bins.flatMap((bin, place) => [
      drawn("text", { x: middle(place), y: 93, "text-anchor": "middle" }, short(bin.low)),
      drawn("text", { x: middle(place), y: base - Math.max(2, (bin.count / most) * (base - 14)) - 4, "text-anchor": "middle" }, short(bin.count)),
    ]);
  return drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": label },
    drawn("line", { class: "base", x1: 0, x2: width, y1: base + .5, y2: base + .5 }), ...bars, ...texts);
}

// `curves`: [name, [[x, y], …]]; from 0 to 1 at least. Each point says its numbers.
function lineChart(curves, label) {
  const width = 900, height = 260, left = 44, right = 888, top = 28, base = 228;
  const points = curves.flatMap(([, line]) => line), xs = points.map(([x]) => x), ys = points.map(([, y]) => y);
  const [first, last] = [Math.min(...xs), Math.max(...xs)], [low, high] = [Math.min(0, ...ys), Math.max(1, ...ys)];
  const across = (x) => left + ((x - first) / (last - first || 1)) * (right - left);
  const up = (y) => base - ((y - low) / (high - low)) * (base - top);
  const grid = [0, .25, .5, .75, 1].map((part) => low + part * (high - low)).flatMap((y) => [
    drawn("line", { class: "base", x1: left, x2: right, y1: up(y), y2: up(y) }),
    drawn("text", { x: left - 6, y: up(y) + 4, "text-anchor": "end" }, short(y, 3))]);
  const ends = [first, last].map((x, place) =>
    drawn("text", { x: across(x), y: base + 18, "text-anchor": place ? "end" : "start" }, `step ${short(x)}`));
  const lines = curves.flatMap(([name, line], place) => [
    drawn("polyline", { class: `line line${place}`, points: line.map(([x, y]) => `${across(x)},${up(y)}`).join(" ") }),
    ...line.map(([x, y]) => drawn("circle", { class: `dot line${place}`, cx: across(x), cy: up(y), r: 2.5 },
      drawn("title", {}, `${name}, step ${short(x)}: ${short(y, 3)}`))),
    drawn("text", { class: `name line${place}`, x: left + 8 + 90 * place, y: 14 }, name)]);
  return drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...grid, ...ends, ...lines);
}
