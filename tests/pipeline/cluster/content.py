"""What the cluster holds, read without Spark: `content.py TOPOLOGY KEY_FILE`.

A line of stdin is a list in JSON: ["rows", TABLE], ["stream", NAME] or ["log"]. The answer is a
line of JSON, a list in order: rows as lists, or values as text.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import kelek
from kelek.actors.topology import topology


def main(path: str, key: str) -> None:
    found = topology.load(path)
    urls = [str(node.tables_url) for node in found.nodes.values()]
    logs = [str(node.url) for node in found.nodes.values()]
    keys = found.server_keys

    def items(what: str, name: str = "") -> Iterator[Any]:
        of_tables: dict[str, Any] = {"key": key, "server_keys": {url: keys[url] for url in urls}}
        if what == "log":
            server_keys = {url: keys[url] for url in logs}
            with kelek.Log(logs, found.cluster, key=key, server_keys=server_keys) as log:
                yield from (bytes(entry.data).decode() for entry in log.entries() if not entry.type)
        elif what == "stream":
            with kelek.Stream(urls, name, **of_tables) as stream:
                yield from (bytes(record.value).decode() for record in stream.read())
        else:
            with kelek.Table(urls, name, **of_tables) as table:
                yield from ([*row.values()] for row in table.rows())

    for line in sys.stdin:
        print(json.dumps([*items(*json.loads(line))], default=str), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
