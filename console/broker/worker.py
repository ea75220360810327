"""The command `kelek worker run`."""

import importlib
import os
import sys
from typing import Any, NamedTuple

import click

from ...clients.broker.service_worker import (
    CONCURRENCY_MAX,
    Service,
    Worker,
    WorkerTuning,
    service,
)
from ...clients.errors import ServiceRefused
from ...protocols.majordomo.values import WINDOW_MAX
from ..cli_errors import FAILED, IMPOSSIBLE, CliError
from ..options import argument, command, option
from .target import TOPOLOGY, WORKERS, WORKERS_URL, resolve_brokers


class WorkerRequest(NamedTuple):
    topology: str | None = TOPOLOGY
    urls: tuple[str, ...] = WORKERS
    name: str | None = option("--name", metavar="SERVICE", help="Name of the service.")
    concurrency: int | None = option("--concurrency", type=click.IntRange(1, CONCURRENCY_MAX),
                                     metavar="N", help="Requests served at once.")  # fmt: skip
    window: int | None = option("--window", type=click.IntRange(1, WINDOW_MAX), metavar="N",
                                help="Requests that the broker may send before an "
                                     "answer.")  # fmt: skip
    target: str = argument(metavar="MODULE:FUNCTION")


@command
def run(request: WorkerRequest) -> None:
    """Serves with a function, or with a function decorated by @kelek.service.

    MODULE is looked up in this folder first. SIGTERM or an interrupt finishes the requests in
    progress, then ends; a second one ends at once.
    """
    served = find_service(request)
    brokers = resolve_brokers(request.topology, request.urls, WORKERS_URL)

    def on_begun() -> None:
        click.echo(f"serving service={served.name} brokers={','.join(brokers.urls)}")
        sys.stdout.flush()

    def on_failure(error: Exception) -> None:
        if isinstance(error, ServiceRefused):
            return  # An error that the function chose as its answer.
        sys.stderr.write(f"kelek: {served.name}: {type(error).__name__}: {error}\n")

    tuning = WorkerTuning(
        heartbeat_interval_ms=brokers.interval_ms,
        headers=brokers.headers,
        way_out=brokers.start.lstrip(),
    )
    worker = Worker(
        served,
        brokers.urls,
        tuning=tuning,
        on_begun=on_begun,
        on_failure=on_failure,
        **brokers.keys,
    )
    worker.run()
    counters = worker.counters
    answered, errors = counters.get("answered", 0), counters.get("failed", 0)
    click.echo(f"ended service={served.name} answered={answered} failed={errors}")


def find_service(request: WorkerRequest) -> Service[Any, Any]:
    """The service at MODULE:NAME, or the function there with --name."""
    target = request.target
    module_name, colon, path = target.partition(":")
    if not colon or not module_name or not path:
        raise CliError(f"{target}: write MODULE:FUNCTION")
    # The current folder's modules come first.
    sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        # A wrong name, or a module that can't be imported.
        is_missing = f"{module_name}.".startswith(f"{error.name}.")
        raise CliError(f"{module_name}: {error}", IMPOSSIBLE if is_missing else FAILED) from error
    except SyntaxError as error:
        raise CliError(f"{error.filename}:{error.lineno}: {error.msg}", FAILED) from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise CliError(f"{target}: {module_name} has no {path}")
        found = getattr(found, part)
    name, concurrency, window = request.name, request.concurrency, request.window
    if isinstance(found, Service):
        name, concurrency = name or found.name, concurrency or found.concurrency
        window = window or max(found.window, concurrency)
        found = found.function
    elif not callable(found):
        raise CliError(f"{target}: not a function")
    if not name:
        raise CliError(f"{target}: not a @kelek.service; give its name with --name")
    try:
        return service(name, concurrency=concurrency or 1, window=window)(found)
    except ValueError as error:
        raise CliError(f"{target}: {error}") from error
