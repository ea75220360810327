"""A running cluster gets its keys, and a node another key: no acknowledged update is lost or
repeated."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import kelek
from kelek.bench.ports import free_ports
from kelek.net.private_files import replace_file
from kelek.protocols.access.certificates import Certificate, encode_key, format_certificate
from kelek.tests.secure_cluster import COMMAND, NAMES, POLL_S, new_key
from kelek.tests.waiting import PACE_S

STOP_S = 30.0
TIMEOUT_MS = 60_000
LINKED_S_MAX = 5.0  # A link comes back after a second, a transfer has a second to succeed.
EACH_PHASE = 50  # Updates of each writer between two restarts.


class Cluster:
    """Three nodes, each with a supervisor of its own."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))
        ports = iter(free_ports(4 * len(NAMES)))
        self.old, self.new = (
            {name: [f"tcp://127.0.0.1:{next(ports)}" for _ in range(2)] for name in NAMES}
            for _ in range(2)
        )
        self.keys = {name: new_key(name) for name in (*NAMES, "ann")}
        (self.folder / "keys" / "allowed").mkdir(parents=True)
        for name, key in self.keys.items():
            replace_file(self.secret(name), format_certificate(key), 0o600)
        ann = Certificate(
            self.keys["ann"].public_key, b"", {"name": "ann", "grants": "log.read log.append admin"}
        )
        replace_file(self.folder / "keys/allowed/ann.key", format_certificate(ann), 0o644)
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def secret(self, name: str) -> Path:
        return self.folder / "keys" / f"{name}.key_secret"

    def server_key(self, name: str) -> str:
        return encode_key(self.keys[name].public_key)

    def write(
        self, security: str, keys_of: dict[str, str], file_name: str = "topology.yaml"
    ) -> None:
        nodes = "".join(f"  {name}: {{{keys_of[name]}}}\n" for name in NAMES)
        (self.folder / file_name).write_text(
            f"cluster: up\ndata: var\n{security}"
            f"raft: {{election_timeout_ms: [600, 1000]}}\nnodes:\n{nodes}"
        )

    def start(self, name: str, file_name: str = "topology.yaml") -> None:
        command = [sys.executable, "-P", "-c", COMMAND, "start", file_name, "--node", name]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [*command, "--one-process"], cwd=self.folder, stdout=log, stderr=log,
                env={**os.environ, "XDG_RUNTIME_DIR": str(self.folder)},
            )  # fmt: skip

    def stop(self, name: str) -> None:
        process = self.running.pop(name)
        assert process.poll() is None, self.log()
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_S) == 0, self.log()

    def wait(self, is_so: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + TIMEOUT_MS / 1000
        while not is_so():
            assert time.monotonic() < deadline_s, self.log()
            with suppress(subprocess.TimeoutExpired):
                self.running["n1"].wait(POLL_S)

    def transferred(self, log: kelek.Log, to: str) -> bool:
        """Moves the leadership, as soon as the member can lead."""

        def is_leader() -> bool:
            with suppress(kelek.TransferRefused):
                return log.transfer(to) == to
            return False

        self.wait(is_leader)
        return True

    def log(self) -> str:
        files = [*sorted(self.folder.glob("*.log")), *sorted(self.folder.glob("var/*/logs/*.log"))]
        return "\n".join(path.read_text() for path in files)

    def close(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait(STOP_S)
        print(self.log()[-4000:])
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.close()


class Writer(threading.Thread):
    """Appends values of its own, one after the other, until it is told to end."""

    def __init__(self, name: str, log: kelek.Log) -> None:
        super().__init__(name=name)
        self.acknowledged: list[bytes] = []
        self.problem: Exception | None = None
        self._log = log
        self._ends = threading.Event()
        self._wrote = threading.Condition()

    def run(self) -> None:
        try:
            while not self._ends.wait(PACE_S):
                value = b"%s %d" % (self.name.encode(), len(self.acknowledged))
                self._log.append(value)
                with self._wrote:
                    self.acknowledged.append(value)
                    self._wrote.notify()
        except kelek.Error as error:
            self.problem = error
        finally:
            self._log.close()

    def wait_for_more(self) -> None:
        """Waits until further values are acknowledged."""
        with self._wrote:
            wanted = len(self.acknowledged) + EACH_PHASE
            assert self._wrote.wait_for(
                lambda: self.problem is not None or len(self.acknowledged) >= wanted,
                TIMEOUT_MS / 1000,
            )
        assert self.problem is None, self.problem

    def end(self) -> None:
        self._ends.set()
        self.join()
        assert self.problem is None, self.problem


def test_keys_for_a_running_cluster(cluster: Cluster) -> None:
    old, new = cluster.old, cluster.new
    cluster.write(
        "", {name: f'url: "{old[name][0]}", peer_url: "{old[name][1]}"' for name in NAMES}
    )
    for name in NAMES:
        cluster.start(name)
    old_urls = [old[name][0] for name in NAMES]
    without = Writer("without", kelek.Log(old_urls, "up", timeout_ms=TIMEOUT_MS))
    without.start()
    without.wait_for_more()

    secured = {
        name: f'url: "{new[name][0]}", peer_url: "{new[name][1]}", '
        f'server_key: "{cluster.server_key(name)}"'
        for name in NAMES
    }
    both = {
        name: f'{secured[name]}, foreign_url: "{old[name][0]}", '
        f'foreign_peer_url: "{old[name][1]}", foreign_grants: internal'
        for name in NAMES
    }
    cluster.write("security: {mode: allow}\n", both)
    for name in NAMES:
        cluster.stop(name)
        cluster.start(name)
        without.wait_for_more()

    server_keys = {new[name][0]: cluster.server_key(name) for name in NAMES}
    ann = Writer(
        "ann",
        kelek.Log(
            [*server_keys], "up", timeout_ms=TIMEOUT_MS,
            key=cluster.secret("ann"), server_keys=server_keys,
        ),
    )  # fmt: skip
    ann.start()
    ann.wait_for_more()
    without.end()  # From now on all clients have keys.

    cluster.write("security: {}\n", secured)
    for name in NAMES:
        cluster.stop(name)
        cluster.start(name)
        ann.wait_for_more()
    ann.end()

    with kelek.Log(
        [*server_keys], "up", timeout_ms=TIMEOUT_MS,
        key=cluster.secret("ann"), server_keys=server_keys,
    ) as log:  # fmt: skip
        found = Counter(bytes(entry.data) for entry in log.entries())
    acknowledged = [*without.acknowledged, *ann.acknowledged]
    assert len(acknowledged) >= 8 * EACH_PHASE
    assert [value for value in acknowledged if found[value] != 1] == []
    with (
        kelek.Log(old_urls, "up", timeout_ms=1000) as log,
        pytest.raises(kelek.LogNoLeader),
    ):
        log.append(b"late")


def test_a_node_with_another_key(cluster: Cluster) -> None:
    """n2 restarts with another key. The others refuse it until they restart with the new topology:
    n2 connects to them again, without a restart."""
    urls = {name: f'url: "{cluster.new[name][0]}", peer_url: "{cluster.new[name][1]}"'
            for name in NAMES}  # fmt: skip
    known = {name: f'{urls[name]}, server_key: "{cluster.server_key(name)}"' for name in NAMES}
    cluster.write("security: {}\n", known, "old.yaml")
    for name in NAMES:
        cluster.start(name, "old.yaml")
    server_keys = {cluster.new[name][0]: cluster.server_key(name) for name in NAMES}
    secret = cluster.secret("ann")
    ann = Writer(
        "ann",
        kelek.Log([*server_keys], "up", timeout_ms=TIMEOUT_MS, key=secret, server_keys=server_keys),
    )
    ann.start()
    ann.wait_for_more()

    cluster.stop("n2")
    cluster.keys["n2"] = new_key("n2")
    replace_file(cluster.secret("n2"), format_certificate(cluster.keys["n2"]), 0o600)
    known["n2"] = f'{urls["n2"]}, server_key: "{cluster.server_key("n2")}"'
    cluster.write("security: {}\n", known)
    cluster.start("n2")
    refused = f"unknown key {cluster.server_key('n2')}"
    cluster.wait(lambda: cluster.log().count(refused) >= 2)  # By n1 and n3.
    for name in ("n1", "n3"):
        cluster.stop(name)
        cluster.start(name)
        ann.wait_for_more()
    ann.end()
    with kelek.Log(
        [*server_keys], "up", timeout_ms=TIMEOUT_MS, key=secret, server_keys=server_keys
    ) as log:
        begin_s = time.monotonic()  # n2 needs the votes of n1 and n3.
        assert cluster.transferred(log, "n2")
        assert time.monotonic() - begin_s < LINKED_S_MAX
