"""The lists of `kelek broker`, from each broker."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack

from ...clients.broker.broker import Broker
from ...clients.broker.operations import BrokerTuning
from ...clients.errors import BrokerUnavailable
from ...protocols.majordomo import values
from ..cli_errors import FAILED, CliError
from ..options import OUTPUT, command, timeout_option
from ..render import show_rows
from .target import CLIENTS, CLIENTS_URL, TOPOLOGY, report_broker_errors, resolve_brokers

NUMBER_BYTES = 8  # Of a worker's number, after which the next rows are requested.
Rows = list[dict[str, Any]]
SERVICE_KEYS = ("name", "workers", "working", "waiting", "waiting_bytes", "oldest_ms", "done")
DURABLE_KEYS = ("durable", "durable_answers")  # Unanswered requests, and stored answers.
WORKER_KEYS = ("number", "service", "framing", "window", "working", "done", "silent_ms")


class ListRequest(NamedTuple):
    topology: str | None = TOPOLOGY
    urls: tuple[str, ...] = CLIENTS
    timeout_ms: int = timeout_option("Timeout for each broker.", 2.0)
    output: str = OUTPUT


@command
def services(request: ListRequest) -> None:
    """Lists the services with workers or requests, of each broker."""
    rows = fetch_all_rows(request, values.OWN_SERVICES, "name")
    show_brokers(rows, SERVICE_KEYS, request)


@command
def workers(request: ListRequest) -> None:
    """Lists the workers, their service and their load."""
    show_brokers(fetch_all_rows(request, values.OWN_WORKERS, "number"), WORKER_KEYS, request)


@command
def queue(request: ListRequest) -> None:
    """Lists the services with waiting requests, the longest wait first.

    Jobs of a kelek.Queue, and both together: kelek queue info.
    """
    rows = [
        row
        for row in fetch_all_rows(request, values.OWN_SERVICES, "name")
        if row["waiting"] or row.get("durable")
    ]
    rows.sort(key=lambda row: -(row["oldest_ms"] or 0))
    keys = ("name", "waiting", "waiting_bytes", "oldest_ms", "workers")
    show_brokers(rows, keys, request)


def show_brokers(rows: Rows, keys: Sequence[str], request: ListRequest) -> None:
    """Shows the columns, and those of durable services if there are any."""
    durable = DURABLE_KEYS if any("durable" in row for row in rows) else ()
    show_rows(request.output, rows, ("broker", *keys, *durable))


def fetch_all_rows(request: ListRequest, service: bytes, key: str) -> Rows:
    """The rows of all brokers that answer; fails when none does."""
    target = resolve_brokers(request.topology, request.urls, CLIENTS_URL)
    found: Rows = []
    last_error: BrokerUnavailable | None = None
    answered = False
    with report_broker_errors(target, service.decode()):
        for url in target.urls:
            tuning = BrokerTuning(headers=target.headers)
            timeout_ms = request.timeout_ms
            with Broker(url, timeout_ms=timeout_ms, tuning=tuning, **target.keys) as broker:
                try:
                    found += [{"broker": url, **row} for row in fetch_rows(broker, service, key)]
                    answered = True
                except BrokerUnavailable as error:
                    last_error = error
        if last_error is not None and not answered:
            raise last_error
    return found


def page_of(frames: Sequence[bytes]) -> Rows:
    """The rows of one answer. Raises CliError."""
    if frames == [values.MMI_NOT_IMPLEMENTED]:
        raise CliError("this is a foreign broker, without lists", FAILED)
    if frames == [values.MMI_NOT_ALLOWED]:
        raise CliError("this key has no grant `observer`", FAILED)
    return [msgpack.unpackb(frame) for frame in frames if frame]


def fetch_rows(broker: Broker, service: bytes, key: str) -> Rows:
    """All rows of one broker, page by page."""
    rows: Rows = []
    after = b""
    while True:
        page = page_of(broker.call(service, after).frames)
        rows += page
        if (
            len(page) < values.OWN_ROWS_MAX or key not in page[-1]
        ):  # An older broker sends no numbers.
            return rows
        last = page[-1][key]
        after = last.to_bytes(NUMBER_BYTES, "big") if isinstance(last, int) else last.encode()
