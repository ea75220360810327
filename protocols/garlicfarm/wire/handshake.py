"""The HTTP/1.1 handshake in front of the Raft messages, for both who accepts and who connects.

h11 takes the heads apart; what follows them in the same bytes belongs to the messages. Neither side
reads a clock or a socket: bytes go in, and a Reply, or an Opening, comes out once.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping
from enum import IntEnum
from hashlib import sha1
from typing import NamedTuple

import h11

from ...errors import RemoteProtocolError
from .digest import (
    ALGORITHMS,
    Algorithm,
    Parameters,
    Terms,
    algorithm_of,
    make_ha1,
    make_response,
    parse_parameters,
    quoted,
)
from .gate import Gate, path_of
from .htdigest import Users
from .http_api import METHODS, NAMES, Headers, StatusSource, parse_view, respond

VERSION = "1"
HEAD_BYTES_MAX = 8192
HEAD_LINES_MAX = 64
HEAD_TIMEOUT_MS = 5000
CREDENTIALS_TTL_MS = 3600 * 1000  # So long a client goes on with a challenge.
_WEBSOCKET_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_MESSAGES = "websocket"  # The last part of the path on which messages follow.
_PROXYS_OWN = (407, 502, 503, 504)  # What a farm's server never answers.
_REASON_CHARACTERS_MAX = 80


def path_to(cluster: str, name: str = _MESSAGES) -> str:
    """Where a cluster is found on its servers (text, "HTTP Request 1"), or one of face.NAMES."""
    return f"/GarlicFarm/{cluster}/{VERSION}/{name}"


class Reply(NamedTuple):
    """What a server does about a head.

    data     to be sent
    status   101: the connection is open; any other, also 200: it is to be closed when data is sent
    user     who was let in, if somebody was
    """

    data: bytes
    status: int
    cluster: str = ""
    user: str = ""
    rest: bytes = b""  # Of the messages, already here.


def _one(headers: Headers, name: bytes) -> bytes | None:
    """The value of a header that stands there once. Raises RemoteProtocolError on two."""
    found = [value for each, value in headers if each == name]
    if len(found) > 1:
        raise RemoteProtocolError(f"header {name.decode()} stands there twice")
    return found[0] if found else None


def _has_token(headers: Headers, name: bytes, token: bytes) -> bool:
    """Whether a header's list, of all lines together, names a token."""
    values = b",".join(value for each, value in headers if each == name)
    return token in (part.strip().lower() for part in values.split(b","))


class _Head:
    """Bytes until a head is whole; h11 is given no more of them than a head may have."""

    __slots__ = ("_given", "_http", "deadline_ms")

    def __init__(self, http: h11.Connection, now_ms: int) -> None:
        self._http = http
        self._given = 0
        self.deadline_ms = now_ms + HEAD_TIMEOUT_MS

    def feed(self, data: bytes) -> tuple[h11.Event | None, bytes]:
        """Returns the head, once it is there, and what of the data was not needed for it.

        Raises h11.RemoteProtocolError, with 431 for its hint when the head is too long.
        """
        taken = data[: HEAD_BYTES_MAX - self._given]
        self._given += len(taken)
        self._http.receive_data(taken)
        event = self._http.next_event()
        if event is h11.NEED_DATA:
            if self._given == HEAD_BYTES_MAX:
                raise h11.RemoteProtocolError("the head is too long", error_status_hint=431)
            return None, b""
        if isinstance(event, h11.ConnectionClosed):
            raise h11.RemoteProtocolError("closed before there was a head")
        if isinstance(event, h11.Request | h11.Response | h11.InformationalResponse) and (
            len(event.headers) > HEAD_LINES_MAX
        ):
            raise h11.RemoteProtocolError("the head has too many lines", error_status_hint=431)
        assert isinstance(event, h11.Event)
        return event, data[len(taken) :]


class ServerHandshake:
    """One connection that was accepted, until its messages begin."""

    def __init__(
        self,
        gate: Gate,
        farms: Mapping[str, Users],
        now_ms: int,
        faces: Mapping[str, StatusSource] | None = None,
    ) -> None:
        """farms   the users of each cluster that is served here, by its name
        faces   what is shown of them over HTTP; of a cluster that is not in it nothing is
        """
        self._gate = gate
        self._farms = farms
        self._faces = faces or {}
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._head = _Head(self._http, now_ms)
        self._done = False

    @property
    def deadline_ms(self) -> int:
        """When the head must be there; then comes on_timeout()."""
        return self._head.deadline_ms

    def feed(self, data: bytes, now_ms: int) -> Reply | None:
        """Takes in what has arrived; the reply once the head is whole, or is none."""
        assert not self._done, "a handshake is made once"
        reply = self._feed(data, now_ms)
        self._done = reply is not None
        return reply

    def on_timeout(self) -> Reply:
        """The head has not come in time."""
        self._done = True
        return self._refuse(408)

    def _feed(self, data: bytes, now_ms: int) -> Reply | None:
        try:
            request, rest = self._head.feed(data)
            if request is None:
                return None
            assert isinstance(request, h11.Request)
            return self._judge(request, rest, now_ms)
        except h11.RemoteProtocolError as error:
            return self._refuse(error.error_status_hint)
        except RemoteProtocolError:
            return self._refuse(400)

    def _judge(self, request: h11.Request, rest: bytes, now_ms: int) -> Reply:
        method, target = request.method.decode("ascii"), request.target.decode("ascii")
        headers: Headers = list(request.headers)
        path, _, query = path_of(target).partition("?")
        cluster, name = self._find(path)
        is_messages, is_head = name == _MESSAGES, method == "HEAD"
        if not name or (is_messages and (method != "GET" or query or target.endswith("?"))):
            return self._refuse(404, is_head=is_head)
        users, authorization = self._farms[cluster], _one(headers, b"authorization")
        line = (method, target)
        if method not in METHODS:  # As if nothing were here, for those who are not let in.
            verdict = authorization and self._gate.judge(users, authorization, line, now_ms)
            return self._refuse(405 if verdict and verdict.status == 200 else 404)
        if any(name in (b"content-length", b"transfer-encoding") for name, _ in headers):
            return self._refuse(400, is_head=is_head)
        if request.http_version != b"1.1":
            return self._refuse(505, is_head=is_head)
        if authorization is None:
            return self._refuse(401, self._gate.challenges(users, now_ms), is_head)
        verdict = self._gate.judge(users, authorization, line, now_ms)
        if verdict.status == 401:
            challenges = self._gate.challenges(users, now_ms, verdict.stale)
            return self._refuse(401, challenges, is_head)
        if verdict.status != 200:
            return self._refuse(verdict.status, is_head=is_head)
        if not is_messages:
            return self._show((cluster, name, query), is_head, verdict.user)
        upgrades = _has_token(headers, b"upgrade", b"websocket")
        if not upgrades or not _has_token(headers, b"connection", b"upgrade"):
            return self._refuse(426)
        answer = self._switch(_one(headers, b"sec-websocket-key"))
        trailing, _ = self._http.trailing_data
        return Reply(answer, 101, cluster, verdict.user, trailing + rest)

    def _find(self, path: str) -> tuple[str, str]:
        """Which cluster a path is of, and its last part; empty when there is no such path."""
        start, _, name = path.rpartition("/")
        for cluster in self._farms:
            if start == path_to(cluster, "")[:-1]:
                known = (_MESSAGES, *(NAMES if cluster in self._faces else ()))
                return (cluster, name) if name in known else ("", "")
        return "", ""

    def _show(self, what: tuple[str, str, str], is_head: bool, user: str) -> Reply:
        """What of a farm is asked for, by cluster, name and query."""
        cluster, name, query = what
        try:
            view = parse_view(name, query, user)
        except RemoteProtocolError:
            return self._refuse(400, is_head=is_head)
        body = self._faces[cluster].show(view)
        return Reply(respond(200, body, is_head=is_head), 200, cluster, user)

    def _switch(self, key: bytes | None) -> bytes:
        """The 101; the messages begin behind it."""
        headers = [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
        if key is not None:
            accept = sha1(key + _WEBSOCKET_GUID, usedforsecurity=False).digest()
            headers.append((b"Sec-WebSocket-Accept", b64encode(accept)))
        assert isinstance(self._http.next_event(), h11.EndOfMessage)
        response = h11.InformationalResponse(
            status_code=101, headers=headers, reason=b"Switching Protocols"
        )
        return self._http.send(response) or b""

    def _refuse(
        self, status: int, challenges: list[bytes] | None = None, is_head: bool = False
    ) -> Reply:
        """What any web server might say."""
        headers = [(b"WWW-Authenticate", challenge) for challenge in challenges or ()]
        if status == 426:
            headers.append((b"Upgrade", b"websocket"))
        if status == 405:
            headers.append((b"Allow", ", ".join(METHODS).encode()))
        return Reply(respond(status, more=headers, is_head=is_head), status)


# ---- who connects ----


class Step(IntEnum):
    """What a client does next.

    OPEN     the messages begin
    AGAIN    closes, connects anew, and begins again: it has a challenge now
    REFUSED  closes, and says why
    """

    OPEN = 0
    AGAIN = 1
    REFUSED = 2


NO_USERS = "it asks for no password: its password file may have no user of this farm"


class Opening(NamedTuple):
    """How a client's handshake has ended."""

    step: Step
    rest: bytes = b""  # Of the messages, already here; of a ClientFetch the body.
    why: str = ""
    status: int = 0  # Of the answer that refuses.


class ConnectTarget(NamedTuple):
    """Where a client knocks, and with what.

    host        "127.0.0.1:7401", as the Host header says it
    via_proxy   the request goes to an HTTP proxy: its target is of the absolute form
    path        what is asked for, with its query; empty: to become a wire
    """

    host: str
    cluster: str
    user: str
    password: str
    via_proxy: bool = False
    path: str = ""


class Challenges:
    """The challenge of one server that a client has answered: it serves the next connections."""

    __slots__ = ("_algorithm", "_count", "_until_ms", "_values")

    def __init__(self) -> None:
        self._values: dict[str, str] | None = None
        self._algorithm: Algorithm | None = None
        self._count = 0
        self._until_ms = 0

    def is_known(self, now_ms: int) -> bool:
        return self._values is not None and now_ms < self._until_ms

    @property
    def is_unused(self) -> bool:
        """Whether nothing was answered to it yet."""
        return self._count == 0

    def forget(self) -> None:
        self._values = None

    def note(self, headers: Headers, now_ms: int) -> bool:
        """Takes the best challenge that we can answer, whatever the order they stand in.

        Returns whether it says that only the nonce of the one before was wrong.
        Raises RemoteProtocolError when there is none, or one is malformed.
        """
        offered: dict[Algorithm, Parameters] = {}
        for name, value in headers:
            for parameters in parse_parameters(value) if name == b"www-authenticate" else ():
                algorithm = algorithm_of(parameters)
                qops = parameters.values.get("qop", "").replace(",", " ").split()
                has_all = {"realm", "nonce"} <= parameters.values.keys() and "auth" in qops
                if parameters.scheme == "digest" and algorithm is not None and has_all:
                    offered.setdefault(algorithm, parameters)
        best = next((each for each in ALGORITHMS if each in offered), None)
        if best is None:
            raise RemoteProtocolError("no challenge that can be answered: Digest with qop=auth")
        self._algorithm, self._values = best, offered[best].values
        self._count = 0
        self._until_ms = now_ms + CREDENTIALS_TTL_MS
        return self._values.get("stale", "").lower() == "true"

    def answer(self, door: ConnectTarget, line: tuple[str, str], cnonce: str) -> bytes:
        """The Authorization header for a request of this method and uri."""
        assert self._values is not None
        assert self._algorithm is not None
        values, algorithm = self._values, self._algorithm
        self._count += 1
        terms = Terms(*line, values["nonce"], f"{self._count:08x}", cnonce)
        ha1 = make_ha1(algorithm.hash_name, door.user, values["realm"], door.password)
        fields = [
            f"username={quoted(door.user)}",
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


class ClientHandshake:
    """One connection that was made, until its messages begin.

    The challenges outlive it: with a known one it begins with the text's request 2, and once more
    with a new one if that is refused.
    """

    def __init__(
        self,
        door: ConnectTarget,
        challenges: Challenges,
        now_ms: int,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._challenges = challenges
        self._via_proxy = door.via_proxy
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._head = _Head(self._http, now_ms)
        self._asked = challenges.is_known(now_ms)
        self._is_first = self._asked and challenges.is_unused
        self.request = self._make_request(door, random_bytes)  # To be sent at once.

    @property
    def deadline_ms(self) -> int:
        """When the answer's head must be there; a client then closes."""
        return self._head.deadline_ms

    def _make_request(self, door: ConnectTarget, random_bytes: Callable[[int], bytes]) -> bytes:
        path = door.path or path_to(door.cluster)
        headers = [(b"Host", door.host.encode()), (b"Cache-Control", b"no-cache")]
        if self._asked and not door.path:
            headers += [
                (b"Connection", b"keep-alive, Upgrade"),
                (b"Upgrade", b"websocket"),
                (b"Sec-WebSocket-Key", b64encode(random_bytes(16))),
                (b"Sec-WebSocket-Version", b"13"),
            ]
        else:
            headers.append((b"Connection", b"close"))
        if self._asked:
            cnonce = random_bytes(12).hex()
            authorization = self._challenges.answer(door, ("GET", path), cnonce)
            headers.append((b"Authorization", authorization))
        target = f"http://{door.host}{path}" if door.via_proxy else path
        request = h11.Request(method=b"GET", target=target.encode(), headers=headers)
        data = self._http.send(request)
        end = self._http.send(h11.EndOfMessage())
        return (data or b"") + (end or b"")

    def feed(self, data: bytes, now_ms: int) -> Opening | None:
        """Takes in what has arrived, b"" for the end; how it ends, once the head is here."""
        try:
            event, rest = self._head.feed(data)
            if event is None:
                return None
            assert isinstance(event, h11.Response | h11.InformationalResponse)
            return self._judge(event, rest, now_ms)
        except h11.RemoteProtocolError as error:
            return Opening(Step.REFUSED, why=f"the answer is not HTTP: {error}")
        except RemoteProtocolError as error:
            return Opening(Step.REFUSED, why=str(error))

    def _judge(
        self, answer: h11.Response | h11.InformationalResponse, rest: bytes, now_ms: int
    ) -> Opening | None:
        if answer.status_code == 101 and self._asked:
            trailing, _ = self._http.trailing_data
            return Opening(Step.OPEN, trailing + rest)
        return self._on_refused(answer, now_ms)

    def _on_refused(self, answer: h11.Response | h11.InformationalResponse, now_ms: int) -> Opening:
        status = answer.status_code
        if status != 401:
            self._challenges.forget()
            return Opening(Step.REFUSED, why=self._why(answer), status=status)
        if all(name != b"www-authenticate" for name, _ in answer.headers):
            return Opening(Step.REFUSED, why=NO_USERS, status=401)
        stale = self._challenges.note(list(answer.headers), now_ms)
        if self._is_first and not stale:  # Of an older one it may have been the nonce.
            self._challenges.forget()
            return Opening(Step.REFUSED, why="user or password is wrong", status=401)
        return Opening(Step.AGAIN)

    def _why(self, answer: h11.Response | h11.InformationalResponse) -> str:
        """What a refusal says; of a proxy's own, that it is the proxy's."""
        status = answer.status_code
        reason = answer.reason.decode("ascii", "replace")[:_REASON_CHARACTERS_MAX]
        said = f"{status} {reason}" if reason.strip() and reason.isprintable() else f"{status}"
        if not self._via_proxy:
            return f"the answer is {said}"
        if status == 407:
            return f"the HTTP proxy wants a password of its own, which we have none for: {said}"
        if status in _PROXYS_OWN:
            return f"the HTTP proxy does not reach the server: {said}"
        if status == 426:
            return f"the answer is {said}: the HTTP proxy may keep the upgrade to itself"
        return f"the answer through the HTTP proxy is {said}"
