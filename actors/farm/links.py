"""Outgoing connections to other farm servers: host name, TCP, proxy, TLS, HTTP handshake.

A link that fails or ends is retried after a pause. FarmPeer handles its messages.
"""

import os
import ssl
from collections import Counter
from enum import IntEnum
from typing import NamedTuple, Protocol

from ...net.sockets import KEEPALIVE_IDLE_S
from ...net.streams import IN, OUT, StreamPoll, TcpStream
from ...protocols.errors import RemoteProtocolError
from ...protocols.garlicfarm.server.values import LinkUp
from ...protocols.garlicfarm.wire.handshake import (
    ChallengeCache,
    ClientHandshake,
    ConnectTarget,
    HandshakeOutcome,
)
from ...protocols.garlicfarm.wire.values import Address, is_loopback, parse_address
from ...protocols.host.border import LinkLost, Responses
from .resolver import AddressResolver

CONNECT_TIMEOUT_MS = 5000  # For TCP, TLS and the handshake together.
RETRY_MS_MIN = 20  # The first pause; it doubles with each failed attempt.
CHALLENGES_MAX = 3  # Consecutive challenges; more fail the link.
RESOLVE_POLL_MS = 20  # How often a host name look-up is polled.
OUT_BYTES_MAX = 64 << 20  # Unsent bytes; above it the link fails.


class LinkSettings(NamedTuple):
    """How the links of a farm connect.

    context           of TLS; None: plain TCP
    server_name       the name in the servers' certificates; empty: the endpoint's host
    proxy             an HTTP proxy for all links, or None
    user              empty: no handshake (JRaft's plain connections)
    former_password   tried after a refusal: the other server may not know the new password yet
    """

    context: ssl.SSLContext | None
    server_name: str
    proxy: Address | None
    cluster: str
    user: str
    password: str
    former_password: str = ""


LinkEvent = LinkUp | Responses[int, bytes] | LinkLost[int]


class LinkOwner(Protocol):
    """The farm that owns the links."""

    poll: StreamPoll
    resolver: AddressResolver
    link_settings: LinkSettings
    retry_ms_max: int  # The longest pause.

    counters: Counter[str]

    @property
    def now_ms(self) -> int: ...

    def wake(self) -> None:
        """A link's deadline_ms has changed."""

    def on_link(self, event: LinkEvent, reason: str = "") -> None:
        """reason: why a link was lost; empty if it is the same as before."""


class LinkState(IntEnum):
    PAUSE = 0
    CONNECT = 1
    TLS = 2
    HEAD = 3
    UP = 4


class FarmLink:
    """The link to one server, through all its connections."""

    def __init__(self, owner: LinkOwner, server_id: int, endpoint: str) -> None:
        self._owner = owner
        self.server_id = server_id
        self.endpoint = endpoint
        self.state = LinkState.PAUSE
        self._stream: TcpStream | None = None
        self._handshake: ClientHandshake | None = None
        self._challenges = ChallengeCache()
        self._attempts = 0
        self._challenges_answered = 0  # Since the last pause.
        self._uses_former_password = False  # It tries the former password.
        self.deadline_ms: int | None = owner.now_ms
        self.failure = ""  # Why the last connection failed or ended.

    # ---- one attempt ----

    def step(self, now_ms: int) -> None:
        """Call it when deadline_ms has come."""
        if self.deadline_ms is None or now_ms < self.deadline_ms:
            return
        if self.state is LinkState.PAUSE:
            self._connect(now_ms)
        else:
            self.fail("no answer in time")

    def retry_now(self) -> bool:
        """Ends a pause: the server may be reachable now. Returns whether there was one."""
        is_paused = self.state is LinkState.PAUSE and self.deadline_ms is not None
        if is_paused:
            self.deadline_ms = self._owner.now_ms
        return is_paused

    def _connect(self, now_ms: int) -> None:
        settings = self._owner.link_settings
        try:
            address = settings.proxy or parse_address(self.endpoint)
            if (
                settings.context is None
                and settings.proxy is None
                and not is_loopback(address.host)
            ):
                self._owner.counters["insecure_endpoints"] += 1
                raise OSError("without TLS only loopback addresses are allowed")
            found = self._owner.resolver.resolve(address)
            if found is None:
                self.deadline_ms = now_ms + RESOLVE_POLL_MS
                return
            if not found:
                raise OSError("no address")
            family, socket_address = found[self._attempts % len(found)]
            name = settings.server_name or parse_address(self.endpoint).host
            self._stream = TcpStream.connect(family, socket_address, settings.context, name)
            self._stream.keep_alive(KEEPALIVE_IDLE_S)
            self._owner.poll.add(self._stream.fd, OUT, self._on_ready)
            self.state, self.deadline_ms = LinkState.CONNECT, now_ms + CONNECT_TIMEOUT_MS
        except (OSError, RemoteProtocolError) as error:
            self.fail(getattr(error, "strerror", None) or str(error))

    def _on_ready(self) -> None:
        stream = self._stream
        assert stream is not None
        if self.state >= LinkState.HEAD:
            self._transfer()
        elif stream.secure():
            self._start_handshake()
        elif stream.ended:
            self.fail(f"TLS: {stream.why}" if stream.connected else stream.why)
        else:
            self.state = LinkState.TLS
            self._update_poll()

    def _start_handshake(self) -> None:
        """TCP and TLS are connected: sends the HTTP head, or starts the messages if there is no
        handshake.
        """
        settings, stream = self._owner.link_settings, self._stream
        assert stream is not None
        if not settings.user:
            self._on_up(b"")
            return
        password = (self._uses_former_password and settings.former_password) or settings.password
        target = ConnectTarget(
            str(parse_address(self.endpoint)),
            settings.cluster,
            settings.user,
            password,
            bool(settings.proxy),
        )
        self._handshake = ClientHandshake(target, self._challenges, self._owner.now_ms, os.urandom)
        self.state = LinkState.HEAD
        stream.out += self._handshake.request
        stream.flush()
        self._transfer()

    def _transfer(self) -> None:
        stream = self._stream
        assert stream is not None
        if stream.out:
            stream.flush()
        data = b"" if stream.ended else stream.read()
        if self.state is LinkState.HEAD:
            if data or stream.ended:
                self._on_head(data)
        elif data:
            self._owner.on_link(Responses(self.server_id, data))
        if self._stream is stream:
            if stream.ended:
                self.fail(stream.why or "closed by the other side")
            else:
                self._update_poll()

    def _on_head(self, data: bytes) -> None:
        assert self._handshake is not None
        result = self._handshake.feed(data, self._owner.now_ms)
        if result is None:
            return
        if result.outcome is HandshakeOutcome.OPEN:
            self._on_up(result.rest)
        elif (
            result.outcome is HandshakeOutcome.RETRY and self._challenges_answered < CHALLENGES_MAX
        ):
            self._challenges_answered += 1
            self._close()
            self.state, self.deadline_ms = LinkState.PAUSE, self._owner.now_ms
            self._owner.wake()
        elif result.outcome is HandshakeOutcome.RETRY:
            self.fail("the server keeps sending new challenges")
        else:
            is_refused = result.status in (401, 429)
            self._uses_former_password = is_refused and not self._uses_former_password
            self.fail(result.error)

    def _on_up(self, rest: bytes) -> None:
        self._handshake = None
        self.state, self.deadline_ms = LinkState.UP, None
        self._attempts, self._challenges_answered, self.failure = 0, 0, ""
        self._update_poll()
        self._owner.on_link(LinkUp(self.server_id))
        if rest:
            self._owner.on_link(Responses(self.server_id, rest))

    def _update_poll(self) -> None:
        stream = self._stream
        assert stream is not None
        self._owner.poll.want(stream.fd, IN | OUT if stream.needs_out else IN)
        if stream.more:
            self._owner.poll.more(stream.fd)

    # ---- once it is up ----

    def send(self, data: bytearray) -> None:
        """Sends the bytes and clears them."""
        stream = self._stream
        if self.state is LinkState.UP and stream is not None:
            stream.out += data
            stream.flush()
            if stream.ended:
                self.fail(stream.why)
            elif len(stream.out) > OUT_BYTES_MAX:
                self.fail("the server does not read its input")
            else:
                self._update_poll()
        data.clear()

    def fail(self, failure: str) -> None:
        """Ends the connection or the attempt; retries after a pause."""
        was_up = self.state is LinkState.UP
        self._close()
        pause_ms = min(self._owner.retry_ms_max, RETRY_MS_MIN << min(self._attempts, 16))
        self._attempts, self._challenges_answered = self._attempts + 1, 0
        self.state, self.deadline_ms = LinkState.PAUSE, self._owner.now_ms + pause_ms
        is_new, self.failure = was_up or failure != self.failure, failure
        self._owner.on_link(LinkLost(self.server_id), failure if is_new else "")

    def _close(self) -> None:
        if self._stream is not None:
            self._owner.poll.remove(self._stream.fd)
            self._stream.close()
        self._stream = self._handshake = None

    def close(self) -> None:
        """Closes the link for good."""
        self._close()
        self.state, self.deadline_ms = LinkState.PAUSE, None
