// The npm package's own client, driven by lines of JSON: {"n": 1, "do": "update", ...} on standard
// input, {"n": 1, ...} or {"n": 1, "error": "..."} on standard output. Requests may overlap.
//
//   node client.js '{"urls": [...], "secret": "ident"}'
//
// It is run in a folder where the package is installed.
"use strict";

const { createInterface } = require("readline");
const raft = require(require.resolve("zmq-raft", { paths: [process.cwd()] }));

const client = new raft.client.ZmqRaftClient(JSON.parse(process.argv[2]));
const fresh = () => raft.utils.id.genIdent("hex");

const answers = {
  config: () => client.requestConfig(20000),
  info: (ask) => client.requestLogInfo(true, ask.timeout_ms || 20000),
  update: async (ask) => {
    const data = Buffer.from(ask.data, "base64");
    return { index: await client.requestUpdate(ask.reqid || fresh(), data, 60000) };
  },
  members: async (ask) => ({
    index: await client.configUpdate(ask.reqid || fresh(), ask.members, 60000),
  }),
  // Entries and chunks of a snapshot, as the callback gets them: the stream below takes a chunk
  // for entries, whoever sends it.
  mixed: async (ask) => {
    const found = [];
    await client.requestEntries(
      ask.after,
      (status, items, last, offset, size) => {
        if (offset !== undefined) found.push({ index: last, offset, size, bytes: items.length });
        else items.forEach((_, n) => found.push({ index: last - items.length + 1 + n }));
      },
      20000,
    );
    return { found };
  },
  entries: (ask) =>
    new Promise((resolve, reject) => {
      const found = [];
      const stream = client.requestEntriesStream(ask.after, { count: ask.count, timeout: 20000 });
      stream.on("error", reject);
      stream.on("end", () => resolve({ found }));
      stream.on("data", (item) => found.push(entry(item)));
    }),
};

function entry(item) {
  return {
    index: item.logIndex,
    kind: item.entryType,
    term: item.readEntryTerm(),
    reqid: item.readRequestId().toString("hex"),
    data: item.readEntryData().toString("base64"),
  };
}

const write = (answer) => process.stdout.write(JSON.stringify(answer) + "\n");

createInterface({ input: process.stdin })
  .on("line", (line) => {
    const ask = JSON.parse(line);
    answers[ask.do](ask).then(
      (answer) => write({ n: ask.n, ...answer }),
      (error) => write({ n: ask.n, error: String(error) }),
    );
  })
  .on("close", () => process.exit(0));
