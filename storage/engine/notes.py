"""Small values of the table SYSTEM in memory: most transactions read them, and they are the same
few."""

from collections.abc import Iterable, Sequence

from ...native.tables.row_cache import RowChange
from ...protocols.zerodb.tables.effects import RECORDS_COUNT
from ...protocols.zerodb.tables.gate import KNOWN
from ...protocols.zerodb.tables.operations import COUNTERS, FLOOR, LIFETIME_COUNTS, SESSION
from ...protocols.zerodb.tables.tables import SYSTEM

KEPT = frozenset((COUNTERS, FLOOR, LIFETIME_COUNTS, SESSION, RECORDS_COUNT, KNOWN))
NOTES_MAX = 4096


class Notes:
    """Values of SYSTEM whose keys begin with a byte of KEPT, as the database has them."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes | None] = {}  # None: there is no such key.

    def found(self, keys: Sequence[bytes]) -> list[bytes | None] | None:
        """The values of keys; None: some are not here."""
        try:
            return [self._values[key] for key in keys]
        except KeyError:
            return None

    def keep(self, keys: Iterable[bytes], values: Iterable[bytes | None]) -> None:
        """The database has these values now."""
        for key, value in zip(keys, values, strict=True):
            if key[:1] in KEPT:
                if len(self._values) >= NOTES_MAX:
                    self._values.clear()
                self._values[key] = value

    def write(self, changes: Iterable[RowChange]) -> None:
        """A write to the database has changed these rows."""
        for table, keys, values in changes:
            if table == SYSTEM:
                self.keep(keys, [None] * len(keys) if values is None else values)
