"""The processes of a node that apply the log, and the worker of each table."""

from ..topology.settings import NodeSettings

STATE_MACHINE = "state_machine"
TABLE_WORKER = "table_worker"


def worker_names(settings: NodeSettings) -> tuple[str, ...]:
    """The names of a node's table workers by their number; none without a `zerodb:` section."""
    if settings.node.zerodb is None:
        return ()
    return tuple(
        TABLE_WORKER if number == 0 else f"{TABLE_WORKER}.{number + 1}"
        for number in range(settings.zerodb.workers)
    )


def participants(settings: NodeSettings) -> tuple[str, ...]:
    """The processes whose state a snapshot holds. None applies entries before all installed it."""
    return (STATE_MACHINE, *worker_names(settings))
