"""A process of the actor broker, started as its supervisor does."""

import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgpack
import zmq

from kelek.actors.runtime.fork_server import python_command
from kelek.actors.runtime.setup import ActorSetup
from kelek.actors.topology.security import NodeSecurity
from kelek.actors.topology.settings import BrokerEndpoints, BrokerSettings
from kelek.bench.ports import free_ports
from kelek.net.private_files import replace_file
from kelek.protocols.access.certificates import encode_key, format_certificate
from kelek.tests.actors.node_settings import node_settings
from kelek.tests.clients.curve_gate import new_key, write_key

Socket = zmq.Socket[bytes]
DEADLINE_S = 60
POLL_MS = 200
OTHER_KEYS = ("clients_url", "workers_url", "store_urls")  # Not keys of the section `broker`.


class BrokerProcess:
    """A broker on free ports. settings: BrokerSettings, the two urls and store_urls.

    keys   with CURVE: grants by the name of a key that it allows
    """

    def __init__(
        self, node: str = "n1", keys: Mapping[str, str] | None = None, **settings: Any
    ) -> None:
        # The path is short: a Unix socket's path has at most 107 bytes.
        self.folder = folder = Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))
        ports = free_ports(2)
        self.clients_url, self.workers_url = (f"tcp://127.0.0.1:{port}" for port in ports)
        self.context: zmq.Context[Socket] = zmq.Context()
        self.sockets: list[Socket] = []
        self.control = self.socket(zmq.ROUTER)
        self.control.bind(f"ipc://{folder}/control")
        self.clients_url = settings.get("clients_url", self.clients_url)
        self.workers_url = settings.get("workers_url", self.workers_url)
        urls = {"clients_url": self.clients_url, "workers_url": self.workers_url}
        places = {f"broker.{key}": f"t.yaml: broker.{key}" for key in urls}
        sections = {
            "broker": BrokerSettings(**{k: v for k, v in settings.items() if k not in OTHER_KEYS}),
            "store_urls": settings.get("store_urls", ()),
        }
        self.key, self.keys = new_key(node), {name: new_key(name) for name in keys or ()}
        (folder / "allowed").mkdir()
        for name, grants in (keys or {}).items():
            self.allow(name, grants)
        if keys is not None:
            sections["security"] = NodeSecurity(
                allow=str(folder / "allowed"),
                enforce=True,
                key_file=str(write_key(folder, self.key)),
                node_keys={},
                server_keys={},
                insecure=(),
                foreign_grants="",
            )
        node_section = {
            "broker": BrokerEndpoints(**urls),
            "server_key": encode_key(self.key.public_key) if keys else "",
        }
        setup = ActorSetup(
            node, "broker", "broker", "c", str(folder), str(folder),
            f"ipc://{folder}/control", 1, False,
            node_settings(node_section, **sections), places,
        )  # fmt: skip
        (folder / "setup.json").write_text(setup.to_json(), encoding="utf-8")
        self.log = (folder / "log").open("wb")
        self.process = subprocess.Popen(
            python_command("kelek.actors.broker.broker", folder / "setup.json"),
            stdin=subprocess.PIPE,
            stderr=self.log,
        )

    def wait_for(self, kind: str) -> dict[str, Any]:
        """The next message of a kind to the supervisor; {} for `ready`.

        Raises AssertionError when the process has ended.
        """
        deadline_s = time.monotonic() + DEADLINE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline_s, f"it never sends {kind}"
            if self.control.poll(POLL_MS):
                _, command, *rest = self.control.recv_multipart()
                if command == kind.encode():
                    return dict(msgpack.unpackb(rest[0])) if rest else {}
        raise AssertionError(f"it has ended with {self.process.returncode}")

    def socket(self, kind: int, url: str = "", key: str = "", routing_id: bytes = b"") -> Socket:
        """key: the name of a key that is allowed, or another one; '': without CURVE"""
        socket = self.context.socket(kind)
        self.sockets.append(socket)
        if key:
            own = self.keys.get(key) or new_key(key)
            socket.setsockopt(zmq.CURVE_SERVERKEY, self.key.public_key)
            socket.setsockopt(zmq.CURVE_PUBLICKEY, own.public_key)
            socket.setsockopt(zmq.CURVE_SECRETKEY, own.secret_key)
        if routing_id:
            socket.setsockopt(zmq.ROUTING_ID, routing_id)
        if url:
            socket.connect(url)
        return socket

    def client(self, key: str = "", routing_id: bytes = b"") -> Socket:
        return self.socket(zmq.DEALER, self.clients_url, key, routing_id)

    def worker(self, key: str = "", routing_id: bytes = b"") -> Socket:
        return self.socket(zmq.DEALER, self.workers_url, key, routing_id)

    def allow(self, name: str, grants: str) -> None:
        """Writes the file of an allowed key."""
        public = self.keys[name]._replace(secret_key=b"", metadata={"name": name, "grants": grants})
        replace_file(self.folder / "allowed" / f"{name}.key", format_certificate(public), 0o644)

    def revoke(self, name: str) -> None:
        (self.folder / "allowed" / f"{name}.key").unlink()

    def kill(self) -> None:
        """Kills the process; call stop() later. This also closes the test's sockets, which would
        reconnect to the next broker at these urls with their routing ids."""
        self.process.kill()
        self.process.wait(DEADLINE_S)
        for socket in self.sockets:
            socket.close(0)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(DEADLINE_S)
        assert self.process.stdin
        self.process.stdin.close()
        self.log.close()
        for socket in self.sockets:
            socket.close(0)
        self.context.term()
        shutil.rmtree(self.folder)
        return code
