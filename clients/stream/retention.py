"""Changes of a stream as a whole: it is made, it keeps more or less, and its oldest batches go."""

from ...protocols.zerodb.wire import ops
from ..table.arguments import checked_number, milliseconds
from .appender import PendingWrite, Plan, StreamTable
from .layout import OFFSET_MAX, BatchInfo, Head, Retention

SLACK = 8  # A stream holds up to an eighth more than it keeps, so that few appends have to trim.


def checked_retention(
    max_age_s: float | None, max_bytes: int | None, max_records: int | None
) -> Retention:
    """Raises TypeError, ValueError."""
    sizes = ("max_bytes", max_bytes), ("max_records", max_records)
    given = [0 if it is None else checked_number(what, it, 1, OFFSET_MAX) for what, it in sizes]
    return Retention(milliseconds(max_age_s), *given)


def is_due(head: Head, now_ms: int) -> bool:
    """Whether a stream holds so much more than it keeps that an append trims it."""
    age_ms, size, records = head.retention
    if head.first == head.next:
        return False
    return (
        bool(age_ms and now_ms - head.first_ms > age_ms + age_ms // SLACK)
        or bool(size and head.size > size + size // SLACK)
        or bool(records and head.next - head.first > records + records // SLACK)
    )


def is_kept(head: Head, batch: BatchInfo, now_ms: int) -> bool:
    """Whether a stream keeps this batch, and with it all that are behind. It keeps at least the
    records that its retention names, if they are not too many bytes."""
    age_ms, size, records = head.retention
    return (
        (not age_ms or batch.time_ms >= now_ms - age_ms)
        and (not size or batch.position >= head.position - size)
        and (not records or batch.end > head.next - records)
    )


class Creation(PendingWrite):
    """A stream is made, if it does not exist."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        self._made, self.is_new = head, False

    def plan(self, stream: StreamTable, head: Head) -> Plan | None:
        self.is_new = head is stream.defaults
        return Plan(self._made, []) if self.is_new else None


class RetentionChange(PendingWrite):
    """A stream keeps more or less from now on."""

    def __init__(self, retention: Retention) -> None:
        super().__init__()
        self._retention = retention

    def plan(self, stream: StreamTable, head: Head) -> Plan | None:
        after = head._replace(retention=self._retention)
        return None if after == head else Plan(after, [])


class Trim(PendingWrite):
    """The oldest batches go.

    kept   the first that stays; None: none of those before `end` does
    """

    def __init__(self, kept: BatchInfo | None, end: Head) -> None:
        super().__init__()
        self._kept = kept or BatchInfo(end.next, end.time_ms, end.position, 0)

    def plan(self, stream: StreamTable, head: Head) -> Plan | None:
        kept = self._kept
        if kept.first <= head.first:
            return None
        after = head._replace(first=kept.first, first_position=kept.position, first_ms=kept.time_ms)
        batches = stream.keys.batches()
        end = stream.keys.batches(kept.first).start
        return Plan(after, [ops.DeleteRange(stream.number, batches.start, end)])
