"""The client sockets of a node with real workers: which requests they accept and answer."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

import kelek
from kelek.clients.table.operations import TableTuning
from kelek.protocols.zerodb.wire.ops import Put, pack

DEADLINE_MS = 60_000
TABLE = (4).to_bytes(4, "little")
OTHER = (5).to_bytes(4, "little")  # A table of the second worker.
PUT = b"\x31\x01\x20"
PARTSYNC = b"\x31\x01\x20\x01"
READ = b"\x31\x01\x10"
SOCKETS = ("url", "pull_url", "sub_url", "events_url")

Socket = zmq.Socket[bytes]


class TableNode:
    """A node with two workers and all client sockets."""

    def __init__(self, shell: Any, options: str) -> None:
        self.shell = shell
        folder = shell.environment["XDG_RUNTIME_DIR"]
        self.urls = {name: f"ipc://{folder}/{name}" for name in SOCKETS}
        urls = ", ".join(f"{name}: '{url}'" for name, url in self.urls.items())
        text = (
            "cluster: tables\ndata: var\nraft: {election_timeout_ms: [600, 1000]}\n"
            "zerodb: {workers: 2, local_tables: [9], request_timeout_ms: 20s}\nnodes:\n"
            f"  n1: {{url: 'tcp://127.0.0.1:7201', peer_url: 'ipc://{folder}/p', "
            f"zerodb: {{{urls}}}}}\n"
        )
        (shell.folder / "node.yaml").write_text(shell.translate(text))
        shell.ok(f"supervisor start {options} --detach node.yaml")
        self.context: zmq.Context[Socket] = zmq.Context()

    def connect(self, kind: int, name: str = "url") -> Socket:
        socket = self.context.socket(kind)
        socket.linger = 0
        socket.rcvtimeo = socket.sndtimeo = DEADLINE_MS
        if kind == zmq.SUB:
            socket.subscribe(b"")
        socket.connect(self.urls[name])
        return socket

    def ask(self, *frames: bytes) -> list[bytes]:
        with self.connect(zmq.REQ) as socket:
            socket.send_multipart(frames)
            return socket.recv_multipart()

    def wait_value(self, value: bytes, key: bytes = b"k") -> None:
        """Waits until an unanswered write is applied."""
        until = time.monotonic() + DEADLINE_MS / 1000
        while (found := self.ask(READ, TABLE, key)) != [b"\x31\x01\x10\x00", value]:
            assert time.monotonic() < until, found

    def pid(self, name: str) -> int:
        rows = self.shell.status("node.yaml")
        return int(next(row["pid"] for row in rows if row["name"] == name))

    def close(self) -> None:
        self.context.destroy()
        self.shell.run("supervisor stop node.yaml")


@pytest.fixture
def node(shell: Any, request: pytest.FixtureRequest) -> Iterator[TableNode]:
    node = TableNode(shell, getattr(request, "param", "--one-process"))
    yield node
    node.close()


def test_every_client_socket(node: TableNode) -> None:
    assert node.ask(b"\x31\x01\x00")[1].startswith(b"kelek ")
    assert node.ask(PARTSYNC, TABLE, b"k", b"1") == [b"\x31\x01\x20\x00"]
    assert node.ask(READ, TABLE, b"k", b"none") == [b"\x31\x01\x10\x00", b"1", b""]

    with node.connect(zmq.PUSH, "pull_url") as push, node.connect(zmq.SUB, "events_url") as events:
        push.send_multipart([PUT, TABLE, b"k", b"2"])
        node.wait_value(b"2")
        text = b""
        while not text.endswith(b"frame 2: expected a value behind the key, found none"):
            if not events.poll(100):  # The subscription may take a while.
                push.send_multipart([PUT, TABLE, b"key alone"])
                continue
            head, level, written, sender, text = events.recv_multipart()
        assert (head, level, sender) == (b"\x55\x01\x00", b"\2", b"n1/zerodb_server")
        assert abs(int.from_bytes(written, "little") / 1000 - time.time()) < 60

    with node.connect(zmq.PUB, "sub_url") as pub:
        until = time.monotonic() + DEADLINE_MS / 1000
        while node.ask(READ, TABLE, b"k")[1] != b"3":
            pub.send_multipart([PUT, TABLE, b"k", b"3"])
            assert time.monotonic() < until


def test_a_huge_subscription_to_events_is_cut_off(node: TableNode) -> None:
    """libzmq would store the topic, with up to 46 bytes of memory for each byte."""
    with node.context.socket(zmq.SUB) as logs:
        logs.linger = 0
        monitor = logs.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        monitor.rcvtimeo = DEADLINE_MS
        logs.subscribe(bytes(2 << 10))
        logs.connect(node.urls["events_url"])
        assert recv_monitor_message(monitor)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
        assert recv_monitor_message(monitor)["event"] == zmq.EVENT_DISCONNECTED
        logs.disable_monitor()
        monitor.close()


def test_a_dealer_may_send_many_requests_before_the_first_answer(node: TableNode) -> None:
    """Answers of one connection and table come in order, with junk among the requests; no process
    ends."""
    with node.connect(zmq.DEALER) as dealer:
        for number in range(300):
            dealer.send_multipart([PARTSYNC, TABLE, b"k", b"%d" % number])
            dealer.send_multipart([b"junk"])
            dealer.send_multipart([PUT, OTHER, b"%d" % number, b""])
        answers = [dealer.recv_multipart() for _ in range(900)]
    heads = [frames[0][:3] for frames in answers]
    assert sorted(heads) == sorted([b"\x31\x01\x20"] * 600 + [b"\x31\x01\xff"] * 300)
    assert all(frames[0][3:] == b"\0" for frames in answers if frames[0][2] == 0x20)
    node.wait_value(b"299")
    count = node.ask(b"\x31\x01\x11", OTHER)
    assert int.from_bytes(count[1], "little") == 300


def test_local_tables_are_not_replicated(node: TableNode) -> None:
    local = (9).to_bytes(4, "little")
    assert node.ask(b"\x31\x01\x20\x02", local, b"k", b"v") == [b"\x31\x01\x20\x00"]
    assert node.ask(READ, local, b"k") == [b"\x31\x01\x10\x00", b"v"]
    both = [table + (1).to_bytes(4, "little") + b"\1" for table in (local, TABLE)]
    answer = node.ask(b"\x31\x01\x24", both[0], b"k", both[1], b"k")
    assert answer[0] == b"\x31\x01\x24\x01"
    assert answer[1].startswith(b"the tables 4, 9: 9 are local")


@pytest.mark.skipif(zmq.has("pgm"), reason="this libzmq knows PGM")
def test_a_multicast_socket_needs_libzmq_with_pgm(shell: Any) -> None:
    zerodb = "zerodb: {sub_url: 'epgm://lo;239.192.1.1:5555'}"
    urls = "url: 'tcp://127.0.0.1:7201', peer_url: 'tcp://127.0.0.1:7221'"
    open_ = "insecure: [zerodb.sub_url]"
    text = f"cluster: tables\ndata: var\nnodes: {{n1: {{{urls}, {zerodb}, {open_}}}}}\n"
    (shell.folder / "node.yaml").write_text(shell.translate(text))
    done = shell.run("supervisor start --one-process node.yaml")
    assert done.returncode == 2
    assert "nodes.n1.zerodb.sub_url: epgm://lo;239.192.1.1:5555 is of a kind" in done.stderr


@pytest.mark.parametrize("node", [""], indirect=True)
def test_every_request_is_answered_despite_killed_processes(node: TableNode) -> None:
    assert node.ask(PARTSYNC, TABLE, b"k", b"1") == [b"\x31\x01\x20\x00"]
    assert node.ask(PARTSYNC, OTHER, b"k", b"2") == [b"\x31\x01\x20\x00"]

    with node.connect(zmq.DEALER) as dealer:
        pids = [node.pid("table_worker"), node.pid("table_worker.2")]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for table in (TABLE, OTHER) * 50:
            dealer.send_multipart([READ, table, b"k"])
        answers = sorted(dealer.recv_multipart()[1] for _ in range(100))
        assert answers == [b"1"] * 50 + [b"2"] * 50

    os.kill(node.pid("zerodb_server"), signal.SIGKILL)
    with node.connect(zmq.DEALER) as dealer:  # Its requests may have died with the old process.
        found: set[bytes] = set()
        until = time.monotonic() + DEADLINE_MS / 1000
        while found != {b"1", b"2"}:
            assert time.monotonic() < until, found
            for table in (TABLE, OTHER):
                dealer.send_multipart([READ, table, b"k"])
            while dealer.poll(500):
                found.add(dealer.recv_multipart()[1])


def test_table_info_lists_tables_of_all_workers(node: TableNode) -> None:
    for table in (TABLE, OTHER):
        assert node.ask(PARTSYNC, table, b"k", b"1") == [b"\x31\x01\x20\x00"]
    header, *found = node.ask(b"\x31\x01\x15")
    assert header == b"\x31\x01\x15\x00"
    assert found[::2] == [TABLE, OTHER]
    infos = [json.loads(info) for info in found[1::2]]
    assert [info["worker"] for info in infos] == ["table_worker", "table_worker.2"]
    assert [info["keys"] for info in infos] == [1, 1]


def test_log_updates_cannot_write_tables(node: TableNode) -> None:
    """A client of the log cannot append operations of tables, in any form."""
    assert node.ask(PARTSYNC, TABLE, b"k", b"1") == [b"\x31\x01\x20\x00"]
    url = node.shell.translate("tcp://127.0.0.1:7201")
    for form in "auto", "node", "text":
        with kelek.Log([url], "tables", timeout_ms=DEADLINE_MS, form=form) as log:
            with pytest.raises(kelek.LogRefused):
                log.append(pack([Put(4, [b"k"], [b"forged"])]))
            log.append(b"no operations")
    assert node.ask(READ, TABLE, b"k") == [b"\x31\x01\x10\x00", b"1"]
    shown = node.shell.ok("kelek log entries --topology node.yaml --after 0")
    assert [line.split(maxsplit=2)[2] for line in shown.splitlines()] == [
        "(tables) put 4 x 1", *["no operations"] * 3
    ]  # fmt: skip


def test_reserved_tables_accept_writes_of_their_owners_only(node: TableNode) -> None:
    """On every endpoint; a client that opens a fresh table becomes its owner by a token."""
    store, fresh, url = 4_294_967_294, 3_221_225_500, node.urls["url"]
    token = TableTuning(owner=b"0123456789abcdef")
    with node.connect(zmq.PUSH, "pull_url") as push:
        for table in store, fresh:
            push.send_multipart([PUT, table.to_bytes(4, "little"), b"k", b"v"])
        push.send_multipart([PUT, TABLE, b"k", b"behind them"])
        node.wait_value(b"behind them")
    for table in store, fresh:
        with kelek.Table(url, table, timeout_ms=DEADLINE_MS) as other:
            for write in other.truncate, lambda table=other: table.put(b"k", b"v"):
                with pytest.raises(kelek.TableRefused, match=f"table {table} is reserved"):
                    write()
            assert other.count() == 0
            job = "is reserved: no job writes to it"
            with pytest.raises(kelek.TableRefused, match=job), kelek.Table(url, 4) as source:
                source.copy_into(table)
    with (
        kelek.Table(url, fresh, timeout_ms=DEADLINE_MS, tuning=token) as mine,
        kelek.Table(url, fresh, timeout_ms=DEADLINE_MS) as others,
    ):
        mine.open()
        mine.put_many([(b"%d" % number, b"v") for number in range(100)])
        with pytest.raises(kelek.TableRefused, match="reserved"):
            others.delete_many([b"1"])
        assert others.count() == 100
        mine.truncate()
    shown = node.shell.run(f"kelek table truncate {fresh} --yes --url {url}")
    assert (shown.returncode, "is reserved" in shown.stderr) == (1, True)
    (file,) = Path(node.shell.environment["XDG_RUNTIME_DIR"]).glob("**/n1/secret")
    secret = file.read_text()
    node.shell.ok(f"kelek table truncate {store} --yes --owner {secret} --url {url}")
