"""A broker's process, as its supervisor would start it, for tests."""

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgpack
import zmq

from kelek.actors.runtime.setup import ActorSetup
from kelek.actors.topology.settings import BrokerEndpoints, BrokerSettings
from kelek.tests.actors.node_settings import node_settings
from kelek.tests.ports import free_ports

Socket = zmq.Socket[bytes]
DEADLINE_S = 60
LOOK_MS = 200
OTHERS = ("clients_url", "workers_url", "store_urls")  # Not of the section `broker`.


class BrokerProcess:
    """A broker alone, with all defaults but what is given, on free ports."""

    def __init__(self, node: str = "n1", **settings: Any) -> None:
        # A short one: a Unix socket's path has 107 bytes.
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
            "broker": BrokerSettings(**{k: v for k, v in settings.items() if k not in OTHERS}),
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
            [
                sys.executable,
                "-P",
                "-m",
                "kelek.actors.broker.broker",
                "--setup",
                f"{folder}/setup.json",
            ],
            stdin=subprocess.PIPE,
            stderr=self.log,
        )

    def wait_for(self, kind: str) -> dict[str, Any]:
        """The next word of it to its supervisor; {} for `ready`. AssertionError: it has ended."""
        until = time.monotonic() + DEADLINE_S
        while self.process.poll() is None:
            assert time.monotonic() < until, f"it never says {kind}"
            if self.control.poll(LOOK_MS):
                _, said, *rest = self.control.recv_multipart()
                if said == kind.encode():
                    return dict(msgpack.unpackb(rest[0])) if rest else {}
        raise AssertionError(f"it has ended with {self.process.returncode}")

    def socket(self, kind: int, url: str = "") -> Socket:
        made = self.context.socket(kind)
        self.sockets.append(made)
        if url:
            made.connect(url)
        return made

    def client(self) -> Socket:
        return self.socket(zmq.DEALER, self.clients_url)

    def worker(self) -> Socket:
        return self.socket(zmq.DEALER, self.workers_url)

    def kill(self) -> None:
        """With a word to nobody; stop() cleans up behind it. Its peers here end, too: they would
        take their names back from those that come to its successor."""
        self.process.kill()
        self.process.wait(DEADLINE_S)
        for each in self.sockets:
            each.close(0)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(DEADLINE_S)
        assert self.process.stdin
        self.process.stdin.close()
        self.log.close()
        for each in self.sockets:
            each.close(0)
        self.context.term()
        shutil.rmtree(self.folder)
        return code
