"""The processes of a node that apply the log, and the worker of each table."""

from collections.abc import Mapping
from typing import Any

STATE_MACHINE = "state_machine"
TABLE_WORKER = "table_worker"


def worker_names(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of a node's table workers by their number; none without a `zerodb:` section."""
    zerodb = options.get("zerodb")
    if zerodb is None:
        return ()
    return tuple(
        TABLE_WORKER if number == 0 else f"{TABLE_WORKER}.{number + 1}"
        for number in range(zerodb["workers"])
    )


def worker_of(options: Mapping[str, Any], table: int) -> int:
    """The number of the worker that holds a table."""
    return table % int(options["zerodb"]["workers"])


def participants(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The processes whose state a snapshot holds. None applies entries before all installed it."""
    return (STATE_MACHINE, *worker_names(options))
