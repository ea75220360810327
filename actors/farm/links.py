"""Connections of ours to other servers of a farm: name, TCP, proxy, TLS, the HTTP handshake.

A link that can't be made, or ends, is made anew after a pause; what is said on it is FarmPeer's.
"""

import os
import socket
import ssl
from enum import IntEnum
from typing import NamedTuple, Protocol

from ...net.sockets import KEEPALIVE_IDLE_S
from ...net.streams import IN, OUT, StreamPoll, TcpStream, begin_connect, connect_error, keep_alive
from ...protocols.errors import RemoteProtocolError
from ...protocols.garlicfarm.wire.handshake import (
    ChallengeCache,
    ClientHandshake,
    ConnectTarget,
    HandshakeOutcome,
)
from ...protocols.garlicfarm.wire.values import Address, is_loopback, parse_address
from .names import Names

ATTEMPT_MS = 5000  # From the first packet to the end of the handshake.
PAUSE_MS_MIN = 20  # Before another attempt: the first time; then twice as long each time.
CHALLENGES_MAX = 3  # Answered one after the other; then a server makes fun of us.
NAME_MS = 20  # How often it is looked whether a name was found.
OUT_BYTES_MAX = 64 << 20  # That a server leaves lying; more, and it is held lost.


class Way(NamedTuple):
    """How the links of one farm are made.

    context       of TLS; None: they are plain
    server_name   whose certificate is asked for; empty: the endpoint's own host
    proxy         an HTTP proxy that all goes through, or None
    user          empty: there is no handshake (JRaft's plain connections)
    former_password  tried where the present one is refused: the other server may not have it yet
    """

    context: ssl.SSLContext | None
    server_name: str
    proxy: Address | None
    cluster: str
    user: str
    password: str
    former_password: str = ""


class Owner(Protocol):
    """Whose links they are: one farm."""

    poll: StreamPoll
    names: Names
    way: Way
    pause_ms_max: int  # Before another attempt.

    @property
    def now_ms(self) -> int: ...

    def touch(self) -> None:
        """A link's deadline_ms is another one now."""

    def on_insecure(self) -> None:
        """An endpoint was refused: what is said there could be read on its way."""

    def on_up(self, server_id: int) -> None: ...

    def on_answers(self, server_id: int, data: bytes) -> None: ...

    def on_down(self, server_id: int, news: str) -> None:
        """A connection has ended, or was not made; news: why, if that is another reason now."""


class LinkState(IntEnum):
    """How far a link is."""

    PAUSE = 0
    CONNECT = 1
    TLS = 2
    HEAD = 3
    UP = 4


class FarmLink:
    """One of them, through all its connections."""

    def __init__(self, owner: Owner, server_id: int, endpoint: str) -> None:
        self._owner = owner
        self.server_id = server_id
        self.endpoint = endpoint
        self.state = LinkState.PAUSE
        self._stream: TcpStream | None = None
        self._handshake: ClientHandshake | None = None
        self._challenges = ChallengeCache()
        self._sock: socket.socket | None = None
        self._tries = 0
        self._challenged = 0  # In a row, without a pause.
        self._with_former = False  # Password.
        self.deadline_ms: int | None = owner.now_ms
        self.why = ""  # The last connection has ended, or was not made.

    # ---- one attempt ----

    def step(self, now_ms: int) -> None:
        """To be called when deadline_ms has come."""
        if self.deadline_ms is None or now_ms < self.deadline_ms:
            return
        if self.state is LinkState.PAUSE:
            self._begin(now_ms)
        else:
            self.lose("no answer in time")

    def hurry(self) -> bool:
        """Ends the pause, if it is in one: there may be somebody now."""
        is_paused = self.state is LinkState.PAUSE and self.deadline_ms is not None
        if is_paused:
            self.deadline_ms = self._owner.now_ms
        return is_paused

    def _begin(self, now_ms: int) -> None:
        way = self._owner.way
        try:
            place = way.proxy or parse_address(self.endpoint)
            if way.context is None and way.proxy is None and not is_loopback(place.host):
                self._owner.on_insecure()
                raise OSError("without TLS only this machine is connected to")
            found = self._owner.names.find(place)
            if found is None:
                self.deadline_ms = now_ms + NAME_MS
                return
            if not found:
                raise OSError("no address")
            family, where = found[self._tries % len(found)]
            self._sock = begin_connect(family, where)
            keep_alive(self._sock, KEEPALIVE_IDLE_S)
            self._owner.poll.add(self._sock.fileno(), OUT, self._on_ready)
            self.state, self.deadline_ms = LinkState.CONNECT, now_ms + ATTEMPT_MS
        except (OSError, RemoteProtocolError) as error:
            self.lose(getattr(error, "strerror", None) or str(error))

    def _on_ready(self) -> None:
        if self.state is LinkState.CONNECT:
            self._on_connected()
        if self.state is LinkState.TLS:
            self._secure()
        elif self.state >= LinkState.HEAD:
            self._go_on()

    def _on_connected(self) -> None:
        sock, way = self._sock, self._owner.way
        assert sock is not None
        error = connect_error(sock)
        if error is not None:
            self.lose(error.strerror or str(error))
            return
        if way.context is not None:
            name = way.server_name or parse_address(self.endpoint).host
            self._owner.poll.remove(sock.fileno())
            try:
                sock = way.context.wrap_socket(
                    sock, server_hostname=name, do_handshake_on_connect=False
                )
            except (OSError, ValueError) as failure:  # ValueError: no name can be so.
                self._sock = None
                sock.close()
                self.lose(str(failure))
                return
            self._owner.poll.add(sock.fileno(), IN, self._on_ready)
        self._sock, self._stream = None, TcpStream(sock)
        self.state = LinkState.TLS

    def _secure(self) -> None:
        stream = self._stream
        assert stream is not None
        if stream.secured or stream.secure():
            self._knock()
        elif stream.ended:
            self.lose(f"TLS: {stream.why}")
        else:
            self._want()

    def _knock(self) -> None:
        """TCP and TLS are there: the head follows or, where there is none, at once the messages."""
        way, stream = self._owner.way, self._stream
        assert stream is not None
        if not way.user:
            self._up(b"")
            return
        address = parse_address(self.endpoint)
        host = f"[{address.host}]" if ":" in address.host else address.host
        password = (self._with_former and way.former_password) or way.password
        door = ConnectTarget(
            f"{host}:{address.port}", way.cluster, way.user, password, bool(way.proxy)
        )
        self._handshake = ClientHandshake(door, self._challenges, self._owner.now_ms, os.urandom)
        self.state = LinkState.HEAD
        stream.out += self._handshake.request
        stream.flush()
        self._go_on()

    def _go_on(self) -> None:
        stream = self._stream
        assert stream is not None
        if stream.out:
            stream.flush()
        data = b"" if stream.ended else stream.read()
        if self.state is LinkState.HEAD:
            if data or stream.ended:
                self._on_head(data)
        elif data:
            self._owner.on_answers(self.server_id, data)
        if self._stream is stream:
            if stream.ended:
                self.lose(stream.why or "closed by the other side")
            else:
                self._want()

    def _on_head(self, data: bytes) -> None:
        assert self._handshake is not None
        opening = self._handshake.feed(data, self._owner.now_ms)
        if opening is None:
            return
        if opening.outcome is HandshakeOutcome.OPEN:
            self._up(opening.rest)
        elif opening.outcome is HandshakeOutcome.RETRY and self._challenged < CHALLENGES_MAX:
            self._challenged += 1
            self._close()
            self.state, self.deadline_ms = LinkState.PAUSE, self._owner.now_ms
            self._owner.touch()
        elif opening.outcome is HandshakeOutcome.RETRY:
            self.lose("it challenges again and again")
        else:
            self._with_former = opening.status == 401 and not self._with_former
            self.lose(opening.error)

    def _up(self, rest: bytes) -> None:
        self._handshake = None
        self.state, self.deadline_ms = LinkState.UP, None
        self._tries, self._challenged, self.why = 0, 0, ""
        self._want()
        self._owner.on_up(self.server_id)
        if rest:
            self._owner.on_answers(self.server_id, rest)

    def _want(self) -> None:
        stream = self._stream
        assert stream is not None
        self._owner.poll.want(stream.fd, IN | OUT if stream.needs_out else IN)
        if stream.more:
            self._owner.poll.more(stream.fd)

    # ---- once it is up ----

    def send(self, data: bytearray) -> None:
        """Sends what FarmPeer has for this one, and clears it."""
        stream = self._stream
        if self.state is LinkState.UP and stream is not None:
            stream.out += data
            stream.flush()
            if stream.ended:
                self.lose(stream.why)
            elif len(stream.out) > OUT_BYTES_MAX:
                self.lose("it takes nothing")
            else:
                self._want()
        data.clear()

    def lose(self, why: str) -> None:
        """Ends the connection, or the attempt at one; another follows after a pause."""
        was_up = self.state is LinkState.UP
        self._close()
        pause_ms = min(self._owner.pause_ms_max, PAUSE_MS_MIN << min(self._tries, 16))
        self._tries, self._challenged = self._tries + 1, 0
        self.state, self.deadline_ms = LinkState.PAUSE, self._owner.now_ms + pause_ms
        is_news, self.why = was_up or why != self.why, why
        self._owner.on_down(self.server_id, why if is_news else "")

    def _close(self) -> None:
        for each in (self._stream, self._sock):
            if each is not None:
                fd = each.fd if isinstance(each, TcpStream) else each.fileno()
                self._owner.poll.remove(fd)
                each.close()
        self._stream = self._sock = self._handshake = None

    def close(self) -> None:
        """For good."""
        self._close()
        self.state, self.deadline_ms = LinkState.PAUSE, None
