"""A client of ZeroDB written from its text alone, on plain pyzmq.

Nothing of kelek is imported here: what kelek's codec gets wrong, this must notice. The requests
are built frame by frame as the text lists them, and an answer is checked before it is believed.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import zmq

from kelek.tests.waiting import wait_until

DEADLINE_S = 60.0

INFO, OPEN, CLOSE, COMPACT, TRUNCATE = range(0x05)
READ, COUNT, EXISTS, SCAN = range(0x10, 0x14)
PUT, DELETE, DELETE_RANGE, DELETE_LIMITED, WRITE_TABLES = range(0x20, 0x25)
FORWARD_RANGE, MAP_TABLE, RANGE_JOB, JOB_STATUS = 0x40, 0x41, 0x42, 0x48
CLIENT_DATA, PROTOCOL_ERROR = 0x50, 0xFF
ASYNC, PARTSYNC, FULLSYNC = 0, 1, 2
NOCOMPRESSION = 1
NO_MORE, PARTIAL = 1, 2

Frames = list[bytes]
Pair = tuple[bytes, bytes]
Found = TypeVar("Found")


def head(kind: int, *flags: int) -> bytes:
    """[0x31 Magic Byte][0x01 Protocol Version][type] and what a request adds to it."""
    return bytes([0x31, 0x01, kind, *flags])


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def number(frame: bytes) -> int:
    assert len(frame) in {4, 8}, f"a number has 4 or 8 bytes, not {len(frame)}"
    return int.from_bytes(frame, "little")


def text(frame: bytes) -> str:
    """An error string: UTF-8, NUL-terminated."""
    assert frame.endswith(b"\0"), frame
    assert frame.count(b"\0") == 1, frame
    return frame[:-1].decode()


def in_pairs(frames: Sequence[bytes]) -> list[Pair]:
    assert len(frames) % 2 == 0, "a key without its value"
    return list(zip(frames[::2], frames[1::2], strict=True))


def flat(pairs: Iterable[Pair]) -> Frames:
    return [frame for pair in pairs for frame in pair]


class RequestRefused(Exception):
    """An answer whose code is not 0x00."""

    def __init__(self, kind: int, code: int, reason: str) -> None:
        super().__init__(f"0x{kind:02x} answered 0x{code:02x}: {reason}")
        self.code = code
        self.reason = reason


class Chunk(NamedTuple):
    """A client data response."""

    flags: int
    pairs: list[Pair]


class LogLine(NamedTuple):
    """A message of the PUB socket for the log (decisions/zerodb.md)."""

    level: int
    ms: int
    sender: str
    text: str


def log_line(frames: Sequence[bytes]) -> LogLine:
    header, level, stamp, sender, said = frames
    assert header == b"\x55\x01\x00"
    assert len(level) == 1
    assert len(stamp) == 8
    assert level[0] <= 5
    return LogLine(level[0], number(stamp), sender.decode(), said.decode())


Context = zmq.Context[zmq.Socket[bytes]]


class PlainTableClient:
    """One socket, connected to one ROUTER: a DEALER without an envelope, or a REQ with one."""

    def __init__(self, context: Context, url: str, kind: int = zmq.DEALER) -> None:
        self.url = url
        self.socket = context.socket(kind)
        self.socket.linger = 0
        self.socket.connect(url)

    def send(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames)

    def receive(self) -> Frames:
        assert self.socket.poll(int(DEADLINE_S * 1000)), f"{self.url} sent nothing"
        return self.socket.recv_multipart()

    def ask(self, *frames: bytes) -> Frames:
        self.send(*frames)
        return self.receive()

    def close(self) -> None:
        self.socket.close()

    # ---- answers ----

    def answered(self, *frames: bytes) -> Frames:
        """The frames behind the header of a good answer. Raises Refused."""
        kind = frames[0][2]
        header, *rest = self.ask(*frames)
        assert header[:2] == b"\x31\x01", header
        if header[2] == PROTOCOL_ERROR != kind:
            raise RequestRefused(kind, PROTOCOL_ERROR, text(rest[0]))
        assert header[2] == kind, header
        assert len(header) >= 4, header
        if header[3] != 0:
            assert rest, "an error without its reason"
            raise RequestRefused(kind, header[3], text(rest[-1]))
        return rest

    def acknowledged(self, *frames: bytes) -> None:
        assert self.answered(*frames) == []

    # ---- requests ----

    def info(self) -> tuple[int, str]:
        """Supported features, software info."""
        header, software = self.ask(head(INFO))
        assert header[:3] == head(INFO)
        assert len(header) >= 11, "the features have 8 bytes, or more in later versions"
        return number(header[3:11]), text(software)

    def open(self, table: int, *options: int | None, flags: int = 0) -> None:
        """LRU cache, block and write buffer (bytes), bloom filter bits a key; None: the default."""
        frames = [b"" if option is None else u64(option) for option in options]
        self.acknowledged(head(OPEN, flags), u32(table), *frames)

    def shut(self, table: int) -> None:
        self.acknowledged(head(CLOSE), u32(table))

    def compact(self, table: int, start: bytes = b"", end: bytes = b"") -> None:
        self.acknowledged(head(COMPACT), u32(table), start, end)

    def truncate(self, table: int) -> None:
        self.acknowledged(head(TRUNCATE), u32(table))

    def read(self, table: int, *keys: bytes) -> Frames:
        values = self.answered(head(READ), u32(table), *keys)
        assert len(values) == len(keys)
        return values

    def count(self, table: int, *bounds: bytes) -> int:
        (found,) = self.answered(head(COUNT), u32(table), *bounds)
        assert len(found) == 8
        return number(found)

    def exists(self, table: int, *keys: bytes) -> list[bool]:
        found = self.answered(head(EXISTS), u32(table), *keys)
        assert [len(frame) for frame in found] == [1] * len(keys)
        return [frame != b"\0" for frame in found]

    def scan(
        self, table: int, limit: int | None = None, start: bytes = b"", end: bytes = b""
    ) -> list[Pair]:
        bound = b"" if limit is None else u64(limit)
        return in_pairs(self.answered(head(SCAN), u32(table), bound, start, end))

    def put(self, table: int, *pairs: Pair, flags: int = PARTSYNC) -> None:
        self.acknowledged(head(PUT, flags), u32(table), *flat(pairs))

    def delete(self, table: int, *keys: bytes, flags: int = PARTSYNC) -> None:
        self.acknowledged(head(DELETE, flags), u32(table), *keys)

    def delete_range(self, table: int, start: bytes, end: bytes, flags: int = PARTSYNC) -> None:
        self.acknowledged(head(DELETE_RANGE, flags), u32(table), start, end)

    def delete_limited(self, table: int, start: bytes, limit: int, flags: int = PARTSYNC) -> None:
        self.acknowledged(head(DELETE_LIMITED, flags), u32(table), start, u64(limit))

    def write_tables(self, *parts: Frames, flags: int = FULLSYNC) -> None:
        frames = [frame for part in parts for frame in part]
        self.acknowledged(head(WRITE_TABLES, flags), *frames)

    def range_job(
        self, table: int, chunk: int | None = None, start: bytes = b"", end: bytes = b""
    ) -> bytes:
        """The APID, as it came."""
        size = b"" if chunk is None else u32(chunk)
        (apid,) = self.answered(head(RANGE_JOB), u32(table), size, start, end)
        assert len(apid) == 8
        return apid

    def forward_range(self, table: int, start: bytes, end: bytes, limit: int) -> bytes:
        (apid,) = self.answered(head(FORWARD_RANGE), u32(table), start, end, u64(limit))
        assert len(apid) == 8
        return apid

    def chunk(self, apid: bytes) -> Chunk:
        header, *rest = self.ask(head(CLIENT_DATA), apid)
        assert header[:3] == head(CLIENT_DATA)
        assert header[3] in {0, NO_MORE, PARTIAL}, "flags that exclude each other"
        return Chunk(header[3], in_pairs(rest))

    def chunks(self, apid: bytes) -> list[Chunk]:
        """All that is left of a job, without the one that only says so."""
        found: list[Chunk] = []
        while (chunk := self.chunk(apid)).flags == 0:
            assert chunk.pairs
            found.append(chunk)
        if chunk.flags == PARTIAL:
            assert chunk.pairs
            found.append(chunk)
        else:
            assert not chunk.pairs
        return found

    def job_status(self, apid: bytes) -> dict[str, str]:
        fields = self.answered(head(JOB_STATUS), apid)
        return {name.decode(): value.decode() for name, value in in_pairs(fields)}


def puts(table: int, *pairs: Pair) -> Frames:
    """A modification message that puts."""
    return [u32(table) + u32(len(pairs)) + b"\x00", *flat(pairs)]


def deletes(table: int, *keys: bytes) -> Frames:
    """A modification message that deletes."""
    return [u32(table) + u32(len(keys)) + b"\x01", *keys]


def wait_for(ask: Callable[[], Found], good: Callable[[Found], bool]) -> Found:
    """Asks until the answer is good: for what is acknowledged before it is done."""
    found: list[Found] = []

    def look() -> bool:
        found[:] = [ask()]
        return good(found[0])

    wait_until(look, lambda: found, DEADLINE_S)
    return found[0]
