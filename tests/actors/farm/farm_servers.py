"""Farm servers for tests: real farm_server actors with a topology, certificates and users.

FarmServers(...) runs each server as a thread of the test's process; with processes=True each is a
process that can be killed. Users: `peer` of the servers; `servers`, which may act as any server;
`demo`, an administrator.
"""

import json
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgpack
import trustme
import zmq

from kelek.actors.farm.server import FarmServer
from kelek.actors.runtime.fork_server import python_command
from kelek.actors.runtime.setup import ActorSetup, Host
from kelek.actors.topology import topology
from kelek.bench.ports import free_ports
from kelek.net.private_files import replace_file
from kelek.protocols.garlicfarm.client.fetch import ClientFetch
from kelek.protocols.garlicfarm.wire import codec
from kelek.protocols.garlicfarm.wire.handshake import (
    ChallengeCache,
    ClientHandshake,
    ConnectTarget,
    HandshakeOutcome,
    HandshakeResult,
    path_to,
)
from kelek.protocols.garlicfarm.wire.htdigest import with_user
from kelek.protocols.garlicfarm.wire.messages import (
    FarmLogEntry,
    MessageType,
    Request,
    Response,
    ValueType,
)

DEADLINE_S = 60
POLL_MS = 10
USER, PASSWORD = "demo", "demo"
SERVERS = "servers"
PASSWORDS = {USER: PASSWORD, SERVERS: "any server's", "peer": "the servers' own"}
TIMES = "election_timeout_ms: [300, 600], heartbeat_ms: 60, request_timeout_ms: 1000"


_authority = cache(trustme.CA)  # Once per test process, as a certificate, because keys take time.


@cache
def _issued(*names: str, **terms: Any) -> trustme.LeafCert:
    return _authority().issue_cert(*names, **terms)


def issue_certificate(folder: Path, *names: str, stem: str = "", **terms: Any) -> None:
    """Writes ca.pem, and cert.pem and key.pem with a stem before their names.

    terms   of trustme: not_after, common_name
    """
    leaf = _issued(*names, **terms)
    _authority().cert_pem.write_to_path(folder / "ca.pem")
    replace_file(folder / f"{stem}key.pem", leaf.private_key_pem.bytes().decode())
    for number, blob in enumerate(leaf.cert_chain_pems):
        blob.write_to_path(folder / f"{stem}cert.pem", append=number > 0)


class RunningServer(ABC):
    """A running server, and its messages to the supervisor."""

    def __init__(self, setup: ActorSetup, control: zmq.Socket[bytes], folder: Path) -> None:
        self.control = control
        self.status: dict[str, Any] = {}
        self.is_ready = False
        self._folder = folder
        self.setup = setup

    def receive(self) -> None:
        """Receives its messages to the supervisor."""
        while self.control.poll(0):
            _, command, *rest = self.control.recv_multipart()
            self.is_ready = self.is_ready or command == b"ready"
            if rest:
                self.status = dict(msgpack.unpackb(rest[0], strict_map_key=False))

    @abstractmethod
    def ended(self) -> bool: ...

    @abstractmethod
    def stop(self, *, kill: bool) -> None:
        """kill: as SIGKILL; otherwise as SIGTERM."""


class ServerThread(RunningServer):
    def __init__(
        self, setup: ActorSetup, control: zmq.Socket[bytes], folder: Path, context: Any
    ) -> None:
        super().__init__(setup, control, folder)
        stop_in, self._stop_fd = os.pipe()
        log = os.open(folder / f"{setup.node}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.code: int | None = None

        def run() -> None:
            try:
                self.code = FarmServer(setup, Host(stop_in, log, context)).run()
            finally:
                os.close(stop_in)
                os.close(log)

        self._thread = threading.Thread(target=run, name=setup.node, daemon=True)
        self._thread.start()

    def ended(self) -> bool:
        return not self._thread.is_alive()

    def stop(self, *, kill: bool) -> None:
        if not kill:
            os.write(self._stop_fd, b"T")
        else:
            os.close(self._stop_fd)
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        if not kill:
            os.close(self._stop_fd)


class ServerProcess(RunningServer):
    def __init__(
        self,
        setup: ActorSetup,
        control: zmq.Socket[bytes],
        folder: Path,
        environment: Mapping[str, str],
    ) -> None:
        super().__init__(setup, control, folder)
        path = folder / f"{setup.node}.json"
        path.write_text(setup.to_json(), encoding="utf-8")
        with (folder / f"{setup.node}.log").open("ab") as log:
            self.process = subprocess.Popen(
                python_command("kelek.actors.farm.server", path),
                stdin=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **environment},
            )

    @property
    def code(self) -> int | None:
        return self.process.poll()

    def ended(self) -> bool:
        return self.process.poll() is not None

    def stop(self, *, kill: bool) -> None:
        if kill:
            self.process.kill()
        else:
            self.process.terminate()
        self.process.wait(DEADLINE_S)
        assert self.process.stdin
        self.process.stdin.close()


class FarmServers:
    """The servers of one or several farms, by id, in a directory."""

    def __init__(
        self,
        ids: Sequence[int] = (1, 2, 3),
        *,
        tls: bool = True,
        jraft: bool = False,
        processes: bool = False,
        initial: Sequence[int] | None = None,
        names: Sequence[str] = ("farm",),
        proxied: bool = False,
        times: str = "",
        farm: str = "",
        node: str = "",
    ) -> None:
        """tls     False: plain TCP with the handshake (`i2p: true`)
        jraft   plain TCP without a handshake
        initial the initial members; the other servers wait for an invitation
        names   of the farms
        proxied servers connect to each other at `proxy_ports`, where the test runs proxies
        times   replaces TIMES
        farm    more keys of each farm, as YAML: "snapshot_entries: 10, user_server_ids: {peer: 1}"
        node    more keys of each node's `farm:`, likewise; {number} is its server's id
        """
        # The path is short: a Unix socket's path has at most 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))
        self.names = tuple(names)
        self.ports = dict(zip(ids, free_ports(len(ids)), strict=True))
        self.proxy_ports = dict(zip(ids, free_ports(len(ids)), strict=True)) if proxied else {}
        self.tls, self.jraft, self._processes = tls and not jraft, jraft, processes
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets: list[zmq.Socket[bytes]] = []
        self.running: dict[int, RunningServer] = {}
        self._epoch = time.time_ns()
        self.challenges: dict[tuple[int, str, str], ChallengeCache] = {}
        self.environment: dict[str, str] = {}  # More of it, for the processes.
        self.source = ""  # The address of the test's own connections.
        self.stem = ""  # Of their certificate (issue_certificate).
        self._write_files()
        self.path = self.folder / "topology.yaml"
        self.path.write_text(
            self._topology(initial, f"{times or TIMES}, {farm}", node), encoding="utf-8"
        )
        self.topology = topology.load(str(self.path))

    # ---- files ----

    def _write_files(self) -> None:
        issue_certificate(self.folder, "localhost", "127.0.0.1", "::1")
        text = ""
        for name in self.names:
            for user, password in PASSWORDS.items():
                text = with_user(text, name, user, password)
        self.write_secret("passwords", text)
        self.write_secret("secret", "the servers' own\n")
        self.write_secret("demo.secret", f"{PASSWORD}\n")
        self.write_secret("servers.secret", f"{PASSWORDS[SERVERS]}\n")

    def write_secret(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.touch(0o600)
        path.write_text(text, encoding="utf-8")
        return path

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    def _topology(self, initial: Sequence[int] | None, farm: str, node: str) -> str:
        files = "i2p: true"
        if self.tls:
            files = "certificate_file: cert.pem, key_file: key.pem, ca_file: ca.pem"
        files = "insecure_jraft: true" if self.jraft else files
        servers = ", ".join(f"{number}: n{number}" for number in self.ports)
        first = "" if initial is None else f", initial_servers: {list(initial)}"
        lines = ["cluster: test", "data: data", "farms:"]
        lines += [
            f"  {name}: {{servers: {{{servers}}}{first}, admins: [{USER}], "
            + f"server_users: [{SERVERS}], {farm.removesuffix(', ')}}}"
            for name in self.names
        ]
        lines.append("nodes:")
        for number, port in self.ports.items():
            more = ", " + node.replace("{number}", str(number)) if node else ""
            more += f", public_url: '{self.endpoint(number)}'" if self.proxy_ports else ""
            lines += [
                f"  n{number}:",
                f"    url: ipc://{self.folder}/{number}.url",
                f"    peer_url: ipc://{self.folder}/{number}.peer",
                f"    farm: {{url: 'tcp://127.0.0.1:{port}', {files}, passwords_file: passwords, "
                f"user: peer, secret_file: secret{more}}}",
            ]
        return "\n".join(lines) + "\n"

    # ---- servers ----

    def setup(self, number: int, bootstrap: bool) -> ActorSetup:
        node = f"n{number}"
        self._epoch += 1
        control = f"ipc://{self.folder}/{number}.control"
        if not self._processes:
            control = f"inproc://control{self._epoch}"
        data_dir = self.folder / "data" / node
        data_dir.mkdir(parents=True, exist_ok=True)
        return ActorSetup(
            node, "farm_server", "farm_server", "test", str(self.folder), str(data_dir), control,
            self._epoch, bootstrap, self.topology.node_settings(node),
            self.topology.setting_places(node),
        )  # fmt: skip

    def start(self, *numbers: int, bootstrap: bool = True) -> None:
        """Starts these servers, or all; returns when they are ready. bootstrap: an empty
        directory is a first start.
        """
        for number in numbers or self.ports:
            setup = self.setup(number, bootstrap)
            control = self._context.socket(zmq.ROUTER)
            self._sockets.append(control)
            control.bind(setup.control)
            if self._processes:
                self.running[number] = ServerProcess(setup, control, self.folder, self.environment)
            else:
                self.running[number] = ServerThread(setup, control, self.folder, self._context)
        for number in numbers or self.ports:
            self.wait(partial(self._is_ready, number), f"{number} is not ready")

    def _is_ready(self, number: int) -> bool:
        self.running[number].receive()
        assert not self.running[number].ended(), self.log(number)
        return self.running[number].is_ready

    def kill(self, number: int) -> None:
        """SIGKILL for a process; a thread ends without a message."""
        self.running.pop(number).stop(kill=True)

    def stop(self, number: int) -> int | None:
        """As SIGTERM; returns the exit code."""
        running = self.running.pop(number)
        running.stop(kill=False)
        code: int | None = getattr(running, "code", None)
        return code

    def close(self) -> None:
        for number in list(self.running):
            self.kill(number)
        for each in self._sockets:
            each.close(0)
        self._context.destroy(0)
        shutil.rmtree(self.folder)

    def __enter__(self) -> "FarmServers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- status ----

    def log(self, number: int) -> str:
        return (self.folder / f"n{number}.log").read_text()

    def status(self, number: int) -> dict[str, Any]:
        """Its last status message to the supervisor."""
        self.running[number].receive()
        return self.running[number].status

    def wait(self, is_so: Callable[[], Any], problem: str = "the condition never holds") -> Any:
        """Waits until the condition holds; returns its value."""
        deadline_s = time.monotonic() + DEADLINE_S
        while not (found := is_so()):
            assert time.monotonic() < deadline_s, f"{problem}: {self.report()}"
            self._poll_any()
        return found

    def _poll_any(self) -> None:
        """Waits briefly for a message of any server."""
        poller = zmq.Poller()
        for each in self.running.values():
            poller.register(each.control, zmq.POLLIN)
        poller.poll(POLL_MS)

    def report(self) -> str:
        return "\n".join(
            f"{number}: {self.status(number)}\n{self.log(number)[-2000:]}"
            for number in self.running
        )

    def endpoint(self, number: int) -> str:
        return f"tcp://127.0.0.1:{self.proxy_ports.get(number, self.ports[number])}"

    # ---- a client ----

    def dial(self, number: int) -> socket.socket:
        """A connection, with TLS if the farm has it, before the handshake."""
        address = ("127.0.0.1", self.ports[number])
        sock = socket.create_connection(address, DEADLINE_S, (self.source, 0))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self.tls:
            return sock
        context = ssl.create_default_context(cafile=str(self.ca))
        if self.stem:
            files = self.folder / f"{self.stem}cert.pem", self.folder / f"{self.stem}key.pem"
            context.load_cert_chain(*files)
        with ExitStack() as undo:
            undo.callback(sock.close)
            secured = context.wrap_socket(sock, server_hostname="127.0.0.1")
            undo.pop_all()
        return secured

    def connect(
        self, number: int, name: str = "", user: str = USER, password: str = PASSWORD
    ) -> "FarmConnection":
        return FarmConnection(self, number, name or self.names[0], (user, password))

    def shake_hands(
        self, number: int, name: str, credentials: tuple[str, str], path: str = ""
    ) -> tuple[socket.socket, HandshakeResult]:
        """A connection after its handshake; with a path also the view's body. Raises OSError."""
        challenges = self.challenges.setdefault((number, name, credentials[0]), ChallengeCache())
        target = ConnectTarget(f"127.0.0.1:{self.ports[number]}", name, *credentials, path=path)
        while True:
            now_ms = time.monotonic_ns() // 1_000_000
            kind = ClientFetch if path else ClientHandshake
            handshake, result = kind(target, challenges, now_ms, os.urandom), None
            with ExitStack() as undo:
                sock = self.dial(number)
                undo.callback(sock.close)
                sock.sendall(handshake.request)
                while result is None:
                    data = sock.recv(65536)
                    result = handshake.feed(data, now_ms)
                    if not data and result is None:
                        raise ConnectionError(f"{number} sends no view")
                if result.outcome is HandshakeOutcome.OPEN:
                    undo.pop_all()
                    return sock, result
            if result.outcome is HandshakeOutcome.FAILED:
                raise PermissionError(result.error)

    def view(self, number: int, what: str = "status") -> dict[str, Any]:
        """A view of a server's HTTP API. Raises OSError."""
        path = path_to(self.names[0], what)
        sock, result = self.shake_hands(number, self.names[0], (USER, PASSWORD), path)
        sock.close()
        document: dict[str, Any] = json.loads(result.rest)
        return document

    def leader(self, name: str = "") -> int:
        """The leader, once it has committed an entry."""

        def find_leader() -> int | None:
            for number in list(self.running):
                try:
                    with self.connect(number, name) as client:
                        answer = client.ask(Request(MessageType.CLIENT_REQUEST))
                except (OSError, EOFError):
                    continue
                if answer.is_accepted:
                    return number
            return None

        return int(self.wait(find_leader, "there is no leader"))

    def append(self, *values: bytes, name: str = "", user: str = USER) -> Response:
        """Commits entries at the leader."""
        entries = tuple(FarmLogEntry(0, ValueType.APPLICATION, value) for value in values)
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            try:
                with self.connect(self.leader(name), name, user, PASSWORDS[user]) as client:
                    answer = client.ask(Request(MessageType.CLIENT_REQUEST, entries=entries))
                if answer.is_accepted:
                    return answer
            except (OSError, EOFError):
                pass
            assert time.monotonic() < deadline_s, f"nothing is committed: {self.report()}"


class FarmConnection:
    """An authenticated connection to one server. Raises EOFError when the server closes it."""

    def __init__(
        self, farm: FarmServers, number: int, name: str, credentials: tuple[str, str]
    ) -> None:
        self._stream = codec.ResponseStream()
        self._answers: list[Response] = []
        if farm.jraft:
            self.sock = farm.dial(number)
        else:
            self.sock, result = farm.shake_hands(number, name, credentials)
            self._answers += self._stream.feed(result.rest)

    def send(self, *requests: Request) -> None:
        self.sock.sendall(b"".join(map(codec.encode_request, requests)))

    def answer(self) -> Response:
        while not self._answers:
            data = self.sock.recv(65536)
            if not data:
                raise EOFError
            self._answers += self._stream.feed(data)
        return self._answers.pop(0)

    def ask(self, request: Request) -> Response:
        self.send(request)
        return self.answer()

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> "FarmConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
