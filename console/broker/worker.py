"""The command `kelek worker run`: a worker of a service, or of a queue."""

import asyncio
import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import click

from ...clients.broker.service_worker import (
    CONCURRENCY_MAX,
    Service,
    Worker,
    WorkerTuning,
    service,
)
from ...clients.errors import ServiceRefused, TableError
from ...clients.queue.async_queue import AsyncQueue
from ...clients.queue.operations import QueueOperations
from ...protocols.majordomo.values import WINDOW_MAX
from ..cli_errors import FAILED, IMPOSSIBLE, CliError
from ..options import argument, command, option
from ..queue.processes import PROCESSES_MAX, end_with_parent, is_child, run_processes
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
    processes: int = option("--processes", type=click.IntRange(1, PROCESSES_MAX), metavar="N",
                            default=1, show_default=True,
                            help="Run so many; one that dies is started again.")  # fmt: skip
    reload: bool = option("--reload", is_flag=True,
                          help="Start them again when a .py file below this folder "
                               "changes.")  # fmt: skip
    target: str = argument(metavar="MODULE:NAME")


@command
def run(request: WorkerRequest) -> None:
    """Serves with a function, with one decorated by @kelek.service, or works for a kelek.Queue.

    MODULE is looked up in this folder first; NAME is the function or the queue in it. SIGTERM or an
    interrupt finishes the requests or jobs in progress, then ends; a second one ends at once. A
    queue has its cluster's urls itself.
    """
    if (request.processes > 1 or request.reload) and not is_child():
        run_processes(request.processes, request.reload)
        return
    if is_child():
        end_with_parent()
    found = find_object(request.target)
    if isinstance(found, QueueOperations):
        run_queue(request, found)
    else:
        run_service(request, service_of(request, found))


def run_queue(request: WorkerRequest, queue: Any) -> None:
    """Works for a kelek.Queue or kelek.AsyncQueue until a signal comes."""
    for option_name, value in (("--url", request.urls), ("--name", request.name)):
        if value:
            raise CliError(
                f"{option_name}: {request.target} is a kelek.Queue, which has its own; "
                "leave the option out"
            )

    def on_error(error: Exception) -> None:
        sys.stderr.write(f"kelek: {queue.name}: {type(error).__name__}: {error}\n")

    click.echo(f"working queue={queue.name} pid={os.getpid()}")
    sys.stdout.flush()
    try:
        if isinstance(queue, AsyncQueue):
            asyncio.run(run_async(queue, on_error))
        else:
            with queue:
                queue.run(on_error=on_error)
    except (TableError, RuntimeError) as error:
        raise CliError(f"{queue.name}: {error}", FAILED) from error
    counts = " ".join(f"{name}={count}" for name, count in queue.counters.items())
    click.echo(f"ended queue={queue.name} {counts}")


async def run_async(queue: AsyncQueue, on_error: Callable[[Exception], object]) -> None:
    """Works until a signal comes; a second one cancels the coroutines."""
    task = asyncio.create_task(queue.run(on_error=on_error))
    signals = iter((queue.stop, task.cancel))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: next(signals, task.cancel)())
    async with queue:
        with contextlib.suppress(asyncio.CancelledError):
            await task


def run_service(request: WorkerRequest, served: Service[Any, Any]) -> None:
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


def find_object(target: str) -> Any:
    """What is at MODULE:NAME. Raises CliError."""
    module_name, colon, path = target.partition(":")
    if not colon or not module_name or not path:
        raise CliError(f"{target}: write MODULE:FUNCTION, or MODULE:NAME of a kelek.Queue in it")
    # The current folder's modules come first.
    sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        # A wrong name, or a module that can't be imported.
        is_missing = f"{module_name}.".startswith(f"{error.name}.")
        way_out = f"; is {module_name}.py in this folder?" if is_missing else ""
        code = IMPOSSIBLE if is_missing else FAILED
        raise CliError(f"{module_name}: {error}{way_out}", code) from error
    except SyntaxError as error:
        raise CliError(f"{error.filename}:{error.lineno}: {error.msg}", FAILED) from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise CliError(f"{target}: {module_name} has no {path}")
        found = getattr(found, part)
    return found


def service_of(request: WorkerRequest, found: Any) -> Service[Any, Any]:
    """The service that was found, or a function with --name. Raises CliError."""
    target = request.target
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
