"""The bodies of requests and answers: frames of bytes."""

from collections.abc import Sequence

from ...net.clock import monotonic_ms

# A broker disconnects a peer that sends more than 64 MiB (docs/reference/topology.md).
BODY_BYTES_MAX = (64 << 20) - (64 << 10)
BODY_FRAMES_MAX = 4000

Data = bytes | bytearray | memoryview
Content = Data | str | Sequence[Data] | None


class Body(bytes):
    """The bytes of a request or an answer.

    frames        its frames, usually one; the bytes are all frames joined
    client        of a request: the broker's number for the caller, 8 octets; a redelivery by the
                  same broker has the same
    request_id    of a request: the same in each redelivery, also by another broker
    """

    frames: list[bytes]
    client = b""
    request_id = b""
    _deadline_ms: int | None = None

    @classmethod
    def of(cls, frames: list[bytes], deadline_ms: int | None = None) -> "Body":
        """A body of frames; deadline_ms is on our own clock."""
        body = cls(frames[0] if len(frames) == 1 else b"".join(frames))
        body.frames = frames
        body._deadline_ms = deadline_ms
        return body

    def remaining_ms(self) -> int | None:
        """How long the caller still waits; None: unknown."""
        if self._deadline_ms is None:
            return None
        return max(0, self._deadline_ms - monotonic_ms())


def frames_of(content: Content) -> list[bytes]:
    """The frames of bytes, a str (as UTF-8), a list of bytes, or None (empty).

    Raises TypeError, and ValueError when they exceed a broker's limits.
    """
    if type(content) is bytes and len(content) <= BODY_BYTES_MAX:
        return [content]
    frames = _frames_of(content)
    size = sum(map(len, frames))
    if size > BODY_BYTES_MAX or len(frames) > BODY_FRAMES_MAX:
        raise ValueError(
            f"a body has at most {BODY_BYTES_MAX} bytes in {BODY_FRAMES_MAX} frames, not {size} in"
            f" {len(frames)}"
        )
    return frames


def _frames_of(content: Content) -> list[bytes]:
    match content:
        case Body():
            return content.frames
        case None:
            return [b""]
        case str():
            return [content.encode()]
        case bytes() | bytearray() | memoryview():
            return [bytes(content)]
        case Sequence():
            frames = []
            for frame in content:
                if not isinstance(frame, bytes | bytearray | memoryview):
                    raise TypeError(f"a frame is bytes, not {type(frame).__name__}")
                frames.append(bytes(frame))
            return frames or [b""]
    raise TypeError(f"a body is bytes, str or a list of bytes, not {type(content).__name__}")
