"""`kelek queue info`: how many jobs queues and brokers have; it alone asks brokers."""

from contextlib import suppress
from typing import Any

from ...clients.queue.operations import table_of
from ...clients.queue.store import JobStore
from ...protocols.failover.limits import REACH_MS
from ...protocols.majordomo.values import OWN_SERVICES
from ..broker.lists import ListRequest, fetch_all_rows
from ..cli_errors import CliError
from ..options import ServerOptions, argument, command
from ..render import show_rows
from ..table.target import open_table
from .commands import QueueOptions, check_known, queue_names


@command
def info(
    options: QueueOptions, names: tuple[str, ...] = argument(metavar="[NAME]...", nargs=-1)
) -> None:
    """Counts the jobs of queues by state: of all queues, and of the brokers' durable services.

    The counts of a durable service are those of the first broker that answers; `kelek broker queue`
    lists each broker's.
    """
    rows: list[dict[str, Any]] = []
    with open_table(None, options) as table:
        numbers = table.names()
        known = queue_names(numbers)
        for name in names or known:
            check_known(name, known)
            table._use(numbers[table_of(name)])
            rows.append({"queue": name, **table._run(JobStore(table).counts())})
    if not names and not options.urls:
        rows += durable_services(options)
    keys = ("queue", "waiting", "delayed", "running", "dead", "ended", "workers")
    show_rows(options.output, rows, keys)


def durable_services(options: ServerOptions) -> list[dict[str, Any]]:
    """The durable services of the topology's brokers, as queues. None without brokers."""
    request = ListRequest(options.topology, (), min(options.timeout_ms, REACH_MS), "json")
    found: dict[str, dict[str, Any]] = {}
    with suppress(CliError):
        for row in fetch_all_rows(request, OWN_SERVICES, "name"):
            if "durable" in row:
                counts = {"waiting": row["durable"], "running": row["working"]}
                found.setdefault(
                    row["name"], {"queue": row["name"], **counts, "workers": row["workers"]}
                )
    return [*found.values()]
