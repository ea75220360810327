"""One query to a server's HTTP API: a GET with Digest authentication and its complete response.

It starts like the handshake of the messages and shares its challenges.
"""

from collections.abc import Callable

import h11

from ..wire.handshake import (
    ChallengeCache,
    ClientHandshake,
    ConnectTarget,
    HandshakeOutcome,
    HandshakeResult,
    failed,
)

BODY_BYTES_MAX = 96 << 20  # More than the largest entry in base64.


class ClientFetch(ClientHandshake):
    """A connection that requests target.path. The result OPEN carries the body in `rest`."""

    def __init__(
        self,
        target: ConnectTarget,
        challenges: ChallengeCache,
        now_ms: int,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        assert target.path, "a query has a path"
        super().__init__(target, challenges, now_ms, random_bytes)
        self._body: bytearray | None = None  # None: the head is incomplete.

    def feed(self, data: bytes, now_ms: int) -> HandshakeResult | None:
        """Adds bytes, b"" at the end of the stream; returns the result once the response is
        complete.
        """
        if self._body is None:
            return super().feed(data, now_ms)
        return self._read(data)

    def _on_head(
        self, answer: h11.Response | h11.InformationalResponse, rest: bytes, now_ms: int
    ) -> HandshakeResult | None:
        if answer.status_code != 200 or not self._authenticates:
            return self._on_refused(answer, now_ms)
        self._body = bytearray()
        return self._read(rest) if rest else self._events()

    def _read(self, data: bytes) -> HandshakeResult | None:
        try:
            self._http.receive_data(data)
            return self._events()
        except h11.RemoteProtocolError as error:
            return failed(f"the response is cut off: {error}")

    def _events(self) -> HandshakeResult | None:
        assert self._body is not None
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Data):
                self._body += event.data
                if len(self._body) > BODY_BYTES_MAX:
                    return failed(f"a response of over {BODY_BYTES_MAX} bytes")
            elif isinstance(event, h11.EndOfMessage):
                return HandshakeResult(HandshakeOutcome.OPEN, bytes(self._body))
            else:
                return None
