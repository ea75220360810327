"""A cluster with keys: what the clients of log, tables and broker may do, and what ends for them.

The tests of the tables' own grants and owners are in tests/actors/tables/test_cluster.py.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import kelek
from kelek.net.access.keys import load_key
from kelek.protocols.access import audit
from kelek.protocols.zerodb.wire import answers, requests
from kelek.protocols.zerodb.wire.requests import Request
from kelek.protocols.zerodb.wire.values import NOT_ALLOWED
from kelek.tests.actors.tables.test_cluster import KeyedSocket
from kelek.tests.clients.broker.services import serving
from kelek.tests.secure_cluster import SecureCluster

GRANTS = {
    "reader": "log.read",
    "appender": "log.append",
    "both": "log.read log.append",
    "admin": "admin",
    "gone": "log.read log.append",
    "orders": "tables:7:rw",
    "streams": "tables:3221225469:rw",
    "stream-reader": "tables:3221225469:r",
    "jobs": "tables:4294967291:rw tables:2147483648-2415919103:rw",
    "caller": "services:mail",
    "mailer": "worker:mail",
}
TIMEOUT_MS = 60_000
DENIED_S = 2.0  # A denial takes some milliseconds; a search for a leader would go on.
ACTORS = 3 * 5  # With endpoints: raft_peer, state_machine, zerodb_server, job_server, broker.
REVOKED_MS = 2000  # How long a revoked client waits for an answer.


class ClientsCluster(SecureCluster):
    def __init__(self) -> None:
        super().__init__()
        self.paths = {name: self.allow(name, grants) for name, grants in GRANTS.items()}

    def client_of(self, name: str, endpoint: str) -> tuple[list[str], str, dict[str, str]]:
        """urls, key and server_keys."""
        server_keys = self.server_keys(endpoint)
        return list(server_keys), self.paths[name], server_keys

    def log_of(self, name: str, timeout_ms: int = TIMEOUT_MS) -> kelek.Log:
        urls, key, server_keys = self.client_of(name, "url")
        return kelek.Log(urls, "safe", timeout_ms=timeout_ms, key=key, server_keys=server_keys)


@kelek.service("mail")
def mail(body: bytes) -> bytes:
    return b"to " + body


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClientsCluster]:
    running = ClientsCluster()
    try:
        running.start()
        running.wait(lambda: running.log().count("ready node=n") >= 3 * 7)
        with running.log_of("both") as log:  # No test expects this entry between its own ones.
            running.wait(lambda: any(b"tables_from" in each.data for each in log.entries()))
        yield running
    finally:
        running.stop()


def denied(call: Callable[[], object], grant: str) -> None:
    begin_s = time.monotonic()
    with pytest.raises(kelek.LogNotAllowed, match=rf"no grant `{grant}`"):
        call()
    assert time.monotonic() - begin_s < DENIED_S


def test_a_key_with_log_read_may_not_append(cluster: ClientsCluster) -> None:
    with cluster.log_of("both") as both, cluster.log_of("reader") as reader:
        index = both.append(b"first")
        assert [entry.data for entry in reader.entries(index - 1, 1)] == [b"first"]
        assert reader.read_index() >= index
        assert next(iter(reader.watch(index - 1))).data == b"first"
        denied(lambda: reader.append(b"x"), "log.append")
        denied(lambda: reader.append_many([b"x"] * 2000), "log.append")
        assert b"x" not in {entry.data for entry in reader.entries()}


def test_a_key_with_log_append_may_not_read(cluster: ClientsCluster) -> None:
    with cluster.log_of("appender") as log:
        index = log.append(b"second")
        assert log.info().last_index >= index
        for call in (
            lambda: list(log.entries()),
            lambda: list(log.entries(url=cluster.urls["n2.url"])),
            lambda: next(iter(log.watch())),
            log.state,
            log.read_index,
            log.broadcast_url,
        ):
            denied(call, "log.read")
        assert log.append(b"third") > index


def test_only_administrators_change_the_cluster(cluster: ClientsCluster) -> None:
    with cluster.log_of("both") as log, cluster.log_of("admin") as admin:
        members = log.members()
        denied(log.transfer, "admin")
        denied(log.make_snapshot, "admin")
        denied(lambda: log.set_members({"n1": members["n1"]}), "admin")
        denied(lambda: admin.append(b"x"), "log.append")
        assert admin.make_snapshot().last_index
        assert admin.transfer() in members
        log.append(b"at the new leader")


def test_denials_of_an_async_log(cluster: ClientsCluster) -> None:
    async def main() -> None:
        urls, key, server_keys = cluster.client_of("reader", "url")
        async with kelek.AsyncLog(urls, "safe", key=key, server_keys=server_keys) as log:
            results = await asyncio.gather(
                log.append(b"a"), log.transfer(), log.read_index(), return_exceptions=True
            )
            assert [type(each) for each in results[:2]] == [kelek.LogNotAllowed] * 2
            assert isinstance(results[2], int)

    asyncio.run(asyncio.wait_for(main(), TIMEOUT_MS / 1000))


def test_a_table_in_its_range(cluster: ClientsCluster) -> None:
    urls, key, server_keys = cluster.client_of("orders", "zerodb.url")
    with kelek.Table(urls, 7, timeout_ms=TIMEOUT_MS, key=key, server_keys=server_keys) as table:
        table.put(b"k", b"v")
        assert table.get(b"k") == b"v"
        assert list(table.scan()) == [(b"k", b"v")]
    with kelek.Table(urls, 8, timeout_ms=TIMEOUT_MS, key=key, server_keys=server_keys) as table:
        with pytest.raises(kelek.TableNotAllowed):
            table.put(b"k", b"v")
        with pytest.raises(kelek.TableNotAllowed):
            table.get(b"k")


def refused(call: Callable[[], object]) -> None:
    begin_s = time.monotonic()
    with pytest.raises(kelek.TableNotAllowed, match="no grant"):
        call()
    assert time.monotonic() - begin_s < DENIED_S


def in_group(stream: kelek.Stream) -> bytes:
    """The first record that a member of a group gets."""
    with stream.group("all") as group:
        value: bytes = next(group.records(timeout_s=60)).value
        return value


def test_streams_with_keys(cluster: ClientsCluster) -> None:
    def stream_of(name: str) -> kelek.Stream:
        urls, key, server_keys = cluster.client_of(name, "zerodb.url")
        return kelek.Stream(urls, "news", key=key, server_keys=server_keys, timeout_ms=TIMEOUT_MS)

    with stream_of("streams") as writer, stream_of("stream-reader") as reader:
        assert writer.append(b"first", key=b"k") == 0
        assert [record.value for record in reader.read()] == [b"first"]
        assert next(iter(reader.tail("first"))).value == b"first"
        assert in_group(writer) == b"first"
        refused(lambda: reader.append(b"x"))
        refused(lambda: reader.append_many([b"x"] * 300))
        refused(lambda: reader.retain(max_records=1))
        refused(lambda: in_group(reader))
        assert [record.value for record in reader.read()] == [b"first"]
    with stream_of("orders") as other:
        for call in (lambda: list(other.read()), lambda: next(other.tail()), other.info):
            refused(call)
        refused(lambda: other.append(b"x"))


def test_queues_with_keys(cluster: ClientsCluster) -> None:
    def queue_of(name: str) -> kelek.Queue:
        urls, key, server_keys = cluster.client_of(name, "zerodb.url")
        return kelek.Queue(urls, "mails", key=key, server_keys=server_keys, timeout_ms=TIMEOUT_MS)

    with queue_of("jobs") as queue:
        job = queue.put("a letter")

        @queue.worker
        def send(job: kelek.Job) -> str:
            return f"{job.body} sent"

        queue.run(idle_s=0.1)
        assert queue.result(job, timeout_s=60) == "a letter sent"
        with queue_of("orders") as other:
            other.worker(send)
            for call in (
                lambda: other.put("x"),
                lambda: other.get(job),
                other.info,
                lambda: other.run(idle_s=0.1),
            ):
                refused(call)
        assert queue.info()["waiting"] == 0
    urls, key, server_keys = cluster.client_of("jobs", "zerodb.url")
    with kelek.Table(urls, key=key, server_keys=server_keys, timeout_ms=TIMEOUT_MS) as table:
        number = table.names()["queue.mails"]
    grants = f"tables:4294967291:r tables:{number}:rw"
    cluster.paths["mails"] = cluster.allow("mails", grants)
    with queue_of("mails") as queue:
        queue.worker(send)
        job = queue.put("another")
        queue.run(idle_s=0.1)
        assert queue.result(job, timeout_s=60) == "another sent"


def test_a_service_of_its_grant(cluster: ClientsCluster) -> None:
    urls, key, server_keys = cluster.client_of("mailer", "broker.workers_url")
    options = {"key": key, "server_keys": server_keys}
    with serving(mail, urls=urls[0], **options):
        urls, key, server_keys = cluster.client_of("caller", "broker.clients_url")
        with kelek.Broker(
            urls[0], timeout_ms=TIMEOUT_MS, key=key, server_keys=server_keys
        ) as broker:
            assert broker.call("mail", b"ann") == b"to ann"
            with pytest.raises(kelek.ServiceNotAllowed):
                broker.call("echo", b"x")


def test_a_revoked_key_gets_nothing_more(cluster: ClientsCluster) -> None:
    async def main(both: kelek.Log) -> None:
        urls, key, server_keys = cluster.client_of("gone", "url")
        async with kelek.AsyncLog(
            urls, "safe", timeout_ms=REVOKED_MS, key=key, server_keys=server_keys
        ) as gone:
            watch = gone.watch(await gone.append(b"before"))
            allowed = both.watch(both.append(b"watched") - 1)
            while (await anext(watch)).data != b"watched":
                pass  # Table servers append entries of their own while they start.
            cluster.revoke("gone")
            cluster.wait(lambda: cluster.log().count("key-revoked name=gone") >= ACTORS)
            change = {"command": "revoke-key", "arguments": {"name": "gone"}}
            cluster.wait(lambda: len(audited(cluster, **change)) >= 3)
            revoked = audited(cluster, **change)
            assert sorted(line["node"] for line in revoked) == ["n1", "n2", "n3"], "a line a node"
            last = both.append(b"after")
            results = await asyncio.gather(
                asyncio.wait_for(anext(watch), REVOKED_MS / 1000),
                gone.append(b"x"), gone.read_index(), gone.info(), return_exceptions=True,
            )  # fmt: skip
            assert isinstance(results[0], TimeoutError)
            assert all(isinstance(each, kelek.LogTimeout) for each in results[1:])
            assert both.append(b"still") > last
            written = (b"watched", b"after", b"still")
            found = (entry.data for entry in allowed if entry.data in written)
            assert [next(found) for _ in written] == [*written]

    with cluster.log_of("both") as both:
        asyncio.run(asyncio.wait_for(main(both), TIMEOUT_MS / 1000))
        assert b"x" not in {entry.data for entry in both.entries()}


# ---- audit ----


def audited(cluster: ClientsCluster, **expected: object) -> list[dict[str, Any]]:
    """The lines of all nodes' audit files that have these values."""
    paths = sorted(cluster.folder.glob("var/*/audit.jsonl*"))
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    return [line for line in lines if expected.items() <= line.items()]


def one_line(cluster: ClientsCluster, **expected: object) -> dict[str, Any]:
    """It is written behind the answer."""
    cluster.wait(lambda: bool(audited(cluster, **expected)))
    (line,) = audited(cluster, **expected)
    return line


def ask_tables(cluster: ClientsCluster, name: str, request: Request) -> answers.Answer:
    """Sends a request to n1 with a key."""
    asking = KeyedSocket(cluster, load_key(cluster.paths[name]), "n1.zerodb.url")
    try:
        return asking.ask(request)
    finally:
        asking.socket.close()


COMMANDS: dict[str, Callable[[kelek.Log], object]] = {
    "make-snapshot": lambda log: log.make_snapshot(),
    "transfer": lambda log: log.transfer(),
    "set-members": lambda log: log.set_members(dict(log.members()) | {"n9": "tcp://127.0.0.1:1"}),
}
REQUESTS: dict[str, Request] = {
    "open-table": requests.OpenTable(9),
    "close-table": requests.CloseTable(9),
    "compact-table": requests.CompactTable(9),
    "truncate-table": requests.TruncateTable(9),
}


def test_these_are_all_administrative_commands() -> None:
    assert COMMANDS.keys() == set(audit.LOG.values())
    assert REQUESTS.keys() == set(audit.TABLES.values())


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_of_the_log_leaves_one_line(cluster: ClientsCluster, command: str) -> None:
    before = audited(cluster, command=command, who="admin")
    with cluster.log_of("both") as log:
        log.append(b"x")  # For a snapshot.
    with cluster.log_of("admin") as log:
        if command == "set-members":
            with pytest.raises(kelek.MembersRefused):  # None runs at that address.
                COMMANDS[command](log)
        else:
            COMMANDS[command](log)
    with cluster.log_of("reader") as reader:
        denied(lambda: COMMANDS[command](reader), "admin")
    cluster.wait(lambda: bool(audited(cluster, command=command, who="reader", result="denied")))
    found = audited(cluster, command=command, who="admin")
    (line,) = [each for each in found if each not in before]
    assert line["from"] == "127.0.0.1"
    assert (line["result"] == "ok") == (command != "set-members"), line


@pytest.mark.parametrize("command", REQUESTS)
def test_each_command_of_tables_leaves_one_line(cluster: ClientsCluster, command: str) -> None:
    answer = ask_tables(cluster, "admin", REQUESTS[command])
    assert not answer.failed, answer.text
    line = one_line(cluster, command=command, who="admin")
    assert (line["node"], line["actor"], line["from"]) == ("n1", "zerodb_server", "127.0.0.1")
    assert line["arguments"] == {"table": 9}
    assert line["result"] in ("ok", "acknowledged")
    assert ask_tables(cluster, "orders", REQUESTS[command]).code == NOT_ALLOWED
    line = one_line(cluster, command=command, who="orders")
    assert (line["result"], line["from"]) == ("denied", "127.0.0.1")
    assert len(audited(cluster, command=command)) == 2
