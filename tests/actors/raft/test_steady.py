"""Steady states in C (csrc/steady) in real processes: the logs, and what ends such a state."""

import os
import signal
from typing import Any

import pytest

import kelek
from kelek.storage.disk.disk import Disk
from kelek.storage.log.reader import LogReader
from kelek.storage.log.segment import Identity
from kelek.tests.actors.demo_cluster import LEADERS, DemoCluster, Rows

BATCHES, BATCH = 30, 50
OPERATIONS = 40


def blocks(cluster: DemoCluster, node: str, row: dict[str, Any]) -> bytes:
    """The log of a node, as its files hold it."""
    reader = LogReader(Disk(cluster.data / node / "raft"), Identity("demo", node))
    read: list[bytes] = []
    index, last_index = 1, int(row["applied_index"])
    while index <= last_index:
        batches = reader.batches(index, last_index, row["term"], 1 << 20)
        assert batches, f"{node} lacks entry {index}"
        read += [batch.block for batch in batches]
        index = batches[-1].last_index + 1
    reader.close()
    return b"".join(read)


@pytest.mark.tables
def test_operations_on_tables_are_led_in_c(shell: Any) -> None:
    """Puts, gets and increments by way of each node, whose applying processes get each commit at
    once: the leader and the followers stay in C, and each read sees the write before it."""
    cluster = DemoCluster(shell, "writer: thread")
    leader = cluster.leader()["node"]
    with kelek.Table(cluster.table_urls(), "counted", codec="text") as table:
        table.put("key", "made")  # The name's entry, and those of a new cluster.
    before = cluster.wait_caught_up()
    for place, url in enumerate(cluster.table_urls()):
        with kelek.Table([url], "counted", codec="text", timeout_ms=30_000) as table:
            for number in range(OPERATIONS):
                table.put("key", f"{place} {number}")
                assert table.get("key") == f"{place} {number}"
                assert table.increment("sum") == place * OPERATIONS + number + 1
    after = cluster.wait_caught_up()
    for node, row in after.items():
        wakes = row["steady_wakes"] - before[node]["steady_wakes"]
        # A leader gets each request, and an answer of each follower for a write.
        assert wakes > (3 if node == leader else 2) * 2 * OPERATIONS, node
    assert after[leader]["reads_leased"] > before[leader]["reads_leased"]


def test_nodes_lead_and_follow_in_c(shell: Any) -> None:
    """Lone entries, batches, a new leader, and new segments: each log has every entry once, and the
    followers' logs equal that of their twin, the leader, byte for byte."""
    cluster = DemoCluster(shell, "writer: thread, segment_bytes: 256KiB")
    cluster.append(20)
    for _ in range(BATCHES):
        cluster.append_batch(BATCH)
    rows = cluster.wait_caught_up()
    leader = cluster.leader()
    for row in rows.values():
        assert row["steady_wakes"] > BATCHES
        assert row["steady_left"]["segment"] > 0
        assert row["steady_left"]["disk"] == 0
    cluster.check()
    logs = {blocks(cluster, node, row) for node, row in rows.items()}
    assert len(logs) == 1
    os.kill(leader["pid"], signal.SIGKILL)

    def is_replaced(rows: Rows) -> bool:
        leads = {row.get("leader") for row in rows.values()}
        return leads in LEADERS and all(row["term"] > leader["term"] for row in rows.values())

    cluster.wait(is_replaced)
    for _ in range(BATCHES):
        cluster.append_batch(BATCH)
    cluster.wait_caught_up()
    cluster.check()
