"""Three nodes with keys: every endpoint has CURVE. One process holds them all."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import zmq

from kelek.bench.ports import free_ports
from kelek.net.private_files import replace_file
from kelek.protocols.access.certificates import (
    Certificate,
    decode_key,
    encode_key,
    format_certificate,
)

COMMAND = "from kelek.console.admin.supervisor_cli import main; main()"
NAMES = ("n1", "n2", "n3")
DEADLINE_S = 120.0
STOP_S = 30.0
POLL_S = 0.05
LOG_CHARACTERS = 4000  # Printed after a test.
ENDPOINTS = ("url", "peer_url", "broadcast_url")
TABLES = ("url", "pull_url", "sub_url", "events_url", "jobs_url")
BROKER = ("clients_url", "workers_url")


def new_key(name: str) -> Certificate:
    public, secret = zmq.curve_keypair()
    return Certificate(decode_key(public.decode()), decode_key(secret.decode()), {"name": name})


def free_urls(names: Sequence[str]) -> dict[str, str]:
    """Addresses of all endpoints of nodes: `n1.zerodb.url`."""
    kinds = [*ENDPOINTS, *(f"zerodb.{it}" for it in TABLES), *(f"broker.{it}" for it in BROKER)]
    keys = [f"{name}.{kind}" for name in names for kind in kinds]
    ports = free_ports(len(keys))
    return {key: f"tcp://127.0.0.1:{port}" for key, port in zip(keys, ports, strict=True)}


class SecureCluster:
    """The cluster `safe`. Its folder holds topology.yaml and keys/.

    urls   by endpoint of a node: `n1.zerodb.url`
    """

    def __init__(self, more: str = "", mode: str = "enforce", names: tuple[str, ...] = NAMES):
        """more: further sections of the topology"""
        self.folder = Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))
        self.keys = self.folder / "keys"
        (self.keys / "allowed").mkdir(parents=True)
        self.names = names
        self.node_keys = {name: new_key(name) for name in names}
        for key in self.node_keys.values():
            self.write_secret(key)
        self.urls = free_urls(names)
        self.topology = self.folder / "topology.yaml"
        self.topology.write_text(
            f"cluster: safe\ndata: var\nsecurity: {{mode: {mode}}}\n"
            f"raft: {{election_timeout_ms: [600, 1000]}}\n{more}nodes:\n"
            + "".join(f"  {name}: {{{self._node(name)}}}\n" for name in names)
        )
        self.process: subprocess.Popen[bytes] | None = None

    def add_node(self, name: str) -> None:
        """Gives a new node a key and addresses, and writes it into the topology."""
        self.node_keys[name] = new_key(name)
        self.write_secret(self.node_keys[name])
        self.urls |= free_urls([name])
        with self.topology.open("a") as file:
            file.write(f"  {name}: {{{self._node(name)}}}\n")

    def _node(self, name: str) -> str:
        def urls(section: str, kinds: tuple[str, ...]) -> str:
            return ", ".join(f'{it}: "{self.urls[f"{name}.{section}{it}"]}"' for it in kinds)

        return (
            f'{urls("", ENDPOINTS)}, server_key: "{self.server_key(name)}", '
            f"zerodb: {{{urls('zerodb.', TABLES)}}}, broker: {{{urls('broker.', BROKER)}}}"
        )

    def server_key(self, name: str) -> str:
        """Z85."""
        return encode_key(self.node_keys[name].public_key)

    def server_keys(self, endpoint: str) -> dict[str, str]:
        """The pinned keys of an endpoint of all nodes, by url: `zerodb.url`."""
        return {self.urls[f"{it}.{endpoint}"]: self.server_key(it) for it in self.names}

    def write_secret(self, key: Certificate) -> str:
        path = self.keys / f"{key.name}.key_secret"
        replace_file(path, format_certificate(key), 0o600)
        return str(path)

    def allow(self, name: str, grants: str, key: Certificate | None = None) -> str:
        """Allows a key, a new one unless it is given. Returns the path of its secret file."""
        key = key or new_key(name)
        public = Certificate(key.public_key, b"", {"name": name, "grants": grants})
        replace_file(self.keys / "allowed" / f"{name}.key", format_certificate(public), 0o644)
        return self.write_secret(key)

    def revoke(self, name: str) -> None:
        (self.keys / "allowed" / f"{name}.key").unlink()

    def supervisor(self, *words: str) -> str:
        """Runs a command of `supervisor` that must succeed; returns what it prints."""
        done = subprocess.run(
            [sys.executable, "-P", "-c", COMMAND, *words],
            cwd=self.folder,
            env={**os.environ, "XDG_RUNTIME_DIR": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}\n{self.log()}"
        return done.stdout

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-c",
                    COMMAND,
                    "start",
                    "-v",
                    "topology.yaml",
                    "--one-process",
                ],
                cwd=self.folder,
                env={**os.environ, "XDG_RUNTIME_DIR": str(self.folder)},
                stdout=log,
                stderr=log,
            )

    def log(self) -> str:
        files = [self.folder / "log", *sorted(self.folder.glob("var/*/logs/*.log"))]
        return "\n".join(f"{it.name}: {it.read_text()}" for it in files if it.exists())

    def wait(self, is_so: Callable[[], bool]) -> None:
        assert self.process is not None
        deadline_s = time.monotonic() + DEADLINE_S
        while not is_so():
            assert time.monotonic() < deadline_s, f"the condition never holds\n{self.log()}"
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(POLL_S)
            assert self.process.poll() is None, self.log()

    def stop(self) -> None:
        try:
            if self.process is not None:
                ended = self.process.poll()
                self.process.send_signal(signal.SIGTERM)
                self.process.wait(STOP_S)
                assert ended is None, f"it ended by itself: {ended}"
        finally:
            if self.process is not None:
                self.process.kill()
                self.process.wait()
            print(self.log()[-LOG_CHARACTERS:])
            shutil.rmtree(self.folder, ignore_errors=True)
