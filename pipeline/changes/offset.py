"""Offsets of a stream of changes, for Spark's checkpoints."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ...protocols.zerodb.wire.values import SHARED_LEASE, is_shared
from ..errors import WrongCheckpoint


@dataclass(frozen=True)
class ChangesOffset:
    """The position behind an entry of the log.

    table      the table's number
    index      LOG INDEX of the entry; -1: before everything, as option after says
    snapshot   the lease of the snapshot whose rows the batch before this offset has; 0: it has
               changes. Its index is that of the lease
    splits     keys that divide these rows among tasks, hexadecimal
    state      a lease of a snapshot at or before the index, from which the pairs at the index
               follow; 0: none is needed
    """

    table: int
    index: int = -1
    snapshot: int = 0
    splits: tuple[str, ...] = ()
    state: int = 0

    @property
    def is_start(self) -> bool:
        return self.index < 0

    def encoded(self) -> dict[str, Any]:
        return {**asdict(self), "splits": [*self.splits]}


def index_of(lease: int) -> int:
    """The LOG INDEX of a lease that all nodes have."""
    return lease & ~SHARED_LEASE


def decoded_offset(value: Mapping[str, Any], table: int) -> ChangesOffset:
    """Decodes an offset of a checkpoint. Raises WrongCheckpoint if the value is no offset or is of
    another table."""
    try:
        found = ChangesOffset(**{**value, "splits": tuple(value.get("splits", ()))})
        numbers = (found.table, found.index, found.snapshot, found.state)
        good = all(type(number) is int and number >= -1 for number in numbers)
        good = good and all(not lease or is_shared(lease) for lease in numbers[2:])
        good = good and all(bytes.fromhex(key) for key in found.splits)
    except (TypeError, ValueError):
        good = False
    if not good:
        raise WrongCheckpoint(f"its offset reads {dict(value)}")
    if found.table != table:
        raise WrongCheckpoint(f"it is of table {found.table}, not of {table}")
    return found
