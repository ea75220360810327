"""Three clusters that differ in their keys alone, each with tables and a broker on n1.

null     without `security:`
curve    CURVE on all endpoints; the generator's key has grants
grants   the generator comes to endpoints for foreign peers: without CURVE, but with the grants of
         curve. The nodes' own connections have no CURVE either.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import zmq

from kelek.bench.kelek_cluster import NODES
from kelek.bench.load.loadgen import Generator, Load, libzmq
from kelek.bench.machine import ends_with_us
from kelek.bench.ports import free_ports
from kelek.bench.tables.tables import BenchTables
from kelek.net.private_files import replace_file
from kelek.net.sockets import CurveClient, add_curve
from kelek.protocols.access.certificates import (
    Certificate,
    decode_key,
    format_certificate,
)

FORMS = ("null", "curve", "grants")
GRANTS = "log.read log.append tables:1-9:rw services:echo,bundled,mail.* worker:echo,bundled,mail.*"
SETTINGS = "raft: {election_timeout_ms: [1500, 2500]}"  # Three clusters share the machine.
INSECURE = ["peer_url", "broadcast_url"]
CLIENT = "load"
WORKERS = 4
WINDOW = 32


def new_key(name: str) -> Certificate:
    public, secret = zmq.curve_keypair()
    return Certificate(decode_key(public.decode()), decode_key(secret.decode()), {"name": name})


class KeyedCluster(BenchTables):
    """One of FORMS, with workers for the services `echo` and `bundled`."""

    answer_ms_max = 3000  # Each question has a handshake of its own, beside two other clusters.
    start_s_max = 120.0

    def __init__(self, directory: Path, form: str, one_process: bool = False) -> None:
        super().__init__(directory, SETTINGS if form == "null" else f"{SETTINGS}\nsecurity: {{}}")
        self.name, self.has_curve, self.one_process = form, form == "curve", one_process
        self.node_keys = {name: new_key(name) for name in NODES}
        self.client_key = new_key(CLIENT)
        ports = iter(free_ports(20))
        served = [f"tcp://127.0.0.1:{next(ports)}" for _ in range(2)]
        self.clients_url, self.workers_url = served
        self.workers: list[subprocess.Popen[bytes]] = []
        self.owners = {
            **dict(zip(self.urls.values(), NODES, strict=True)),
            **dict(zip(self.table_urls, NODES, strict=True)),
            **dict.fromkeys(served, NODES[0]),
        }
        self.lines = []
        for name, tables_url in zip(NODES, self.table_urls, strict=True):
            broker = {"clients_url": served[0], "workers_url": served[1]}
            node: dict[str, Any] = {
                "url": self.urls[name],
                "zerodb": {"url": tables_url},
                **({"broker": broker} if name == NODES[0] else {}),
            }
            if form == "grants":
                node = _foreign(node, ports)
                node |= {"foreign_grants": GRANTS, "insecure": INSECURE}
            for kind in ("peer_url", "broadcast_url"):
                node[kind] = f"tcp://127.0.0.1:{next(ports)}"
            self.lines.append(f"  {name}: {json.dumps(node)}")

    def start(self) -> None:
        self._start("supervisor", [str(self.topology), *["--one-process"] * self.one_process])

    def write_topology(self, path: Path, nodes: list[str]) -> None:
        super().write_topology(path, nodes)
        allowed = self.directory / "keys" / "allowed"
        allowed.mkdir(parents=True)
        for key in (*self.node_keys.values(), self.client_key):
            public = Certificate(key.public_key, b"", {"name": key.name})
            replace_file(self.key_file(key.name, secret=True), format_certificate(key), 0o600)
            replace_file(self.key_file(key.name), format_certificate(public), 0o644)
        granted = Certificate(self.client_key.public_key, b"", {"name": CLIENT, "grants": GRANTS})
        replace_file(allowed / f"{CLIENT}.key", format_certificate(granted), 0o644)

    def key_file(self, name: str, secret: bool = False) -> Path:
        return self.directory / "keys" / (f"{name}.key_secret" if secret else f"{name}.key")

    def client_socket(self, url: str) -> zmq.Socket[bytes]:
        if not self.has_curve:
            return super().client_socket(url)
        socket = self.context.socket(zmq.DEALER)
        socket.linger = 0
        server_key = self.node_keys[self.owners[url]].public_key
        add_curve(socket, CurveClient(server_key, *self.client_key[:2]))
        socket.connect(url)
        return socket

    def target_at(self, protocol: str, *urls: str) -> list[str]:
        """The load generator's arguments."""
        target = ["--protocol", protocol, "--libzmq", libzmq(), "--urls", ",".join(urls)]
        if not self.has_curve:
            return target
        keys = ",".join(str(self.key_file(self.owners[url])) for url in urls)
        return [
            *target,
            "--own-key",
            str(self.key_file(CLIENT, secret=True)),
            "--server-keys",
            keys,
        ]

    @property
    def target(self) -> list[str]:
        return self.target_at("zmqraft", *self.urls.values())

    def target_of(self, node: int, table: int) -> list[str]:
        return [*self.target_at("zerodb", self.table_urls[node]), "--table", str(table)]

    def start_workers(self, generator: Generator) -> None:
        target = self.target_at("workers", self.workers_url)
        with (self.directory / "workers.log").open("ab") as log:
            for bundles in (False, True):
                load = Load(WORKERS, WINDOW, bundles=bundles)
                worker = subprocess.Popen(
                    [str(generator.path), *target, *load.arguments()],
                    stdout=log,
                    stderr=log,
                    preexec_fn=ends_with_us(),
                )
                self.workers.append(worker)

    def stop(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()
        self.workers.clear()
        super().stop()


def _foreign(node: dict[str, Any], ports: Any) -> dict[str, Any]:
    """Moves each address to the key for foreign peers; its own key gets another address."""
    moved: dict[str, Any] = {}
    for key, value in node.items():
        if isinstance(value, dict):
            moved[key] = _foreign(value, ports)
        else:
            moved[key] = f"tcp://127.0.0.1:{next(ports)}"
            moved[f"foreign_{key}"] = value
    return moved
