"""Offsets in the log for Spark's checkpoints, and ranges of entries for its tasks."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

from ..errors import WrongCheckpoint


@dataclass(frozen=True)
class LogOffset:
    """The position after an entry. Term and reqid tell whether the entry is still the same."""

    cluster: str
    index: int = 0
    term: int = 0  # 0 if unknown, because the entry is no longer stored.
    reqid: str = ""  # Hexadecimal; empty if unknown or if the cluster made the entry itself.


@dataclass(frozen=True)
class FarmOffset:
    """A position in a farm's log, whose entries have no reqid."""

    farm: str
    index: int = 0
    term: int = 0
    reqid: ClassVar[str] = ""


Offset = LogOffset | FarmOffset


def log_name(origin: Offset) -> dict[str, str]:
    """Returns the name of the log by the field that holds it: {"cluster": ...}."""
    if isinstance(origin, LogOffset):
        return {"cluster": origin.cluster}
    return {"farm": origin.farm}


def decode_offset(value: Mapping[str, Any], origin: Offset) -> Offset:
    """Decodes an offset of a checkpoint.

    origin is any offset of the expected log. Raises WrongCheckpoint if the value is no offset or
    belongs to another log.
    """
    try:
        offset: Offset = type(origin)(**value)
        good = offset.index >= 0 and offset.term >= 0
    except TypeError:
        good = False
    if not good:
        raise WrongCheckpoint(f"its offset reads {dict(value)}")
    for name, whose in log_name(origin).items():
        if value[name] != whose:
            raise WrongCheckpoint(f"it is of the {name} {value[name]!r}, not of {whose!r}")
    return offset


def check_entry(offset: Offset, found: Offset) -> None:
    """Raises WrongCheckpoint if the log now has another entry at the offset's index."""
    if not offset.term or not found.term:
        return
    if offset.term != found.term:
        raise WrongCheckpoint(
            f"its entry {offset.index} has term {offset.term}, and in the log it has {found.term}"
        )
    if offset.reqid != found.reqid:
        raise WrongCheckpoint(
            f"its entry {offset.index} has the reqid {offset.reqid or 'of none'}, and in the log "
            f"it has {found.reqid or 'none'}"
        )


class LogRange(NamedTuple):
    """Entries above `after` up to `last`, which one task reads."""

    after: int
    last: int


def plan_ranges(after: int, last: int, entries: int) -> list[LogRange]:
    """Divides a range evenly into parts of at most so many entries.

    The result is the same each time Spark plans a batch.
    """
    wanted = last - after
    count = -(-wanted // entries)
    bounds = [after + wanted * number // count for number in range(count)]
    return [LogRange(*pair) for pair in pairwise([*bounds, last])]
