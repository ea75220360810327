"""The commands `kelek call`, `kelek worker` and `kelek broker`.

Only click is imported before a command runs. broker/commands.py, worker.py, lists.py and bench.py
have the commands.
"""

from typing import NamedTuple

import click

from .. import cli_errors
from ..options import (
    DATA,
    OUTPUT,
    argument,
    option,
    option_group,
    timeout_option,
    topology_option,
    url_option,
)

CONCURRENCY_MAX = 1024  # As in clients/broker/service_worker.py.
WINDOW_MAX = 65_535


TOPOLOGY = topology_option("The brokers of this file")
CLIENTS_URL = url_option("A broker's url for clients")
WORKERS_URL = url_option("A broker's url for workers")


class CallRequest(NamedTuple):
    topology: str | None = TOPOLOGY
    urls: tuple[str, ...] = CLIENTS_URL
    timeout_ms: int = timeout_option("Timeout of the call.")
    identity: bytes | None = option("--identity", type=DATA, metavar="NAME",
                                    help="Name of this client: octets, as BODY.")  # fmt: skip
    request_id: bytes | None = option("--id", type=DATA, metavar="ID",
                                      help="Request id: a repeat joins the first "
                                           "request.")  # fmt: skip
    partials: bool = option("--partials", is_flag=True,
                            help="Print parts of the answer as they arrive.")  # fmt: skip
    output: str = OUTPUT
    service: str = argument()
    bodies: tuple[bytes, ...] = argument(metavar="[BODY]...", type=DATA, nargs=-1)


@click.command(cls=cli_errors.Command)
@option_group("request", CallRequest)
def call(request: CallRequest) -> None:
    """Calls SERVICE, and prints its answer.

    BODY is UTF-8, or hexadecimal after 0x; `-` reads all of standard input. Each BODY is a frame.
    """
    from . import commands as broker_commands

    broker_commands.call(request)


@click.group(cls=cli_errors.Program)
def worker() -> None:
    """Workers of services: run."""


class WorkerRequest(NamedTuple):
    topology: str | None = TOPOLOGY
    urls: tuple[str, ...] = WORKERS_URL
    name: str | None = option("--name", metavar="SERVICE", help="Name of the service.")
    concurrency: int | None = option("--concurrency", type=click.IntRange(1, CONCURRENCY_MAX),
                                     metavar="N", help="Requests served at once.")  # fmt: skip
    window: int | None = option("--window", type=click.IntRange(1, WINDOW_MAX), metavar="N",
                                help="Requests that the broker may send before an "
                                     "answer.")  # fmt: skip
    target: str = argument(metavar="MODULE:FUNCTION")


@worker.command()
@option_group("request", WorkerRequest)
def run(request: WorkerRequest) -> None:
    """Serves with a function, or with a function decorated by @kelek.service.

    MODULE is looked up in this folder first. SIGTERM or an interrupt finishes the requests in
    progress, then ends; a second one ends at once.
    """
    from . import worker as worker_commands

    worker_commands.run(request)


@click.group(cls=cli_errors.Program)
def broker() -> None:
    """Brokers: services, workers, queue, bench."""


class ListRequest(NamedTuple):
    topology: str | None = TOPOLOGY
    urls: tuple[str, ...] = CLIENTS_URL
    timeout_ms: int = timeout_option("Timeout for each broker.", 2.0)
    output: str = OUTPUT


list_options = option_group("request", ListRequest)


@broker.command()
@list_options
def services(request: ListRequest) -> None:
    """Lists the services with workers or requests, of each broker."""
    from . import lists as broker_lists

    broker_lists.services(request)


@broker.command()
@list_options
def workers(request: ListRequest) -> None:
    """Lists the workers, their service and their load."""
    from . import lists as broker_lists

    broker_lists.workers(request)


@broker.command()
@list_options
def queue(request: ListRequest) -> None:
    """Lists the services with waiting requests, the longest wait first."""
    from . import lists as broker_lists

    broker_lists.queue(request)


class BenchRequest(NamedTuple):
    topology: str | None = TOPOLOGY
    urls: tuple[str, ...] = CLIENTS_URL
    workers_url: str | None = option("--workers-url", metavar="URL",
                                     help="The broker's url for workers, with --url.")  # fmt: skip
    timeout_ms: int = timeout_option("Give up after this time without an answer.")
    requests: int = option("--count", type=click.IntRange(1, 100_000_000), default=100_000,
                           show_default=True, help="Number of requests.")  # fmt: skip
    outstanding: int = option("--outstanding", type=click.IntRange(1, 65_536), default=100,
                              show_default=True, help="Requests in flight.")  # fmt: skip
    alone: int = option("--alone", type=click.IntRange(0, 1_000_000), default=200,
                        show_default=True, help="Further requests, sent one at a "
                                                "time.")  # fmt: skip
    size: int = option("--size", type=click.IntRange(0, 64_000_000), default=64,
                       show_default=True, help="Size of a request in bytes, without "
                                               "BODY.")  # fmt: skip
    workers: int = option("--workers", type=click.IntRange(1, 1000), default=4, show_default=True,
                          help="Number of the bench's own workers.")  # fmt: skip
    window: int = option("--window", type=click.IntRange(1, WINDOW_MAX), default=32,
                         show_default=True, help="Window of each of them.")  # fmt: skip
    output: str = OUTPUT
    service: str | None = argument(required=False)
    bodies: tuple[bytes, ...] = argument(metavar="[BODY]...", type=DATA, nargs=-1)


@broker.command()
@option_group("request", BenchRequest)
def bench(request: BenchRequest) -> None:
    """Measures throughput and latency of a running broker.

    The requests go to workers of this command, which return the body, or to workers of SERVICE,
    which has to do that much work. `python -m kelek.bench broker`, in a clone, measures more, with
    brokers of its own.
    """
    from . import bench as broker_bench

    broker_bench.bench(request)
