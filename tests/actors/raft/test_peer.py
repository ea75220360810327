"""A peer in real processes: when three nodes elect, and after the end of the leader's process."""

import os
import signal
import time
from typing import Any

from kelek.tests.actors.demo_cluster import LEADERS, DemoCluster, Rows

TIMEOUT_S = 60  # Of an election; far more than the parts of this test take on a busy machine.


def test_no_election_waits_for_a_timeout_when_a_process_has_ended(shell: Any) -> None:
    timeout_ms = f"[{TIMEOUT_S * 1000 - 1}, {TIMEOUT_S * 1000}]"
    begin_s = time.monotonic()
    cluster = DemoCluster(shell, "writer: thread", timeout_ms)
    cluster.append(1)
    leader = cluster.leader()
    assert time.monotonic() - begin_s < TIMEOUT_S, "the first election"

    def is_replaced(rows: Rows) -> bool:
        leads = {row.get("leader") for row in rows.values()}
        return leads in LEADERS and all(row["term"] > leader["term"] for row in rows.values())

    os.kill(leader["pid"], signal.SIGKILL)
    killed_s = time.monotonic()
    cluster.wait(is_replaced)
    assert time.monotonic() - killed_s < TIMEOUT_S, "the second one"
    cluster.append(1)
    cluster.wait_caught_up()
    cluster.check()
