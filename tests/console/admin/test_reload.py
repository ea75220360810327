"""`supervisor reload`: a node with a key joins while a client appends; the demo's broker gets other
ports while all other processes go on."""

import http.client
import importlib.util
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

import kelek
from kelek.bench.ports import free_ports
from kelek.tests.conftest import demo_shell
from kelek.tests.console import kelek_runner
from kelek.tests.secure_cluster import DEADLINE_S, SecureCluster
from kelek.tests.waiting import PACE_S

HAS_WEB = all(importlib.util.find_spec(name) for name in ("starlette", "uvicorn"))


def test_a_node_with_a_key_joins_without_a_failed_request() -> None:
    """The steps of docs/operations/changes.md: the topology, a reload, a start, a member."""
    cluster = SecureCluster()
    key = cluster.allow("client", "log.read log.append")
    admin = cluster.allow("admin", "admin log.read")
    server_keys = cluster.server_keys("url")
    stop, done = threading.Event(), list[int]()

    def append() -> None:
        with kelek.Log([*server_keys], "safe", key=key, server_keys=server_keys) as log:
            while not stop.wait(PACE_S):
                done.append(log.append(b"%d" % len(done)))

    try:
        cluster.start()
        cluster.wait(lambda: "all-ready" in cluster.log())
        with ThreadPoolExecutor(1) as pool:
            appending = pool.submit(append)
            try:
                cluster.wait(lambda: bool(done))
                cluster.add_node("n4")
                shown = cluster.supervisor("reload", "topology.yaml")
                after_reload = len(done)
                cluster.supervisor(
                    "start", "topology.yaml", "--node", "n4", "--one-process", "--detach"
                )
                url = cluster.urls["n4.url"]
                cluster_of = ("-t", cluster.topology, "--own-key", admin)
                added = kelek_runner.ok("log", "members", "add", "n4", url, *cluster_of)
                cluster.wait(lambda: len(done) > after_reload + 1)
            finally:
                stop.set()
            appending.result(DEADLINE_S)
        assert (
            f"n4 is new: `supervisor start --node n4`, then `kelek log members add n4 {url}`"
            in (shown)
        )
        assert shown.count("unit=node") == 3, "one node after the other"
        assert added.startswith("n4 is a member")
        assert "n4" in kelek_runner.ok("log", "members", "list", *cluster_of)
        assert done == sorted({*done})
        cluster.supervisor("stop", "topology.yaml", "--node", "n4")
    finally:
        cluster.stop()


class Demo:
    """The whole demo with discovery and two pages, and a worker of the service `echo`."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.path = shell.folder / "topology.yaml"
        self.udp = shell.addresses["5670"]
        page_ports = free_ports(2) if HAS_WEB else []
        text = re.sub(r"(?m)^  (n\d):$", r"\g<0>\n    zre: {interface: lo}", self.path.read_text())
        for node, port in zip(("n1", "n2"), page_ports, strict=False):
            page = f"    web: {{address: '127.0.0.1:{port}'}}\n"
            text = text.replace(f"  {node}:\n", f"  {node}:\n{page}", 1)
        self.path.write_text(f"{text}zre: {{port: {self.udp}}}\n")
        (shell.folder / "services.py").write_text("def echo(body):\n    return bytes(body)\n")
        self.closing = ExitStack()
        shell.ok("supervisor start --detach")
        worker = shell.start("kelek worker run services:echo --name echo")
        self.closing.callback(worker.communicate, timeout=DEADLINE_S)
        self.closing.callback(worker.terminate)
        self.watcher = self.closing.enter_context(
            kelek.Node("watcher", tuning=kelek.NodeTuning(interface="lo", port=int(self.udp)))
        )
        self.pages = [self._services_on(port) for port in page_ports]

    def _services_on(self, port: int) -> Iterator[Any]:
        """What an open page shows of services, one picture after the other."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
        self.closing.enter_context(closing(connection))
        connection.request("GET", "/events?view=services")
        lines = (line for line in connection.getresponse() if line.startswith(b'data: {"view"'))
        return (json.loads(line[6:])["content"] for line in lines)

    def pids(self) -> dict[tuple[str, str], int]:
        return {(row["node"], row["name"]): row["pid"] for row in self.shell.status()}

    def broker_url(self) -> str:
        [url] = re.findall(r"clients_url: (\S+)", self.path.read_text())
        return str(url)

    def announced(self, kind: kelek.EventKind, count: int) -> list[str]:
        """The brokers in the headers of the next events of this kind. No node leaves meanwhile."""
        found = list[str]()
        for event in self.watcher.events():
            assert event.peer is not None
            is_ours = event.peer.name in ("n1", "n2", "n3")  # `kelek discover` comes and goes.
            assert event.kind is not kelek.EventKind.EXIT or not is_ours
            if is_ours and event.kind is kind:
                found.append(event.peer.headers.get("X-KELEK-BROKER", ""))
            if len(found) == count:
                break
        return found

    def check_url(self) -> None:
        """Clients, discovery and the pages have the url of the topology."""
        url = self.broker_url()
        with kelek.Broker(url) as broker:
            assert broker.call("echo", b"hello") == b"hello"
        shown = self.shell.ok(f"kelek discover demo --interface lo --port {self.udp}")
        assert re.findall(r"X-KELEK-BROKER +(\S+)", shown) == [url]
        for page in self.pages:  # Until a picture has what the broker at this url has answered.
            next(
                it for it in page
                if [row["url"] for row in it["brokers"]] == [url] and not it["problem"]
                and [row["name"] for row in it["services"]] == ["echo"]
            )  # fmt: skip


def test_another_port_of_the_broker_restarts_no_other_process(tmp_path: Path) -> None:
    with demo_shell(tmp_path, tables=True) as shell:
        demo = Demo(shell)
        with demo.closing:
            old, new = demo.broker_url(), f"tcp://127.0.0.1:{free_ports(1)[0]}"
            assert sorted(demo.announced(kelek.EventKind.ENTER, 3)) == ["", "", old]
            demo.check_url()
            before = demo.pids()
            demo.path.write_text(demo.path.read_text().replace(old, new))
            updated = ["node=n1 unit=zre_node"]
            updated += [f"node={node} unit=web" for node in ("n1", "n2")[: len(demo.pages)]]
            dry = shell.ok("supervisor reload --dry-run").splitlines()
            assert [line for line in dry if "would update" in line] == [
                f"would update {it}" for it in updated
            ]
            assert (
                dry[-1] == f"would restart 1 of {len(before) - 1} processes, update {len(updated)}"
            )
            shown = shell.ok("supervisor reload").splitlines()
            assert shown[-1] == (
                f"reloaded topology.yaml: 1 change, 1 of {len(before) - 1} processes restarted, "
                f"{len(updated)} updated"
            )
            demo.check_url()
            assert demo.announced(kelek.EventKind.CHANGED, 1) == [new]
            after = demo.pids()
            assert after.keys() == before.keys()
            assert {it for it in before if before[it] != after[it]} == {("n1", "broker")}
            assert "topology changed" not in shell.ok("supervisor status")
            assert {row["state"] for row in shell.status()} == {"ready"}


@pytest.mark.parametrize("end", [False, True])
def test_a_process_that_does_not_adopt_its_settings_restarts_with_them(
    tmp_path: Path, end: bool
) -> None:
    """zre_node hangs while the broker's port changes; then it is killed, or its time is up."""
    with demo_shell(tmp_path) as shell:
        path, ports = shell.folder / "one.yaml", free_ports(5)
        url, peer_url, old, new, workers_url = (f"tcp://127.0.0.1:{port}" for port in ports)
        path.write_text(
            f"cluster: one\nzre: {{port: {shell.addresses['5670']}}}\n"
            f"nodes:\n  n1:\n    url: {url}\n    peer_url: {peer_url}\n"
            f"    broker: {{clients_url: '{old}', workers_url: '{workers_url}'}}\n"
            "    zre: {interface: lo}\n"
        )
        shell.ok("supervisor start one.yaml --detach")
        node = zre_node(shell)
        os.kill(node["pid"], signal.SIGSTOP)
        path.write_text(path.read_text().replace(old, new))
        reload = shell.start("supervisor reload one.yaml")
        while "updating" not in zre_node(shell):
            pass  # status() has a pause.
        if end:
            os.kill(node["pid"], signal.SIGKILL)
        shown, _ = reload.communicate(timeout=DEADLINE_S)
        assert reload.returncode == 0
        assert "restarted node=n1 unit=zre_node roles=zre_node" in shown.decode()
        assert "2 of 6 processes restarted\n" in shown.decode()
        after = zre_node(shell)
        assert (after["state"], after["restarts"]) == ("ready", int(end))
        assert after["pid"] != node["pid"]
        command = f"kelek discover one --interface lo --port {shell.addresses['5670']}"
        assert new in shell.ok(command)
        assert "no change, 0 of 6 processes" in shell.ok("supervisor reload one.yaml")


def zre_node(shell: Any) -> dict[str, Any]:
    rows: list[dict[str, Any]] = shell.status("one.yaml")
    return next(row for row in rows if row["role"] == "zre_node")
