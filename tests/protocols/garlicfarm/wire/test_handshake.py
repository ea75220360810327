"""The handshake: server and client against each other, the specification, malformed input."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.protocols.garlicfarm.wire import htdigest
from kelek.protocols.garlicfarm.wire.authenticator import NONCE_TTL_MS, DigestAuthenticator
from kelek.protocols.garlicfarm.wire.digest import parse_parameters
from kelek.protocols.garlicfarm.wire.handshake import (
    CREDENTIALS_TTL_MS,
    HEAD_BYTES_MAX,
    HEAD_TIMEOUT_MS,
    ChallengeCache,
    ClientHandshake,
    ConnectTarget,
    HandshakeOutcome,
    HandshakeResult,
    Reply,
    ServerHandshake,
    failed,
    path_to,
)
from kelek.protocols.garlicfarm.wire.htdigest import Users

FILE = htdigest.with_user("", "farm", "alice", "secret")
FARMS = {"farm": htdigest.users_of(FILE, "farm")}
TARGET = ConnectTarget("127.0.0.1:7401", "farm", "alice", "secret")
PATH = path_to("farm")
REQUEST_1 = (
    f"GET {PATH} HTTP/1.1\r\nHost: 127.0.0.1:7401\r\nCache-Control: no-cache\r\n"
    "Connection: close\r\n\r\n"
).encode()
FRAMES = b"\x05 the messages begin"
RETRY, OPEN = HandshakeResult(HandshakeOutcome.RETRY), HandshakeResult(HandshakeOutcome.OPEN)


class HandshakePair:
    """One server, a client's challenges, and the time."""

    def __init__(self) -> None:
        dice = count(1)
        self.random_bytes = lambda size: next(dice).to_bytes(size, "big")
        self.authenticator = DigestAuthenticator(b"k" * 16, self.random_bytes)
        self.farms: dict[str, Users] = dict(FARMS)
        self.challenges = ChallengeCache()
        self.now_ms = 1000

    def ask(self, data: bytes) -> Reply:
        reply = ServerHandshake(self.authenticator, self.farms, self.now_ms).feed(data, self.now_ms)
        assert reply is not None
        return reply

    def knock(self, target: ConnectTarget = TARGET) -> tuple[ClientHandshake, Reply]:
        client = ClientHandshake(target, self.challenges, self.now_ms, self.random_bytes)
        return client, self.ask(client.request)

    def enter(self, target: ConnectTarget = TARGET) -> HandshakeResult | None:
        client, reply = self.knock(target)
        return client.feed(reply.data, self.now_ms)


def lines(reply: Reply) -> list[str]:
    head, _, body = reply.data.decode().partition("\r\n\r\n")
    if reply.status != 101:
        assert f"Content-Length: {len(body)}" in head
        assert "Connection: close" in head
    return head.split("\r\n")


def test_the_texts_two_requests() -> None:
    cluster = HandshakePair()
    client, reply = cluster.knock()
    assert client.request.decode().split("\r\n") == REQUEST_1.decode().split("\r\n")
    assert lines(reply)[0] == "HTTP/1.1 401 Unauthorized"
    offers = [line for line in lines(reply) if line.startswith("WWW-Authenticate: ")]
    assert ["algorithm=SHA-256" in offer for offer in offers] == [True, False]
    assert ["algorithm=MD5" in offer for offer in offers] == [False, True]
    assert client.feed(reply.data, 1000) == RETRY

    client, reply = cluster.knock()
    request = client.request.decode().split("\r\n")
    assert request[0] == f"GET {PATH} HTTP/1.1"
    assert {"Connection: keep-alive, Upgrade", "Upgrade: websocket"} < set(request)
    assert any(line.startswith("Authorization: Digest ") for line in request)
    assert reply[1:] == (101, "farm", "alice", b"")
    assert lines(reply)[0] == "HTTP/1.1 101 Switching Protocols"
    assert {"Connection: Upgrade", "Upgrade: websocket"} < set(lines(reply))
    assert client.feed(reply.data, 1000) == OPEN


def test_the_websocket_headers_of_rfc_6455() -> None:
    """The example of section 1.3; the headers are optional."""
    cluster = HandshakePair()
    client, _ = cluster.knock()
    cluster.enter()
    client = ClientHandshake(TARGET, cluster.challenges, 1000, cluster.random_bytes)
    (key,) = (
        line for line in client.request.split(b"\r\n") if line.startswith(b"Sec-WebSocket-Key: ")
    )
    known = client.request.replace(key, b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
    assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in cluster.ask(known).data
    bare = ClientHandshake(TARGET, cluster.challenges, 1000, cluster.random_bytes).request
    bare = b"\r\n".join(line for line in bare.split(b"\r\n") if not line.startswith(b"Sec-"))
    reply = cluster.ask(bare)
    assert reply.status == 101
    assert b"Sec-WebSocket" not in reply.data


def test_what_follows_the_heads_is_kept() -> None:
    cluster = HandshakePair()
    cluster.enter()
    client = ClientHandshake(TARGET, cluster.challenges, 1000, cluster.random_bytes)
    reply = cluster.ask(client.request + FRAMES)
    assert reply.rest == FRAMES
    assert client.feed(reply.data + FRAMES, 1000) == HandshakeResult(HandshakeOutcome.OPEN, FRAMES)


@given(st.data())
def test_heads_come_in_pieces(data: st.DataObject) -> None:
    cluster = HandshakePair()
    cluster.enter()
    client = ClientHandshake(TARGET, cluster.challenges, 1000, cluster.random_bytes)
    server = ServerHandshake(cluster.authenticator, FARMS, 1000)
    request, at, reply = client.request + FRAMES, 0, None
    while reply is None:
        size = data.draw(st.integers(1, len(request) - at))
        reply = server.feed(request[at : at + size], 1000)
        at += size
    assert reply.status == 101
    assert reply.rest + request[at:] == FRAMES


def test_what_follows_a_large_head_is_kept() -> None:
    """Also when it begins within the head's size limit and ends far after it."""
    cluster = HandshakePair()
    cluster.enter()
    client = ClientHandshake(TARGET, cluster.challenges, 1000, cluster.random_bytes)
    frames = bytes(range(256)) * 100
    assert cluster.ask(client.request + frames).rest == frames
    reply = cluster.ask(ClientHandshake(TARGET, cluster.challenges, 1000, bytes).request)
    assert client.feed(reply.data + frames, 1000) == HandshakeResult(HandshakeOutcome.OPEN, frames)


# ---- credentials ----


def test_later_connections_begin_with_request_2() -> None:
    cluster = HandshakePair()
    assert cluster.enter() == RETRY
    for _ in range(5):
        assert cluster.enter() == OPEN
    cluster.now_ms += CREDENTIALS_TTL_MS - 1
    assert cluster.enter() == OPEN
    cluster.now_ms += 1
    assert cluster.enter() == RETRY
    assert CREDENTIALS_TTL_MS >= 3600 * 1000


def test_connections_at_once_may_overtake_each_other() -> None:
    cluster = HandshakePair()
    cluster.enter()
    clients = [
        ClientHandshake(TARGET, cluster.challenges, 1000, cluster.random_bytes) for _ in range(9)
    ]
    assert {cluster.ask(client.request).status for client in reversed(clients)} == {101}


def test_a_request_is_good_once() -> None:
    cluster = HandshakePair()
    cluster.enter()
    client, reply = cluster.knock()
    assert reply.status == 101
    again = cluster.ask(client.request)
    assert again.status == 401
    assert b"stale=true" in again.data


def test_a_server_that_was_restarted() -> None:
    """It has another key: the nonce is stale, but the password is not called wrong."""
    cluster = HandshakePair()
    cluster.enter()
    assert cluster.enter() == OPEN
    cluster.authenticator = DigestAuthenticator(b"x" * 16, cluster.random_bytes)
    assert cluster.enter() == RETRY
    assert cluster.enter() == OPEN


def test_a_wrong_password_is_tried_once() -> None:
    cluster = HandshakePair()
    target = TARGET._replace(password="wrong")
    assert cluster.enter(target) == RETRY
    assert cluster.enter(target) == failed("user or password is wrong", 401)
    assert not cluster.challenges.is_valid(cluster.now_ms)


def test_a_password_that_was_changed() -> None:
    cluster = HandshakePair()
    cluster.enter()
    assert cluster.enter() == OPEN
    text = htdigest.with_user(FILE, "farm", "alice", "new")
    cluster.farms["farm"] = htdigest.users_of(text, "farm")
    assert cluster.enter() == RETRY
    assert cluster.enter() == failed("user or password is wrong", 401)
    assert cluster.enter(TARGET._replace(password="new")) == RETRY
    assert cluster.enter(TARGET._replace(password="new")) == OPEN


def test_a_user_without_sha_256() -> None:
    cluster = HandshakePair()
    md5, _ = FILE.splitlines()
    cluster.farms["farm"] = htdigest.users_of(md5, "farm")
    assert cluster.enter() == RETRY
    assert b"algorithm=MD5" in cluster.knock()[0].request
    assert cluster.enter() == OPEN


def test_a_nonce_ends_before_our_memory_of_it() -> None:
    cluster = HandshakePair()
    cluster.enter()
    cluster.challenges.until_ms = 2 * NONCE_TTL_MS
    cluster.now_ms += NONCE_TTL_MS
    assert cluster.enter() == RETRY
    assert cluster.enter() == OPEN


def test_through_a_proxy() -> None:
    cluster = HandshakePair()
    target = TARGET._replace(host="abc.i2p", via_proxy=True)
    client, _ = cluster.knock(target)
    assert client.request.startswith(f"GET http://abc.i2p{PATH} HTTP/1.1\r\n".encode())
    assert cluster.enter(target) == RETRY
    client, reply = cluster.knock(target)
    assert f'uri="{PATH}"'.encode() in client.request
    assert reply.status == 101


# ---- refusals ----


def with_line(request: bytes, line: str) -> bytes:
    return request.replace(b"Host:", line.encode() + b"\r\nHost:", 1)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/GarlicFarm/farm/2/websocket",
        "/GarlicFarm/other/1/websocket",
        "/GarlicFarm/farm/1/websocket/",
        "/garlicfarm/farm/1/websocket",
        "/GarlicFarm/farm/1/websocket?a",
        "http://127.0.0.1:7401/",
        "*",
    ],
)
def test_a_wrong_path_is_a_plain_404(path: str) -> None:
    """The response does not reveal the farm, whatever else the request holds."""
    cluster = HandshakePair()
    reply = cluster.ask(REQUEST_1.replace(PATH.encode(), path.encode()))
    assert lines(reply)[0] == "HTTP/1.1 404 Not Found"
    assert not any("authenticate" in line.lower() for line in lines(reply))
    request = with_line(REQUEST_1, "Authorization: Basic YTpi").replace(
        PATH.encode(), path.encode()
    )
    assert cluster.ask(request) == reply


def refusals() -> list[tuple[bytes, int]]:
    get = f"GET {PATH} HTTP/1.1".encode()
    return [
        (with_line(REQUEST_1, "Authorization: Basic YWxpY2U6c2VjcmV0"), 401),
        (with_line(REQUEST_1, "Authorization: Digest nonsense"), 400),
        (with_line(REQUEST_1, "Authorization: Digest a=1\r\nAuthorization: Digest a=1"), 400),
        (with_line(REQUEST_1, "Content-Length: 5") + b"12345", 400),
        (with_line(REQUEST_1, "Transfer-Encoding: chunked") + b"0\r\n\r\n", 400),
        (REQUEST_1.replace(b"GET", b"POST"), 404),
        (REQUEST_1.replace(get, b"nonsense"), 400),
        (REQUEST_1.replace(b"Host: 127.0.0.1:7401\r\n", b""), 400),
        (REQUEST_1.replace(b"HTTP/1.1", b"HTTP/9.1"), 505),
        (REQUEST_1.replace(b"HTTP/1.1", b"HTTP/1.0"), 505),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), 400),
        (b"", 400),
        (get + b"\r\nHost: a\r\n" + b"a: b\r\n" * 64 + b"\r\n", 431),
        (get + b"\r\nHost: a\r\na: " + b"b" * HEAD_BYTES_MAX, 431),
        (get + b"\r\nHost: a\r\na: " + b"b" * HEAD_BYTES_MAX + b"\r\n\r\n", 431),
    ]


@pytest.mark.parametrize(("request_bytes", "status"), refusals())
def test_refusals(request_bytes: bytes, status: int) -> None:
    reply = HandshakePair().ask(request_bytes)
    assert reply.status == status
    assert lines(reply)[0].startswith(f"HTTP/1.1 {status} ")
    challenged = any(line.startswith("WWW-Authenticate: Digest ") for line in lines(reply))
    assert challenged == (status == 401)


def test_a_head_that_never_ends() -> None:
    server = ServerHandshake(HandshakePair().authenticator, FARMS, 1000)
    assert server.deadline_ms == 1000 + HEAD_TIMEOUT_MS
    assert server.feed(f"GET {PATH} HTTP/1.1\r\n".encode(), 1000) is None
    piece, fed = b"a: " + b"b" * 95 + b"\r\n", 0
    while (reply := server.feed(piece, 1000)) is None:
        fed += len(piece)
        assert fed < HEAD_BYTES_MAX
    assert reply.status == 431


def test_a_head_that_is_too_slow() -> None:
    server = ServerHandshake(HandshakePair().authenticator, FARMS, 1000)
    server.feed(b"GET ", 1000)
    reply = server.on_timeout()
    assert (reply.status, lines(reply)[0]) == (408, "HTTP/1.1 408 Request Timeout")


def test_an_uri_that_was_altered() -> None:
    """A digest for another farm with the same users is refused."""
    cluster = HandshakePair()
    cluster.farms["other"] = FARMS["farm"]
    cluster.enter()
    request = cluster.knock()[0].request
    assert cluster.ask(
        request.replace(b"GET /GarlicFarm/farm", b"GET /GarlicFarm/other")
    ).status == (400)


def test_a_request_without_upgrade() -> None:
    cluster = HandshakePair()
    cluster.enter()
    for old in (b"Upgrade: websocket\r\n", b"keep-alive, Upgrade"):
        client = ClientHandshake(TARGET, cluster.challenges, 1000, cluster.random_bytes)
        reply = cluster.ask(client.request.replace(old, b"" if b":" in old else b"keep-alive"))
        assert reply.status == 426
        assert "Upgrade: websocket" in lines(reply)


@given(st.binary(max_size=300))
def test_junk_is_no_head(junk: bytes) -> None:
    reply = ServerHandshake(HandshakePair().authenticator, FARMS, 0).feed(junk, 0)
    assert reply is None or reply.status in (400, 404, 431)
    result = ClientHandshake(TARGET, ChallengeCache(), 0, bytes).feed(junk, 0)
    assert result is None or result.outcome is HandshakeOutcome.FAILED


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "the response is 404"),
        (b"HTTP/1.1 503 Full\r\nContent-Length: 9\r\n\r\n", "the response is 503"),
        (b"HTTP/1.1 401 No\r\n\r\n", "may have no user of this farm"),
        (b'HTTP/1.1 401 No\r\nWWW-Authenticate: Basic realm="a"\r\n\r\n', "no supported challenge"),
        (
            b"HTTP/1.1 401 No\r\nWWW-Authenticate: Digest realm=a, nonce=b\r\n\r\n",
            "no supported challenge",
        ),
        (b"HTTP/1.1 401 No\r\nWWW-Authenticate: Digest qop=auth\r\n\r\n", "no supported challenge"),
        (b"HTTP/1.1 401 No\r\nWWW-Authenticate: \r\n\r\n", "empty"),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "HTTP"),
        (b"220 mail.example.org ESMTP\r\n\r\n", "not HTTP"),
        (b"", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 65 + b"\r\n", "too many"),
        (b"HTTP/1.1 200 OK\r\na: " + b"b" * HEAD_BYTES_MAX, "too long"),
    ],
)
def test_what_is_no_farm(answer: bytes, error: str) -> None:
    client = ClientHandshake(TARGET, ChallengeCache(), 0, bytes)
    result = client.feed(answer, 0)
    assert result is not None
    assert result.outcome is HandshakeOutcome.FAILED
    assert error in result.error


@pytest.mark.parametrize(
    ("offer", "best"),
    [
        (["MD5", "SHA-256"], "SHA-256"),
        (["MD5-sess", "SHA-256-sess", "SHA-512-256"], "SHA-256-sess"),
        (["MD5-sess", "MD5"], "MD5"),
    ],
)
def test_the_best_challenge_is_answered(offer: list[str], best: str) -> None:
    """In any order, also in one header; opaque is returned unchanged."""
    challenges = ChallengeCache()
    texts = [f'Digest realm="r", nonce="{n}", qop="auth,auth-int", algorithm={n}' for n in offer]
    texts[0] += ', opaque="o\\"x"'
    client = ClientHandshake(TARGET, challenges, 0, bytes)
    head = f"HTTP/1.1 401 No\r\nWWW-Authenticate: {', '.join(texts)}\r\n\r\n"
    assert client.feed(head.encode(), 0) == RETRY
    answer = challenges.authorize(TARGET, ("GET", PATH), "c")
    (parameters,) = parse_parameters(answer)
    values = parameters.values
    assert (values["algorithm"], values["nonce"], values["nc"]) == (best, best, "00000001")
    assert values.get("opaque") == ('o"x' if offer[0] == best else None)
