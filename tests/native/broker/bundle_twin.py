"""Bundles of the broker protocol in Python: the twin of csrc/broker/bundles.c."""

from collections.abc import Sequence

from kelek.native.broker.exchange import BUNDLE_BYTES_MAX, BUNDLE_FRAMES_MAX

HEAD = b"KLKM01"


def encode(messages: Sequence[Sequence[bytes]]) -> bytes:
    parts = [HEAD]
    for frames in messages:
        parts.append(bytes([len(frames)]))
        for frame in frames:
            parts += (len(frame).to_bytes(2, "big"), frame)
    return b"".join(parts)


def fits(messages: Sequence[Sequence[bytes]]) -> bool:
    """Whether they may share a bundle."""
    frames = [frame for message in messages for frame in message]
    if any(not 0 < len(message) <= BUNDLE_FRAMES_MAX for message in messages):
        return False
    return len(HEAD) + len(messages) + sum(2 + len(it) for it in frames) <= BUNDLE_BYTES_MAX


def decode(frame: bytes, frames_max: int = BUNDLE_FRAMES_MAX) -> list[list[bytes]]:
    """The messages; none: it is no bundle, or malformed."""
    if not frame.startswith(HEAD) or len(frame) > BUNDLE_BYTES_MAX:
        return []
    at, messages = len(HEAD), []
    while at < len(frame):
        count, at = frame[at], at + 1
        if not 0 < count <= frames_max:
            return []
        message = []
        for _ in range(count):
            size = int.from_bytes(frame[at : at + 2], "big")
            if at + 2 + size > len(frame):
                return []
            message.append(frame[at + 2 : at + 2 + size])
            at += 2 + size
        messages.append(message)
    return messages


def opened(messages: Sequence[list[bytes]]) -> list[list[bytes]]:
    """Messages as a drain with bundles has them, without routing ids."""
    found = []
    for message in messages:
        inside = decode(message[0]) if len(message) == 1 else []
        found += inside or [message]
    return found
