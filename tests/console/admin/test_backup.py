"""`kelek backup` and `restore`: a drill in which a whole cluster is lost while it is written to.

KELEK_BACKUP_ROWS and KELEK_BACKUP_ROUNDS make it longer (./check --long backup).
"""

import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kelek
from kelek.bench.ports import free_ports
from kelek.clients.io.reqids import new_reqids
from kelek.storage.disk.disk import Disk
from kelek.storage.log.segment import Identity
from kelek.storage.log.verify import entries
from kelek.tests.conftest import Shell, demo_shell
from kelek.tests.console.kelek_runner import fails, ok
from kelek.tests.waiting import PACE_S

ROWS = int(os.environ.get("KELEK_BACKUP_ROWS", "2000"))
ROUNDS = int(os.environ.get("KELEK_BACKUP_ROUNDS", "1"))
IS_LONG = "KELEK_BACKUP_ROUNDS" in os.environ
DEADLINE_S = 120.0
HERE = "--nice", "0", "-o", "json"  # The command runs in the process of the tests.
SINCE, NOW = "since.kbk", "now.kbk"
VALUE = b"v" * 40


class DrillCluster:
    """A topology of three nodes with tables and a farm. Of one shell at most one runs."""

    def __init__(self, shell: Shell, ident: str, names: str, ids: tuple[int, ...]) -> None:
        self.shell, self.ident = shell, ident
        self.path = shell.folder / f"{ident}.yaml"
        self.data = shell.folder / f"var-{ident}"
        ports = iter(free_ports(12))
        self.urls, self.tables, self.farms = [], [], []
        users = "passwords_file: farm/passwords, user: servers, secret_file: farm/servers.secret"
        lines = []
        for name in names:
            url, peer_url, tables, farm = (f"tcp://127.0.0.1:{next(ports)}" for _ in range(4))
            self.urls.append(url)
            self.tables.append(tables)
            self.farms.append(farm)
            lines.append(
                f"  {name}: {{url: '{url}', peer_url: '{peer_url}', zerodb: {{url: '{tables}'}},\n"
                f"      farm: {{url: '{farm}', i2p: true, {users}}}}}\n"
            )
        servers = ", ".join(f"{number}: {name}" for number, name in zip(ids, names, strict=True))
        self.path.write_text(
            f"cluster: {ident}\ndata: {self.data}\n"
            "raft: {election_timeout_ms: [600, 1000]}\n"
            f"farms: {{farm: {{servers: {{{servers}}}, admins: [demo]}}}}\n"
            "nodes:\n" + "".join(lines)
        )

    def start(self) -> None:
        together = "" if IS_LONG else "--one-process"
        self.shell.ok(f"supervisor start {self.path.name} --detach --bootstrap {together}")

    def stop(self) -> None:
        self.shell.run(f"supervisor stop {self.path.name}")

    def log(self) -> kelek.Log:
        return kelek.Log(self.urls, self.ident, timeout_ms=int(1000 * DEADLINE_S))

    def table(self, number: int = 1) -> kelek.Table:
        return kelek.Table(self.tables, number, timeout_ms=int(1000 * DEADLINE_S))

    def farm(self) -> kelek.Farm:
        tuning = kelek.FarmTuning(i2p=True)
        secret = self.shell.folder / "farm/demo.secret"
        return kelek.Farm(self.farms, user="demo", secret_file=str(secret), tuning=tuning)

    def rows(self) -> str:
        """A hash of the tables."""
        found = hashlib.sha256()
        for number in (1, 2):
            with self.table(number) as table:
                for pair in table.scan():
                    found.update(b"%d\0%s\0%s\0" % (number, *pair))
        return found.hexdigest()

    def history(self, after: int, last_index: int) -> str:
        """A hash of the entries, as a client reads them."""
        with self.log() as log:
            return digest(log.entries(after, last_index - after))

    def applied(self, index: int) -> None:
        """Waits until every node has applied an entry."""
        until = time.monotonic() + DEADLINE_S
        with self.log() as log:
            while min(log.info(url).applied_index for url in self.urls) < index:
                assert time.monotonic() < until, f"{index} is never applied"


def digest(found: Any) -> str:
    values = [(it.index, it.term, int(it.type), it.reqid, it.data) for it in found]
    return hashlib.sha256(repr(values).encode()).hexdigest()


def stored_digest(folder: Path, identity: Identity, first_index: int, last_index: int) -> str:
    """The same of a data directory."""
    found = entries(Disk(str(folder)), identity, first_index, last_index)
    values = [(it.index, it.term, it.kind, it.reqid, it.data) for it in found]
    return hashlib.sha256(repr(values).encode()).hexdigest()


class BusyClient:
    """A client that writes to tables and the log, until it is stopped."""

    def __init__(self, cluster: DrillCluster) -> None:
        self.rows = 0  # Acknowledged.
        self.problem: Exception | None = None
        self._cluster, self._is_stopped = cluster, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._cluster.table(2) as table, self._cluster.log() as log:
                while not self._is_stopped.wait(PACE_S):
                    table.put_many((b"w%d" % (self.rows + at), VALUE) for at in range(10))
                    log.append(b"w")
                    self.rows += 10
        except kelek.Error as error:
            self.problem = error

    def stop(self) -> int:
        self._is_stopped.set()
        self._thread.join(DEADLINE_S)
        assert self.problem is None
        return self.rows


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with demo_shell(tmp_path_factory.mktemp("backup")) as made:
        (made.folder / "topology.yaml").unlink()
        (made.folder / "farm").mkdir()
        passwords = made.folder / "farm/passwords"
        ok("farm", "user", "add", passwords, "servers", "demo", "--make", made.folder / "farm")
        yield made
        for topology in made.folder.glob("*.yaml"):
            topology.unlink()  # All are stopped.


class Lost:
    """What is known of the cluster that is lost, after two backups."""

    def __init__(self, shell: Shell) -> None:
        self.old = old = DrillCluster(shell, "old", "abc", (1, 2, 3))
        self.folder = shell.folder
        self.reqid = next(iter(new_reqids(1)))
        old.start()
        try:
            self._fill(shell)
        finally:
            old.stop()

    def _fill(self, shell: Shell) -> None:
        old, topology = self.old, ("-t", str(self.old.path))
        with old.table() as table, old.table(2) as other, old.log() as log, old.farm() as farm:
            table.open()
            other.open()
            table.put_many((b"%08d" % row, VALUE) for row in range(ROWS))
            log.append_many([b"once"], reqids=[self.reqid])
            farm.append_many([b'{"n": 1}', b'{"n": 2}'])
            ok("log", "snapshot", *topology)
            writer = BusyClient(old)
            first = json.loads(ok("backup", shell.folder / SINCE, *topology, *HERE))
            assert first["log"]["snapshot_index"] > 0
            # The second backup has what was acknowledged before it began.
            self.rows_least = writer.stop()
            self.index = log.info().commit_index
            old.applied(self.index)
            self.rows_then = old.rows()
            farm.append(b'{"n": 3}')
            table.put(b"later", b"1")
            writer = BusyClient(old)
            file = shell.folder / NOW
            done = json.loads(
                ok("backup", file, "--since", file.with_name(SINCE), *topology, *HERE)
            )
            writer.stop()
        self.snapshot_index: int = first["log"]["snapshot_index"]
        self.last_index: int = done["log"]["last_index"]
        self.first_last_index: int = first["log"]["last_index"]
        self.ids = [first["id"], done["id"]]
        assert done["since"] == first["id"]
        assert self.first_last_index < self.index < self.last_index
        self.history = old.history(self.snapshot_index, self.last_index)
        self.history_then = old.history(self.snapshot_index, self.index)
        assert [farm["last_index"] for farm in done["farms"].values()] > [3]


@pytest.fixture(scope="module")
def lost(shell: Shell) -> Lost:
    found = Lost(shell)
    shutil.rmtree(found.old.data)
    return found


def restored(lost: Lost, ident: str, *words: object) -> DrillCluster:
    """A cluster with other nodes, whose data directories are made."""
    cluster = DrillCluster(lost.old.shell, ident, "xyz", (7, 8, 9))
    files = [lost.folder / SINCE, lost.folder / NOW]
    done = json.loads(ok("restore", *files, "-t", cluster.path, *words, "-o", "json"))
    assert (done["cluster"], done["from"], done["nodes"]) == (ident, "old", ["x", "y", "z"])
    return cluster


def test_a_lost_cluster_goes_on_under_another_name(lost: Lost) -> None:
    cluster = restored(lost, "anew")
    for node in "xyz":
        (line,) = (cluster.data / node / "recovery.log").read_text().splitlines()
        assert json.loads(line)["restored"] == lost.ids
        folder, identity = cluster.data / node / "raft", Identity("anew", node)
        found = stored_digest(folder, identity, lost.snapshot_index + 1, lost.last_index)
        assert found == lost.history
    cluster.start()
    try:
        assert cluster.history(lost.snapshot_index, lost.last_index) == lost.history
        with cluster.log() as log, cluster.table() as table, cluster.table(2) as other:
            assert log.members().keys() == {"x", "y", "z"}
            before = log.read_index()
            log.append_many([b"once"], reqids=[lost.reqid])
            assert b"once" not in [it.data for it in log.entries(before)], "it was there already"
            assert log.append(b"goes on") > lost.last_index
            assert table.get_many([b"00000000", b"later"]) == [VALUE, b"1"]
            assert table.count() == ROWS + 1
            assert other.count() >= lost.rows_least
            table.put(b"new", b"2")
            assert table.get(b"new") == b"2"
        with cluster.farm() as farm:
            farm.append(b'{"n": 4}')
            documents = [it.document or {} for it in farm.entries()]  # Also the servers' own.
            assert [one["n"] for one in documents if "n" in one] == [1, 2, 3, 4]
            assert [server.id for server in farm.servers()] == [7, 8, 9]
    finally:
        cluster.stop()


@pytest.mark.parametrize("number", range(ROUNDS))
def test_an_index_restores_the_cluster_of_that_moment(lost: Lost, number: int) -> None:
    cluster = restored(lost, f"then{number}", "--index", lost.index)
    for node in "xyz":
        folder, identity = cluster.data / node / "raft", Identity(cluster.ident, node)
        found = stored_digest(folder, identity, lost.snapshot_index + 1, lost.index)
        assert found == lost.history_then
    if not IS_LONG:
        return
    cluster.start()
    try:
        cluster.applied(lost.index + 1)
        assert cluster.rows() == lost.rows_then
        assert cluster.history(lost.snapshot_index, lost.index) == lost.history_then
    finally:
        cluster.stop()


def test_what_is_damaged_or_not_new_is_refused(lost: Lost, tmp_path: Path) -> None:
    cluster = DrillCluster(lost.old.shell, "never", "xyz", (7, 8, 9))
    topology = ("-t", cluster.path)
    whole = (lost.folder / SINCE).read_bytes()
    for at in (100, len(whole) // 2, whole.index(b"manifest") + 40):
        flipped = bytearray(whole)
        flipped[at] ^= 4
        (tmp_path / SINCE).write_bytes(flipped)
        for words in (("backup", "verify"), ("restore", *topology)):
            code, line = fails(*words, tmp_path / SINCE)
            assert code == 1
            assert SINCE in line
            assert "offset" in line
            assert line.endswith("; use another backup")
    for words in (("backup", "verify"), ("restore", *topology)):
        code, line = fails(*words, tmp_path / "no.kbk")
        assert (code, "no.kbk: there is no such file; check its name" in line) == (2, True)
    (tmp_path / SINCE).write_bytes(whole[:-30])
    code, line = fails("restore", tmp_path / SINCE, *topology)
    assert "cut short" in line
    assert not cluster.data.exists() or not any(
        list((cluster.data / node).iterdir()) for node in "xyz" if (cluster.data / node).exists()
    ), "nothing is restored in part"
    now, since = lost.folder / NOW, lost.folder / SINCE
    assert "it continues another backup" in fails("restore", now, *topology)[1]
    assert "does not continue" in fails("restore", since, since, *topology)[1]
    for index, way_out in ((1, "take an older backup"), (1 << 40, "add the backups after it")):
        code, line = fails("restore", since, "--index", index, *topology)
        assert code == 2
        assert way_out in line
    (cluster.data / "y" / "raft").mkdir(parents=True)
    code, line = fails("restore", since, *topology)
    assert (code, "node y has data already; move" in line) == (2, True)
    assert "it exists already; give another name" in fails("backup", since, *topology)[1]
    assert "there is no such directory" in fails("backup", tmp_path / "no/one.kbk", *topology)[1]
