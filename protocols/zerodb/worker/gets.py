"""Reads values in few calls of the database, of many clients together."""

from collections.abc import Sequence

from ..tables.tables import Tables

GET_BYTES = 8 << 20  # Of values that one call of the database should return.
GET_KEYS_MAX = 4096  # In one call.
GET_KEYS_FIRST = 8  # In one call while the size of a table's values is unknown.
TABLE_ESTIMATES_MAX = 10_000


class ValueReader:
    """Reads values, as many keys in a call as should return GET_BYTES, by the sizes of earlier
    values of the table."""

    def __init__(self) -> None:
        self._keys_per_call: dict[int, int] = {}

    def room(self, table: int) -> int:
        """How many keys the next call may have."""
        return self._keys_per_call.get(table, GET_KEYS_FIRST)

    def read(self, database: Tables, table: int, keys: list[bytes]) -> list[bytes | None]:
        """The values of keys. Equal keys share one value in memory. Raises StorageFailure."""
        unique = dict.fromkeys(keys)
        if len(unique) == len(keys):
            found = database.get(table, keys)
        else:
            by_key = dict(zip(unique, database.get(table, list(unique)), strict=True))
            found = [by_key[key] for key in keys]
        average = max(size_of(found) // max(len(found), 1), 64)
        room = min(max(GET_BYTES // average, 1), GET_KEYS_MAX)
        step = self.room(table)
        if len(self._keys_per_call) > TABLE_ESTIMATES_MAX:
            self._keys_per_call.clear()
        self._keys_per_call[table] = min(room, 8 * step)
        return found


def size_of(found: Sequence[bytes | None]) -> int:
    """The size of values in bytes."""
    return sum(len(value) for value in found if value)
