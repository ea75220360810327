"""Two comparisons for kelek: etcd (Debian's etcd-server) and the floor.

The floor is a proof outside the repository: three nodes with the wire's shapes, C by the batch,
real fdatasync, no Raft. The benchmark copies it into its own directory, builds it and runs it
there. BenchError names what is missing; its columns stay empty.
"""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Protocol
from urllib.request import urlopen

from kelek.bench.load.loadgen import Load, libzmq
from kelek.bench.machine import BenchError, ends_with_us
from kelek.bench.ports import free_port_block

START_S_MAX = 30.0
STOP_S_MAX = 5.0
POLL_S = 0.02


class PeerCluster(Protocol):
    """Three nodes on loopback that the benchmark starts."""

    name: str

    @property
    def target(self) -> list[str]:
        """The load generator's arguments for this system."""

    def version(self) -> str: ...
    def start_fresh(self) -> None:
        """Starts it with empty data."""

    def stop(self) -> None: ...
    def pids(self) -> dict[str, list[int]]:
        """The processes by their task."""


def spawn(command: list[str], log: Path, **options: Any) -> "subprocess.Popen[bytes]":
    """Starts a process in a session of its own; its output goes to a file."""
    with log.open("ab") as file:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            start_new_session=True, preexec_fn=ends_with_us(), **options,
        )  # fmt: skip


def reap(processes: "list[subprocess.Popen[bytes]]", number: signal.Signals) -> None:
    """Ends processes and waits for them."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(number)
    for process in processes:
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Etcd:
    """Three etcd members with their defaults (fsync on), one log level lower."""

    name = "etcd"

    def __init__(self, directory: Path) -> None:
        program = shutil.which("etcd")
        if program is None:
            raise BenchError("etcd is missing (apt-get install etcd-server)")
        self.program = program
        self.directory = directory
        self.processes: list[subprocess.Popen[bytes]] = []
        # The other client counts up its ports by two from the first one.
        self.ports = list(range(first := free_port_block(6), first + 6))

    @property
    def urls(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.ports[::2]]

    @property
    def target(self) -> list[str]:
        return ["--protocol", "etcd", "--urls", ",".join(self.urls)]

    def version(self) -> str:
        done = subprocess.run([self.program, "--version"], capture_output=True, text=True)
        return done.stdout.splitlines()[0].split()[-1]

    def start_fresh(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        self.start()

    def start(self) -> None:
        self.processes = [self._spawn(i) for i in range(3)]

    def _spawn(self, i: int) -> "subprocess.Popen[bytes]":
        client, peer = (f"http://127.0.0.1:{port}" for port in self.ports[2 * i : 2 * i + 2])
        members = ",".join(f"n{k}=http://127.0.0.1:{self.ports[2 * k + 1]}" for k in range(3))
        command = [
            *(self.program, "--name", f"n{i}", "--data-dir", str(self.directory / f"n{i}")),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", members, "--initial-cluster-state", "new"),
            *("--log-level", "error", "--logger", "zap"),
        ]
        return spawn(command, self.directory / f"n{i}.log")

    def pids(self) -> dict[str, list[int]]:
        return {f"n{i}": [process.pid] for i, process in enumerate(self.processes)}

    def kill(self, i: int) -> float:
        """Kills one member and restarts it at once; returns when (time.monotonic)."""
        killed = time.monotonic()
        self.processes[i].kill()
        self.processes[i].wait()
        self.processes[i] = self._spawn(i)
        return killed

    def restart(self) -> float:
        """Kills all members and restarts them; returns when the kill began (time.monotonic)."""
        started = time.monotonic()
        self.stop()
        self.start()
        return started

    def stop(self) -> None:
        reap(self.processes, signal.SIGKILL)

    def leader(self) -> int:
        """Returns the leading member, as etcd's HTTP endpoint for operators reports it."""
        until = time.monotonic() + START_S_MAX
        while time.monotonic() < until:
            for i, url in enumerate(self.urls):
                try:
                    with urlopen(f"http://{url}/metrics", timeout=1) as answer:
                        if b"\netcd_server_is_leader 1" in answer.read():
                            return i
                except OSError:
                    continue
            time.sleep(POLL_S)
        raise BenchError("etcd has no leader")


class EtcdAsyncio:
    """The same etcd driven by the Python client of shared/peers (bench/log/etcd_asyncio.py).

    Its own CPU time, about 60 us a write, is part of what limits it.
    """

    name = "etcd, asyncio client"

    def __init__(self, etcd: Etcd, shared: Path) -> None:
        self.etcd = etcd
        self.folder = shared / "peers"
        if not (self.folder / "peer_etcd.py").is_file():
            raise BenchError(f"no {self.folder}/peer_etcd.py (--shared DIR)")
        if importlib.util.find_spec("grpc") is None:
            raise BenchError("grpcio is missing (pip install grpcio)")

    def run(self, load: Load) -> dict[str, Any]:
        numbers = (self.etcd.ports[0], load.clients * load.window, load.size, load.secs)
        command = [sys.executable, "-P", "-m", "kelek.bench.log.etcd_asyncio", str(self.folder)]
        done = subprocess.run(
            [*command, *map(str, numbers)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise BenchError(f"etcd, asyncio client: {done.stderr.strip().splitlines()[-1]}")
        found: dict[str, Any] = json.loads(done.stdout)
        if "error" in found:
            raise BenchError(found["error"])
        return found


class LogFloor:
    """shared/floor with writer processes and AppendEntries of one frame an entry, its default."""

    name = "floor"

    def __init__(self, directory: Path, shared: Path) -> None:
        source = shared / "floor"
        if not (source / "build_m2.py").is_file():
            raise BenchError(f"no {source}/build_m2.py (--shared DIR)")
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        for path in source.glob("*.[pc]*"):
            shutil.copyfile(path, directory / path.name)
        for folder in ("d", "sock"):
            (directory / folder).mkdir(exist_ok=True)
        done = subprocess.run(
            [sys.executable, "build_m2.py"], cwd=directory, capture_output=True, text=True
        )
        if done.returncode:
            raise BenchError(f"the floor does not build: {done.stderr.strip().splitlines()[-1]}")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.port = free_port_block(3)

    @property
    def target(self) -> list[str]:
        return ["--libzmq", libzmq(), "--urls", f"tcp://127.0.0.1:{self.port}"]

    def version(self) -> str:
        return "process writers, a frame an entry"

    def start_fresh(self) -> None:
        """Its writers start at the front of their segments and ignore old content."""
        url = f"tcp://127.0.0.1:{self.port}"
        config = {"writer": "process", "mode": 0, "inflight": 1, "port": self.port, "url": url}
        environment = {**os.environ, "M2DIR": str(self.directory)}
        for role in ("w2", "w1", "w0", "leader", "f2", "f1"):
            command = [sys.executable, "mini2.py", role, json.dumps(config)]
            log = self.directory / f"{role}.log"
            options = {"cwd": self.directory, "env": environment}
            self.processes[role] = spawn(command, log, **options)

    def pids(self) -> dict[str, list[int]]:
        return {role: [process.pid] for role, process in self.processes.items()}

    def stop(self) -> None:
        reap(list(self.processes.values()), signal.SIGKILL)
