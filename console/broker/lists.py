"""The lists of `kelek broker`, from each broker, without their command line."""

from collections.abc import Sequence
from typing import Any

import msgpack

from ...clients.broker.broker import Broker
from ...clients.broker.operations import BrokerTuning
from ...clients.errors import BrokerUnavailable
from ...protocols.majordomo.values import (
    MMI_NOT_IMPLEMENTED,
    OWN_ROWS_MAX,
    OWN_SERVICES,
    OWN_WORKERS,
)
from ..cli_errors import FAILED, CliError
from ..output import show_json, show_table
from ..targets import Where
from .target import CLIENTS_URL, find_brokers, in_one_line

NUMBER_BYTES = 8  # Of a worker's number, after which the next rows are requested.
Rows = list[dict[str, Any]]
SERVICE_KEYS = ("name", "workers", "working", "waiting", "waiting_bytes", "oldest_ms", "done")
DURABLE_KEYS = ("durable", "durable_answers")  # Of durable services.
WORKER_KEYS = ("number", "service", "framing", "window", "working", "done", "silent_ms")


def services(options: Where) -> None:
    rows = fetch_all_rows(options, OWN_SERVICES, "name")
    show(rows, with_durable(SERVICE_KEYS, rows), options)


def workers(options: Where) -> None:
    show(fetch_all_rows(options, OWN_WORKERS, "number"), WORKER_KEYS, options)


def queue(options: Where) -> None:
    rows = [
        row
        for row in fetch_all_rows(options, OWN_SERVICES, "name")
        if row["waiting"] or row.get("durable")
    ]
    rows.sort(key=lambda row: -(row["oldest_ms"] or 0))
    keys = ("name", "waiting", "waiting_bytes", "oldest_ms", "workers")
    show(rows, with_durable(keys, rows), options)


def with_durable(keys: Sequence[str], rows: Rows) -> Sequence[str]:
    """Adds the columns of durable services: unanswered requests, and stored answers."""
    return (*keys, *DURABLE_KEYS) if any("durable" in row for row in rows) else keys


def show(rows: Rows, keys: Sequence[str], options: Where) -> None:
    if options["output"] == "json":
        for row in rows:
            show_json(row)
        return
    keys = ("broker", *keys)
    show_table(keys, [[row.get(key) for key in keys] for row in rows])


def fetch_all_rows(options: Where, service: bytes, key: str) -> Rows:
    """The rows of all brokers that answer; fails when none does."""
    target = find_brokers(options, CLIENTS_URL)
    timeout_ms = int(options["timeout_s"] * 1000)
    found: Rows = []
    lost: BrokerUnavailable | None = None
    answered = False
    with in_one_line(target, service.decode()):
        for url in target.urls:
            tuning = BrokerTuning(headers=target.headers)
            with Broker(url, timeout_ms=timeout_ms, tuning=tuning) as broker:
                try:
                    found += [{"broker": url, **row} for row in fetch_rows(broker, service, key)]
                    answered = True
                except BrokerUnavailable as error:
                    lost = error
        if lost is not None and not answered:
            raise lost
    return found


def fetch_rows(broker: Broker, service: bytes, key: str) -> Rows:
    """All rows of one broker, page by page."""
    rows: Rows = []
    behind = b""
    while True:
        frames = broker.call(service, behind).frames
        if frames == [MMI_NOT_IMPLEMENTED]:
            raise CliError("this is a foreign broker, without lists", FAILED)
        some = [msgpack.unpackb(frame) for frame in frames if frame]
        rows += some
        if len(some) < OWN_ROWS_MAX or key not in some[-1]:  # An older broker sends no numbers.
            return rows
        last = some[-1][key]
        behind = last.to_bytes(NUMBER_BYTES, "big") if isinstance(last, int) else last.encode()
