"""Power losses of a raw log, of backups of it, and of restores from these.

    PYTHONPATH=.build python -m kelek.tests.crash.power.log_drill --losses 50 --seed 7

Clients of all forms of ZMQ RAFT append to the log of three nodes and go on when the power is back.
Each value is in the log once, at the index of its acknowledgement, on the disks of all nodes. With
each loss a backup loses the power, too, or has just ended: a file of its name is whole then, has
what was acknowledged before it began, and is there if the command has said so. What a restore has
moved into place is whole, and the nodes that it lacks can be restored afterwards.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from threading import Event, Thread

import kelek
from kelek.bench.kelek_cluster import IDENT, NODES, node_line
from kelek.bench.machine import BenchError
from kelek.console.admin.restore import UNFINISHED as UNFINISHED_NODE
from kelek.protocols.record import decode_block
from kelek.storage.disk.disk import Disk
from kelek.storage.disk.files import UNFINISHED
from kelek.storage.errors import StorageError
from kelek.storage.log.segment import Identity
from kelek.storage.log.verify import StoredEntry, entries, verify
from kelek.storage.snapshot.backup import open_backup
from kelek.tests.crash.kill_drill import STOP_S, Broken
from kelek.tests.crash.power.forgetful import ForgetfulFolder
from kelek.tests.crash.power.power_drill import ForgetfulCluster, kill_together
from kelek.tests.waiting import PACE_S, wait_until

SETTINGS = """
raft: {election_timeout_ms: [1000, 1500]}
log: {segment_bytes: 64 KiB}
"""
FORMS = "auto", "node", "text"
KELEK = [sys.executable, "-P", "-m", "kelek.console.kelek_cli"]
TIMEOUT_MS = 120_000
SIZES = 1, 30, 30, 3000  # Bytes of values.
ACKS_BETWEEN = (100, 400)  # Losses.
BACKUP, RESTORED = "{}.kbk", "restored"
LATER_S = 0.0, 0.01, 0.05, 0.2  # After a file or directory was begun, ...
DONE = 0.4  # ... or so often when the command has ended.
LAST_ACTS_S = 60.0

Values = dict[int, bytes]  # By index.


class AppendClient:
    """Appends numbered values, pipelined, until it is stopped."""

    def __init__(self, urls: list[str], form: str, dice: Random) -> None:
        self.form = form
        self.sent: list[bytes] = []
        self.acknowledged: Values = {}
        self.problem: Exception | None = None
        self._dice = dice
        self._is_stopped = Event()
        self._log = kelek.Log(urls, IDENT, form=form, timeout_ms=TIMEOUT_MS)
        self._thread = Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._log as log:
                for index in log.append_each(self._values()):
                    self.acknowledged[index] = self.sent[len(self.acknowledged)]
        except kelek.Error as error:
            self.problem = error

    def _values(self) -> Iterator[bytes]:
        while not self._is_stopped.wait(PACE_S * self._dice.random()):
            head = f"{self.form} {len(self.sent)} ".encode()
            self.sent.append(head + bytes(self._dice.choice(SIZES)))
            yield self.sent[-1]

    def stop(self) -> None:
        """Returns when all is acknowledged."""
        self._is_stopped.set()
        self._thread.join(LAST_ACTS_S)
        if self.problem is not None or len(self.acknowledged) < len(self.sent):
            raise Broken(f"{self.form}: {len(self.sent)} sent, {self.problem}")


class LogDrill:
    """The cluster, its clients, and the last backup."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.dice = Random(seed)
        self.cluster = ForgetfulCluster(directory, SETTINGS, lies=False)
        self.clients: list[AppendClient] = []
        self.backups: list[Path] = []  # Whole ones, in order.
        self.seen = {"losses": 0, "writes taken back": 0, "names taken back": 0}

    @property
    def folder(self) -> Path:
        """Of the backups: its power fails with that of the nodes."""
        return self.cluster.folder.root / "backups"

    @property
    def acknowledged(self) -> Values:
        return {at: it for client in self.clients for at, it in dict(client.acknowledged).items()}

    def run(self, losses: int) -> None:
        """Raises Broken."""
        self.cluster.start_fresh()
        try:
            self.cluster.wait_for_tables()
            self.folder.mkdir()
            urls = [*self.cluster.urls.values()]
            self.clients = [AppendClient(urls, form, Random(self.dice.random())) for form in FORMS]
            for number in range(losses):
                self.lose_power(self.folder / BACKUP.format(number))
            self.load()
            for client in self.clients:
                client.stop()
            self.cluster.leader()  # All have applied what is committed.
            for supervisor in self.cluster.supervisors.values():
                supervisor.terminate()
                supervisor.wait(STOP_S)
        finally:
            self.cluster.stop()
        log = self.check_log()
        for path in self.backups:
            self.check_backup(path, log)

    def load(self) -> None:
        enough = len(self.acknowledged) + self.dice.randint(*ACKS_BETWEEN)
        wait_until(lambda: len(self.acknowledged) >= enough, "nothing is acknowledged", LAST_ACTS_S)

    # ---- losses, with a backup each ----

    def lose_power(self, path: Path) -> None:
        self.load()
        floor = max(self.acknowledged)
        command = [*KELEK, "backup", str(path), "-t", str(self.cluster.topology), "--nice", "0"]
        with (self.cluster.directory / "backup.log").open("ab") as log:
            environment = {**os.environ, **self.cluster.folder.environment()}
            backup = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        unfinished = path.with_name(path.name + UNFINISHED)

        def begun() -> bool:
            return backup.poll() is not None or unfinished.exists() or path.exists()

        wait_until(begun, "no backup begins", LAST_ACTS_S)
        wait_for(backup, self.dice)
        said_so = backup.poll() == 0
        self.cluster.kill_all(backup)
        lost = self.cluster.folder.lose_power(self.dice)
        self.seen["losses"] += 1
        self.seen["writes taken back"] += lost.writes
        self.seen["names taken back"] += lost.names
        if path.exists():
            self.backups.append(path)
            if last_index_of(path) < floor:
                raise Broken(f"{path.name} lacks entry {floor}, which it began after")
        elif said_so:
            raise Broken(f"{path.name} is lost")
        self.cluster.start()

    # ---- checks ----

    def check_log(self) -> list[StoredEntry]:
        """Reads the nodes' disks; returns the log."""
        logs = [stored(self.cluster.folder.root / node, IDENT, node) for node in NODES]
        length = min(map(len, logs))
        if any(log[:length] != logs[0][:length] for log in logs):
            raise Broken("the logs differ")
        at = {entry.index: entry.data for entry in logs[0][:length]}
        lost = {index for index, value in self.acknowledged.items() if at.get(index) != value}
        if lost:
            raise Broken(f"entries {sorted(lost)} were acknowledged, and are lost")
        for client in self.clients:
            values = [it for it in at.values() if it.startswith(client.form.encode())]
            if sorted(values) != sorted(client.sent):
                raise Broken(f"{client.form}: {len(values)} values for {len(client.sent)}")
        return logs[0][:length]

    def check_backup(self, path: Path, log: list[StoredEntry]) -> None:
        """A backup has the log up to an entry."""
        backup = open_backup(Disk(str(path.parent)), path.name)
        found = [
            (batch.first_index + at, batch.term, record.data)
            for batch in backup.log()
            for at, record in enumerate(decode_block(batch.block)[1])
        ]
        backup.close()
        if found != [(entry.index, entry.term, entry.data) for entry in log[: len(found)]]:
            raise Broken(f"{path.name} differs from the log")


class RestoreDrill:
    """Power losses during restores of one backup."""

    def __init__(self, backup: Path, place: Path, dice: Random) -> None:
        self.backup, self.dice = backup, dice
        self.folder = ForgetfulFolder(place / "data", place / "power")
        self.topology = place / "restored.yaml"
        nodes = [
            node_line(name, *(f"'ipc://{place}/{name}{at}'" for at in "123")) for name in NODES
        ]
        lines = [f"cluster: {RESTORED}", f"data: {self.folder.root}", "nodes:", *nodes]
        self.topology.write_text("\n".join(lines) + "\n")
        self.last_index = last_index_of(backup)

    def run(self, losses: int) -> None:
        """Raises Broken."""
        for _ in range(losses):
            self.lose_power()
            if self.missing() and self.restore(*self.missing()).wait():
                raise Broken(f"{self.missing()} cannot be restored")
            self.folder.lose_power(self.dice)  # The command has ended: it lasts.
            self.check()
            for node in NODES:
                shutil.rmtree(self.folder.root / node)

    def restore(self, *nodes: str) -> subprocess.Popen[bytes]:
        chosen = [word for node in nodes for word in ("--node", node)]
        command = [*KELEK, "restore", str(self.backup), "-t", str(self.topology), *chosen]
        environment = {**os.environ, **self.folder.environment()}
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)

    def missing(self) -> list[str]:
        return [node for node in NODES if not (self.folder.root / node / "raft").exists()]

    def lose_power(self) -> None:
        restore = self.restore()
        first, last = (self.folder.root / node for node in (NODES[0], NODES[-1]))
        begun = self.dice.choice([first, first / UNFINISHED_NODE, last, last / "raft"])
        wait_until(lambda: restore.poll() is not None or begun.exists(), "no restore begins")
        wait_for(restore, self.dice)
        kill_together([restore])
        self.folder.lose_power(self.dice)
        self.check()

    def check(self) -> None:
        """What was moved into place is whole."""
        for node in NODES:
            if node not in self.missing():
                log = stored(self.folder.root / node, RESTORED, node)
                if len(log) <= self.last_index:
                    raise Broken(f"restored {node} ends with entry {len(log)}")


def wait_for(process: subprocess.Popen[bytes], dice: Random) -> None:
    """Waits a while for its end."""
    seconds = LAST_ACTS_S if dice.random() < DONE else dice.choice(LATER_S)
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def stored(folder: Path, cluster: str, node: str) -> list[StoredEntry]:
    """The log of a node's disk. Raises Broken: it is damaged."""
    disk = Disk(str(folder / "raft"))
    try:
        findings = verify(disk).findings
        found = list(entries(disk, Identity(cluster, node)))
    except StorageError as error:
        raise Broken(f"{node}: {error}") from error
    if findings or [entry.index for entry in found] != [*range(1, len(found) + 1)]:
        raise Broken(f"{node}: {findings}")
    return found


def last_index_of(path: Path) -> int:
    """Of a backup, which is whole. Raises Broken: it is not."""
    try:
        backup = open_backup(Disk(str(path.parent)), path.name)
        backup.verify(lambda count: None)
    except StorageError as error:
        raise Broken(f"{path.name}: {error}") from error
    backup.close()
    return backup.manifest.log.last_index


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--losses", type=int, default=50, help="how many times")
    parser.add_argument("--seed", type=int, default=1, help="of all dice")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as directory:
        drill = LogDrill(Path(directory) / "d", arguments.seed)
        try:
            drill.run(arguments.losses)
            for backup in drill.backups[-1:]:
                RestoreDrill(backup, Path(directory), drill.dice).run(arguments.losses)
        except (Broken, BenchError) as broken:
            print(f"seed {arguments.seed}: {broken}")
            return 1
    print(drill.seen, f"{len(drill.backups)} backups are whole")
    print(f"{len(drill.acknowledged)} values acknowledged; each is in the log once")
    return 0


if __name__ == "__main__":
    sys.exit(main())
