"""The demo's changes of a running cluster: a snapshot, one more node, one less, a lost disk.

Each step waits for its end and prints a line with its time.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from kelek.clients.errors import LogTimeout, MembersConflict, MembersRefused
from kelek.clients.log.log import Log
from kelek.examples.demo.cluster import Cluster, fail, say

ANSWER_MS = 1000
APPLY_S = 60
BUSY_S = 20.0
LOOK_S = 0.01
PASSING = ("", "QuorumLost", "Unreachable")  # Transient on a busy machine.


@contextlib.contextmanager
def step(what: str) -> Iterator[list[str]]:
    """Prints a line when the step is done, with what the step adds to the list."""
    details: list[str] = []
    began = time.monotonic()
    yield details
    say(f"  {time.monotonic() - began:>7.2f} s  {', '.join([what, *details])}")


class Changes:
    """The steps, in order."""

    def __init__(self, cluster: Cluster, log: Log) -> None:
        self._cluster = cluster
        self._log = log
        self.snapshot_index = 0  # The newest snapshot of all nodes.

    def run(self, later: Sequence[bytes]) -> None:
        """Runs all steps; later are values that one node receives only after it is back."""
        self._snapshot()
        self._add()
        self._remove()
        self._wipe(later)
        self._put_back()

    def _snapshot(self) -> None:
        with step("a snapshot on each node") as details:
            for url in self._cluster.urls.values():
                made = self._log.make_snapshot(url)
                self.snapshot_index = max(self.snapshot_index, made.last_index)
            details.append(f"of {made.size / 1e6:.1f} MB up to entry {made.last_index:,}")
            for url in self._cluster.urls.values():
                self._wait(url, lambda first, applied: first > 1)
            details.append("the log before it removed")

    def _add(self) -> None:
        new = self._cluster.new_node()
        with step(f"{new} started, with an empty disk"):
            self._cluster.start(new)
        with step(f"{new} added: it has caught up, and votes"):
            self._change(partial(self._log.add_member, new, self._cluster.urls[new]))
        self._new = new

    def _remove(self) -> None:
        leader = self._log.config().leader
        followers = [node for node in self._cluster.urls if node not in (leader, self._new)]
        self._removed, self._wiped = followers[:2]
        with step(f"{self._removed} removed, and stopped"):
            self._change(partial(self._log.remove_member, self._removed))
            self._cluster.stop(self._removed)

    def _wipe(self, later: Sequence[bytes]) -> None:
        node = self._wiped
        with step(f"{node} stopped, and its disk wiped"):
            self._cluster.stop(node)
            self._cluster.wipe(node)
        with step(f"the last {len(later):,} flights, with two of three members"):
            self._log.append_many(later)
        with step(f"{node} started again: by snapshot and log it has applied everything"):
            self._cluster.start(node)
            self.wait_applied(node)

    def _put_back(self) -> None:
        node = self._removed
        with step(f"{node} started, and added again"):
            self._cluster.start(node)
            self._change(partial(self._log.add_member, node, self._cluster.urls[node]))

    def leave(self) -> None:
        """Restores the members of the topology."""
        with step(f"{self._new} removed: the members are those of the topology again"):
            self._change(partial(self._log.remove_member, self._new))

    def _change(self, change: Callable[[], int]) -> None:
        """Retries while an election or another change is in progress."""
        until = time.monotonic() + BUSY_S
        while True:
            try:
                change()
                return
            except (MembersConflict, MembersRefused) as error:
                if getattr(error, "name", "") not in PASSING or time.monotonic() > until:
                    raise
            time.sleep(LOOK_S)

    def wait_applied(self, *nodes: str) -> None:
        commit_index = self._log.info().commit_index
        for node in nodes:
            self._wait(self._cluster.urls[node], lambda _, applied: applied >= commit_index)

    def _wait(self, url: str, is_there: Callable[[int, int], bool]) -> None:
        """Waits for the first entry, or the applied index, of the node at url."""
        until = time.monotonic() + APPLY_S
        with self._cluster.log(url, timeout_ms=ANSWER_MS) as log:
            while True:
                with contextlib.suppress(LogTimeout):
                    info = log.info(url)
                    if is_there(info.first_index, info.applied_index):
                        return
                if time.monotonic() > until:
                    fail(f"{url}: is not there within {APPLY_S} s; see: {self._cluster.logs}")
                time.sleep(LOOK_S)
