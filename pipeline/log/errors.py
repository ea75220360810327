"""Errors between the log and Spark, each with the way out."""

from ..errors import PipelineError


class LogUnreachable(PipelineError):
    """No node of the cluster answers, or there is no leader."""

    def __init__(self, urls: tuple[str, ...], cluster: str, why: object) -> None:
        super().__init__(
            f"{why}; does a node of cluster {cluster!r} (option cluster) run at one of "
            f"{', '.join(urls)} (option urls), and do most of its nodes run?"
        )


class WrongCheckpoint(PipelineError):
    """A stream's checkpoint belongs to another log."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"the checkpoint is not of this log: {why}. Look at the options urls and cluster; to "
            "read this log from its beginning, start the query with a new checkpointLocation"
        )


class EntriesCompacted(PipelineError):
    """The wanted entries are no longer stored."""

    def __init__(self, first_index: int, last_index: int, instead: str) -> None:
        """instead: what the reader returns in their place when the option allows that."""
        super().__init__(
            f"the entries from {first_index} to {last_index} are no longer stored: a snapshot has "
            f"taken their place. Set failOnCompaction to false to be given {instead}, or begin "
            "behind it with a new "
            f"checkpointLocation and startingIndex {last_index + 1}"
        )


class LogEnds(PipelineError):
    """The log does not contain the wanted entries."""

    def __init__(self, first_index: int, last_index: int) -> None:
        super().__init__(
            f"the entries from {first_index} to {last_index} are not in the log: it is another "
            "one than when the query was planned, or startingIndex is behind its end"
        )


class ReplayExpired(PipelineError):
    """The cluster no longer remembers the request ids of the rows' time."""

    def __init__(self, time: str, reason: str) -> None:
        super().__init__(
            f"the cluster refuses rows of the time {time} ({reason}): it no longer knows which of "
            "that time are in the log (update_ttl_s in the topology, 8 h unless it is set), so a "
            "repeat could append them twice. If the query was down for longer, look with "
            "`kelek log tail` which of its rows are there, and start it behind them with a new "
            "checkpointLocation. If one job takes longer, write smaller ones or set update_ttl_s "
            "higher. If neither, compare the clocks"
        )
