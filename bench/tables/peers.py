"""Redis, as comparison for kelek's tables.

Redis runs as a primary with one replica, both with `appendonly yes` and `appendfsync always`. With
WAIT 1 an answered write is on two disks, like a write that a majority of three nodes holds.
"""

import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from kelek.bench.machine import BenchError
from kelek.bench.peers import POLL_S, START_S_MAX, reap, spawn
from kelek.bench.ports import free_ports

ANSWER_S = 2.0


class Redis:
    """A primary and its replica."""

    name = "redis"

    def __init__(self, directory: Path) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise BenchError("redis-server is missing (apt-get install redis-server)")
        self.program = program
        self.directory = directory
        self.processes: list[subprocess.Popen[bytes]] = []
        self.ports = free_ports(2)

    @property
    def target(self) -> list[str]:
        return ["--protocol", "redis", "--urls", f"127.0.0.1:{self.ports[0]}"]

    def version(self) -> str:
        done = subprocess.run([self.program, "--version"], capture_output=True, text=True)
        return next(word[2:] for word in done.stdout.split() if word.startswith("v="))

    def start_fresh(self) -> None:
        """Starts both and waits until the replica follows."""
        shutil.rmtree(self.directory, ignore_errors=True)
        replica_of = ("--replicaof", f"127.0.0.1 {self.ports[0]}")
        for port, more in zip(self.ports, ((), replica_of), strict=True):
            folder = self.directory / str(port)
            folder.mkdir(parents=True)
            command = [
                *(self.program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)),
                *("--appendonly", "yes", "--appendfsync", "always", "--save", ""),
                *("--repl-diskless-sync-delay", "0", *more),
            ]
            self.processes.append(spawn(command, folder / "log"))
        until = time.monotonic() + START_S_MAX
        while b"state=online" not in self._ask(b"INFO replication"):
            if time.monotonic() > until:
                raise BenchError(f"no replica follows; see {self.directory}/*/log")
            time.sleep(POLL_S)

    def _ask(self, command: bytes) -> bytes:
        try:
            with socket.create_connection(("127.0.0.1", self.ports[0]), ANSWER_S) as link:
                link.sendall(command + b"\r\n")
                return link.recv(1 << 16)
        except OSError:
            return b""  # Redis is still starting.

    def pids(self) -> dict[str, list[int]]:
        return {
            name: [process.pid]
            for name, process in zip(("primary", "replica"), self.processes, strict=True)
        }

    def stop(self) -> None:
        reap(self.processes, signal.SIGKILL)
        self.processes = []
