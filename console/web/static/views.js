// One function for each view: from its document (console/web/documents.py) to elements.

import { badge, bytes, clock, duration, empty, h, millis, number, panel, percent, s, short, show, table, NONE } from "./dom.js";
import { chart } from "./charts.js";

const rate = (value) => (value === null ? NONE : `${short(value)}/s`);
const PARTS = (name) => [[`${name}_p50`, "p50", 2], [`${name}_p99`, "p99", 3]];

// id -> lines and how their values are written.
export const CHARTS = {
  "chart-updates": [[["updates", "updates", 1]], rate],
  "chart-requests": [[["table_requests", "requests", 1], ["table_writes", "of these writes", 2]], rate],
  "chart-calls": [[["calls", "answered", 1]], rate],
  "chart-waiting": [[["waiting", "requests", 3]], short],
  "chart-commit": [PARTS("commit"), millis],
  "chart-read": [PARTS("read"), millis],
  "chart-write": [PARTS("write"), millis],
  "chart-call": [PARTS("call"), millis],
  "chart-cpu": [[["cpu", "of one core", 1]], percent],
  "chart-memory": [[["memory", "resident", 1]], bytes],
  "chart-lag": [[["lag", "entries", 3]], short],
};
const plot = (id, title) => chart(id, title, ...CHARTS[id]);

// ---- overview ----

function overview({ nodes, processes, events }) {
  const supervisors = processes.filter((row) => row.nodes);
  return [
    h("div", { class: "split" },
      panel("Processes", ...supervisors.map((it) => tree(it, nodes, processes)), away(nodes)),
      h("div", {},
        h("div", { class: "charts" }, plot("chart-updates", "Log updates"), plot("chart-requests", "Table requests"),
          plot("chart-commit", "From arrival to commit"), plot("chart-cpu", "CPU of all processes")),
        eventList("Events", events))),
  ];
}

function tree(supervisor, nodes, processes) {
  const rows = [line("root", "supervisor", supervisor)];
  for (const name of supervisor.nodes) {
    const node = nodes.find((it) => it.node === name);
    rows.push(h("tr", { class: "node", "data-key": `node ${name}` },
      h("th", { scope: "row", colspan: 2 }, name, " ", badge(node?.state), " ",
        node?.role && h("span", { class: node.role === "leader" ? "lead" : "muted" }, node.role)),
      h("td", { class: "wide muted" }, node?.term !== null && node?.term !== undefined ? `term ${node.term}` : ""),
      h("td", { class: "num", colspan: 2 }, node?.lag ? `${number(node.lag)} behind` : ""),
      h("td", { class: "num wide" }), h("td", { class: "num" })));
    rows.push(...processes.filter((row) => row.node === name && !row.nodes).map((row) => line("leaf", row.name, row)));
  }
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Process tree" },
    h("table", { class: "tree" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "process"), h("th", { scope: "col" }, "state"),
        h("th", { scope: "col", class: "wide" }, "now"), h("th", { scope: "col", class: "num" }, "CPU"),
        h("th", { scope: "col", class: "num" }, "memory"), h("th", { scope: "col", class: "num wide" }, "restarts"),
        h("th", { scope: "col", class: "num" }, "up"))),
      h("tbody", {}, rows)));
}

const line = (kind, name, row) => h("tr", { class: kind, "data-key": `${row.node}/${name}` },
  h("td", { title: row.pid ? `pid ${row.pid}` : null }, name),
  h("td", {}, row.state === "ready" ? h("span", { class: "dot good", title: "ready" }, "ready") : badge(row.state)),
  h("td", { class: "wide muted" }, row.reason ?? row.detail),
  h("td", { class: "num" }, percent(row.cpu)), h("td", { class: "num" }, bytes(row.memory)),
  h("td", { class: row.restarts ? "num wide warn" : "num wide" }, row.restarts), h("td", { class: "num" }, duration(row.uptime)));

function away(nodes) {
  const found = nodes.filter((node) => node.processes === null);
  return found.length > 0 && [h("h3", {}, "Members elsewhere"), table("Members elsewhere", [
    ["node", (it) => it.node], ["state", (it) => badge(it.state)], ["role", (it) => it.role ?? NONE],
    ["applied", (it) => number(it.applied_index), { num: true }], ["behind", (it) => number(it.lag), { num: true }],
  ], found, "")];
}

const eventList = (title, events) => panel(title, table(title, [
  ["time", (it) => h("time", { datetime: it.time, title: it.time }, clock(Date.parse(it.time) / 1000)), { code: true }],
  ["process", (it) => it.process, { code: true }],
  ["what happened", (it) => h("span", { class: it.level }, it.text), { grow: true }],
], events, "Nothing in the last hour.", (it) => `${it.time} ${it.process} ${it.text}`));

// ---- raft ----

const ROLES = ["leader", "follower", "candidate", "learner", "down"];

function raft({ lanes, peers, members, drift, change, events }) {
  return [
    panel("Terms and leaders, 10 minutes", timeline(lanes),
      h("p", { class: "legend" }, ROLES.map((role) => h("span", { class: "key" }, h("i", { class: `role-${role}` }), role)))),
    h("div", { class: "split left" },
      h("div", {},
        panel("Members", table("Members", [
          ["member", (it) => it.node], ["state", (it) => badge(it.state)], ["role", (it) => it.role ?? NONE],
          ["behind", (it) => lag(it.behind), { num: true, title: "Entries that it lacks, as the leader knows" }],
          ["has entry", (it) => number(it.match_index), { num: true, wide: true }],
          ["last answer", (it) => (it.silent_ms === null || it.silent_ms === undefined ? NONE : `${millis(it.silent_ms)} ago`), { num: true }],
          ["url", (it) => it.url, { code: true, wide: true }],
        ], members, "No peer here knows the members.", (it) => it.node),
        change && h("p", {}, "Change of members: ", h("b", {}, text(change))),
        drift.map((it) => h("p", { class: "warn" }, it))),
        panel("Peers of this supervisor", table("Peers", [
          ["node", (it) => it.node], ["role", (it) => badge(it.state === "ready" ? it.role : it.state)],
          ["term", (it) => number(it.term), { num: true }],
          ["last", (it) => number(it.last_index), { num: true, title: "The last entry" }],
          ["durable", (it) => number(it.durable_index), { num: true, wide: true, title: "The last entry on the disk" }],
          ["committed", (it) => number(it.commit_index), { num: true }],
          ["applied", (it) => number(it.applied_index), { num: true }],
          ["snapshot", (it) => (it.snapshot_index ? number(it.snapshot_index) : NONE), { num: true, wide: true }],
          ["elections", (it) => number(it.elections), { num: true, wide: true, title: "That it has started" }],
          ["late heartbeats", (it) => number(it.heartbeats_missed), { num: true, wide: true }],
        ], peers, "No Raft peer of this supervisor has reported.", (it) => it.node)),
        eventList("Elections and roles", events)),
      h("div", {}, plot("chart-updates", "Updates at the leader"), plot("chart-commit", "From arrival to commit"),
        plot("chart-lag", "Committed and not yet applied, at most"))),
  ];
}

const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));
const lag = (behind) => (behind === null || behind === undefined ? NONE
  : h("span", { class: behind > 1000 ? "warn" : null }, number(behind)));

function timeline({ from, to, nodes }) {
  if (!nodes.length) return empty("No Raft peer runs under this supervisor.");
  const part = (at) => `${(100 * Math.max(0, Math.min(1, (at - from) / (to - from)))).toFixed(2)}%`;
  const height = 26, top = 4;
  const marks = [0, 2, 4, 6, 8].map((minutes) => to - 60 * minutes).filter((at) => at > from);
  const words = nodes.map(({ node, spans }) => `${node}: ${spans.length ? spans.at(-1).role : "unknown"}`).join(", ");
  return h("div", { class: "timeline" },
    h("div", { class: "names" }, nodes.map(({ node }) => h("span", {}, node))),
    s("svg", { height: nodes.length * height + 22, width: "100%", role: "img", "aria-label": `Roles now: ${words}` },
      marks.map((at) => s("line", { x1: part(at), x2: part(at), y1: 0, y2: nodes.length * height + 4, class: "mark" })),
      nodes.map(({ spans }, lane) => spans.map((span) => {
        const width = Math.max(0.15, 100 * (span.to - Math.max(from, span.from)) / (to - from));
        return s("g", {},
          s("rect", { x: part(span.from), width: `${width.toFixed(2)}%`, y: lane * height + top, height: height - 8, rx: 2,
                      class: `role-${ROLES.includes(span.role) ? span.role : "learner"}` },
            s("title", {}, `${span.role}${span.term === null ? "" : `, term ${span.term}`}${span.leader ? `, leader ${span.leader}` : ""}, ${clock(span.from)} to ${clock(span.to)}`)),
          s("text", { x: part(span.from), dx: 6, y: lane * height + top + 13 }, fitting(span, width)));
      })),
      marks.map((at) => s("text", { x: part(at), y: nodes.length * height + 18, class: "tick",
                                    "text-anchor": at === to ? "end" : "middle" }, clock(at).slice(0, 5)))));
}

// What a span says of itself, if its part of the width has room for it.
function fitting(span, part) {
  const room = (part / 100 * Math.min(innerWidth, 1600) - 90 * part / 100 - 10) / 6.5;
  const words = { leader: [`leads term ${span.term}`, `term ${span.term}`], down: ["down"],
                  follower: span.leader ? [`follows ${span.leader}, term ${span.term}`, span.leader] : [] };
  return (words[span.role] ?? []).find((it) => it.length <= room) ?? "";
}

// ---- tables ----

function tables({ tables: known, servers, workers, jobs }) {
  return [
    h("div", { class: "charts three" }, plot("chart-requests", "Requests of clients"), plot("chart-read", "Reads"), plot("chart-write", "Replicated writes")),
    h("div", { class: "split" },
      panel("Tables", reason(known), table("Tables", [
        ["table", (it) => h("button", { type: "button", class: "link", onclick: () => browse(it.name ?? it.table) }, it.name ? `${it.name} (${it.table})` : it.table)],
        ["keys, about", (it) => number(it.keys), { num: true }], ["size", (it) => bytes(it.bytes), { num: true }],
        ["kept", (it) => (it.replicated === false ? "on this node" : "replicated")], ["worker", (it) => it.worker, { code: true, wide: true }],
      ], known.rows, known.asked && !known.value && known.problem ? "" : "No table yet: the first put creates one.", (it) => it.table)),
      panel("Nodes", table("Nodes", [
        ["node", (it) => it.node], ["requests", (it) => number(it.requests), { num: true }],
        ["writes", (it) => number(it.writes), { num: true }], ["waiting", (it) => number(it.inflight), { num: true }],
        ["failed", (it) => number(it.failed ?? 0), { num: true, wide: true }],
        ["applied", (it) => number(workers.find((row) => row.node === it.node)?.applied_index), { num: true, wide: true }],
      ], servers, "No node of this supervisor has tables.", (it) => it.node))),
    h("section", { class: "panel", "data-island": "browse", "aria-label": "Browse" },
      document.querySelector("[data-island=browse]") ? null : browser()),
    jobList(jobs),
  ];
}

const reason = ({ asked, problem }) => problem && h("p", { class: "warn" }, problem);

const jobList = (jobs) => panel("Jobs", reason(jobs), table("Jobs", [
  ["node", (it) => it.node], ["job", (it) => it.apid, { num: true, wide: true }], ["kind", (it) => it.kind],
  ["table", (it) => (it.target === undefined ? it.table : `${it.table} → ${it.target}`)], ["state", (it) => badge(it.state)],
  ["progress", progress], ["rows", (it) => number(it.rows), { num: true }], ["puts", (it) => number(it.puts), { num: true, wide: true }],
  ["began", (it) => (it.started ? clock(it.started / 1000) : NONE), { wide: true }],
  ["took", (it) => (it.started ? duration(((it.ended || Date.now()) - it.started) / 1000) : NONE), { num: true, wide: true }],
  ["reason", (it) => it.reason, { wide: true }],
], jobs.rows, "No job has run.", (it) => `${it.node} ${it.apid}`));

function progress(job) {
  const [done, all] = job.tasks ? [job.tasks_done, job.tasks] : [job.rows, job.rows_all];
  if (job.state !== "running" || !all) return job.state === "done" ? "100 %" : NONE;
  const part = Math.min(1, done / all);
  return h("span", {}, h("progress", { value: part, max: 1, "aria-label": `job ${job.apid}` }), ` ${Math.round(100 * part)} %`);
}

function browser() {
  const result = h("div", { "aria-live": "polite" });
  const fields = { table: field("table", "users, or 7", "text"), prefix: field("prefix", "text, or 0x6b65", "text") };
  const form = h("form", { class: "browse", onsubmit: (event) => { event.preventDefault(); load(""); } },
    fields.table.label, fields.prefix.label, h("button", { type: "submit" }, "Show rows"));
  async function load(start) {
    const query = new URLSearchParams({ table: fields.table.input.value.trim(), prefix: fields.prefix.input.value, start });
    let found;
    try {
      found = await (await fetch(`rows?${query}`)).json();
    } catch (error) {
      found = { problem: `no answer: ${error.message}` };
    }
    show(result, found.problem ? [h("p", { class: "warn", role: "alert" }, found.problem)] : [
      table("Rows", [["key", (it) => it.key, { code: true }], ["bytes", (it) => number(it.bytes), { num: true }],
                     ["value", (it) => it.value, { code: true, grow: true }]], found.rows, "No row begins with this."),
      h("p", { class: "pager" },
        start && h("button", { type: "button", onclick: () => load("") }, "First rows"),
        found.next && h("button", { type: "button", onclick: () => load(found.next) }, "Next rows")),
    ].map((it) => h("div", { "data-key": `${start} ${Math.random()}` }, it)));
  }
  browse = (number) => { fields.table.input.value = number; fields.prefix.input.value = ""; load(""); form.scrollIntoView({ block: "nearest" }); };
  return [h("h2", {}, "Browse"), form, result];
}

let browse = () => {};

function field(name, placeholder, mode) {
  const input = h("input", { name, placeholder, inputmode: mode, autocomplete: "off", spellcheck: "false", maxlength: 4096 });
  return { input, label: h("label", {}, name, " ", input) };
}

// ---- services ----

function services({ brokers, services: known, workers, problem, more }) {
  return [
    h("div", { class: "charts three" }, plot("chart-calls", "Calls"), plot("chart-call", "Calls, from arrival to answer"), plot("chart-waiting", "Requests at brokers")),
    panel("Services, the slowest first", reason({ problem }), table("Services", [
      ["service", (it) => it.name, { code: true }], ["workers", (it) => h("span", { class: it.workers ? null : "warn" }, it.workers), { num: true }],
      ["working on", (it) => number(it.working), { num: true }], ["waiting", (it) => number(it.waiting), { num: true }],
      ["oldest waits", (it) => (it.oldest_ms ? h("span", { class: it.oldest_ms > 1000 ? "warn" : null }, millis(it.oldest_ms)) : NONE), { num: true }],
      ["bytes", (it) => bytes(it.waiting_bytes), { num: true, wide: true }], ["answered", (it) => number(it.done), { num: true, wide: true }],
      ["broker", (it) => it.broker, { wide: true }],
    ], known, "No worker offers a service.", (it) => `${it.broker} ${it.name}`)),
    panel("Workers", table("Workers", [
      ["worker", (it) => it.number, { code: true }], ["service", (it) => it.service, { code: true }],
      ["working on", (it) => (it.window ? `${number(it.working)} of ${number(it.window)}` : number(it.working)), { num: true }],
      ["answered", (it) => number(it.done), { num: true }], ["last message", (it) => `${millis(it.silent_ms)} ago`, { num: true }],
      ["broker", (it) => it.broker, { wide: true }],
    ], workers, "No worker is registered.", (it) => `${it.broker} ${it.number}`), more > 0 && h("p", { class: "muted" }, `and ${number(more)} more`)),
    panel("Brokers", table("Brokers", [
      ["node", (it) => it.node], ["url", (it) => it.url, { code: true, wide: true }], ["requests", (it) => number(it.requests), { num: true }], ["answered", (it) => number(it.finals), { num: true }],
      ["held", (it) => number(it.held), { num: true }], ["size", (it) => bytes(it.held_bytes), { num: true, wide: true }],
      ["sent again", (it) => number(it.resent), { num: true, wide: true }], ["expired", (it) => number(it.expired), { num: true, wide: true }],
      ["refused", (it) => number(it.refused), { num: true, wide: true }], ["lost workers", (it) => number(it.workers_expired ?? 0), { num: true, wide: true }],
    ], brokers, "No broker runs under this supervisor.", (it) => it.node)),
  ];
}

// ---- discovery ----

function discovery({ nodes, links, counts, more }) {
  return [
    h("div", { class: "split" },
      panel("Who knows whom", nodes.length ? graph(nodes, links) : empty("No node of this supervisor has `zre:`."),
        more > 0 && h("p", { class: "muted" }, `and ${number(more)} more peers`)),
      h("div", {},
        panel("Nodes of the network", table("Nodes of the network", [
          ["name", (it) => it.name || NONE], ["cluster", (it) => it.cluster || NONE],
          ["state", (it) => badge(it.silent ? "silent" : "ready")],
          ["groups", (it) => it.groups.join(", ") || NONE, { wide: true }], ["endpoint", (it) => it.endpoint, { code: true, wide: true }],
        ], nodes, "No node is known.", (it) => it.endpoint)),
        panel("Counts", table("Counts", [
          ["node", (it) => it.node], ["peers", (it) => number(it.peers), { num: true }], ["without a greeting", (it) => number(it.unready), { num: true }],
          ["groups", (it) => number(it.groups), { num: true }], ["expired", (it) => number(it.dead ?? 0), { num: true }],
        ], counts, "No node of this supervisor has `zre:`.", (it) => it.node)))),
  ];
}

function graph(nodes, links) {
  const small = innerWidth < 700;
  const [width, height] = small ? [350, 340] : [560, 400];
  const places = new Map();
  const own = nodes.filter((it) => it.own), others = nodes.filter((it) => !it.own);
  for (const [ring, part] of [[own, others.length ? 0.42 : 0.72], [others, 0.84]]) {
    ring.forEach((node, number) => {
      const angle = 2 * Math.PI * number / ring.length - Math.PI / 2;
      places.set(node.endpoint, [width / 2 + part * (width / 2 - 50) * Math.cos(angle), height / 2 + part * (height / 2 - 12) * Math.sin(angle)]);
    });
  }
  const edges = new Map();
  for (const [one, other, silent] of links) {
    const key = [one, other].sort().join(" ");
    edges.set(key, { one, other, silent: silent || edges.get(key)?.silent });
  }
  return s("svg", { viewBox: `0 0 ${width} ${height}`, class: "graph", role: "img",
                    "aria-label": `${nodes.length} nodes, ${edges.size} connections` },
    [...edges.values()].filter(({ one, other }) => places.has(one) && places.has(other)).map(({ one, other, silent }) => {
      const [[x1, y1], [x2, y2]] = [places.get(one), places.get(other)];
      return s("line", { x1, y1, x2, y2, class: silent ? "silent" : null });
    }),
    nodes.map((node) => {
      const [x, y] = places.get(node.endpoint);
      return s("g", { class: `${node.own ? "own" : "other"}${node.silent ? " silent" : ""}` },
        s("circle", { cx: x, cy: y, r: node.own ? 9 : 6 }, s("title", {}, `${node.name} ${node.endpoint}`)),
        nodes.length <= 40 && s("text", { x, y: y + 24, "text-anchor": "middle" }, (node.name || node.endpoint.slice(6)).slice(0, 18)));
    }));
}

// ---- farms, pipeline ----

const farms = ({ servers }) => [
  panel("Farms", table("Farms", [
    ["farm", (it) => it.farm], ["server", (it) => it.node], ["role", (it) => badge(it.state === "ready" ? it.raft_role : it.state)],
    ["term", (it) => number(it.term), { num: true }], ["leader", (it) => it.leader ?? NONE],
    ["committed", (it) => number(it.commit_index), { num: true }], ["applied", (it) => number(it.applied_index), { num: true, wide: true }],
    ["snapshot", (it) => (it.snapshot_index ? number(it.snapshot_index) : NONE), { num: true, wide: true }],
    ["connections", (it) => number(it.links), { num: true, wide: true, title: "To other servers of the farm" }],
    ["certificate", (it) => (it.certificate_days === null ? NONE : h("span", { class: it.certificate_days < 30 ? "warn" : null }, `${number(it.certificate_days)} days`)), { num: true, wide: true }],
  ], servers, "No node of this supervisor serves a farm: docs/guides/farm.md shows how.", (it) => `${it.farm} ${it.node}`)),
];

const pipeline = ({ servers, drivers, jobs }) => [
  jobList(jobs),
  h("div", { class: "split" },
    panel("Job servers", table("Job servers", [
      ["node", (it) => it.node], ["state", (it) => badge(it.state)], ["jobs", (it) => number(it.jobs), { num: true }],
      ["mappers", (it) => number(it.mappers), { num: true, title: "Processes of mappers" }],
      ["snapshots held", (it) => number((it.leases ?? 0) + (it.shared_leases ?? 0)), { num: true }],
      ["rows", (it) => number(it.rows), { num: true, wide: true }], ["on Spark", (it) => number(it.on_spark), { num: true }],
    ], servers, "No node of this supervisor has tables.", (it) => it.node)),
    panel("Spark", table("Spark", [
      ["node", (it) => it.node], ["driver", (it) => badge(it.state === "ready" ? it.spark : it.state)], ["maps", (it) => number(it.maps), { num: true }],
      ["restarts", (it) => number(it.restarts), { num: true }], ["up", (it) => duration(it.uptime), { num: true }],
    ], drivers, "The topology has no `zerodb: {spark: ...}`: mappers run on the nodes alone.", (it) => it.node))),
];

export const VIEWS = {
  overview: { title: "Overview", draw: overview },
  raft: { title: "Raft", draw: raft },
  tables: { title: "Tables", draw: tables },
  services: { title: "Services", draw: services },
  discovery: { title: "Discovery", draw: discovery },
  farms: { title: "Farms", draw: farms },
  pipeline: { title: "Pipeline", draw: pipeline },
};
