"""Farm servers as a user starts them: `kelek farm` makes users and certificates, and a supervisor
runs each node."""

import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import kelek
from kelek.bench.farm.floor import connect
from kelek.bench.kelek_cluster import NODES, POLL_S, Apart
from kelek.bench.machine import BenchError
from kelek.bench.peers import START_S_MAX
from kelek.bench.ports import free_ports
from kelek.protocols.garlicfarm.wire.handshake import (
    ChallengeCache,
    ClientHandshake,
    ConnectTarget,
    HandshakeOutcome,
)

USER, SERVERS = "demo", "servers"  # Only SERVERS may post documents in a server's name.
TIMEOUT_MS = 60_000
COMMAND = [sys.executable, "-P", "-m", "kelek.console.kelek_cli", "farm"]


class FarmCluster(Apart):
    """The servers 1, 2 .. of one farm."""

    name = "kelek, a farm"

    def __init__(self, directory: Path, *, tls: bool, servers: int = 3, settings: str = "") -> None:
        """settings: more keys of the farm, `initial_servers: [1]` for example."""
        super().__init__(directory)
        self.ports = dict(enumerate(free_ports(servers), 1))
        self.tls_folder = str(directory) if tls else "-"
        files = "i2p: true"
        if tls:
            files = "certificate_file: server.pem, key_file: server.key, ca_file: ca.pem"
        ids = ", ".join(f"{number}: {node_of(number)}" for number in self.ports)
        self.settings = f"farms: {{farm: {{servers: {{{ids}}}, admins: [{USER}]{settings}}}}}"
        self.lines = [
            f"{line.removesuffix('}')}, farm: {{url: 'tcp://127.0.0.1:{port}', {files}, "
            f"passwords_file: passwords, user: {SERVERS}, secret_file: {SERVERS}.secret, "
            "post_interval_ms: 0}}"
            for line, port in zip(self.lines, self.ports.values(), strict=False)
        ]

    def prepare(self) -> None:
        """Writes users, certificates and the topology. Raises BenchError."""
        self.directory.mkdir(parents=True)
        self._do("user", "add", "passwords", SERVERS, USER, "--make", ".")
        if self.tls_folder != "-":
            self._do("cert", ".")
        self.write_topology(self.topology, self.lines)

    def _do(self, *arguments: str) -> None:
        done = subprocess.run(
            [*COMMAND, *arguments], cwd=self.directory, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise BenchError(done.stderr.strip())

    def start(self) -> None:
        """Starts all servers and waits for a leader."""
        for number in self.ports:
            self.start_server(number)
        self.leader_id()

    def start_server(self, number: int, *, is_new: bool = False) -> None:
        """Starts a server with an empty directory, as founder or newcomer, and waits until it
        listens."""
        first = [] if is_new else ["--bootstrap"]
        node = node_of(number)
        self._start(node, [str(self.topology), "--node", node, *first])
        self.wait_for(lambda: is_listening(self.ports[number]), f"{number} does not start")

    def wait_for(self, is_so: Callable[[], object], why: str) -> None:
        """Waits for a condition. Raises BenchError after a minute."""
        until = time.monotonic() + START_S_MAX
        while not is_so():
            if time.monotonic() > until:
                raise BenchError(f"{why}; {self.last_words()}")
            time.sleep(POLL_S)

    # ---- its clients ----

    def client(self, user: str = USER) -> kelek.Farm:
        plain = self.tls_folder == "-"
        return kelek.Farm(
            [f"{'tcp' if plain else 'tls'}://127.0.0.1:{port}" for port in self.ports.values()],
            user=user,
            secret_file=self.directory / f"{user}.secret",
            ca_file=None if plain else self.directory / "ca.pem",
            timeout_ms=TIMEOUT_MS,
            tuning=kelek.FarmTuning(i2p=plain),
        )

    def leader_id(self) -> int:
        """Returns the server that leads and commits."""
        found: int | None = None
        why = ""

        def is_found() -> bool:
            nonlocal found, why
            try:
                with self.client() as client:
                    client.append(b'{"of":"bench"}')
                    found = client.status()["leader"]
            except kelek.FarmError as error:  # The servers have just started.
                why = str(error)
            return found is not None

        try:
            self.wait_for(is_found, "no server leads")
        except BenchError as error:
            raise BenchError(f"{why}: {error}") from error
        assert found is not None
        return found

    def server_target(self, number: int) -> ConnectTarget:
        password = (self.directory / f"{USER}.secret").read_text().strip()
        return ConnectTarget(f"127.0.0.1:{self.ports[number]}", "farm", USER, password)

    def dial(
        self, number: int, context: ssl.SSLContext | None, challenges: ChallengeCache
    ) -> socket.socket:
        """Opens a connection and does its handshakes."""
        while True:
            sock = connect(self.ports[number], context)
            shake = ClientHandshake(self.server_target(number), challenges, 0, os.urandom)
            sock.sendall(shake.request)
            opening = None
            while opening is None:
                opening = shake.feed(sock.recv(65536), 0)
            if opening.outcome is HandshakeOutcome.OPEN:
                return sock
            sock.close()
            if opening.outcome is HandshakeOutcome.FAILED:
                raise BenchError(f"not let in: {opening.error}")


def node_of(number: int) -> str:
    """Returns the node of a server."""
    return NODES[number - 1]


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
