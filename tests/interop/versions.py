"""Nodes of two versions of kelek in one cluster: today's, and one from the repository's history."""

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import zmq

from kelek.bench.ports import free_port
from kelek.protocols.zmqraft.wire.client_codec import LOG_INFO_ANSWER, LogInfo
from kelek.protocols.zmqraft.wire.values import REQUEST_LOG_INFO
from kelek.storage.disk.disk import Disk
from kelek.storage.log.verify import StoredEntry, entries, read_identity
from kelek.tests.interop.conftest import COMMAND, STOP_S
from kelek.tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
OLD = "1e3e211231d8493e55949c61808f9ef94db05d09"  # Before snapshots, membership and reads.
OLD_COMMAND = COMMAND.replace(".admin.", ".")  # Where the older kelek has the command.
CLUSTER = "mixed"
DEADLINE_S = 120.0
ASK_MS = 5000  # A busy node answers later than a stopped one is missed.
ERRORS_MAX = 1500  # Characters of each log.
QUICK, SLOW = (300, 450), (900, 1400)  # Milliseconds: who is quick leads when a leader is lost.


class VersionMissing(Exception):
    """The older kelek can't be had here; the reason."""


def old_home() -> Path:
    """A folder with the older kelek, built by this interpreter; the caller removes it."""
    home = Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))
    try:
        archive = home / "old.tar"
        command = ["git", "-C", str(ROOT), "archive", "--output", str(archive), OLD]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise VersionMissing(f"commit {OLD[:7]} is not in this history: {done.stderr.strip()}")
        with tarfile.open(archive) as tar:
            tar.extractall(home / "kelek", filter="data")
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        done = subprocess.run(
            command, cwd=home / "kelek", capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise VersionMissing(f"the older kelek can't be built: {done.stderr[-500:]}")
    except FileNotFoundError as error:
        shutil.rmtree(home)
        raise VersionMissing(str(error)) from error
    except VersionMissing:
        shutil.rmtree(home)
        raise
    return home


class NodeVersion(NamedTuple):
    """How a node is started."""

    version: str = "new"
    timeouts_ms: tuple[int, int] = SLOW
    log: str = ""


class VersionedNodes:
    """Three nodes, each with a supervisor of its own, of the version that it is started with."""

    def __init__(self, old: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))
        self._paths = {"old": str(old), "new": str(ROOT / ".build")}
        self._commands = {"old": OLD_COMMAND, "new": COMMAND}
        self.urls = {name: f"tcp://127.0.0.1:{free_port()}" for name in ("n1", "n2", "n3")}
        self.peer_urls = {name: f"tcp://127.0.0.1:{free_port()}" for name in self.urls}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.parts: dict[str, NodeVersion] = {}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def start(self, name: str, part: NodeVersion | None = None) -> None:
        """Starts a node; without a part as it was."""
        part = self.parts[name] = part or self.parts[name]
        path = self.folder / f"{name}-{part.version}.yaml"
        nodes = "".join(
            f"  {peer}: {{url: '{url}', peer_url: '{self.peer_urls[peer]}'}}\n"
            for peer, url in self.urls.items()
        )
        path.write_text(
            f"cluster: {CLUSTER}\ndata: {self.folder}/data\n"
            f"raft: {{election_timeout_ms: {list(part.timeouts_ms)}}}\n"
            f"log: {{writer: inline, segment_bytes: 64KiB{part.log}}}\nnodes:\n{nodes}"
        )
        run_dir = self.folder / f"{name}-{part.version}"  # As on a machine of its own: the
        run_dir.mkdir(exist_ok=True)  # old one's start fails when another removes what it left.
        with (self.folder / f"{name}.stderr").open("ab") as errors:
            command = self._commands[part.version]
            self._running[name] = subprocess.Popen(
                [sys.executable, "-c", command, "start", str(path), "--node", name],
                env={
                    **os.environ,
                    "PYTHONPATH": self._paths[part.version],
                    "XDG_RUNTIME_DIR": str(run_dir),
                },
                cwd=self.folder,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )

    def stop(self, name: str) -> None:
        process = self._running.pop(name)
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_S) == 0, self.errors(name)

    def kill(self, name: str) -> None:
        """The supervisor and all of its processes, at once."""
        process = self._running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(STOP_S)

    def wait_leader_lost(self, name: str, leader: str) -> None:
        """Until a node follows a certain leader no longer."""

        def is_lost() -> bool:
            info = self.info(name)
            return info is not None and info.leader != leader

        wait_until(is_lost, lambda: self.errors(name), DEADLINE_S)

    def ended(self, name: str) -> int:
        """The exit code of a node that gives up by itself."""
        return self._running.pop(name).wait(DEADLINE_S)

    def errors(self, name: str) -> str:
        logs = [self.folder / f"{name}.stderr", *self.folder.glob(f"data/{name}/logs/*.log")]
        return "\n".join(path.read_text()[-ERRORS_MAX:] for path in logs)

    def info(self, name: str) -> LogInfo | None:
        """What the node says of its log; None while it says nothing."""
        with self._context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.connect(self.urls[name])
            socket.send_multipart([b"1", REQUEST_LOG_INFO, CLUSTER.encode()])
            if not socket.poll(ASK_MS):
                return None
            return LOG_INFO_ANSWER.decode(socket.recv_multipart())

    def wait(self, good: Callable[[dict[str, LogInfo]], bool]) -> dict[str, LogInfo]:
        """Asks all that run until they are as they should be."""
        infos: dict[str, LogInfo] = {}

        def are_good() -> bool:
            infos.clear()
            asked = {name: self.info(name) for name in self._running}
            infos.update((name, info) for name, info in asked.items() if info is not None)
            return len(infos) == len(asked) and good(infos)

        def problem() -> str:
            return "\n".join([str(infos), *map(self.errors, self._running)])

        wait_until(are_good, problem, DEADLINE_S)
        return infos

    def wait_for_leader(self) -> str:
        """Until all that run follow one of them; returns which."""

        def good(infos: dict[str, LogInfo]) -> bool:
            leaders = {info.leader for info in infos.values()}
            return len(leaders) == 1 and any(info.leading for info in infos.values())

        leader = next(iter(self.wait(good).values())).leader
        assert leader is not None
        return leader

    def wait_caught_up(self, name: str) -> None:
        """Until a node holds all that is committed."""
        commits = [info.commit_index for info in self.wait(lambda infos: True).values()]
        self.wait(lambda infos: infos[name].last_index >= max(commits))

    def wait_equal(self, index: int = 1) -> int:
        """Until all have applied the same, and no less than index; returns what."""
        infos = self.wait(
            lambda infos: (
                len({info.applied_index for info in infos.values()}) == 1
                and all(i.applied_index == i.last_index >= index for i in infos.values())
            )
        )
        return max(info.last_index for info in infos.values())

    def entries(self, name: str) -> list[StoredEntry]:
        """What lies on a node's disk."""
        files = Disk(str(self.folder / "data" / name / "raft"))
        return list(entries(files, read_identity(files)))

    def listing(self, name: str) -> list[tuple[str, bytes]]:
        """The segments of a node's log."""
        folder = self.folder / "data" / name / "raft" / "log"
        return sorted((path.name, path.read_bytes()) for path in folder.glob("*.seg"))

    def close(self) -> None:
        for name in list(self._running):
            self.kill(name)
        self._context.term()
        shutil.rmtree(self.folder)
