"""What an entry costs those who apply it: twice the operations are twice the work, whatever they
are. Counted are lines of Python, keys read from the engine and column families, not seconds."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from kelek.protocols.zerodb.tables.tables import TableEntry
from kelek.protocols.zerodb.wire.ops import (
    ABSENT,
    Attach,
    Compare,
    Delete,
    DeleteLimited,
    DeleteRange,
    Expire,
    Expiry,
    Get,
    Op,
    Part,
    Put,
    SessionEnd,
    SessionKeep,
    SessionOpen,
    Transaction,
    Truncate,
)
from kelek.storage.engine.families import Resources
from kelek.storage.engine.rocks import RocksTables, open_tables

FEW = 200
REQID = b"request id 1"


def name(number: int) -> bytes:
    return b"%06d" % (number * 7919 % 1_000_003)  # In no order.


def names(count: int) -> list[bytes]:
    return [name(number) for number in range(count)]


def compare_and_put(number: int) -> Op:
    key = name(number)
    then: list[Op] = [Put(7, [key], [b"1"])]
    return Transaction(7, b"%012d" % number, [Compare(7, key, ABSENT)], then, [])


def leased(count: int) -> list[Op]:
    """Keys of one session, put one by one."""
    return [op for key in names(count) for op in (Put(7, [key], [b"1"]), Attach(7, 1, [key]))]


def puts(count: int) -> list[Op]:
    return [Put(7, names(count), [b"1"] * count)]


def part(number: int) -> Op:
    return Part(7, REQID, number, 1 << 15, b"x")


# What stands in an entry before, and what an entry of so many operations is made of.
ENTRIES: dict[str, tuple[Callable[[int], list[Op]], Callable[[int], list[Op]]]] = {
    "transactions": (puts, lambda n: [compare_and_put(one) for one in range(n)]),
    "sessions that end": (
        lambda n: [SessionOpen(7, 1000, 1)] * n,
        lambda n: [SessionEnd(7, one) for one in range(1, n + 1)],
    ),
    "no session ends": (lambda n: [], lambda n: [SessionEnd(7, 99)] * n),
    "a session is kept": (
        lambda n: [SessionOpen(7, 1000, 1)],
        lambda n: [SessionKeep(7, 1, now) for now in range(n)],
    ),
    "a session's keys": (lambda n: [SessionOpen(7, 1000, 1)], leased),
    "the first key of what is there": (puts, lambda n: [DeleteLimited(7, b"", 1)] * n),
    "the first key of what is put": (
        lambda n: [],
        lambda n: puts(n) + [DeleteLimited(7, b"", 1)] * n,
    ),
    "nothing is left": (puts, lambda n: [DeleteLimited(7, b"", n)] * n),
    "beyond many": (puts, lambda n: [DeleteLimited(7, b"", 2000)] * n),
    "what expires at once": (
        lambda n: [*puts(n), Expiry(7, 10, names(n))],
        lambda n: [Expire(7, 10)] * n,
    ),
    "what expires one by one": (
        lambda n: [Put(7, names(n), [b"1"] * n)]
        + [Expiry(7, 10 + at, [key]) for at, key in enumerate(names(n))],
        lambda n: [Expire(7, 10 + at) for at in range(n)],
    ),
    "ranges that are read": (
        puts,
        lambda n: [
            op for key in names(n) for op in (DeleteRange(7, key, key + b"\0"), compare_and_put(0))
        ],
    ),
    "open ranges": (
        puts,
        lambda n: [
            op for key in names(n) for op in (Put(7, [key], [b""]), DeleteRange(7, key, b""))
        ],
    ),
    "pieces": (lambda n: [], lambda n: [part(number) for number in range(n)]),
}  # fmt: skip


class Work:
    """What was done while it was counted."""

    def __init__(self) -> None:
        self.lines = 0
        self.rows = 0

    def __enter__(self) -> "Work":
        self._before = sys.gettrace()
        sys.settrace(self._on_call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _on_call(self, frame: FrameType, event: str, _: Any) -> Any:
        return self._on_line if "/storage/" in frame.f_code.co_filename else None

    def _on_line(self, frame: FrameType, event: str, _: Any) -> Any:
        self.lines += event == "line"
        return self._on_line


def applied(folder: Path, kind: str, count: int) -> Work:
    """The work of one entry, on tables of its own."""
    before, entry = (make(count) for make in ENTRIES[kind])
    tables = open_tables(str(folder / f"{count}"), Resources.of(8 << 20, 32 << 20), replicated=True)
    read = tables.scan
    work = Work()

    def scan(*range_: Any, **options: Any) -> Iterator[Any]:
        for pair in read(*range_, **options):
            work.rows += 1
            yield pair

    tables.write([TableEntry(1, 1, before)])
    tables.scan = scan  # type: ignore[method-assign]
    with work:
        tables.write([TableEntry(2, 1, entry)])
    tables.close()
    return work


@pytest.mark.parametrize("kind", ENTRIES)
def test_twice_the_operations_are_twice_the_work(tmp_path: Path, kind: str) -> None:
    once, twice = (applied(tmp_path, kind, count) for count in (FEW, 2 * FEW))
    assert twice.lines < 2.3 * once.lines, (once.lines, twice.lines)
    assert twice.rows <= 2 * once.rows + 2 * FEW, (once.rows, twice.rows)


# ---- column families ----

MANY = 40


def families(tables: RocksTables) -> int:
    """Column families of the database, of tables or in store."""
    return len(tables.families) + sum(map(len, tables.spare_families.values()))


def branch(table: int, *ops: Op) -> Op:
    """A transaction that does these, and on whose other branch a table would be made."""
    return Transaction(table, bytes(12), [], list(ops), [Put(table, [b"k"], [b"v"])])


@pytest.mark.parametrize(
    "make",
    [
        lambda table: Delete(table, [b"k"]),
        lambda table: DeleteRange(table, b"", b""),
        lambda table: DeleteLimited(table, b"", 1),
        lambda table: DeleteLimited(table, b"", 1 << 40),
        lambda table: Truncate(table),
        lambda table: Expiry(table, 10, [b"k"]),
        lambda table: Attach(table, 1, [b"k"]),
        lambda table: branch(table, Delete(table, [b"k"]), DeleteRange(table, b"", b"")),
        lambda table: branch(table, Get(table, [b"k"]), Attach(table, 1, [b"k"])),
    ],
    ids=["delete", "range", "limited", "many", "truncate", "expiry", "attach", "then", "get"],
)
def test_only_a_put_makes_a_table(rocks: RocksTables, make: Callable[[int], Op]) -> None:
    before = families(rocks)
    rocks.write([TableEntry(1, 1, [make(table) for table in range(MANY)])])
    assert rocks.tables() == {}
    assert families(rocks) == before


def test_an_entry_makes_few_families_more_than_tables(rocks: RocksTables) -> None:
    """Also where the branch of a transaction is not known before it runs."""
    puts_of_new_tables = [branch(table, Put(table, [b"k"], [b"v"])) for table in range(MANY)]
    rocks.write([TableEntry(1, 1, [*puts_of_new_tables, *puts_of_new_tables])])
    assert len(rocks.tables()) == MANY
    assert all(rocks.get(table, [b"k"]) == [b"v"] for table in range(MANY))
    assert families(rocks) < 4 * MANY
