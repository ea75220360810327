"""Writes tables on a real disk until it is killed, and says on stdout how far it is.

    python tables_drill.py PATH replicated|local COUNT [BALLAST STUCK_S]

The entry at an index always holds the same operations, on each node, so that a reader can
tell. A line `written INDEX` follows each write, `durable INDEX` what must be there after a crash.
When the disk is full: `full PROBLEM`, then the file BALLAST is removed; `again INDEX` when the
tables take writes, from INDEX on. STUCK_S is how long the engine may take for that by itself.
"""

import select
import sys
import time
from pathlib import Path
from random import Random

from kelek.protocols.zerodb.tables.tables import TableEntry, Tables
from kelek.protocols.zerodb.wire import ops
from kelek.protocols.zerodb.wire.values import TableOptions
from kelek.storage.engine import rocks
from kelek.storage.engine.families import Resources
from kelek.storage.errors import StorageError

FLUSH_EVERY = 97
DEADLINE_S = 60.0


def entry(index: int) -> TableEntry:
    """A few operations; one in 40 entries makes or truncates a table."""
    random = Random(index)
    return TableEntry(
        index, 1 + index // 100, [operation(random) for _ in range(random.randint(1, 4))]
    )


def operation(random: Random) -> ops.Op:
    table = random.randint(1, 5)
    keys = [b"%03d" % random.randrange(300) for _ in range(random.randint(1, 20))]
    match random.randrange(40):
        case 0:
            return ops.Truncate(table)
        case 1:
            return ops.Open(table, TableOptions(1 << 20, 1 << 10, 1 << 20, 10, False))
        case 2:
            return ops.DeleteRange(table, min(keys), max(keys))
        case 3:
            return ops.DeleteLimited(table, keys[0], len(keys))
        case 4:
            return ops.Expiry(table, random.randrange(1000), keys)
        case 5:
            return ops.SessionOpen(table, random.randrange(1000), 0)
        case 6:
            return ops.Attach(table, random.randrange(1000), keys)
        case 7:
            return ops.Expire(table, random.randrange(500))
        case 8 | 9:
            return ops.Delete(table, keys)
        case 10 | 11 | 12:
            then: list[ops.Op] = [ops.Put(table, keys[1:], [b"then"] * (len(keys) - 1))]
            compare = ops.Compare(table % 5 + 1, keys[0], ops.EQUAL, b"then")
            return ops.Transaction(
                table, random.randbytes(12), [compare], then, [ops.Delete(table, keys)]
            )
        case _:
            sizes = (4, 40, 2000)
            return ops.Put(table, keys, [random.randbytes(random.choice(sizes)) for _ in keys])


def say(*words: object) -> None:
    print(*words, flush=True)


def wait_for_space(tables: Tables, ballast: str) -> None:
    """Reads go on; the space comes back; the tables find out by themselves."""
    say("full", tables.problem)
    hashes = [tables.content_hash(table) for table in tables.tables()]
    tables.recover()  # A small write may still find room.
    assert hashes == [tables.content_hash(table) for table in tables.tables()]
    Path(ballast).unlink(missing_ok=True)
    until = time.monotonic() + DEADLINE_S
    while not tables.recover():
        assert time.monotonic() < until, tables.problem
        select.select([], [], [], 0.1)
    say("again", tables.applied[0])


def main() -> int:
    path, kind, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    local = kind == "local"
    if len(sys.argv) > 5:
        rocks.FULL_S = rocks.STALLED_S = float(sys.argv[5])
    tables = rocks.open_tables(path, Resources.of(1 << 20, 2 << 20), not local)
    say("durable", tables.applied[0])
    while tables.applied[0] < count:
        index, full = tables.applied[0] + 1, False
        try:
            tables.write([entry(index)], sync=local)
            say("durable" if local else "written", index)
            if index % FLUSH_EVERY == 0 and len(sys.argv) < 5:  # The engine shall do it.
                tables.flush()
                say("durable", index)
        except StorageError:
            if len(sys.argv) < 5:
                raise
            full = True
        if full:
            wait_for_space(tables, sys.argv[4])
    tables.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
