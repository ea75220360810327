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
  entries: (ask) =>
    new Promise((resolve, reject) => {
      const found = [];
      const stream = client.requestEntriesStream(ask.after, { count: ask.count, timeout: 20000 });
      stream.on("error", reject);
      stream.on("end", () => resolve({ found }));
      stream.on("data", (item) => found.push(item.isSnapshotChunk ? chunk(item) : entry(item)));
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

function chunk(item) {
  return { index: item.logIndex, offset: item.snapshotByteOffset, data: item.toString("base64") };
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
