"""kelek.Farm and kelek.AsyncFarm against three servers over TLS, and errors."""

import asyncio
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import trustme
from click.testing import CliRunner

import kelek
from kelek.bench.ports import free_port
from kelek.clients.farm.links import ConnectSettings, FarmLinks
from kelek.clients.farm.operations import Credentials, make_client
from kelek.clients.farm.values import secret_of
from kelek.console.kelek_cli import main
from kelek.protocols.garlicfarm.client.values import ConnectFailure, FailureKind, OpenConnection
from kelek.protocols.garlicfarm.wire.values import Address
from kelek.tests.actors.farm.farm_servers import SERVERS, USER, FarmServers
from kelek.tests.clients.io.test_resources import leave_open
from kelek.tests.http_proxy import HttpProxy

TIMEOUT_MS = 60_000


@pytest.fixture(scope="module")
def servers() -> Iterator[FarmServers]:
    """One farm for all tests; its leader may have been killed and restarted."""
    with FarmServers(node="post_interval_ms: 0") as farm:
        farm.start()
        yield farm


def arguments(farm_servers: FarmServers, /, **changes: Any) -> dict[str, Any]:
    defaults = {
        "servers": [f"tls://127.0.0.1:{port}" for port in farm_servers.ports.values()],
        "farm": "farm",
        "user": USER,
        "secret_file": farm_servers.folder / "demo.secret",
        "ca_file": farm_servers.ca,
        "timeout_ms": TIMEOUT_MS,
    }
    return {**defaults, **changes}


def open_farm(farm_servers: FarmServers, /, **changes: Any) -> kelek.Farm:
    return kelek.Farm(**arguments(farm_servers, **changes))


def test_appends_continue_with_a_new_leader(servers: FarmServers) -> None:
    with open_farm(servers) as farm:
        first = farm.append(b'{"n":1}')
        second = farm.append_many(b'{"n":%d}' % number for number in range(5000))
        assert second >= first + 5000
        assert farm.append_many([]) == 0
        leader = servers.leader()
        servers.kill(leader)
        third = farm.append(b"later")
        assert third > second
        servers.start(leader, bootstrap=False)


@pytest.mark.parametrize("kind", ["Farm", "AsyncFarm"])
def test_an_unclosed_farm_delays_neither_collector_nor_exit(
    servers: FarmServers, kind: str
) -> None:
    leave_open(kind, json.dumps(arguments(servers), default=str))


def test_servers_may_be_given_by_id(servers: FarmServers) -> None:
    ids = {number: f"tcp://127.0.0.1:{port}" for number, port in servers.ports.items()}
    with open_farm(servers, servers=ids) as farm:
        farm.append(b"x")
    client = make_client(ids, "farm", Credentials(USER, "", None), kelek.FarmTuning())
    assert client.servers.ids == {
        number: Address("127.0.0.1", port) for number, port in servers.ports.items()
    }
    with pytest.raises(kelek.FarmError, match="this Farm is closed"):
        farm.append(b"x")


def test_appends_of_many_tasks_share_requests(servers: FarmServers) -> None:
    async def main() -> None:
        async with kelek.AsyncFarm(**arguments(servers)) as farm:
            await farm.append(b"warm")
            await asyncio.gather(*(farm.append(b"%d" % number) for number in range(200)))
            assert farm.counters["requests"] < 200
        with pytest.raises(kelek.FarmError, match="this AsyncFarm is closed"):
            await farm.append(b"x")

    asyncio.run(main())


def server_arguments(servers: FarmServers) -> dict[str, Any]:
    """The arguments of a client with the user `servers`."""
    return arguments(servers, user=SERVERS, secret_file=servers.folder / "servers.secret")


def test_entries_have_index_and_user(servers: FarmServers) -> None:
    with open_farm(servers) as demo, kelek.Farm(**server_arguments(servers)) as other:
        first = demo.append(b"by demo")
        last = other.append_many([b"by a server", b"by a server too"])
        found = [(each.index, each.value, each.user) for each in demo.entries(after=first - 1)]
    assert found[0] == (first, b"by demo", USER)
    assert found[-2:] == [(last - 1, b"by a server", SERVERS), (last, b"by a server too", SERVERS)]


def test_only_a_server_may_post_its_status(servers: FarmServers) -> None:
    """A client that posts another server's status is refused; other values of its request are
    appended.
    """
    status = b'{"cluster":"farm","date":1,"id":2}'

    async def main() -> list[int | BaseException]:
        async with kelek.AsyncFarm(**arguments(servers)) as farm:
            await farm.append(b"warm")
            tasks = (farm.append(value) for value in (b"earlier", status, b"later"))
            return list(await asyncio.gather(*tasks, return_exceptions=True))

    before, refused, after = asyncio.run(main())
    assert isinstance(refused, kelek.FarmRefused)
    assert "refuses this entry of demo" in str(refused)
    with kelek.Farm(**server_arguments(servers)) as farm:
        for index, value in ((before, b"earlier"), (after, b"later")):
            assert isinstance(index, int)
            assert next(farm.entries(after=index - 1)).value == value
        assert not farm.documents()["documents"]
        farm.append(status)
        assert [each["id"] for each in farm.documents()["documents"]] == [2]


def test_unreachable_servers_are_reported_before_the_timeout(servers: FarmServers) -> None:
    urls = [f"tls://127.0.0.1:{free_port()}", f"tls://127.0.0.1:{free_port()}"]
    for call in (kelek.Farm.status, lambda farm: farm.append(b"x")):
        with open_farm(servers, servers=urls) as farm:
            began = time.monotonic()
            with pytest.raises(kelek.FarmUnavailable, match="connection refused"):
                call(farm)
            assert time.monotonic() - began < TIMEOUT_MS / 2000
    with pytest.raises(ValueError, match=r"http:// is not supported; write tls://HOST:PORT"):
        open_farm(servers, servers="http://127.0.0.1:7401")


def test_entries_read_and_watch_return_what_was_appended(servers: FarmServers) -> None:
    with open_farm(servers) as farm:
        first = farm.append(b"first")  # No other client appends.
        assert farm.commit_index() == first
        values = [b"read %d" % number for number in range(2500)]
        end = farm.append_many(values)
        found = [entry.value for entry in farm.entries(after=first)]
        assert [value for value in found if value[:5] == b"read "] == values
        following = farm.watch(first)
        found = [entry.value for entry in islice(following, len(values))]
        assert found == values
        page = farm.read(after=first, count=10)
        assert [entry.value for entry in page.entries] == values[:10]
        assert (page.next_index, page.first_index) == (page.entries[-1].index + 1, 1)
        assert page.last_index == page.entries[-1].index
        assert farm.read(after=end + 100).entries == ()
        kinds = {entry.kind for entry in farm.read(all_kinds=True).entries}
        assert kinds == {"application", "configuration", "poster"}
        with pytest.raises(ValueError, match="the first index is 1"):
            farm.read(after=-1)


def test_watch_continues_when_servers_are_killed(servers: FarmServers) -> None:
    """No entry is missing or repeated. A value whose leader is killed may be in the log twice."""
    with open_farm(servers) as farm, open_farm(servers) as writer:
        first = farm.append(b"first")
        following = farm.watch(first)
        watched: list[kelek.FarmEntry] = []

        def check(value: bytes) -> None:
            writer.append(value)
            while not watched or watched[-1].value != value:
                watched.append(next(following))

        for number in servers.ports:  # One of them serves the entries.
            check(b"die%d" % number)
            servers.kill(number)
            check(b"die%d, then" % number)
            servers.start(number, bootstrap=False)
        stored = list(islice(farm.entries(after=first), len(watched)))
        assert watched == stored


def test_reading_compacted_entries_is_an_error(tmp_path: Path) -> None:
    with FarmServers(
        ids=(1,), farm="snapshot_entries: 10, snapshot_trailing_entries: 2"
    ) as compact:
        compact.start()
        with open_farm(compact) as farm:
            farm.append_many([b"x"] * 50)
            while (first := farm.status()["first"]) == 1:
                farm.append(b"y")
            with pytest.raises(kelek.FarmCompacted) as error:
                next(farm.entries())
            assert error.value.first_index >= first
            assert next(farm.entries(after=error.value.first_index - 1)).value in (b"x", b"y")
            assert farm.documents()["cluster"] == "farm"


def test_status_and_servers(servers: FarmServers) -> None:
    async def query() -> tuple[dict[str, Any], list[kelek.FarmServer]]:
        async with kelek.AsyncFarm(**arguments(servers)) as farm:
            await farm.reach(TIMEOUT_MS)
            await farm.append(b"a leader is elected")
            while (found := await farm.status())["state"] != "leader":
                pass  # The leader has just changed.
            return found, await farm.servers()

    status, found = asyncio.run(query())
    assert status["state"] == "leader"
    assert status["asked_by"] == {"user": USER, "admin": True}
    assert sorted(each.id for each in found) == [1, 2, 3]
    assert {each.problem for each in found} == {""}
    with open_farm(servers, servers=f"tls://127.0.0.1:{servers.ports[1]}") as farm:
        farm.append(b"learned")  # The known server names the leader.


# ---- proxies, JRaft, old TLS ----


def run_command(*words: object) -> str:
    """Runs `kelek farm`; returns its stdout."""
    done = CliRunner().invoke(main, ["farm", *map(str, words), "--timeout", "60"])
    assert done.exit_code == 0, done.stderr or done.exception
    return done.stdout


def test_jraft_servers_support_appends_and_member_changes() -> None:
    """They have neither TLS nor users, and no views."""
    plain = kelek.FarmTuning(insecure_jraft=True)
    with FarmServers(ids=(1,), jraft=True, node="post_interval_ms: 0") as bare:
        bare.start()
        urls = {1: bare.endpoint(1)}
        with kelek.Farm(urls, timeout_ms=TIMEOUT_MS, tuning=plain) as farm:
            end = farm.append_many([b"one", b"two"])
            assert farm.append(b"three") == end + 1
            with pytest.raises(kelek.FarmRefused, match="JRaft servers have no HTTP API"):
                farm.status()
            with pytest.raises(kelek.FarmRefused, match="do not execute"):
                farm.publish("auto")
            assert farm.add_server(2, "tcp://farm.example:1")
            with pytest.raises(kelek.FarmRefused, match="another change is in progress"):
                farm.add_server(3, "tcp://127.0.0.1:1")
            words = ("append", "-o", "json", "--url", bare.endpoint(1), "--insecure-jraft")
            assert json.loads(run_command(*words, "four"))["last_index"] == end + 2
        refused = 'why="without TLS only loopback addresses are allowed"'
        bare.wait(lambda: refused in bare.log(1), "the server connects without TLS")
        bare.wait(lambda: bare.status(1).get("counters", {}).get("insecure_endpoints", 0) > 1)
        assert bare.log(1).count(refused) == 1


def test_a_proxy_resolves_the_names_of_servers() -> None:
    """As with I2P, without TLS."""
    with (
        FarmServers(ids=(1,), tls=False, node="post_interval_ms: 0") as inner,
        HttpProxy({"one.b32.i2p:80": inner.ports[1]}) as proxy,
    ):
        inner.start()
        tuning = kelek.FarmTuning(proxy=f"127.0.0.1:{proxy.port}")
        changes = {"servers": "tcp://one.b32.i2p:80", "ca_file": None, "tuning": tuning}
        with open_farm(inner, **changes) as farm:
            farm.append(b"by a proxy")
            assert farm.status()["state"] == "leader"
        assert proxy.heads
        assert all(head.startswith("GET http://one.b32.i2p:80/Garlic") for head in proxy.heads)
        other = {**changes, "servers": "tcp://two.b32.i2p:80"}
        with (
            open_farm(inner, **other) as farm,
            pytest.raises(kelek.FarmUnavailable),
        ):
            farm.reach(300)
        credentials = ("--user", USER, "--secret-file", inner.folder / "demo.secret")
        proxy_options = ("--url", "tcp://one.b32.i2p:80", "--proxy", f"127.0.0.1:{proxy.port}")
        run_command("append", *credentials, *proxy_options, "by a command")
        assert "by a command" in run_command(
            "entries", *credentials, "--url", inner.endpoint(1), "--i2p"
        )
        tunnel = kelek.FarmTuning(i2p=True)
        with open_farm(inner, servers=inner.endpoint(1), ca_file=None, tuning=tunnel) as farm:
            assert [entry.value for entry in farm.entries()][-2:] == [
                b"by a proxy", b"by a command",
            ]  # fmt: skip


def test_members_are_not_connected_without_tls_or_proxy() -> None:
    """A server may name members that only a proxy can reach."""

    class RecordingClient:
        failures: list[tuple[int, ConnectFailure]] = []
        connections: dict[int, object] = {}
        actions = [
            OpenConnection(3, Address("one.b32.i2p", 80)),
            OpenConnection(4, Address("10.0.0.1", 80)),
        ]

        def on_lost(self, number: int, failure: ConnectFailure, now_ms: int) -> None:
            self.failures.append((number, failure))

        def ready(self, now_ms: int) -> list[OpenConnection]:
            actions, self.actions = self.actions, []
            return actions

    links = FarmLinks(RecordingClient(), ConnectSettings())  # type: ignore[arg-type]
    links.run_once(0, lambda: True)
    failure = ConnectFailure(
        FailureKind.LOST, "without TLS or a proxy only loopback addresses are allowed"
    )
    assert RecordingClient.failures == [(3, failure), (4, failure)]


# ---- errors ----


@pytest.mark.parametrize(
    ("changes", "kind", "error"),
    [
        ({"secret_file": None, "password": "no"}, kelek.FarmDenied, "user demo or the password"),
        ({"user": "nobody"}, kelek.FarmDenied, "user nobody or the password"),
        ({"ca_file": None}, kelek.FarmUntrusted, "its certificate is not trusted"),
        ({"farm": "barn"}, kelek.FarmRefused, "it has no farm barn"),
        (
            {"tuning": kelek.FarmTuning(server_name="other.org")},
            kelek.FarmUntrusted,
            "Hostname mismatch",
        ),
    ],
)
def test_refused_credentials(
    servers: FarmServers, changes: dict[str, Any], kind: type[Exception], error: str
) -> None:
    with open_farm(servers, **changes) as farm, pytest.raises(kind, match=error):
        farm.append(b"x")


def test_a_port_without_listener_is_reported(servers: FarmServers) -> None:
    url = f"tls://127.0.0.1:{free_port()}"
    with open_farm(servers, servers=url, timeout_ms=300) as farm:
        problem = r"connection refused|nobody has been heard"
        with pytest.raises(kelek.FarmUnavailable, match=problem):
            farm.append(b"x")
        assert "requests" not in farm.counters


@contextmanager
def listening(serve: Callable[[socket.socket], object]) -> Iterator[str]:
    """The address of a listener; a thread serves its connections one after another."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            with suppress(OSError):
                while True:
                    accepted, _ = listener.accept()
                    with accepted, suppress(OSError):
                        serve(accepted)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_listener_without_tls_is_reported(servers: FarmServers) -> None:
    def answer(accepted: socket.socket) -> None:
        accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        accepted.recv(1)

    with (
        listening(answer) as address,
        open_farm(servers, servers=f"tls://{address}") as farm,
        pytest.raises(kelek.FarmUntrusted, match="does not use TLS"),
    ):
        farm.append(b"x")


def test_an_unknown_host_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with (
        kelek.Farm("tls://farm.example:1", user="u", password="p") as farm,
        pytest.raises(kelek.FarmUnavailable, match="no such host: Name or service not known"),
    ):
        farm.reach(300)


def test_a_server_that_requires_tls_is_reported() -> None:
    """It closes a plain connection without an answer."""
    tuning = kelek.FarmTuning(i2p=True)
    with (
        listening(lambda accepted: None) as address,
        kelek.Farm(f"tcp://{address}", user="u", password="p", tuning=tuning) as farm,
        pytest.raises(kelek.FarmUnavailable, match="does it require TLS"),
    ):
        farm.reach(300)


@pytest.mark.parametrize(
    ("tls", "error"), [("1.2", "it has no farm barn"), ("1.3", "another version of TLS")]
)
def test_tls_1_2_is_used_on_request_only(tmp_path: Path, tls: str, error: str) -> None:
    """The server supports TLS 1.2 and no farm."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    def serve(accepted: socket.socket) -> None:
        with context.wrap_socket(accepted, server_side=True) as secured:
            secured.recv(4096)
            secured.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    options: dict[str, Any] = {"ca_file": tmp_path / "ca.pem", "tuning": kelek.FarmTuning(tls=tls)}
    with (
        listening(serve) as address,
        kelek.Farm(address, "barn", user="u", password="p", **options) as farm,
        pytest.raises(kelek.FarmError, match=error),
    ):
        farm.append(b"x")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"servers": "nowhere"}, "has no host and port; write tls://HOST:PORT"),
        ({"servers": ""}, "has no host and port"),
        ({"servers": []}, "give the address of a server"),
        ({"servers": {1 << 40: "tls://127.0.0.1:1"}}, "32 bits"),
        ({"farm": "a/b"}, "is not a farm's name"),
        ({"user": ""}, "is not a user name"),
        ({"user": "a:b"}, "is not a user name"),
        ({"password": None}, "secret_file or password"),
        ({"timeout_ms": 0}, "1 to 86400000 ms"),
        ({"tuning": kelek.FarmTuning(tls="1.1")}, "TLS version must be 1.3, or 1.2"),
        (
            {"servers": "tcp://10.0.0.1:7401", "tuning": kelek.FarmTuning(insecure_jraft=True)},
            "only loopback addresses are allowed",
        ),
        (
            {"servers": "tcp://one.b32.i2p:80", "tuning": kelek.FarmTuning(i2p=True)},
            "only loopback addresses are allowed",
        ),
    ],
)
def test_invalid_arguments_are_refused(changes: dict[str, Any], error: str) -> None:
    valid = {"servers": "tls://127.0.0.1:1", "user": "u", "password": "p"}
    with pytest.raises(ValueError, match=error):
        kelek.Farm(**{**valid, **changes})


def test_invalid_values_are_refused(servers: FarmServers) -> None:
    with open_farm(servers) as farm:
        with pytest.raises(TypeError, match="must be a list"):
            farm.append_many(b"x")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="not str"):
            farm.append("x")  # type: ignore[arg-type]
        with pytest.raises(kelek.FarmTooLarge):
            farm.append(bytes(64 << 20))


def test_old_arguments_work_and_warn(servers: FarmServers) -> None:
    with open_farm(servers) as farm:
        with pytest.warns(DeprecationWarning, match="append_many"):
            next_index = farm.append([b"old", b"older"])
        with pytest.warns(DeprecationWarning, match="follow=|after=") as warned:
            found = [entry.value for entry in farm.entries(next_index - 2, follow=False)]
        assert found == [b"old", b"older"]
        assert ["follow=" in str(warned[0].message), "after=" in str(warned[1].message)] == [
            True
        ] * 2
        with pytest.warns(DeprecationWarning, match="after="):
            assert farm.read(next_index - 2, 1).entries[0].value == b"old"
        with pytest.warns(DeprecationWarning, match="after="):
            following = farm.entries(from_index=next_index - 1)
        assert next(following).value == b"older"
        farm.append(b"new")
        assert next(following).value == b"new"


def test_secret_files_must_be_private(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"pass word\r\n")
    path.chmod(0o640)
    options: dict[str, Any] = {"servers": "tls://127.0.0.1:1", "user": "u", "secret_file": path}
    with pytest.raises(kelek.FarmError, match=r"others can read .* chmod 600"):
        kelek.Farm(**options)
    path.chmod(0o600)
    with kelek.Farm(**options) as farm:
        assert not farm.counters
    client = make_client(
        options["servers"], "farm", Credentials("u", None, path), kelek.FarmTuning()
    )
    assert client.setup.password == "pass word"
    for junk in (b"", b"\n", b"a\nb\n", b"\xff", bytes(2000), b"a\0b"):
        with pytest.raises(kelek.FarmError):
            secret_of(junk, "it")
    path.unlink()
    with pytest.raises(FileNotFoundError):
        kelek.Farm(**options)
    with pytest.raises(kelek.FarmError, match=r"nowhere\.pem"):
        kelek.Farm("127.0.0.1:1", user="u", password="p", ca_file="nowhere.pem")
