"""`kelek discover`, `kelek node watch`, `kelek node chat`; docs/guides/discovery.md shows them."""

import json
import pty
import socket
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import kelek
from kelek.bench.ports import free_udp_port
from kelek.console.kelek_cli import main
from kelek.console.node import commands as node_commands
from kelek.protocols.access.certificates import encode_key
from kelek.protocols.zre import services
from kelek.tests.clients.curve_gate import new_key, write_key

HALL = {services.CLUSTER: "hall", services.BROKER: "tcp://127.0.0.1:7300"}


@pytest.fixture
def port() -> int:
    return free_udp_port()


def hall(port: int) -> kelek.Node:
    return kelek.Node("n1", HALL, tuning=kelek.NodeTuning(port=port, interface="lo"))


def on_lo(port: int, *arguments: str) -> list[str]:
    return [*arguments, "--interface", "lo", "--port", str(port)]


def test_discover(port: int) -> None:
    with hall(port) as node:
        command = on_lo(port, "discover", "hall", "--timeout", "60")
        done = CliRunner().invoke(main, [*command, "-o", "json"])
        (row,) = map(json.loads, done.stdout.splitlines())
        assert (row["cluster"], row["node"], row["uuid"]) == ("hall", "n1", node.uuid.hex())
        assert row["services"][services.BROKER] == ["tcp://127.0.0.1:7300"]
        assert row["services"][services.LOG] == []
        done = CliRunner().invoke(main, command)
        assert done.stdout.split()[-4:] == ["hall", "n1", services.BROKER, "tcp://127.0.0.1:7300"]


def test_discover_with_keys(port: int, tmp_path: Path) -> None:
    """A node with CURVE shows its services to keys that it allows, and only if its own is given."""
    ann, eve, own = (new_key(name) for name in ("ann", "eve", "n1"))
    files = {key.name: str(write_key(tmp_path, key)) for key in (ann, eve, own)}
    tuning = kelek.NodeTuning(port=port, interface="lo")
    allow = [encode_key(ann.public_key)]
    with kelek.Node("n1", HALL, tuning=tuning, key=files["n1"], allow=allow):

        def discover(name: str, server: bytes, timeout: str) -> Result:
            command = on_lo(port, "discover", "hall", "--timeout", timeout, "-o", "json")
            keys = ["--own-key", files[name], "--server-key", encode_key(server)]
            return CliRunner().invoke(main, [*command, *keys])

        (row,) = map(json.loads, discover("ann", own.public_key, "60").stdout.splitlines())
        assert row["node"] == "n1"
        assert discover("eve", own.public_key, "1").exit_code == 1
        assert discover("ann", eve.public_key, "1").exit_code == 1
    done = CliRunner().invoke(main, on_lo(port, "discover", "--own-key", files["ann"]))
    assert "the nodes' keys are missing" in done.stderr
    keys = ["--own-key", "missing", "--server-key", encode_key(own.public_key)]
    done = CliRunner().invoke(main, on_lo(port, "discover", *keys))
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "missing: No such file" in done.stderr
    keys = ["--server-key", encode_key(own.public_key)]
    done = CliRunner().invoke(main, on_lo(port, "node", "watch", *keys))
    assert "the own key is missing" in done.stderr


def test_discover_without_nodes(port: int) -> None:
    done = CliRunner().invoke(main, on_lo(port, "discover", "--timeout", "0.1"))
    assert done.exit_code == 1
    assert "no node with services of kelek was found on lo" in done.stderr
    done = CliRunner().invoke(main, ["discover", "--interface", "nowhere"])
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1
    assert "no interface 'nowhere'" in done.stderr


def test_a_url_without_a_server(port: int) -> None:
    url = f"zre://hall?interface=lo&port={port}&timeout_ms=100"
    for command in (["call", "x", "--url", url], ["log", "info", "--url", url]):
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 1
        assert "no node of the cluster offers" in done.stderr
    done = CliRunner().invoke(main, ["table", "get", "1", "x", "--url", "zre://hall?x=1"])
    assert done.exit_code == 2


def test_watch_reports_new_nodes(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    seen = threading.Event()

    class Seen(Exception):
        """Of one who interrupts."""

    def show(event: kelek.Event, output: str) -> None:
        before(event, output)
        if event.kind is kelek.EventKind.JOIN:
            seen.set()
            raise Seen

    before, node_commands.show_event = node_commands.show_event, show
    try:
        with hall(port) as node:
            node.join("room")
            with pytest.raises(Seen):
                node_commands.watch.main(on_lo(port, "-o", "json"), standalone_mode=False)
    finally:
        node_commands.show_event = before
    assert seen.is_set()
    entered, joined = map(json.loads, capsys.readouterr().out.splitlines())
    assert (entered["event"], entered["node"], entered["headers"]) == ("ENTER", "n1", HALL)
    assert (joined["event"], joined["group"]) == ("JOIN", "room")


def test_the_table_of_watch(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    tuning = kelek.NodeTuning(port=port, interface="lo")
    with hall(port) as node, kelek.Node("me", tuning=tuning) as me:
        node.join("room")
        while "room" not in me.peer_groups:
            assert me.receive(60_000)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"junk", ("127.0.0.1", port))
        while not me.counters.get("beacon_malformed"):
            me.receive(50)
        node_commands.draw(me, {node.uuid})
    *_, line, discarded = capsys.readouterr().out.splitlines()
    assert discarded == "discarded: 1"
    shown = line.split()
    assert shown[:2] == ["n1", "v2"]
    assert shown[3:5] == ["silent", "room"]


def test_watch_on_a_terminal(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is drawn again when a node appears."""
    before, drawn = node_commands.draw, []

    class Seen(Exception):
        """Of one who interrupts."""

    def draw(me: kelek.Node, silent: set[bytes]) -> None:
        before(me, silent)
        drawn.append(len(me.peers))
        if drawn[-1]:
            raise Seen

    monkeypatch.setattr(node_commands, "draw", draw)
    ours, theirs = pty.openpty()
    with open(ours, "rb", buffering=0) as screen, open(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        with hall(port), pytest.raises(Seen):
            node_commands.watch.main(on_lo(port), standalone_mode=False)
        monkeypatch.undo()
        lines = screen.read(1 << 16).decode().splitlines()
    assert lines[-1] == "discarded: 0"
    assert lines[-2].split()[:2] == ["n1", "v2"]


def test_chat(port: int) -> None:
    with hall(port) as node:
        node.join("room")
        command = on_lo(port, "node", "chat", "room", "--name", "ann", "--wait-for", "1")
        done = CliRunner().invoke(main, command, input="hello\nthere\n")
        assert done.stdout.splitlines()[0] == "* n1 JOIN"
        said = []
        for event in node.events(60_000):
            if event.kind is kelek.EventKind.SHOUT:
                assert event.peer is not None
                said.append((event.peer.name, event.group, event.content))
            if len(said) == 2:
                break
    assert said == [("ann", "room", [b"hello"]), ("ann", "room", [b"there"])]
