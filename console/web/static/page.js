// The page: one stream of events for the view that is shown, and nothing while the page is hidden.

import { h, show, clock, number } from "./dom.js";
import { addSample, draw, redraw, setHistory } from "./charts.js";
import { CHARTS, VIEWS } from "./views.js";

const RETRY_MS = 2000;
const STALE_MS = 4000;
const byId = (id) => document.getElementById(id);

let stream = null, view = "", last = null, retry = 0, lastMs = 0;

const wanted = () => {
  const name = location.hash.replace(/^#\/?/, "").split("/")[0];
  return name in VIEWS ? name : "overview";
};

function navigate() {
  const name = wanted();
  if (name !== view) { view = name; last = null; scrollTo(0, 0); }
  show(byId("nav"), Object.entries(VIEWS).map(([key, { title }], index) =>
    h("a", { href: `#/${key}`, "aria-current": key === view ? "page" : null,
             title: `Key ${index + 1}` }, title)));
  show(byId("main"), [h("p", { class: "empty" }, "Waiting for the first picture.")]);
  connect();
}

function connect() {
  clearTimeout(retry);
  stream?.close();
  stream = null;
  if (document.hidden) return;
  stream = new EventSource(`events?view=${view}`);
  stream.addEventListener("history", (event) => setHistory(JSON.parse(event.data)));
  stream.addEventListener("view", (event) => onPicture(JSON.parse(event.data)));
  stream.addEventListener("error", () => {
    setStale("no connection to the server");
    if (stream?.readyState === EventSource.CLOSED) retry = setTimeout(connect, RETRY_MS);
  });
}

function onPicture(picture) {
  if (picture.view !== view) return;
  last = picture;
  lastMs = performance.now();
  addSample(picture.sample);
  document.body.classList.remove("stale");
  byId("cluster").textContent = picture.cluster;
  byId("clock").textContent = clock(picture.at);
  const summary = byId("summary"), text = picture.problem || picture.summary;
  if (summary.textContent !== text) summary.textContent = text;
  summary.className = picture.problem || picture.problems.length ? "bad" : "good";
  document.title = `${picture.problem || picture.problems.length ? "⚠ " : ""}${picture.cluster} · kelek`;
  show(byId("problems"), problems(picture));
  if (!picture.problem) show(byId("main"), VIEWS[view].draw(picture.content, picture));
  byId("main").dataset.view = view;
  draw(CHARTS);
}

const problems = ({ problems: found, notes }) => [
  found.length > 0 && h("ul", { class: "problems bad", "aria-label": "Problems" }, found.map((it) =>
    h("li", {}, h("b", {}, `${it.kind} ${it.subject}`), it.text && `: ${it.text}`, h("span", { class: "way" }, it.way_out)))),
  notes.length > 0 && h("ul", { class: "problems note", "aria-label": "Notes" }, notes.map((it) => h("li", {}, it))),
];

function setStale(text) {
  document.body.classList.add("stale");
  byId("summary").textContent = text;
  byId("summary").className = "bad";
}

setInterval(() => {
  if (!document.hidden && last && performance.now() - lastMs > STALE_MS) {
    setStale(`no news for ${number(Math.round((performance.now() - lastMs) / 1000))} s`);
  }
}, 1000);

addEventListener("hashchange", () => {
  if (location.hash === "#main") return;
  navigate();
});
document.addEventListener("visibilitychange", connect);
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
  const name = Object.keys(VIEWS)[Number(event.key) - 1];
  if (/^[1-9]$/.test(event.key) && name) location.hash = `#/${name}`;
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { redraw(); draw(CHARTS); });
navigate();
