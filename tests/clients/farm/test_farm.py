"""kelek.Farm and kelek.AsyncFarm against three servers over TLS, and error cases."""

import asyncio
import inspect
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import trustme
from click.testing import CliRunner

import kelek
from kelek.clients.farm.links import ConnectSettings, FarmLinks
from kelek.clients.farm.operations import Credentials, make_client
from kelek.clients.farm.values import secret_of
from kelek.console.kelek_cli import main
from kelek.protocols.garlicfarm.client.values import ConnectFailure, FailureKind, OpenConnection
from kelek.protocols.garlicfarm.wire.values import Address
from kelek.tests.actors.farm.farm_servers import SERVERS, USER, FarmServers
from kelek.tests.clients.io.test_resources import leave_open
from kelek.tests.http_proxy import HttpProxy
from kelek.tests.ports import free_port

TIMEOUT_MS = 60_000


@pytest.fixture(scope="module")
def servers() -> Iterator[FarmServers]:
    """One farm for all tests; its leader may have been killed and restarted."""
    with FarmServers(node="post_interval_ms: 0") as farm:
        farm.start()
        yield farm


def arguments(place: FarmServers, /, **given: Any) -> dict[str, Any]:
    known = {
        "servers": [f"tls://127.0.0.1:{port}" for port in place.ports.values()],
        "farm": "farm",
        "user": USER,
        "secret_file": place.folder / "demo.secret",
        "ca_file": place.ca,
        "timeout_ms": TIMEOUT_MS,
    }
    return {**known, **given}


def opened(place: FarmServers, /, **given: Any) -> kelek.Farm:
    return kelek.Farm(**arguments(place, **given))


def test_it_appends_under_any_leader(servers: FarmServers) -> None:
    with opened(servers) as farm:
        first = farm.append(b'{"n":1}')
        second = farm.append_many(b'{"n":%d}' % number for number in range(5000))
        assert second >= first + 5000
        assert farm.append_many([]) == 0
        leader = servers.leader()
        servers.kill(leader)
        third = farm.append(b"behind it")
        assert third > second
        servers.start(leader, bootstrap=False)


@pytest.mark.parametrize("kind", ["Farm", "AsyncFarm"])
def test_it_holds_up_neither_the_collector_nor_the_exit(servers: FarmServers, kind: str) -> None:
    leave_open(kind, json.dumps(arguments(servers), default=str))


def test_the_servers_by_their_ids(servers: FarmServers) -> None:
    ids = {number: f"tcp://127.0.0.1:{port}" for number, port in servers.ports.items()}
    with opened(servers, servers=ids) as farm:
        farm.append(b"x")
    client = make_client(ids, "farm", Credentials(USER, "", None), kelek.FarmTuning())
    assert client.ids == {
        number: Address("127.0.0.1", port) for number, port in servers.ports.items()
    }
    with pytest.raises(kelek.FarmError, match="this Farm is closed"):
        farm.append(b"x")


def test_tasks_share_one(servers: FarmServers) -> None:
    async def main() -> None:
        async with kelek.AsyncFarm(**arguments(servers)) as farm:
            await farm.append(b"warm")
            await asyncio.gather(*(farm.append(b"%d" % number) for number in range(200)))
            assert farm.counters["requests"] < 200  # They shared a request.
        with pytest.raises(kelek.FarmError, match="this AsyncFarm is closed"):
            await farm.append(b"x")

    asyncio.run(main())


def as_a_server(place: FarmServers) -> dict[str, Any]:
    return arguments(place, user=SERVERS, secret_file=place.folder / "servers.secret")


def test_each_entry_has_its_user_and_an_index(servers: FarmServers) -> None:
    with opened(servers) as demo, kelek.Farm(**as_a_server(servers)) as other:
        first = demo.append(b"of demo")
        last = other.append_many([b"of a server", b"once more"])
        found = [(each.index, each.value, each.user) for each in demo.entries(after=first - 1)]
    assert found[0] == (first, b"of demo", USER)
    assert found[-2:] == [(last - 1, b"of a server", SERVERS), (last, b"once more", SERVERS)]


def test_a_status_is_posted_by_its_server_alone(servers: FarmServers) -> None:
    """A client that posts another server's status is refused; other values of its request are
    appended.
    """
    status = b'{"cluster":"farm","date":1,"id":2}'

    async def main() -> list[int | BaseException]:
        async with kelek.AsyncFarm(**arguments(servers)) as farm:
            await farm.append(b"warm")
            tasks = (farm.append(value) for value in (b"before it", status, b"behind it"))
            return list(await asyncio.gather(*tasks, return_exceptions=True))

    before, refused, behind = asyncio.run(main())
    assert isinstance(refused, kelek.FarmRefused)
    assert "refuses this entry of demo" in str(refused)
    with kelek.Farm(**as_a_server(servers)) as farm:
        for index, value in ((before, b"before it"), (behind, b"behind it")):
            assert isinstance(index, int)
            assert next(farm.entries(after=index - 1)).value == value
        assert not farm.documents()["documents"]
        farm.append(status)
        assert [each["id"] for each in farm.documents()["documents"]] == [2]


def test_unreachable_servers_are_reported_soon(servers: FarmServers) -> None:
    """Before the timeout, if no server was ever reached."""
    where = [f"tls://127.0.0.1:{free_port()}", f"tls://127.0.0.1:{free_port()}"]
    for act in (kelek.Farm.status, lambda farm: farm.append(b"x")):
        with opened(servers, servers=where) as farm:
            began = time.monotonic()
            with pytest.raises(kelek.FarmUnavailable, match="connection refused"):
                act(farm)
            assert time.monotonic() - began < TIMEOUT_MS / 2000
    with pytest.raises(ValueError, match=r"http:// is not supported; write tls://HOST:PORT"):
        opened(servers, servers="http://127.0.0.1:7401")


def test_it_has_every_method_of_farm() -> None:
    def methods(face: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(found).parameters)
            for name, found in inspect.getmembers(face, inspect.isfunction)
            if not name.startswith("_") and name not in ("close", "aclose")
        }

    assert methods(kelek.Farm) == methods(kelek.AsyncFarm)
    made = inspect.signature(kelek.Farm.__init__)
    assert made == inspect.signature(kelek.AsyncFarm.__init__)


def test_it_reads_what_it_has_appended(servers: FarmServers) -> None:
    with opened(servers) as farm:
        first = farm.append(b"begun")  # No other client appends.
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


def test_watching_continues_when_servers_die(servers: FarmServers) -> None:
    """No entry is missing or repeated."""
    with opened(servers) as farm, opened(servers) as writer:
        first = farm.append(b"begun")
        following = (entry for entry in farm.watch(first) if entry.value[:3] == b"die")
        for number in servers.ports:  # One of them serves the entries.
            writer.append(b"die%d" % number)
            assert next(following).value == b"die%d" % number
            servers.kill(number)
            writer.append(b"die%d, then" % number)
            assert next(following).value == b"die%d, then" % number
            servers.start(number, bootstrap=False)


def test_a_log_that_was_compacted(tmp_path: Path) -> None:
    with FarmServers(
        ids=(1,), farm="snapshot_entries: 10, snapshot_trailing_entries: 2"
    ) as compact:
        compact.start()
        with opened(compact) as farm:
            farm.append_many([b"x"] * 50)
            while (first := farm.status()["first"]) == 1:
                farm.append(b"y")
            with pytest.raises(kelek.FarmCompacted) as error:
                next(farm.entries())
            assert error.value.first_index >= first
            assert next(farm.entries(after=error.value.first_index - 1)).value in (b"x", b"y")
            assert farm.documents()["cluster"] == "farm"


def test_what_servers_say(servers: FarmServers) -> None:
    async def ask() -> tuple[dict[str, Any], list[kelek.FarmServer]]:
        async with kelek.AsyncFarm(**arguments(servers)) as farm:
            await farm.reach(TIMEOUT_MS)
            await farm.append(b"somebody leads")
            while (found := await farm.status())["state"] != "leader":
                pass  # It has just resigned.
            return found, await farm.servers()

    status, found = asyncio.run(ask())
    assert status["state"] == "leader"
    assert status["asked_by"] == {"user": USER, "admin": True}
    assert sorted(each.id for each in found) == [1, 2, 3]
    assert {each.problem for each in found} == {""}
    with opened(servers, servers=f"tls://127.0.0.1:{servers.ports[1]}") as farm:
        farm.append(b"learned")  # The known server names the leader.


# ---- proxies, JRaft, old TLS ----


def shell(*words: object) -> str:
    """`kelek farm` with the same target."""
    done = CliRunner().invoke(main, ["farm", *map(str, words), "--timeout", "60"])
    assert done.exit_code == 0, done.stderr or done.exception
    return done.stdout


def test_a_server_as_jraft_has_it() -> None:
    """Without TLS and users: append and member changes work, views do not."""
    plain = kelek.FarmTuning(insecure_jraft=True)
    with FarmServers(ids=(1,), jraft=True, node="post_interval_ms: 0") as bare:
        bare.start()
        where = {1: bare.endpoint(1)}
        with kelek.Farm(where, timeout_ms=TIMEOUT_MS, tuning=plain) as farm:
            end = farm.append_many([b"one", b"two"])
            assert farm.append(b"three") == end + 1
            with pytest.raises(kelek.FarmRefused, match="JRaft servers have no HTTP API"):
                farm.status()
            with pytest.raises(kelek.FarmRefused, match="do not execute"):
                farm.publish("auto")
            assert farm.add_server(2, "tcp://farm.example:1")
            with pytest.raises(kelek.FarmRefused, match="another change is in progress"):
                farm.add_server(3, "tcp://127.0.0.1:1")
            by_shell = ("append", "-o", "json", "--url", bare.endpoint(1), "--insecure-jraft")
            assert json.loads(shell(*by_shell, "four"))["last_index"] == end + 2
        refused = 'why="without TLS only loopback addresses are allowed"'
        bare.wait(lambda: refused in bare.log(1), "it goes out into the open")
        bare.wait(lambda: bare.status(1).get("counters", {}).get("insecure_endpoints", 0) > 1)
        assert bare.log(1).count(refused) == 1


def test_through_a_proxy_without_tls() -> None:
    """As with I2P: only the proxy knows the name."""
    with (
        FarmServers(ids=(1,), tls=False, node="post_interval_ms: 0") as inner,
        HttpProxy({"one.b32.i2p:80": inner.ports[1]}) as proxy,
    ):
        inner.start()
        tuning = kelek.FarmTuning(proxy=f"127.0.0.1:{proxy.port}")
        given = {"servers": "tcp://one.b32.i2p:80", "ca_file": None, "tuning": tuning}
        with opened(inner, **given) as farm:
            farm.append(b"by a tunnel")
            assert farm.status()["state"] == "leader"
        assert proxy.heads
        assert all(head.startswith("GET http://one.b32.i2p:80/Garlic") for head in proxy.heads)
        other = {**given, "servers": "tcp://two.b32.i2p:80"}
        with (
            opened(inner, **other) as farm,
            pytest.raises(kelek.FarmUnavailable),
        ):
            farm.reach(300)
        who = ("--user", USER, "--secret-file", inner.folder / "demo.secret")
        shell("append", *who, "--url", "tcp://one.b32.i2p:80", "--proxy", f"127.0.0.1:{proxy.port}",
              "by a shell")  # fmt: skip
        assert "by a shell" in shell("entries", *who, "--url", inner.endpoint(1), "--i2p")
        tunnel = kelek.FarmTuning(i2p=True)
        with opened(inner, servers=inner.endpoint(1), ca_file=None, tuning=tunnel) as farm:
            assert [entry.value for entry in farm.entries()][-2:] == [
                b"by a tunnel", b"by a shell",
            ]  # fmt: skip


def test_members_elsewhere_are_not_asked_in_the_open() -> None:
    """A tunnel's server may name members that only a proxy reaches."""

    class RecordingClient:
        troubles: list[tuple[int, ConnectFailure]] = []
        connections: dict[int, object] = {}
        actions = [
            OpenConnection(3, Address("one.b32.i2p", 80)),
            OpenConnection(4, Address("10.0.0.1", 80)),
        ]

        def on_lost(self, number: int, trouble: ConnectFailure, now_ms: int) -> None:
            self.troubles.append((number, trouble))

        def ready(self, now_ms: int) -> list[OpenConnection]:
            actions, self.actions = self.actions, []
            return actions

    links = FarmLinks(RecordingClient(), ConnectSettings())  # type: ignore[arg-type]
    links.run_once(0, lambda: True)
    failure = ConnectFailure(
        FailureKind.LOST, "without TLS or a proxy only loopback addresses are allowed"
    )
    assert RecordingClient.troubles == [(3, failure), (4, failure)]


# ---- errors ----


@pytest.mark.parametrize(
    ("given", "kind", "said"),
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
    servers: FarmServers, given: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with opened(servers, **given) as farm, pytest.raises(kind, match=said):
        farm.append(b"x")


def test_a_port_without_listener(servers: FarmServers) -> None:
    where = f"tls://127.0.0.1:{free_port()}"
    with opened(servers, servers=where, timeout_ms=300) as farm:
        problem = r"connection refused|nobody has been heard"
        with pytest.raises(kelek.FarmUnavailable, match=problem):
            farm.append(b"x")
        assert "requests" not in farm.counters


def test_a_listener_without_tls(servers: FarmServers) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            made, _ = listener.accept()
            with made:
                made.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                made.recv(1)

        other = threading.Thread(target=answer)
        other.start()
        where = f"tls://127.0.0.1:{listener.getsockname()[1]}"
        with (
            opened(servers, servers=where) as farm,
            pytest.raises(kelek.FarmUntrusted, match="does not use TLS"),
        ):
            farm.append(b"x")
        other.join()


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
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            accepted, _ = listener.accept()
            with accepted, suppress(ssl.SSLError):
                secured = context.wrap_socket(accepted, server_side=True)
                with secured:
                    secured.recv(4096)
                    secured.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

        server = threading.Thread(target=serve)
        server.start()
        with (
            kelek.Farm(
                f"127.0.0.1:{listener.getsockname()[1]}",
                "barn",
                user="u",
                password="p",
                ca_file=tmp_path / "ca.pem",
                tuning=kelek.FarmTuning(tls=tls),
            ) as farm,
            pytest.raises(kelek.FarmError, match=error),
        ):
            farm.append(b"x")
        server.join()


@pytest.mark.parametrize(
    ("given", "said"),
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
def test_what_is_no_farm(given: dict[str, Any], said: str) -> None:
    known = {"servers": "tls://127.0.0.1:1", "user": "u", "password": "p"}
    with pytest.raises(ValueError, match=said):
        kelek.Farm(**{**known, **given})


def test_values(servers: FarmServers) -> None:
    with opened(servers) as farm:
        with pytest.raises(TypeError, match="must be a list"):
            farm.append_many(b"x")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="not str"):
            farm.append("x")  # type: ignore[arg-type]
        with pytest.raises(kelek.FarmTooLarge):
            farm.append(bytes(64 << 20))


def test_old_arguments_work_and_warn(servers: FarmServers) -> None:
    with opened(servers) as farm:
        with pytest.warns(DeprecationWarning, match="append_many"):
            behind = farm.append([b"old", b"older"])
        with pytest.warns(DeprecationWarning, match="follow=|after=") as said:
            found = [entry.value for entry in farm.entries(behind - 2, follow=False)]
        assert found == [b"old", b"older"]
        assert ["follow=" in str(said[0].message), "after=" in str(said[1].message)] == [True] * 2
        with pytest.warns(DeprecationWarning, match="after="):
            assert farm.read(behind - 2, 1).entries[0].value == b"old"
        with pytest.warns(DeprecationWarning, match="after="):
            following = farm.entries(from_index=behind - 1)
        assert next(following).value == b"older"
        farm.append(b"new")
        assert next(following).value == b"new"


def test_secret_files(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"pass word\r\n")
    path.chmod(0o640)
    known: dict[str, Any] = {"servers": "tls://127.0.0.1:1", "user": "u", "secret_file": path}
    with pytest.raises(kelek.FarmError, match=r"others may read .* chmod 600"):
        kelek.Farm(**known)
    path.chmod(0o600)
    with kelek.Farm(**known) as farm:
        assert not farm.counters
    client = make_client(known["servers"], "farm", Credentials("u", None, path), kelek.FarmTuning())
    assert client.setup.password == "pass word"
    for junk in (b"", b"\n", b"a\nb\n", b"\xff", bytes(2000), b"a\0b"):
        with pytest.raises(kelek.FarmError):
            secret_of(junk, "it")
    path.unlink()
    with pytest.raises(FileNotFoundError):
        kelek.Farm(**known)
    with pytest.raises(kelek.FarmError, match=r"nowhere\.pem"):
        kelek.Farm("127.0.0.1:1", user="u", password="p", ca_file="nowhere.pem")
