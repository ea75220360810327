"""The HTTP/1.1 handshake before the Raft messages, for the acceptor and for the connecting side.

h11 parses the heads. The bytes after a head belong to the messages. Bytes and the time go in; a
Reply or a HandshakeResult comes out once.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping
from enum import IntEnum
from hashlib import sha1
from typing import NamedTuple, Protocol

import h11

from ...errors import RemoteProtocolError
from .authenticator import AuthResult, DigestAuthenticator, path_of
from .digest import (
    ALGORITHMS,
    Algorithm,
    AuthParameters,
    DigestInput,
    algorithm_of,
    make_ha1,
    make_response,
    parse_parameters,
    quoted,
)
from .htdigest import Users
from .http_api import METHODS, VIEW_NAMES, Headers, StatusSource, parse_view, respond

VERSION = "1"
HEAD_BYTES_MAX = 8192
HEAD_LINES_MAX = 64
HEAD_TIMEOUT_MS = 5000
CREDENTIALS_TTL_MS = 3600 * 1000  # A client reuses a challenge for so long.
_WEBSOCKET_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
MESSAGES_NAME = "websocket"  # Last segment of the messages' path.
_PROXY_STATUSES = (407, 502, 503, 504)  # A farm server never sends these.
_REASON_CHARACTERS_MAX = 80


def path_to(cluster: str, name: str = MESSAGES_NAME) -> str:
    """The path of a cluster's messages (specification, "Handshake and authentication"), or of a
    view in VIEW_NAMES.
    """
    return f"/GarlicFarm/{cluster}/{VERSION}/{name}"


class Reply(NamedTuple):
    """A server's answer to a head.

    data     bytes to send
    status   101: the messages begin. Otherwise the connection closes after data
    user     the authenticated user, or ""
    """

    data: bytes
    status: int
    cluster: str = ""
    user: str = ""
    rest: bytes = b""  # Message bytes that arrived with the head.


class Admission(Protocol):
    """Decides about the logins of one connection, beyond their digest."""

    def check(self, cluster: str, name: str, result: AuthResult, now_ms: int) -> AuthResult:
        """Returns the result of a digest, or another one for the client.

        name   the last segment of the path: MESSAGES_NAME, or one of VIEW_NAMES
        """
        ...


def _single_header(headers: Headers, name: bytes) -> bytes | None:
    """The value of a header that may appear once. Raises RemoteProtocolError if it is repeated."""
    found = [value for each, value in headers if each == name]
    if len(found) > 1:
        raise RemoteProtocolError(f"header {name.decode()} is repeated")
    return found[0] if found else None


def _has_token(headers: Headers, name: bytes, token: bytes) -> bool:
    """Whether a comma-separated header contains a token."""
    values = b",".join(value for each, value in headers if each == name)
    return token in (part.strip().lower() for part in values.split(b","))


class HeadReader:
    """One side: it feeds h11 until a head is complete, at most HEAD_BYTES_MAX."""

    def __init__(self, role: type[h11.CLIENT | h11.SERVER], now_ms: int) -> None:
        self._http = h11.Connection(role, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._fed_bytes = 0
        self.deadline_ms = now_ms + HEAD_TIMEOUT_MS  # When the head must be complete.

    def _read_head(self, data: bytes) -> tuple[h11.Event | None, bytes]:
        """Returns the head once it is complete, and the bytes after it.

        Raises h11.RemoteProtocolError; its hint is 431 when the head is too long.
        """
        accepted = data[: HEAD_BYTES_MAX - self._fed_bytes]
        self._fed_bytes += len(accepted)
        self._http.receive_data(accepted)
        event = self._http.next_event()
        if event is h11.NEED_DATA:
            if self._fed_bytes == HEAD_BYTES_MAX:
                raise h11.RemoteProtocolError("the head is too long", error_status_hint=431)
            return None, b""
        if isinstance(event, h11.ConnectionClosed):
            raise h11.RemoteProtocolError("the connection closed before the head was complete")
        if isinstance(event, h11.Request | h11.Response | h11.InformationalResponse) and (
            len(event.headers) > HEAD_LINES_MAX
        ):
            raise h11.RemoteProtocolError("the head has too many lines", error_status_hint=431)
        assert isinstance(event, h11.Event)
        return event, data[len(accepted) :]


class ServerHandshake(HeadReader):
    """An accepted connection until its messages begin. At deadline_ms call on_timeout()."""

    def __init__(
        self,
        authenticator: DigestAuthenticator,
        farms: Mapping[str, Users],
        now_ms: int,
        status_sources: Mapping[str, StatusSource] | None = None,
        admission: Admission | None = None,
    ) -> None:
        """farms            the users of each cluster served here
        status_sources   the HTTP API of each cluster; a cluster without one has no views
        admission        without it a valid digest is enough
        """
        super().__init__(h11.SERVER, now_ms)
        self._authenticator = authenticator
        self._farms = farms
        self._status_sources = status_sources or {}
        self._admission = admission
        self._done = False

    def feed(self, data: bytes, now_ms: int) -> Reply | None:
        """Adds bytes; returns the reply once the head is complete or malformed."""
        assert not self._done, "feed() after the reply"
        reply = self._feed(data, now_ms)
        self._done = reply is not None
        return reply

    def on_timeout(self) -> Reply:
        """The head did not arrive in time."""
        self._done = True
        return self._refuse(408)

    def _feed(self, data: bytes, now_ms: int) -> Reply | None:
        try:
            request, rest = self._read_head(data)
            if request is None:
                return None
            assert isinstance(request, h11.Request)
            return self._on_head(request, rest, now_ms)
        except h11.RemoteProtocolError as error:
            return self._refuse(error.error_status_hint)
        except RemoteProtocolError:
            return self._refuse(400)

    def _on_head(self, request: h11.Request, rest: bytes, now_ms: int) -> Reply:
        method, target = request.method.decode("ascii"), request.target.decode("ascii")
        headers: Headers = list(request.headers)
        path, _, query = path_of(target).partition("?")
        cluster, name = self._route(path)
        is_messages, is_head = name == MESSAGES_NAME, method == "HEAD"
        if not name or (is_messages and (method != "GET" or query or target.endswith("?"))):
            return self._refuse(404, is_head=is_head)
        users, authorization = self._farms[cluster], _single_header(headers, b"authorization")
        where, line = (cluster, name), (method, target)
        # Without valid credentials the answer is 404, as for an unknown path.
        if method not in METHODS:
            result = authorization and self._verify(where, line, authorization, now_ms)
            return self._refuse(405 if result and result.status == 200 else 404)
        if any(name in (b"content-length", b"transfer-encoding") for name, _ in headers):
            return self._refuse(400, is_head=is_head)
        if request.http_version != b"1.1":
            return self._refuse(505, is_head=is_head)
        if authorization is None:
            return self._challenge(users, now_ms, is_head=is_head)
        result = self._verify(where, line, authorization, now_ms)
        if result.status == 401:
            return self._challenge(users, now_ms, result.stale, is_head)
        if result.status != 200:
            wait = [(b"Retry-After", b"%d" % result.retry_after_s)] if result.retry_after_s else []
            return self._refuse(result.status, wait, is_head)
        if not is_messages:
            return self._render_view((cluster, name, query), is_head, result.user)
        upgrades = _has_token(headers, b"upgrade", b"websocket")
        if not upgrades or not _has_token(headers, b"connection", b"upgrade"):
            return self._refuse(426)
        answer = self._switch(_single_header(headers, b"sec-websocket-key"))
        trailing, _ = self._http.trailing_data
        return Reply(answer, 101, cluster, result.user, trailing + rest)

    def _route(self, path: str) -> tuple[str, str]:
        """The cluster of a path and its last segment; both empty for an unknown path."""
        start, _, name = path.rpartition("/")
        for cluster in self._farms:
            if start == path_to(cluster, "")[:-1]:
                known = (MESSAGES_NAME, *(VIEW_NAMES if cluster in self._status_sources else ()))
                return (cluster, name) if name in known else ("", "")
        return "", ""

    def _render_view(self, what: tuple[str, str, str], is_head: bool, user: str) -> Reply:
        """Answers a view: cluster, name and query."""
        cluster, name, query = what
        try:
            view = parse_view(name, query, user)
        except RemoteProtocolError:
            return self._refuse(400, is_head=is_head)
        body = self._status_sources[cluster].render(view)
        return Reply(respond(200, body, is_head=is_head), 200, cluster, user)

    def _switch(self, key: bytes | None) -> bytes:
        """The 101 response; the messages follow it."""
        headers = [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
        if key is not None:
            accept = sha1(key + _WEBSOCKET_GUID, usedforsecurity=False).digest()
            headers.append((b"Sec-WebSocket-Accept", b64encode(accept)))
        assert isinstance(self._http.next_event(), h11.EndOfMessage)
        response = h11.InformationalResponse(
            status_code=101, headers=headers, reason=b"Switching Protocols"
        )
        return self._http.send(response) or b""

    def _verify(
        self, where: tuple[str, str], line: tuple[str, str], authorization: bytes, now_ms: int
    ) -> AuthResult:
        """Verifies the credentials of a request.

        where   cluster, and the last segment of the path
        line    method and target
        """
        users = self._farms[where[0]]
        result = self._authenticator.verify(users, authorization, line, now_ms)
        if self._admission is not None:
            result = self._admission.check(*where, result, now_ms)
        return result

    def _challenge(
        self, users: Users, now_ms: int, stale: bool = False, is_head: bool = False
    ) -> Reply:
        challenges = self._authenticator.challenges(users, now_ms, stale)
        return self._refuse(401, [(b"WWW-Authenticate", each) for each in challenges], is_head)

    def _refuse(self, status: int, more: Headers | None = None, is_head: bool = False) -> Reply:
        """An error response without details of the farm."""
        headers = list(more or ())
        if status == 426:
            headers.append((b"Upgrade", b"websocket"))
        if status == 405:
            headers.append((b"Allow", ", ".join(METHODS).encode()))
        return Reply(respond(status, more=headers, is_head=is_head), status)


# ---- the connecting side ----


class HandshakeOutcome(IntEnum):
    """What a client does next.

    OPEN     the messages begin
    RETRY    it has a new challenge: it reconnects and authenticates
    FAILED   it closes and reports the error
    """

    OPEN = 0
    RETRY = 1
    FAILED = 2


NO_CHALLENGE = "it sends no challenge: its password file may have no user of this farm"


class HandshakeResult(NamedTuple):
    outcome: HandshakeOutcome
    rest: bytes = b""  # Message bytes that arrived with the head.
    error: str = ""
    status: int = 0  # HTTP status of a refusal.


def failed(error: str, status: int = 0) -> HandshakeResult:
    return HandshakeResult(HandshakeOutcome.FAILED, error=error, status=status)


class ConnectTarget(NamedTuple):
    """The server and credentials of a connection.

    host        "127.0.0.1:7401", as in the Host header
    via_proxy   the request goes to an HTTP proxy, so its target has the absolute form
    path        path and query of a view; empty: the messages
    """

    host: str
    cluster: str
    user: str
    password: str
    via_proxy: bool = False
    path: str = ""


class ChallengeCache:
    """The last challenge of one server. The client reuses it for later connections."""

    __slots__ = ("_algorithm", "_challenge", "_count", "until_ms")

    def __init__(self) -> None:
        self._challenge: dict[str, str] | None = None
        self._algorithm: Algorithm | None = None
        self._count = 0
        self.until_ms = 0

    def is_valid(self, now_ms: int) -> bool:
        return self._challenge is not None and now_ms < self.until_ms

    @property
    def is_fresh(self) -> bool:
        """Whether the challenge has not been used yet."""
        return self._count == 0

    def clear(self) -> None:
        self._challenge = None

    def store(self, headers: Headers, now_ms: int) -> bool:
        """Stores the strongest supported challenge, in any order of headers.

        Returns whether it is marked stale: only the nonce of the request was wrong. Raises
        RemoteProtocolError if no challenge is supported or one is malformed.
        """
        offered: dict[Algorithm, AuthParameters] = {}
        for name, value in headers:
            for parameters in parse_parameters(value) if name == b"www-authenticate" else ():
                algorithm = algorithm_of(parameters)
                qops = parameters.values.get("qop", "").replace(",", " ").split()
                has_all = {"realm", "nonce"} <= parameters.values.keys() and "auth" in qops
                if parameters.scheme == "digest" and algorithm is not None and has_all:
                    offered.setdefault(algorithm, parameters)
        best = next((each for each in ALGORITHMS if each in offered), None)
        if best is None:
            raise RemoteProtocolError("no supported challenge: it must be Digest with qop=auth")
        self._algorithm, self._challenge = best, offered[best].values
        self._count = 0
        self.until_ms = now_ms + CREDENTIALS_TTL_MS
        return self._challenge.get("stale", "").lower() == "true"

    def authorize(self, target: ConnectTarget, line: tuple[str, str], cnonce: str) -> bytes:
        """The Authorization header for a request line: method and uri."""
        assert self._challenge is not None
        assert self._algorithm is not None
        values, algorithm = self._challenge, self._algorithm
        self._count += 1
        terms = DigestInput(*line, values["nonce"], f"{self._count:08x}", cnonce)
        ha1 = make_ha1(algorithm.hash_name, target.user, values["realm"], target.password)
        fields = [
            f"username={quoted(target.user)}",
            f"realm={quoted(values['realm'])}",
            f"nonce={quoted(terms.nonce)}",
            f"uri={quoted(terms.uri)}",
            f"algorithm={algorithm.name}",
            "qop=auth",
            f"nc={terms.nc}",
            f"cnonce={quoted(cnonce)}",
            f"response={quoted(make_response(algorithm, ha1, terms))}",
        ]
        if "opaque" in values:
            fields.append(f"opaque={quoted(values['opaque'])}")
        return f"Digest {', '.join(fields)}".encode()


class ClientHandshake(HeadReader):
    """An outgoing connection until its messages begin. Close it at deadline_ms.

    The ChallengeCache outlives it. With a cached challenge the client starts with the
    specification's HTTP Request 2, and retries once if that is refused.
    """

    def __init__(
        self,
        target: ConnectTarget,
        challenges: ChallengeCache,
        now_ms: int,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        super().__init__(h11.CLIENT, now_ms)
        self._challenges = challenges
        self._via_proxy = target.via_proxy
        self._authenticates = challenges.is_valid(now_ms)
        self._is_fresh = self._authenticates and challenges.is_fresh
        self.request = self._make_request(target, random_bytes)  # Send it at once.

    def _make_request(self, target: ConnectTarget, random_bytes: Callable[[int], bytes]) -> bytes:
        path = target.path or path_to(target.cluster)
        headers = [(b"Host", target.host.encode()), (b"Cache-Control", b"no-cache")]
        if self._authenticates and not target.path:
            headers += [
                (b"Connection", b"keep-alive, Upgrade"),
                (b"Upgrade", b"websocket"),
                (b"Sec-WebSocket-Key", b64encode(random_bytes(16))),
                (b"Sec-WebSocket-Version", b"13"),
            ]
        else:
            headers.append((b"Connection", b"close"))
        if self._authenticates:
            cnonce = random_bytes(12).hex()
            authorization = self._challenges.authorize(target, ("GET", path), cnonce)
            headers.append((b"Authorization", authorization))
        request_target = f"http://{target.host}{path}" if target.via_proxy else path
        request = h11.Request(method=b"GET", target=request_target.encode(), headers=headers)
        data = self._http.send(request)
        end = self._http.send(h11.EndOfMessage())
        return (data or b"") + (end or b"")

    def feed(self, data: bytes, now_ms: int) -> HandshakeResult | None:
        """Adds bytes, b"" at the end of the stream; returns the result once the head is
        complete.
        """
        try:
            event, rest = self._read_head(data)
            if event is None:
                return None
            assert isinstance(event, h11.Response | h11.InformationalResponse)
            return self._on_head(event, rest, now_ms)
        except h11.RemoteProtocolError as error:
            return failed(f"the response is not HTTP: {error}")
        except RemoteProtocolError as error:
            return failed(str(error))

    def _on_head(
        self, answer: h11.Response | h11.InformationalResponse, rest: bytes, now_ms: int
    ) -> HandshakeResult | None:
        if answer.status_code == 101 and self._authenticates:
            trailing, _ = self._http.trailing_data
            return HandshakeResult(HandshakeOutcome.OPEN, trailing + rest)
        return self._on_refused(answer, now_ms)

    def _on_refused(
        self, answer: h11.Response | h11.InformationalResponse, now_ms: int
    ) -> HandshakeResult:
        status = answer.status_code
        if status != 401:
            self._challenges.clear()
            if status == 429:
                wait = next(
                    (value for name, value in answer.headers if name == b"retry-after"), b""
                )
                after = f"; wait {wait.decode()} s" if wait.isdigit() and len(wait) < 10 else ""
                return failed(f"it has received too many wrong passwords from here{after}", 429)
            if status == 403:
                return failed("the user has no role for this, or another certificate", 403)
            return failed(self._describe(answer), status)
        if all(name != b"www-authenticate" for name, _ in answer.headers):
            return failed(NO_CHALLENGE, 401)
        stale = self._challenges.store(list(answer.headers), now_ms)
        if self._is_fresh and not stale:  # A cached challenge may fail for its nonce alone.
            self._challenges.clear()
            return failed("user or password is wrong", 401)
        return HandshakeResult(HandshakeOutcome.RETRY)

    def _describe(self, answer: h11.Response | h11.InformationalResponse) -> str:
        """Describes a refusal. A proxy's own status is named as the proxy's."""
        status = answer.status_code
        reason = answer.reason.decode("ascii", "replace")[:_REASON_CHARACTERS_MAX]
        status_line = (
            f"{status} {reason}" if reason.strip() and reason.isprintable() else f"{status}"
        )
        if not self._via_proxy:
            return f"the response is {status_line}"
        if status == 407:
            return f"the HTTP proxy requires a password, which is not supported: {status_line}"
        if status in _PROXY_STATUSES:
            return f"the HTTP proxy cannot reach the server: {status_line}"
        if status == 426:
            return f"the response is {status_line}: the HTTP proxy may not forward upgrades"
        return f"the response through the HTTP proxy is {status_line}"
