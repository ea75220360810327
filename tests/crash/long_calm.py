"""Terms stay still on a busy machine, and a killed leader is still replaced soon.

The demo's cluster, tables included, takes appends of one client beside as many busy processes as
KELEK_CALM_LOAD says, of its own priority, for KELEK_CALM_S seconds. It prints the slowest append.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import kelek
from kelek.tests.actors.demo_cluster import DemoCluster
from kelek.tests.conftest import Shell

LOAD = int(os.environ.get("KELEK_CALM_LOAD", "20"))
CALM_S = float(os.environ.get("KELEK_CALM_S", "600"))
LOOK_S = 5.0  # Between two readings of the terms.
FAILOVER_S = 20.0  # Of machines with that load; an idle one takes about 0.3 s.
BUSY = [sys.executable, "-c", "while True: pass"]


@contextmanager
def busy_machine() -> Iterator[None]:
    processes = [subprocess.Popen(BUSY) for _ in range(LOAD)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def terms(log: kelek.Log, urls: list[str]) -> list[int]:
    return [log.info(url).term for url in urls]


@pytest.mark.tables
def test_terms_stay_still_on_a_busy_machine(shell: Shell) -> None:
    cluster = DemoCluster(shell, "writer: process", "[1000, 1500]")  # The defaults.
    urls = cluster.urls()
    leader = cluster.leader()
    slowest_s, count = 0.0, 0
    with kelek.Log(urls, timeout_ms=60_000) as log, busy_machine():
        first = terms(log, urls)
        assert len(set(first)) == 1, first
        started = looked = time.monotonic()
        while time.monotonic() < started + CALM_S:
            sent = time.monotonic()
            log.append(b"entry %d" % count)
            count += 1
            slowest_s = max(slowest_s, time.monotonic() - sent)
            if time.monotonic() > looked + LOOK_S:
                looked = time.monotonic()
                found = terms(log, urls)
                passed = looked - started
                assert found == first, f"terms {found} after {passed:.0f} s, {first} before"
        load = os.getloadavg()[0]
        print(f"terms {first} for {CALM_S:.0f} s at load {load:.1f}: {count} appends, the slowest "
              f"took {1000 * slowest_s:.0f} ms")  # fmt: skip
        killed = time.monotonic()
        os.kill(leader["pid"], signal.SIGKILL)
        log.append(b"after the leader")
        took_s = time.monotonic() - killed
        print(f"an append after SIGKILL of the leader took {1000 * took_s:.0f} ms")
        assert took_s < FAILOVER_S
        assert min(terms(log, urls)) > first[0]
