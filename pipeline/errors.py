"""Errors of the pipeline. Each message says what to do."""

from ..clients.errors import Compacted, Error, Refused, Unavailable


class PipelineError(Error):
    """Root of the pipeline's errors."""


class OptionError(PipelineError, ValueError):
    """An option is unknown, is missing or has an invalid value."""


class SchemaError(PipelineError, ValueError):
    """The columns differ from those that the source returns or the sink accepts."""


class NoJava(PipelineError):
    """No Java that Spark supports was found."""


class TableUnreachable(PipelineError, Unavailable):
    """No table server answers, or none can serve the request."""

    def __init__(self, why: object) -> None:
        super().__init__(f"{why} (options urls and timeoutMs)")


class LogUnreachable(PipelineError, Unavailable):
    """No node of the cluster answers, or there is no leader."""

    def __init__(self, why: object) -> None:
        super().__init__(f"{why} (options urls and cluster)")


class WrongCheckpoint(PipelineError):
    """A stream's checkpoint belongs to another log."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"the checkpoint is not of this log: {why}. Look at the options urls and cluster; to "
            "read this log from its beginning, start the query with a new checkpointLocation"
        )


class EntriesCompacted(PipelineError, Compacted):
    """The wanted entries are no longer stored."""

    def __init__(self, first_index: int, last_index: int, instead: str) -> None:
        """instead: what the reader returns in their place when the option allows that."""
        super().__init__(
            f"the entries from {first_index} to {last_index} are no longer stored: a snapshot has "
            f"taken their place. Set failOnCompaction to false to be given {instead}, or begin "
            "behind it with a new "
            f"checkpointLocation and after {last_index}"
        )


class ChangesLost(PipelineError, Compacted):
    """Changes of a table are no longer kept."""

    def __init__(self, table: object, after: int, last: int) -> None:
        """after, last: where the query is, and the last LOG INDEX whose changes may be lost."""
        super().__init__(
            f"the changes of table {table} behind LOG INDEX {after} are no longer kept, as the log "
            f"was compacted, and those up to {last} may be lost. Set failOnCompaction to false to "
            "go on with the rows of a new snapshot, behind a row that deletes the range. Or begin "
            "with a new checkpointLocation: with the rows of a snapshot, or without what was lost "
            f"by after {last}"
        )


class PreviousUnknown(PipelineError, Compacted):
    """The values before changes are not known at the start of a query."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"the values before the changes of this query are unknown: {why}. Start the query with "
            "a new checkpointLocation, or leave option previous out to go on without them"
        )


class LogEnds(PipelineError):
    """The log does not contain the wanted entries."""

    def __init__(self, first_index: int, last_index: int) -> None:
        super().__init__(
            f"the entries from {first_index} to {last_index} are not in the log: it is another "
            "one than when the query was planned, or option after is behind its end"
        )


class ReplayExpired(PipelineError, Refused):
    """The cluster no longer remembers the request ids of the rows' time."""

    def __init__(self, time: str, reason: str) -> None:
        super().__init__(
            f"the cluster refuses rows of the time {time} ({reason}): it no longer knows which of "
            "that time are in the log (update_ttl_s in the topology, 8 h unless it is set), so a "
            "repeat could append them twice. If the query was down for longer, look with "
            "`kelek log entries` which of its rows are there, and start it behind them with a new "
            "checkpointLocation. If one job takes longer, write smaller ones or set update_ttl_s "
            "higher. If neither, compare the clocks"
        )


class FarmUnreachable(PipelineError, Unavailable):
    """No server of the farm answers, or there is no leader."""

    def __init__(self, why: object) -> None:
        super().__init__(f"{why} (options urls and farm)")


class FarmRefuses(PipelineError, Refused):
    """The servers refuse the user, or their certificate is not trusted."""

    def __init__(self, why: object) -> None:
        super().__init__(
            f"{why}; look at the options user, secretFile (a file with the password alone, that "
            "only you may read, on each executor) and caFile (whose certificates are trusted)"
        )
