"""Places in the log as Spark's checkpoints keep them, and ranges of entries for its tasks."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from .errors import WrongCheckpoint


class LogOffset(NamedTuple):
    """A place behind an entry. Term and reqid tell whether the entry is still the same one."""

    cluster: str
    index: int = 0  # type: ignore[assignment]  # It hides tuple.index, which nobody misses.
    term: int = 0  # 0: not known, the entry is no longer stored.
    reqid: str = ""  # In hexadecimal; empty: not known, or the cluster made the entry itself.

    def encode(self) -> dict[str, Any]:
        """As Spark writes it into a checkpoint."""
        return self._asdict()


class FarmOffset(NamedTuple):
    """A place in a farm's log, whose entries have no reqid."""

    farm: str
    index: int = 0  # type: ignore[assignment]
    term: int = 0  # 0: not known, the entry is no longer kept.

    @property
    def reqid(self) -> str:
        return ""

    def encode(self) -> dict[str, Any]:
        """As Spark writes it into a checkpoint."""
        return self._asdict()


Offset = LogOffset | FarmOffset


def whose_of(origin: Offset) -> dict[str, str]:
    """Whose log it is, by the name of the field that says it: {"cluster": ...}."""
    return {origin._fields[0]: origin[0]}


def decode_offset(value: Mapping[str, Any], origin: Offset) -> Offset:
    """What a checkpoint holds; origin is any place of the log that is meant. Raises
    WrongCheckpoint: no offset, or of another log."""
    try:
        offset: Offset = type(origin)(**value)
        good = offset.index >= 0 and offset.term >= 0
    except TypeError:
        good = False
    if not good:
        raise WrongCheckpoint(f"its offset reads {dict(value)}")
    for name, whose in whose_of(origin).items():
        if value[name] != whose:
            raise WrongCheckpoint(f"it is of the {name} {value[name]!r}, not of {whose!r}")
    return offset


def check_entry(offset: Offset, found: Offset) -> None:
    """Raises WrongCheckpoint when the entry at the offset's index is another one by now."""
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
    """The entries behind after up to last: what one task reads."""

    after: int
    last: int


def plan_ranges(after: int, last: int, entries: int) -> list[LogRange]:
    """So many entries at most in each, evenly; the same ranges whenever a batch is planned."""
    wanted = last - after
    count = -(-wanted // entries)
    bounds = [after + wanted * number // count for number in range(count)]
    return [LogRange(*pair) for pair in pairwise([*bounds, last])]
