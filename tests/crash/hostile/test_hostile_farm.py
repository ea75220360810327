"""A farm while peers without a user attack its leader.

The short form attacks until each kind was refused, so it proves the same on a busy machine: the
leader stays, its memory is bounded, appends of old and new clients are answered. With
KELEK_HOSTILE_S (`./check --long hostile`) the attack lasts so long, with KELEK_HOSTILE_PEERS
connections, and clients must not be delayed, too: the base is an attack of processes that compute.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

import kelek
from kelek.tests.actors.farm.farm_servers import USER, FarmServers, RunningServer, ServerProcess
from kelek.tests.crash.hostile import hostile_farm
from kelek.tests.crash.hostile.attacked_cluster import (
    Latencies,
    Processors,
    attackers,
    burners,
    private_bytes,
    rounded,
)

PEERS = int(os.environ.get("KELEK_HOSTILE_PEERS", "18"))
SECS = float(os.environ.get("KELEK_HOSTILE_S", "0"))
BASELINE_S = SECS / 3
DEADLINE_S = 120
SLOWER_MAX = 2.0
# By which the server has refused each kind; tls_failed: no_tls and half_handshake.
REFUSED = {"tls_failed", "tls_timeouts", "silent_timeouts", "http_401", "http_408", "http_431",
           "http_404", "http_429"}  # fmt: skip
CONNECTION_BYTES = 128 << 10  # What docs/limits.md states for each connection without a login.
OWN_BYTES = 32 << 20  # The server's own, of the appends: 1 MiB for 5,000.

pytestmark = pytest.mark.timeout(2 * DEADLINE_S + 3 * SECS)


def server_process(server: RunningServer) -> "subprocess.Popen[bytes]":
    assert isinstance(server, ServerProcess)
    return server.process


class AttackedFarm:
    """Three server processes, of which the leader is attacked."""

    def __init__(self, farm: FarmServers) -> None:
        self.farm = farm
        self.leader = farm.leader()
        servers = {number: server_process(it) for number, it in farm.running.items()}
        self.names = {it.pid: f"{number}" for number, it in servers.items()}
        self._pid = servers[self.leader].pid
        self._base = private_bytes(self._pid)
        self.growth = 0

    def client(self) -> kelek.Farm:
        servers = [f"tls://127.0.0.1:{port}" for port in self.farm.ports.values()]
        return kelek.Farm(
            servers, self.farm.names[0], user=USER, secret_file=self.farm.folder / "demo.secret",
            ca_file=self.farm.ca, timeout_ms=1000 * DEADLINE_S,
        )  # fmt: skip

    def targets(self) -> dict[str, list[str]]:
        return {kind: [str(self.farm.ports[self.leader])] for kind in hostile_farm.KINDS}

    def serve(self, is_over: Callable[[], bool]) -> Latencies:
        """Appends, one after the other, of a client that connects now."""
        times: list[float] = []
        used = Processors(self.names)
        with self.client() as client:
            while not times or not is_over():
                begun_s = time.monotonic()
                client.append(b"honest")
                times.append(time.monotonic() - begun_s)
                self.growth = max(self.growth, private_bytes(self._pid) - self._base)
        print("appends", found := Latencies.of(times), "processors", rounded(used.used()))
        return found

    def serve_for(self, secs: float) -> Latencies:
        until_s = time.monotonic() + secs
        return self.serve(lambda: time.monotonic() >= until_s)

    def refusals(self) -> set[str]:
        counters = self.farm.status(self.leader).get("counters", {})
        return REFUSED & set(counters)


@pytest.fixture
def attacked() -> Iterator[AttackedFarm]:
    with FarmServers(processes=True, times="election_timeout_ms: [1000, 2000]") as farm:
        farm.start()
        yield AttackedFarm(farm)


def test_a_farm_survives_hostile_peers(attacked: AttackedFarm) -> None:
    farm, leader = attacked.farm, attacked.leader
    attacked.serve_for(BASELINE_S)
    term = farm.wait(lambda: farm.status(leader).get("term"))
    problems = []
    with burners(len(hostile_farm.KINDS)):
        base = attacked.serve_for(BASELINE_S)
    with attackers(attacked.targets(), PEERS, hostile_farm):
        if SECS:
            during = attacked.serve_for(SECS)
            slower = during.p99_ms / base.p99_ms
            problems = [f"p99 x{slower:.1f}"] if slower > SLOWER_MAX else []
        else:
            until_s = time.monotonic() + DEADLINE_S
            attacked.serve(lambda: attacked.refusals() == REFUSED or time.monotonic() > until_s)
        attacked.serve_for(0)  # A client that is new.
    print(f"growth {attacked.growth >> 20} MiB", farm.status(leader)["counters"])
    assert attacked.refusals() == REFUSED
    assert attacked.growth < OWN_BYTES + PEERS * CONNECTION_BYTES
    found = farm.leader(), farm.status(leader)["term"]
    assert found == (leader, term), farm.report()
    assert not any(it.ended() for it in farm.running.values())
    assert not problems
