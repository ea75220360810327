// Elements without HTML text: all content is set as text, so nothing that a cluster says is markup.

const SVG = "http://www.w3.org/2000/svg";

function make(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

export const h = (tag, attributes, ...children) =>
  make(document.createElement(tag), attributes, children);

export const s = (tag, attributes, ...children) =>
  make(document.createElementNS(SVG, tag), attributes, children);

// Makes the children of `parent` equal to these, and keeps the elements that are there: so focus,
// selection and scroll positions stay. An element with data-island keeps its own content.
export function show(parent, children) {
  const wanted = children.flat(Infinity).filter((it) => it !== null && it !== undefined && it !== false);
  wanted.forEach((child, number) => {
    const node = child instanceof Node ? child : document.createTextNode(String(child));
    const known = parent.childNodes[number];
    if (known === undefined) parent.append(node);
    else if (!isSame(known, node)) known.replaceWith(node);
    else update(known, node);
  });
  while (parent.childNodes.length > wanted.length) parent.lastChild.remove();
}

function isSame(known, node) {
  return known.nodeName === node.nodeName && known.dataset?.key === node.dataset?.key
    && known.dataset?.island === node.dataset?.island;
}

function update(known, node) {
  if (node.nodeType === Node.TEXT_NODE) {
    if (known.data !== node.data) known.data = node.data;
    return;
  }
  if (known.dataset.island) return;
  for (const { name } of [...known.attributes]) {
    if (!node.hasAttribute(name) && !(name === "open" && known.nodeName === "DETAILS")) known.removeAttribute(name);
  }
  for (const { name, value } of node.attributes) {
    if (known.getAttribute(name) !== value) known.setAttribute(name, value);
  }
  show(known, [...node.childNodes]);
}

// ---- how values are written ----

export const NONE = "–";
const NUMBER = new Intl.NumberFormat("en");

export const number = (value) => (value === null || value === undefined ? NONE : NUMBER.format(value));

export function short(value) {
  if (value === null || value === undefined) return NONE;
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toPrecision(3)}M`;
  if (size >= 1e4) return `${(value / 1e3).toPrecision(3)}k`;
  return size >= 100 || Number.isInteger(value) ? String(Math.round(value)) : value.toPrecision(2);
}

export function bytes(value) {
  if (value === null || value === undefined) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let size = value, unit = 0;
  while (size >= 1024 && unit < units.length - 1) { size /= 1024; unit += 1; }
  return `${size >= 100 || unit === 0 ? Math.round(size) : size.toFixed(1)} ${units[unit]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  const whole = Math.floor(seconds);
  if (whole < 60) return `${whole}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m${String(whole % 60).padStart(2, "0")}s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)}h${String(Math.floor(whole / 60) % 60).padStart(2, "0")}m`;
  return `${Math.floor(whole / 86400)}d${String(Math.floor(whole / 3600) % 24).padStart(2, "0")}h`;
}

export const millis = (ms) => {
  if (ms === null || ms === undefined) return NONE;
  return ms >= 1000 ? `${(ms / 1000).toPrecision(3)} s` : `${ms >= 100 ? Math.round(ms) : ms.toPrecision(2)} ms`;
};

export const percent = (part) => (part === null || part === undefined ? NONE : `${(100 * part).toFixed(part < 0.1 ? 1 : 0)} %`);

export const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString("en-GB");

// ---- parts of views ----

export const panel = (title, ...content) =>
  h("section", { class: "panel", "aria-label": title }, h("h2", {}, title), ...content);

export const empty = (text) => h("p", { class: "empty" }, text);

// state: ready, or what is wrong.
export function badge(state) {
  if (state === null || state === undefined) return h("span", { class: "badge" }, "unknown");
  const kinds = { ready: "good", leader: "lead", follower: "good", done: "good", running: "lead",
                  starting: "warn", waiting: "warn", lagging: "warn", repairing: "warn",
                  expired: "warn", "clock-skew": "warn", "slow-disk": "warn", "vote-withheld": "warn", learner: "warn",
                  candidate: "warn", "pre-candidate": "warn", cancelled: "warn" };
  return h("span", { class: `badge ${kinds[state] ?? "bad"}` }, state);
}

// columns: [head, cell of a row, options]; options: num, wide (left out on small screens), code.
export function table(label, columns, rows, nothing, keyOf) {
  if (!rows.length) return empty(nothing);
  const kind = (options) => ["num", "wide", "code", "grow"].filter((it) => options?.[it]).join(" ") || null;
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
    h("table", {},
      h("thead", {}, h("tr", {}, columns.map(([head, , options]) =>
        h("th", { scope: "col", class: kind(options), title: options?.title }, head)))),
      h("tbody", {}, rows.map((row) =>
        h("tr", { "data-key": keyOf?.(row) }, columns.map(([, cell, options]) => h("td", { class: kind(options) }, cell(row))))))));
}
