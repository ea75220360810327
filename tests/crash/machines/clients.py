"""Clients with a key, until they are to stop: `clients.py TOPOLOGY KEY_FILE [--services]`.

Each of the WRITERS appends values of its own to the log; one more puts pairs into table 7. They
have one request outstanding each. With --services one calls the service echo instead, and an
acknowledgement is the right answer. Lines of stdin:

    more N   waits until each has N further acknowledgements
    end      stops them and reads everything back

The answer to each is a line of JSON: {"acknowledged": total, "gap_s": the longest time of a writer
between two acknowledgements since the last answer, "lost": [...], "doubled": [...]}.
"""

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import kelek
from kelek.actors.topology import topology
from kelek.actors.topology.topology import Topology

WRITERS = 3
TABLE = 7
TIMEOUT_MS = 60_000


class ValueWriter(threading.Thread):
    """Writes one value after the other. acknowledged: all that were; problem: what ended it."""

    def __init__(self, name: str, write: Callable[[bytes], object]) -> None:
        super().__init__(name=name, daemon=True)
        self.acknowledged: list[bytes] = []
        self.gap_s = 0.0
        self.problem = ""
        self.changed = threading.Condition()
        self._write = write
        self._ends = False

    def run(self) -> None:
        last = time.monotonic()
        while not self._ends:
            value = b"%s %d of %d" % (self.name.encode(), len(self.acknowledged), os.getpid())
            try:
                self._write(value)
            except kelek.Error as error:
                self.problem = f"{self.name}: {error!r}"
            now = time.monotonic()
            with self.changed:
                if not self.problem:
                    self.acknowledged.append(value)
                    self.gap_s = max(self.gap_s, now - last)
                self.changed.notify()
            last = now
            if self.problem:
                return

    def wait_for(self, count: int) -> None:
        with self.changed:
            wanted = len(self.acknowledged) + count
            self.changed.wait_for(lambda: self.problem or len(self.acknowledged) >= wanted)

    def end(self) -> None:
        self._ends = True
        self.join()


class AllWriters:
    """Of the log and table 7."""

    def __init__(self, found: Topology, key: str) -> None:
        keys = found.server_keys
        logs = {node.url: keys[node.url] for node in found.nodes.values()}
        urls = [node.tables_url for node in found.nodes.values() if node.tables_url]
        settings: dict[str, Any] = {"key": key, "timeout_ms": TIMEOUT_MS}
        self._logs, self._ident, self._settings = logs, found.cluster, settings
        self.table = kelek.Table(
            urls, TABLE, server_keys={url: keys[url] for url in urls}, **settings
        )
        self.writers = [ValueWriter(f"log {i}", self.open_log().append) for i in range(WRITERS)]
        self.putter = ValueWriter("table", lambda value: self.table.put(value, value))
        self.all = [*self.writers, self.putter]

    def open_log(self) -> kelek.Log:
        logs = self._logs
        return kelek.Log([*logs], self._ident, server_keys=logs, **self._settings)

    def answer(self, **more: object) -> None:
        problems = [writer.problem for writer in self.all if writer.problem]
        found = {
            "acknowledged": sum(len(writer.acknowledged) for writer in self.all),
            "gap_s": max(writer.gap_s for writer in self.all),
            "problems": problems,
        }
        for writer in self.all:
            writer.gap_s = 0.0
        print(json.dumps({**found, **more}), flush=True)

    def check(self) -> dict[str, list[str]]:
        """What is lost of the log and the table, and what the log has twice."""
        with self.open_log() as log:
            found = Counter(bytes(entry.data) for entry in log.entries())
        acknowledged = [value for writer in self.writers for value in writer.acknowledged]
        lost = [value for value in acknowledged if not found[value]]
        lost += [key for key in self.putter.acknowledged if self.table.get(key) != key]
        doubled = [value for value in acknowledged if found[value] > 1]
        return {"lost": [it.decode() for it in lost], "doubled": [it.decode() for it in doubled]}


class Caller(AllWriters):
    """Of the service."""

    def __init__(self, found: Topology, key: str) -> None:
        urls = [node.clients_url for node in found.nodes.values()]
        server_keys = {url: found.server_keys[url] for url in urls}
        self._broker = kelek.Broker(urls, key=key, server_keys=server_keys, timeout_ms=TIMEOUT_MS)
        self.all = [ValueWriter("echo", self._call)]

    def _call(self, value: bytes) -> None:
        answer = bytes(self._broker.call("echo", value))
        assert answer == value, (answer, value)

    def check(self) -> dict[str, list[str]]:
        return {"lost": [], "doubled": []}


def main(path: str, key: str, what: str = "") -> None:
    clients = (Caller if what == "--services" else AllWriters)(topology.load(path), key)
    for writer in clients.all:
        writer.start()
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "end":
            for writer in clients.all:
                writer.end()
            clients.answer(**clients.check())
            return
        for writer in clients.all:
            writer.wait_for(int(rest[0]))
        clients.answer()


if __name__ == "__main__":
    main(*sys.argv[1:])
