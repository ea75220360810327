// The npm package's own subscriber: one line of JSON for each entry that it hands out.
//
//   node subscriber.js '{"urls": [...], "secret": "ident", "lastIndex": 0}'
//
// It is run in a folder where the package is installed, and ends when its standard input does.
"use strict";

const raft = require(require.resolve("zmq-raft", { paths: [process.cwd()] }));

const subscriber = new raft.client.ZmqRaftSubscriber(JSON.parse(process.argv[2]));
const write = (item) => process.stdout.write(JSON.stringify(item) + "\n");

subscriber.on("data", (item) => {
  const kind = item.isSnapshotChunk ? "snapshot" : item.entryType;
  const data = item.isSnapshotChunk ? item : item.readEntryData();
  write({ index: item.logIndex, kind, data: data.toString("base64") });
});
subscriber.on("error", (error) => write({ error: String(error) }));
process.stdin.on("end", () => process.exit(0)).resume();
