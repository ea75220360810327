"""Frame lists that are none of ZeroDB's requests, and what each must be answered with.

A row: what is wrong, the type, the frames behind the header, the code, what the message must name
(the frame, then what was expected and found). TABLE stands for a table that is there.
"""

from collections.abc import Iterator
from typing import NamedTuple

from kelek.tests.interop.zerodb import zerodb_plain as plain
from kelek.tests.interop.zerodb.zerodb_plain import Frames, head, u32, u64

TABLE = b"<table>"
LONG_KEY = b"k" * ((64 << 10) + 1)
SINGLE_TABLE_WRITES = (plain.PUT, plain.DELETE, plain.DELETE_RANGE, plain.DELETE_LIMITED)


def flags_of(kind: int) -> tuple[int, ...]:
    """With which a write is refused when it is wrong; other types have none."""
    if kind == plain.WRITE_TABLES:
        return (plain.FULLSYNC,)
    return (plain.PARTSYNC,) if kind in SINGLE_TABLE_WRITES else ()


class Invalid(NamedTuple):
    what: str
    kind: int
    frames: Frames
    code: int
    names: tuple[str, ...] = ()

    def request(self, table: int, *flags: int) -> Frames:
        behind = [frame.replace(TABLE, u32(table)) for frame in self.frames]
        return [head(self.kind, *flags), *behind]

    def __str__(self) -> str:
        return f"0x{self.kind:02x}, {self.what}"


# What follows a good table number in a good request, and the code of the type's errors.
GOOD: list[tuple[int, Frames, int]] = [
    (plain.OPEN, [b"", b"", b"", b""], 0x10),
    (plain.CLOSE, [], 0x10),
    (plain.COMPACT, [b"", b""], 0x01),
    (plain.TRUNCATE, [], 0x01),
    (plain.READ, [b"a"], 0x10),
    (plain.COUNT, [], 0x10),
    (plain.EXISTS, [b"a"], 0x10),
    (plain.SCAN, [b"", b"", b""], 0x10),
    (plain.PUT, [b"new", b"value"], 0x01),
    (plain.DELETE, [b"a"], 0x01),
    (plain.DELETE_RANGE, [b"", b""], 0x01),
    (plain.DELETE_LIMITED, [b"", u64(9)], 0x01),
    (plain.FORWARD_RANGE, [b"", b"", u64(9)], 0x10),
    (plain.RANGE_JOB, [b"", b"", b""], 0x10),
]


def tables_of_wrong_size() -> Iterator[Invalid]:
    for kind, rest, code in GOOD:
        yield Invalid("no table", kind, [], code, ("frame 1",))
        for size in (0, 3, 5, 8):
            names = ("frame 1", "4", str(size))
            yield Invalid(f"a table of {size} bytes", kind, [b"\1" * size, *rest], code, names)


def numbers_of_wrong_size() -> Iterator[Invalid]:
    def cases(
        kind: int, before: Frames, sizes: tuple[int, ...], behind: Frames
    ) -> Iterator[Invalid]:
        frame, expected = len(before) + 1, 4 if kind == plain.RANGE_JOB else 8
        code = next(code for other, _, code in GOOD if other == kind)
        for size in sizes:
            what = f"frame {frame} of {size} bytes"
            names = (f"frame {frame}", str(expected), str(size))
            yield Invalid(what, kind, [*before, b"\1" * size, *behind], code, names)

    for option in range(4):
        yield from cases(plain.OPEN, [TABLE, *[b""] * option], (1, 4, 7, 9), [b""] * (3 - option))
    yield from cases(plain.SCAN, [TABLE], (1, 4, 9), [b"", b""])
    yield from cases(plain.DELETE_LIMITED, [TABLE, b""], (0, 4, 9), [])
    yield from cases(plain.FORWARD_RANGE, [TABLE, b"", b""], (0, 4, 9), [])
    yield from cases(plain.RANGE_JOB, [TABLE], (1, 3, 8), [b"", b""])


def frames_missing() -> Iterator[Invalid]:
    """Each number of frames that is too small, except where the text lets some be left out."""
    for kind, rest, code in GOOD:
        if kind in {plain.OPEN, plain.COUNT, plain.READ, plain.EXISTS, plain.PUT, plain.DELETE}:
            continue
        for count in range(len(rest)):
            frame = f"frame {count + 2}"
            yield Invalid(f"{frame} is missing", kind, [TABLE, *rest[:count]], code, (frame,))


def empty_and_long_keys() -> Iterator[Invalid]:
    for kind, code in ((plain.READ, 0x10), (plain.EXISTS, 0x10), (plain.DELETE, 0x01)):
        yield Invalid("an empty key", kind, [TABLE, b""], code, ("frame 2",))
        yield Invalid("a later empty key", kind, [TABLE, b"a", b"b", b""], code, ("frame 4",))
        yield Invalid("a long key", kind, [TABLE, b"a", LONG_KEY], code, ("frame 3", "65537"))
    put = plain.PUT
    yield Invalid("an empty key", put, [TABLE, b"", b"v"], 0x01, ("frame 2",))
    yield Invalid("a later empty key", put, [TABLE, b"new", b"v", b"", b"v"], 0x01, ("frame 4",))
    long = [TABLE, b"new", b"v", LONG_KEY, b"v"]
    yield Invalid("a long key", put, long, 0x01, ("frame 4", "65537"))
    yield Invalid("a key without its value", put, [TABLE, b"new"], 0x10, ("frame 2",))
    odd = [TABLE, b"new", b"v", b"newer", b"v", b"odd"]
    yield Invalid("a later key without its value", put, odd, 0x10, ("frame 6",))


def modifications() -> Iterator[Invalid]:
    """Multi-table writes; the first part of each is good and must not be written either."""

    def bad(what: str, code: int, names: tuple[str, ...], *frames: bytes) -> Invalid:
        good = [TABLE + u32(1) + b"\0", b"new", b"value"]
        return Invalid(what, plain.WRITE_TABLES, [*good, *frames], code, names)

    part = u32(1) + u32(1)
    yield bad("a short part header", 0x01, ("frame 4", "9", "8"), part, b"k", b"v")
    yield bad("a long part header", 0x01, ("frame 4", "9", "10"), part + b"\0\0", b"k", b"v")
    yield bad("an unknown part", 0x01, ("frame 4", "2"), part + b"\2", b"k", b"v")
    yield bad("an empty key", 0x01, ("frame 5",), part + b"\0", b"", b"v")
    yield bad("an empty key to delete", 0x01, ("frame 5",), part + b"\1", b"")
    yield bad("a key without its value", 0x10, ("frame 5",), part + b"\0", b"k")
    many = u32(1) + u32(0xFFFFFFFF)
    yield bad("keys that are not there", 0x01, ("frame 4", "4294967295", "1"), many + b"\1", b"k")


def all_bad() -> list[Invalid]:
    return [
        *tables_of_wrong_size(),
        *numbers_of_wrong_size(),
        *frames_missing(),
        *empty_and_long_keys(),
        *modifications(),
    ]


WRITES = [bad for bad in all_bad() if bad.kind in SINGLE_TABLE_WRITES]
WRITES_OF_TABLES = list(modifications())
OTHERS = [bad for bad in all_bad() if bad not in (*WRITES, *WRITES_OF_TABLES)]

# No request at all: the protocol error, for types with bit 0x40, too.
UNRECOGNIZED: list[Frames] = [
    [b""],
    [b"\x31"],
    [b"\x31\x01"],
    [b"\x30\x01\x00"],
    [b"\x31\x02\x10", u32(1), b"a"],
    [b"\x01\x31\x10", u32(1), b"a"],
    *([head(kind), u32(1), b"a"] for kind in (0x05, 0x0F, 0x1F, 0x2F, 0x30, 0x4F, 0x6F, 0x80)),
    [head(0xFF)],
    [b"\0" * 300] * 20,
]
