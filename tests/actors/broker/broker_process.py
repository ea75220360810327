"""A process of the actor broker, started as its supervisor does."""

import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import msgpack
import zmq

from kelek.actors.runtime.children import python_command
from kelek.actors.runtime.setup import ActorSetup
from kelek.actors.topology.settings import BrokerEndpoints, BrokerSettings
from kelek.tests.actors.node_settings import node_settings
from kelek.tests.ports import free_ports

Socket = zmq.Socket[bytes]
DEADLINE_S = 60
POLL_MS = 200
OTHER_KEYS = ("clients_url", "workers_url", "store_urls")  # Not keys of the section `broker`.


class BrokerProcess:
    """A broker on free ports. settings: BrokerSettings, the two urls and store_urls."""

    def __init__(self, node: str = "n1", **settings: Any) -> None:
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
        setup = ActorSetup(
            node, "broker", "broker", "c", str(folder), str(folder),
            f"ipc://{folder}/control", 1, False,
            node_settings({"broker": BrokerEndpoints(**urls)}, **sections), places,
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

    def socket(self, kind: int, url: str = "") -> Socket:
        socket = self.context.socket(kind)
        self.sockets.append(socket)
        if url:
            socket.connect(url)
        return socket

    def client(self) -> Socket:
        return self.socket(zmq.DEALER, self.clients_url)

    def worker(self) -> Socket:
        return self.socket(zmq.DEALER, self.workers_url)

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
