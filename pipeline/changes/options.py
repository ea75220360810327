"""Options of the kind `changes`."""

from dataclasses import dataclass

from ...protocols.limits import NUMBER_MAX
from ..errors import OptionError
from ..log.options import COUNT, EARLIEST, LATEST
from ..options import FLAG, OptionType, one_of, option
from ..table.options import (
    ALL,
    FAIL,
    FRAMING_AUTO,
    PER_QUERY,
    PERMISSIVE,
    TableReadOptions,
)

SNAPSHOT = "snapshot"


def _parse_after(value: str) -> str | int:
    """Parses a start: a word, or the index before it."""
    word = value.strip().lower()
    if word in (SNAPSHOT, EARLIEST, LATEST):
        return word
    if word.isdecimal() and int(word) <= NUMBER_MAX:
        return int(word)
    raise ValueError(f"snapshot, earliest, latest or an index from 0 on, not {value!r}")


AFTER = OptionType(_parse_after, "`snapshot`, `earliest`, `latest`, a LOG INDEX")


@dataclass(frozen=True, kw_only=True)
class ChangesReadOptions(TableReadOptions):
    """Which changes to read. Making one raises OptionError if the options do not go together."""

    # Options of tables that changes do not have.
    columns: str = ALL
    keys: None = None
    row_limit: None = None
    corrupt_column: None = None
    snapshot: str = PER_QUERY
    as_of_index: None = None
    as_of_timestamp: None = None
    framing: str = FRAMING_AUTO

    mode: str = option(
        one_of(PERMISSIVE, FAIL),
        "for unreadable items: `PERMISSIVE` null, `FAILFAST` an error",
        PERMISSIVE,
    )
    after: str | int = option(
        AFTER,
        "where to begin: with the rows of a snapshot, or behind this LOG INDEX",
        SNAPSHOT,
    )
    previous: bool = option(
        FLAG, "`true`: [with the value before](#the-value-before-a-change)", "false"
    )
    fail_on_compaction: bool = option(
        FLAG, "`false`: go on with [a new snapshot](#changes-that-are-lost)", "true"
    )
    entries_per_partition: int = option(COUNT, "most entries of the log of one task", "10000")
    max_entries_per_trigger: int | None = option(
        COUNT, "most entries of the log, of any table, in one batch"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.previous and self.after != SNAPSHOT:
            raise OptionError(
                f"option previous goes with after {SNAPSHOT}, not {self.after}: only the rows of "
                "a snapshot tell what was there before"
            )
        if self.previous and not self.fail_on_compaction:
            raise OptionError(
                "options previous and failOnCompaction=false do not go together: the values before "
                "lost changes are unknown"
            )
