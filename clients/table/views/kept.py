"""The methods of kelek.Table and kelek.AsyncTable for kept snapshots: reads at an older index."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from ....protocols.zerodb.wire import answers, requests
from ....protocols.zerodb.wire.catalogue import is_table_name
from ....protocols.zerodb.wire.kept import KeptRow, decode_kept, kept_key, kept_prefix
from ....protocols.zerodb.wire.values import (
    FEATURE_KEPT_SNAPSHOTS,
    PACKED,
    SNAPSHOT_TABLE,
    TABLE_NAME_BYTES_MAX,
    Extension,
)
from ...errors import SnapshotNotKept, TableError, TableNameConflict
from ...io.operations import Operation, operation
from ..arguments import behind_prefix, checked_number, milliseconds
from ..jobs import TableJobs
from ..operations import decoded
from ..pages import pairs_of

KEEP_S = 86_400.0
ROWS_A_PAGE = 1000
SHOWN = 8  # Snapshots that an error names.
NUL = b"\0"  # Below all keys of the list.
AsOf = int | str | datetime


@dataclass(frozen=True, slots=True)
class KeptSnapshot:
    """A snapshot of a table that all nodes keep until a time.

    index    the LOG INDEX of the last entry in it, by which reads name it
    table    the number of its table
    name     as given to keep_snapshot(); "": none
    taken    when it was taken, by the clock of a node, in UTC
    until    when it ends, likewise
    owner    the name of the key that keeps it; "": none
    number   as ClusterSnapshot.number, for other processes
    """

    index: int
    table: int
    name: str
    taken: datetime
    until: datetime
    owner: str
    number: int

    @classmethod
    def of(cls, row: KeptRow) -> Self:
        taken, until = (
            datetime.fromtimestamp(unix_ms / 1000, UTC) for unix_ms in (row.taken_ms, row.until_ms)
        )
        return cls(row.log_index, row.table, row.name, taken, until, row.owner, row.lease)

    def __str__(self) -> str:
        named = f"{self.name}, " if self.name else ""
        return f"{self.index} ({named}{self.taken.isoformat(timespec='seconds')})"


def found_as_of(kept: Sequence[KeptSnapshot], as_of: AsOf, table: int | str) -> KeptSnapshot:
    """The snapshot that reads as of an index, a name or a time see. Raises SnapshotNotKept."""
    if isinstance(as_of, datetime):
        what = f"was taken at {as_of.isoformat(timespec='seconds')} or before"
        found = [each for each in kept if each.taken <= as_of]
    elif isinstance(as_of, str):
        what = f"has the name {as_of}"
        found = [each for each in kept if each.name == as_of]
    else:
        what = f"has index {as_of}"
        found = [each for each in kept if each.index == as_of]
    if found:
        return max(found, key=lambda each: (each.taken, each.index))
    raise SnapshotNotKept(f"no kept snapshot of table {table} {what}; {_named(kept)}")


def _named(kept: Sequence[KeptSnapshot]) -> str:
    if not kept:
        return "none is kept: keep_snapshot(), or kelek table snapshot keep, keeps one"
    more = f" and {len(kept) - SHOWN} older ones" if len(kept) > SHOWN else ""
    return f"these are kept: {', '.join(map(str, kept[-SHOWN:]))}{more}"


def checked_snapshot_name(name: str) -> str:
    """Raises TypeError, ValueError."""
    if not isinstance(name, str):
        raise TypeError(f"a snapshot's name is a str, not {type(name).__name__}")
    if not is_table_name(name):
        raise ValueError(
            f"a snapshot's name has 1 to {TABLE_NAME_BYTES_MAX} characters of A-Z, a-z, 0-9 and "
            f"_.- and begins with a letter or _, not {name[: TABLE_NAME_BYTES_MAX + 1]!r}"
        )
    return name


def checked_as_of(as_of: AsOf) -> AsOf:
    """Raises TypeError, ValueError."""
    if isinstance(as_of, datetime):
        return as_of.astimezone(UTC)
    if isinstance(as_of, str):
        return checked_snapshot_name(as_of)
    return checked_number("an index", as_of)


class TableSnapshots(TableJobs):
    """Keeps snapshots on all nodes, lists and finds them."""

    @operation
    def keep_snapshot(self, *, name: str = "", ttl_s: float = KEEP_S) -> Operation[KeptSnapshot]:
        """Takes a snapshot of a replicated table on all nodes, as
        open_snapshot(), and keeps it without a reader until a time. Read it
        with snapshot(as_of=).

        name    for reads and people; of several with one name the newest is
                read
        ttl_s   it ends after so many seconds: up to ten years

        While it is kept the nodes' disks hold the rows that it has and the
        table no longer. Raises TableRefused, TableUnsupported.
        """
        ttl_ms = milliseconds(ttl_s)
        if name:
            checked_snapshot_name(name)
        yield from self._check_feature(FEATURE_KEPT_SNAPSHOTS, "keep snapshots")
        if not (yield from self._find()):
            raise TableNameConflict(f"no table has the name {self._name}")
        lease = (yield from TableJobs.open_snapshot(self)).number
        asked = requests.Lease(
            lease, requests.SNAPSHOT_KEEP, self._number, ttl_ms=ttl_ms, name=name
        )
        try:
            row = yield from self._fetch(asked, answers.KEPT)
        except TableError:
            with suppress(TableError):  # It ends by itself, too.
                yield from TableJobs.release(self, lease)
            raise
        return decoded(_kept_of, [(kept_key(self._number, lease), row)])[0]

    @operation
    def snapshots(self, *, all_tables: bool = False) -> Operation[list[KeptSnapshot]]:
        """The kept snapshots of the table, or of all tables, the oldest
        first."""
        found: list[KeptSnapshot] = []
        if not (yield from self._find()) and not all_tables:
            return found
        prefix = kept_prefix(self._number)
        start, end = (NUL, b"") if all_tables else (prefix, behind_prefix(prefix))
        while start:
            page = requests.Scan(SNAPSHOT_TABLE, ROWS_A_PAGE, start, end, Extension(PACKED))
            exchange, answer = yield from self._ask(page)
            assert isinstance(exchange.sent, requests.Scan)
            pairs, _, start = decoded(pairs_of, answer, exchange.sent)
            found += _kept_of(pairs)
        return sorted(found, key=lambda each: each.index)

    @operation
    def find_snapshot(self, as_of: AsOf) -> Operation[KeptSnapshot]:
        """The kept snapshot that snapshot(as_of=) reads.

        as_of   its index; its name: the newest one with it; or a datetime: the
                newest one that was taken then or before. Without a zone it is
                local time

        Raises SnapshotNotKept, which names those that are kept.
        """
        wanted = checked_as_of(as_of)
        kept = yield from TableSnapshots.snapshots(self)
        return found_as_of(kept, wanted, self._name or self._number)

    @operation
    def release_snapshot(self, index: int) -> Operation[None]:
        """Ends a kept snapshot on all nodes, after the reads that go on.

        Raises SnapshotNotKept.
        """
        kept = yield from TableSnapshots.find_snapshot(self, checked_number("an index", index))
        ended = requests.Lease(kept.number, requests.SNAPSHOT_KEEP, kept.table)
        yield from self._ask(ended)


def _kept_of(rows: Iterable[tuple[bytes, bytes]]) -> list[KeptSnapshot]:
    return [KeptSnapshot.of(row) for row in decode_kept(rows)]
