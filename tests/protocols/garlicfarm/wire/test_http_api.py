"""The HTTP API: paths, methods, queries, rights; curl; a proxy."""

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.protocols.errors import RemoteProtocolError
from kelek.protocols.garlicfarm.wire.authenticator import DigestAuthenticator
from kelek.protocols.garlicfarm.wire.handshake import (
    ChallengeCache,
    ClientHandshake,
    ConnectTarget,
    HandshakeOutcome,
    HandshakeResult,
    Reply,
    ServerHandshake,
    path_to,
)
from kelek.protocols.garlicfarm.wire.http_api import (
    ENTRIES_COUNT_MAX,
    VIEW_NAMES,
    ViewRequest,
    parse_view,
)
from kelek.tests.http_proxy import HttpProxy
from kelek.tests.protocols.garlicfarm.wire.test_handshake import (
    FARMS,
    RETRY,
    TARGET,
    HandshakePair,
    lines,
)

DEADLINE_S = 60


class EchoSource:
    """A StatusSource that returns the request."""

    def render(self, view: ViewRequest) -> bytes:
        return json.dumps([view.name, view.parameters, view.user]).encode()


FACES = {"farm": EchoSource()}


class ApiWorld(HandshakePair):
    """A server with an HTTP API, and signed requests of a client."""

    def ask(self, data: bytes) -> Reply:
        handshake = ServerHandshake(self.authenticator, self.farms, self.now_ms, FACES)
        reply = handshake.feed(data, self.now_ms)
        assert reply is not None
        return reply

    def get(self, target: str, method: str = "GET", user: str = "alice") -> Reply:
        """A request with this user's password."""
        head = f"{method} {target} HTTP/1.1\r\nHost: a\r\n"
        offer = self.ask(f"GET {path_to('farm', 'status')} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        challenges = ChallengeCache()
        found = [
            (b"www-authenticate", line.removeprefix("WWW-Authenticate: ").encode())
            for line in lines(offer)
            if line.startswith("WWW-Authenticate: ")
        ]
        challenges.store(found, self.now_ms)
        answer = challenges.authorize(TARGET._replace(user=user), (method, target), "c").decode()
        return self.ask(f"{head}Authorization: {answer}\r\n\r\n".encode())


def body(reply: Reply) -> bytes:
    return reply.data.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("name", VIEW_NAMES)
def test_views_need_authentication(name: str) -> None:
    farm = ApiWorld()
    reply = farm.get(path_to("farm", name))
    assert (reply.status, reply.cluster, reply.user) == (200, "farm", "alice")
    assert lines(reply)[0] == "HTTP/1.1 200 OK"
    assert {"Content-Type: application/json", "Cache-Control: no-store"} < set(lines(reply))
    assert json.loads(body(reply)) == [name, {}, "alice"]
    bare = f"GET {path_to('farm', name)} HTTP/1.1\r\nHost: a\r\n\r\n".encode()
    refused = farm.ask(bare)
    assert refused.status == 401
    assert sum(line.startswith("WWW-Authenticate: Digest") for line in lines(refused)) == 2
    assert farm.get(path_to("farm", name), user="mallory").status == 401
    basic = bare.replace(b"Host", b"Authorization: Basic YWxpY2U6c2VjcmV0\r\nHost")
    assert farm.ask(basic).status == 401


def test_a_query_is_part_of_what_is_signed() -> None:
    farm = ApiWorld()
    target = path_to("farm", "entries") + "?from=7&count=2&raw=1"
    expected = ["entries", {"from": 7, "count": 2, "raw": 1}, "alice"]
    assert json.loads(body(farm.get(target))) == expected
    assert json.loads(body(farm.get("http://abc.i2p" + target))) == expected


def test_head_has_no_body() -> None:
    """Neither in a success nor in a refusal."""
    farm = ApiWorld()
    path = path_to("farm", "status")
    whole, head = farm.get(path), farm.get(path, "HEAD")
    assert (head.status, body(head)) == (200, b"")
    assert head.data == whole.data.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    for target, status in ((path, 401), ("/", 404), (path_to("farm"), 404)):
        refused = farm.ask(f"HEAD {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        assert (refused.status, body(refused)) == (status, b"")
    refused = farm.get(path_to("farm", "entries") + "?x", "HEAD")
    assert (refused.status, body(refused)) == (400, b"")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "get"])
def test_other_methods(method: str) -> None:
    """An authenticated user gets 405; others get 404."""
    farm = ApiWorld()
    path = path_to("farm", "status")
    reply = farm.get(path, method)
    assert reply.status == 405
    assert "Allow: GET, HEAD" in lines(reply)
    plain = farm.ask(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    bare = f"{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n".encode()
    assert farm.ask(bare) == plain
    assert farm.get(path, method, user="mallory") == plain
    assert farm.get(path_to("farm"), method) == plain


@pytest.mark.parametrize(
    "path",
    [
        "/GarlicFarm/farm/1/", "/GarlicFarm/farm/1", "/GarlicFarm/farm/1/statu",
        "/GarlicFarm/farm/2/status", "/GarlicFarm/other/1/status", "/GarlicFarm/farm/1/status/",
        "/garlicfarm/farm/1/status", "/GarlicFarm/farm/1/Status", "status",
    ],
)  # fmt: skip
def test_other_paths_show_nothing(path: str) -> None:
    farm = ApiWorld()
    plain = farm.ask(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert plain.status == 404
    assert farm.get(path) == plain


def test_a_server_without_a_face() -> None:
    farm = ApiWorld()
    path = path_to("farm", "status")
    reply = ServerHandshake(farm.authenticator, FARMS, 0).feed(
        f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode(), 0
    )
    assert reply is not None
    assert reply.status == 404


@pytest.mark.parametrize(
    ("name", "query"),
    [
        ("status", "from=1"), ("entries", "from"), ("entries", "from="), ("entries", "from=0"),
        ("entries", "from=-1"), ("entries", "from=x"), ("entries", "from=1&from=1"),
        ("entries", f"count={ENTRIES_COUNT_MAX + 1}"), ("entries", "count=0"),
        ("entries", "from=" + "9" * 30), ("entries", "raw=2"), ("entries", "from=%31%00"),
        ("entries", "from=\u0661"), ("entries", "from=--1"), ("entries", "&"),
        ("entries", "wait=1"), ("documents", "id=9999999999"), ("configuration", "a=1"),
    ],
)  # fmt: skip
def test_queries_that_are_none(name: str, query: str) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_view(name, query, "alice")
    if query.isascii():
        assert ApiWorld().get(f"{path_to('farm', name)}?{query}").status == 400


def test_queries_in_full() -> None:
    wanted = ViewRequest("documents", {"id": -7}, "bob")
    assert parse_view("documents", "id=-7", "bob") == wanted
    assert parse_view("status", "", "bob") == ViewRequest("status", {}, "bob")


@given(st.sampled_from(VIEW_NAMES), st.text(max_size=30))
def test_junk_is_no_query(name: str, query: str) -> None:
    try:
        view = parse_view(name, query, "alice")
    except RemoteProtocolError:
        return
    assert view.parameters or not query


# ---- with sockets ----


@contextmanager
def listening(statuses: list[int] | None = None) -> Iterator[int]:
    """The port of a server with an HTTP API; it accepts any number of connections."""
    gate = DigestAuthenticator(b"k" * 16, os.urandom)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.settimeout(DEADLINE_S)
            with connection:
                handshake, reply = ServerHandshake(gate, FARMS, 0, FACES), None
                while reply is None:
                    reply = handshake.feed(connection.recv(65536), 0)
                if statuses is not None:
                    statuses.append(reply.status)
                connection.sendall(reply.data + b"messages" * (reply.status == 101))

    thread = Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(DEADLINE_S)
        listener.close()


def curl(*arguments: str, check: bool = True) -> str:
    program = shutil.which("curl")
    if program is None:
        pytest.skip("there is no curl here")
    command = [program, "-q", "-s", "-S", "--http1.1", "--digest", "-m", str(DEADLINE_S)]
    done = subprocess.run(
        [*command, *arguments], check=check, capture_output=True, timeout=2 * DEADLINE_S, text=True
    )
    return done.stdout


@pytest.mark.parametrize(
    ("password", "more", "expected"),
    [
        ("secret", ("-H", "Connection: keep-alive, Upgrade", "-H", "Upgrade: websocket"), 101),
        ("secret", (), 426),
        ("wrong", (), 401),
    ],
)
def test_curl_agrees_with_the_handshake(
    password: str, more: tuple[str, ...], expected: int
) -> None:
    statuses: list[int] = []
    with listening(statuses) as port:
        url = f"http://127.0.0.1:{port}{path_to('farm')}"
        # After a 101 curl waits for another response, so its exit code does not matter.
        curl("--noproxy", "*", "-u", f"alice:{password}", *more, url, check=False)
    assert statuses == [401, expected]


def test_curl_sees_a_view() -> None:
    with listening() as port:
        url = f"http://127.0.0.1:{port}{path_to('farm', 'entries')}?from=3"
        direct = ("--noproxy", "*", "-u", "alice:secret")
        assert json.loads(curl(*direct, url)) == ["entries", {"from": 3}, "alice"]
        heads = curl(*direct, "-I", url)
        assert heads.startswith("HTTP/1.1 401 ")
        assert "\n\nHTTP/1.1 200 OK\n" in heads
        wrong = ("--noproxy", "*", "-u", "alice:wrong", "-w", "%{http_code}", "-o", "/dev/null")
        assert curl(*wrong, url) == "401"


def test_curl_sees_a_view_through_a_proxy() -> None:
    """As inside I2P: only the proxy knows the host name; without CONNECT."""
    with listening() as port, HttpProxy({"abc.b32.i2p": port}) as proxy:
        url = f"http://abc.b32.i2p{path_to('farm', 'status')}"
        through = ("--noproxy", "", "-x", f"http://127.0.0.1:{proxy.port}", "-u", "alice:secret")
        assert json.loads(curl(*through, url)) == ["status", {}, "alice"]
        assert all(head.startswith(f"GET {url} ") for head in proxy.heads)


def connect_through(
    proxy: HttpProxy, target: ConnectTarget, challenges: ChallengeCache
) -> HandshakeResult:
    """One connection to a proxy."""
    handshake, result = ClientHandshake(target, challenges, 0, bytes), None
    with socket.create_connection(("127.0.0.1", proxy.port), DEADLINE_S) as connection:
        connection.sendall(handshake.request)
        while result is None:
            result = handshake.feed(connection.recv(65536), 0)
    return result


def test_our_handshake_through_a_proxy() -> None:
    """In absolute form, for the host that the proxy knows; the messages follow."""
    target = TARGET._replace(host="abc.b32.i2p", via_proxy=True)
    with listening() as port, HttpProxy({"abc.b32.i2p": port}) as proxy:
        challenges = ChallengeCache()
        assert connect_through(proxy, target, challenges) == RETRY
        result = connect_through(proxy, target, challenges)
        assert result.outcome is HandshakeOutcome.OPEN
        assert b"messages".startswith(result.rest)
        assert connect_through(proxy, target, challenges).outcome is HandshakeOutcome.OPEN, (
            "with what it knows by now"
        )
        first, second, _ = proxy.heads
    assert first.startswith(f"GET http://abc.b32.i2p{path_to('farm')} HTTP/1.1\r\n")
    assert "\r\nHost: abc.b32.i2p\r\n" in first
    assert f'uri="{path_to("farm")}"' in second
    with HttpProxy({}) as proxy:
        result = connect_through(proxy, target, ChallengeCache())
        assert result.outcome is HandshakeOutcome.FAILED
        assert result.error == "the HTTP proxy cannot reach the server: 503 Service Unavailable"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ("407 Proxy Authentication Required", "requires a password"),
        ("504 Gateway Timeout", "cannot reach the server: 504 Gateway Timeout"),
        ("502 ", "cannot reach the server: 502"),
        ("426 Upgrade Required", "may not forward upgrades"),
        ("404 Not Found", "the response through the HTTP proxy is 404 Not Found"),
        ("301 Moved", "the response through the HTTP proxy is 301 Moved"),
        ("200 " + "x" * 500, "200 " + "x" * 80),
    ],
)
def test_a_proxys_refusal_is_described(answer: str, error: str) -> None:
    client = ClientHandshake(TARGET._replace(via_proxy=True), ChallengeCache(), 0, bytes)
    result = client.feed(f"HTTP/1.1 {answer}\r\n\r\n".encode(), 0)
    assert result is not None
    assert result.outcome is HandshakeOutcome.FAILED
    assert error in result.error
    assert len(result.error) < 200
