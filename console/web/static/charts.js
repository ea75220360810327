// Line charts of the last minutes, by uPlot.

import { h, clock, NONE } from "./dom.js";

const SPAN_S = 300;
const HEIGHT = 120;
const SAMPLES_MAX = 600;

const store = { names: [], columns: [] };  // As the server sends them: times, then each line's values.
const charts = new Map();  // id -> {plot, element, lines, format}

export function setHistory(history) {
  store.names = history.names;
  store.columns = history.columns;
}

export function addSample(sample) {
  const times = store.columns[0];
  if (!sample || !times || sample[0] <= (times.at(-1) ?? 0)) return;
  store.columns.forEach((column, number) => {
    column.push(sample[number]);
    if (column.length > SAMPLES_MAX) column.shift();
  });
}

export const column = (name) => store.columns[store.names.indexOf(name)] ?? [];
export const newest = (name) => column(name).at(-1) ?? null;

// lines: [name of the column, label, number of the colour]
export function chart(id, title, lines, format) {
  const values = lines.map(([name, label, color]) =>
    h("span", { class: `value line${color}` }, `${label} `, h("b", {}, format(newest(name)))));
  const words = lines.map(([name, label]) => `${label} ${format(newest(name))}`).join(", ");
  return h("section", { class: "panel chart", "aria-label": title },
    h("h2", {}, title), h("p", { class: "values" }, values),
    h("div", { class: "plot", "data-island": id, role: "img", "aria-label": `${title}: ${words}` }));
}

// Draws the charts that are on the page. lines and format of each come from `known`.
export function draw(known) {
  for (const [id, { plot, element }] of charts) {
    if (!element.isConnected) { plot.destroy(); charts.delete(id); }
  }
  for (const element of document.querySelectorAll("[data-island^=chart-]")) {
    const id = element.dataset.island;
    const [lines, format] = known[id];
    const data = [column("at"), ...lines.map(([name]) => column(name))];
    const found = charts.get(id);
    if (found) { found.plot.setData(data); continue; }
    const plot = new window.uPlot(options(element.clientWidth, lines, format), data, element);
    new ResizeObserver(() => plot.setSize({ width: element.clientWidth, height: HEIGHT })).observe(element);
    charts.set(id, { plot, element });
  }
}

export function redraw() {  // The colours have changed.
  for (const { plot, element } of charts.values()) { plot.destroy(); element.replaceChildren(); }
  charts.clear();
}

// At least a minute, at most SPAN_S.
function span() {
  const times = column("at"), now = times.at(-1) ?? 0;
  return [Math.min(now - 60, Math.max(now - SPAN_S, times[0] ?? 0)), now];
}

function options(width, lines, format) {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: color("--muted"), font: "11px system-ui", ticks: { show: false },
                 grid: { stroke: color("--line"), width: 1 } };
  return {
    width, height: HEIGHT, legend: { show: false }, padding: [8, 24, 0, 0],
    cursor: { drag: { x: false, y: false }, points: { size: 5 } },
    scales: { x: { range: span },
              y: { range: (_, low, high) => [0, high > 0 ? high * 1.15 : 1] } },
    axes: [
      { ...axis, size: 20, space: 90, values: (_, times) => times.map(clock) },
      { ...axis, size: 52, space: 30, values: (_, ticks) => ticks.map((it) => (it === null ? NONE : format(it))) },
    ],
    series: [{}, ...lines.map(([, label, number]) => ({
      label, stroke: color(`--line${number}`), width: 1.5, spanGaps: false, points: { show: false },
    }))],
  };
}
