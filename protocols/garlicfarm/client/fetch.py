"""One question to a server's HTTP face, as a client asks it: a GET with a digest, its answer whole.

It begins as the handshake of the wire does, and shares its challenges.
"""

from collections.abc import Callable

import h11

from ..wire.handshake import Challenges, ClientHandshake, ConnectTarget, Opening, Step

BODY_BYTES_MAX = 96 << 20  # The largest entry in base64, and more.


class ClientFetch(ClientHandshake):
    """One connection that asks for door.path, until the answer is whole: Opening.rest of OPEN."""

    def __init__(
        self,
        door: ConnectTarget,
        challenges: Challenges,
        now_ms: int,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        assert door.path, "a question"
        super().__init__(door, challenges, now_ms, random_bytes)
        self._body: bytearray | None = None  # None: the head is not here yet.

    def feed(self, data: bytes, now_ms: int) -> Opening | None:
        """Takes in what has arrived, b"" for the end; how it ends, once the answer is whole."""
        if self._body is None:
            return super().feed(data, now_ms)
        return self._read(data)

    def _judge(
        self, answer: h11.Response | h11.InformationalResponse, rest: bytes, now_ms: int
    ) -> Opening | None:
        if answer.status_code != 200 or not self._asked:
            return self._on_refused(answer, now_ms)
        self._body = bytearray()
        return self._read(rest) if rest else self._events()

    def _read(self, data: bytes) -> Opening | None:
        try:
            self._http.receive_data(data)
            return self._events()
        except h11.RemoteProtocolError as error:
            return Opening(Step.REFUSED, why=f"the answer ends early: {error}")

    def _events(self) -> Opening | None:
        assert self._body is not None
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Data):
                self._body += event.data
                if len(self._body) > BODY_BYTES_MAX:
                    return Opening(Step.REFUSED, why=f"an answer of over {BODY_BYTES_MAX} bytes")
            elif isinstance(event, h11.EndOfMessage):
                return Opening(Step.OPEN, bytes(self._body))
            else:
                return None
