"""Places in the log as Spark's checkpoints keep them, and ranges of entries for its tasks."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from .log_errors import WrongCheckpoint


class LogOffset(NamedTuple):
    """A place behind an entry. Term and reqid tell whether the entry is still the same one."""

    cluster: str
    index: int = 0  # type: ignore[assignment]  # It hides tuple.index, which nobody misses.
    term: int = 0  # 0: not known, the entry is no longer stored.
    reqid: str = ""  # In hexadecimal; empty: not known, or the cluster made the entry itself.

    def encode(self) -> dict[str, Any]:
        """As Spark writes it into a checkpoint."""
        return self._asdict()


def decode_offset(value: Mapping[str, Any], cluster: str) -> LogOffset:
    """What a checkpoint holds. Raises WrongCheckpoint: no offset, or of another cluster."""
    try:
        offset = LogOffset(**value)
        good = offset.index >= 0 and offset.term >= 0
    except TypeError:
        good = False
    if not good:
        raise WrongCheckpoint(f"its offset reads {dict(value)}")
    if offset.cluster != cluster:
        raise WrongCheckpoint(f"it is of the cluster {offset.cluster!r}, not of {cluster!r}")
    return offset


def check_entry(offset: LogOffset, found: LogOffset) -> None:
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
