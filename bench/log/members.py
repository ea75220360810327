"""How long does a change of the members take?

    python -m kelek.bench members [--quick] [--rounds N] [-o json]

A fourth node runs with a supervisor of its own. ConfigUpdate adds and removes it in each round.
After the first round it holds the log except for the entries of the last rounds, like a server that
has caught up. A change is done when the client's call returns: the final configuration is
committed. The client stays connected, and nothing else is written.
"""

from pathlib import Path

import kelek
from kelek.bench.kelek_cluster import IDENT, Apart
from kelek.bench.question import ROW_HEAD, Question, row, timed
from kelek.bench.report import Section, summed_up

ROUNDS = 21
ENTRIES = 10_000  # Entries that the newcomer copies in the first round.
GOAL_MS = 100
NEWCOMER = "n4"


def measure(directory: Path, rounds: int) -> Section:
    cluster = Apart(directory)
    added, removed = [], []
    try:
        cluster.start_fresh()
        cluster.leader()
        members = list(cluster.urls.values())
        url = cluster.start_newcomer(NEWCOMER)
        cluster.wait(NEWCOMER, lambda info: True, "an answer")
        with kelek.Log(members, IDENT) as log:
            log.append_many(b"entry %d" % number for number in range(ENTRIES))
            for _ in range(rounds + 1):
                added.append(timed(lambda: log.add_member(NEWCOMER, url)))
                removed.append(timed(lambda: log.remove_member(NEWCOMER)))
    finally:
        cluster.stop()
    first, added, removed = added[0], added[1:], removed[1:]
    figures = [
        summed_up("membership change: a server that has caught up added", added, "ms", GOAL_MS),
        summed_up("membership change: a server removed", removed, "ms", GOAL_MS),
    ]
    rows = [
        ROW_HEAD,
        row("added, caught up", added, "ms", ".1f"),
        row("removed", removed, "ms", ".1f"),
        row(f"added, empty: {ENTRIES:,} entries to copy first", [first], "ms", ".1f"),
    ]
    note = "From the client's call to its return: the final configuration is committed."
    return Section("Changes of the members", figures, rows, note)


QUESTION = Question("members", __doc__, measure, ROUNDS)
