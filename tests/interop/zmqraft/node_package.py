"""The npm package zmq-raft, the protocol's other implementation: found or installed, and driven.

This repository has the versions and hashes of its tree, and the user's cache the files. Where it
can't be installed the tests that need it are skipped, with the reason.
"""

import base64
import fcntl
import json
import os
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kelek.tests.waiting import wait_until

VERSION = "0.5.0"
SCRIPTS = Path(__file__).resolve().parent / "node"
INSTALL_S = 90  # Below what one test may take, fixtures included: then it is skipped, not failed.
ANSWER_S = 60.0
STOP_S = 60.0
# The zeromq that the package asks for no longer compiles; `debug` it forgets to ask for.
TREE = ("package.json", "package-lock.json")


class PackageMissing(Exception):
    """The package can't be used on this machine, and why."""


def home() -> Path:
    """The folder in which the package is installed. Raises NotHere."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    tree = b"".join((SCRIPTS / name).read_bytes() for name in TREE)
    folder = Path(cache) / f"kelek/zmq-raft-{VERSION}-{zlib.crc32(tree):08x}"
    for command in ("node", "npm"):
        if shutil.which(command) is None:
            raise PackageMissing(f"{command} is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Several workers of one run come at the same time.
        if _works(folder):
            return folder
        lock.seek(0)
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID", "")
        tried, _, reason = lock.read().partition("\n")
        if not run or tried != run:
            reason = _install(folder)
            lock.truncate(0)
            lock.write(f"{run}\n{reason}")
    if reason:
        raise PackageMissing(reason)
    return folder


def _works(folder: Path) -> bool:
    try:
        found = json.loads((folder / "node_modules/zmq-raft/package.json").read_text())
    except OSError:
        return False
    done = subprocess.run(
        ["node", "-e", "require('zeromq'); require('zmq-raft')"],
        cwd=folder,
        capture_output=True,
        check=False,
    )
    return found["version"] == VERSION and done.returncode == 0


def _install(folder: Path) -> str:
    """Installs it; returns why that did not work, or nothing."""
    for name in TREE:
        shutil.copyfile(SCRIPTS / name, folder / name)
    environment = {**os.environ, "npm_config_zmq_external": "true"}
    options = ["--no-audit", "--no-fund", "--fetch-retries=1", "--fetch-timeout=30000"]
    try:
        done = subprocess.run(
            ["npm", "ci", *options],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=INSTALL_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"npm ci of zmq-raft took more than {INSTALL_S} s"
    if done.returncode == 0 and _works(folder):
        return ""
    lines = [line for line in done.stderr.decode().splitlines() if "warn" not in line]
    return f"npm ci of zmq-raft: {(lines or ['it does not load'])[0]}"


class NodeProcess:
    """A process of node whose standard output is read line by line."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # Read when it has ended.
        self.process = subprocess.Popen(
            ["node", *arguments],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as out:
            for line in out:
                self.lines.put(line)
        self.lines.put(None)

    def line(self, wait_s: float = ANSWER_S) -> str:
        """The next line that it writes."""
        found = self.lines.get(timeout=wait_s)
        assert found is not None, f"node ended with {self.process.wait(STOP_S)}"
        return found

    def write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def stop(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_S)
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.errors.close()


class NodePeer:
    """The package's peer in a process of its own, which can be started again on its data."""

    def __init__(
        self,
        folder: Path,
        peer_id: str,
        urls: dict[str, str],
        place: Path,
        election_timeout_ms: tuple[int, int],
        own_url: str | None = None,  # Of one that is not a member yet: urls are its members'.
    ) -> None:
        self._folder = folder
        self._id = peer_id
        self._config = place / f"{peer_id}.json"
        self._data = place / f"{peer_id}-data"
        settings: dict[str, Any] = {
            "id": peer_id,
            "secret": "interop",
            "peers": [{"id": name, "url": url} for name, url in urls.items()],
            "data": {"path": str(self._data)},
            "broadcast": {"url": f"ipc://{place}/{peer_id}.pub"},
            "electionTimeoutMin": election_timeout_ms[0],
            "electionTimeoutMax": election_timeout_ms[1],
        }
        if own_url:
            settings["router"] = {"bind": own_url}
        self._config.write_text(json.dumps({"raft": settings}))
        self.process: NodeProcess | None = None
        self.start()

    def start(self) -> None:
        script = str(self._folder / "node_modules/zmq-raft/bin/zmq-raft.js")
        self.process = NodeProcess(self._folder, script, "-c", str(self._config), self._id)

    def stop(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.stop()

    def lose_disk(self) -> None:
        """Its data are gone; it has been stopped."""
        shutil.rmtree(self._data)

    @property
    def broke(self) -> str | None:
        """Its output when it ended unexpectedly."""
        if self.process is None or self.process.process.poll() is None:
            return None
        self.process.errors.seek(0)
        return self.process.errors.read() or "nothing"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.process.pid


class NodeClient:
    """The package's client in a process of its own."""

    def __init__(self, folder: Path, urls: list[str], ident: str) -> None:
        options = json.dumps({"urls": urls, "secret": ident})
        self.process = NodeProcess(folder, str(SCRIPTS / "client.js"), options)
        self._count = 0
        self._answers: dict[int, dict[str, Any]] = {}

    def send(self, what: str, **values: Any) -> int:
        """Begins a request; its number is for answer()."""
        self._count += 1
        self.process.write(json.dumps({"n": self._count, "do": what, **values}))
        return self._count

    def answer(self, number: int) -> dict[str, Any]:
        """Waits for what became of a request."""
        until = time.monotonic() + ANSWER_S
        while number not in self._answers:
            found = json.loads(self.process.line(until - time.monotonic()))
            self._answers[found.pop("n")] = found
        return self._answers.pop(number)

    def ask(self, what: str, **values: Any) -> dict[str, Any]:
        found = self.answer(self.send(what, **values))
        assert "error" not in found, found["error"]
        return found

    def begin_update(self, data: bytes, reqid: str | None = None) -> int:
        return self.send("update", data=base64.b64encode(data).decode(), reqid=reqid)

    def update(self, data: bytes, reqid: str | None = None) -> int:
        found = self.answer(self.begin_update(data, reqid))
        assert "error" not in found, found["error"]
        return int(found["index"])

    def wait_applied(self, index: int) -> None:
        """Until the leader has applied the index: entries are sent up to there."""
        wait_until(
            lambda: self.ask("info")["lastApplied"] >= index,
            f"{index} was never applied",
            ANSWER_S,
        )

    def entries(self, after: int = 0, count: int | None = None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("entries", after=after, count=count)["found"]
        for entry in found:
            entry["data"] = base64.b64decode(entry["data"])
        return found


@contextmanager
def node_client(folder: Path, urls: list[str], ident: str = "interop") -> Iterator[NodeClient]:
    client = NodeClient(folder, urls, ident)
    try:
        yield client
    finally:
        client.process.stop()


@contextmanager
def node_subscriber(
    folder: Path, urls: list[str], ident: str = "interop", last_index: int = 0
) -> Iterator[NodeProcess]:
    """The package's subscriber: each line that it writes is an entry."""
    options = json.dumps({"urls": urls, "secret": ident, "lastIndex": last_index})
    process = NodeProcess(folder, str(SCRIPTS / "subscriber.js"), options)
    try:
        yield process
    finally:
        process.stop()
