"""The commands `kelek call`, `kelek worker` and `kelek broker`.

Only click is imported before a command runs. broker/commands.py, worker.py, lists.py and bench.py
have the commands.
"""

from collections.abc import Callable
from typing import Any

import click

from .. import cli_errors
from ..options import DATA, F, Seconds, output_option

CONCURRENCY_MAX = 1024  # As in clients/broker/service_worker.py.
WINDOW_MAX = 65_535


def broker_options(whose: str) -> Callable[[F], F]:
    """The options that select brokers."""

    def decorate(command: F) -> F:
        topology = click.option(
            "-t", "--topology", metavar="FILE", type=click.Path(),
            help="The brokers of this file (default: ./topology.yaml, else the demo's).",
        )  # fmt: skip
        url = click.option(
            "--url", "urls", multiple=True, metavar="URL",
            help=f"A broker's url for {whose}, instead of a topology; may be given again.",
        )  # fmt: skip
        return topology(url(command))

    return decorate


@click.command()
@broker_options("clients")
@click.option("--timeout", "timeout_s", type=Seconds(0.1, 86_400), default=10.0, show_default=True,
              metavar="SECONDS", help="Timeout of the call.")  # fmt: skip
@click.option("--identity", type=DATA, metavar="NAME",
              help="Name of this client: octets, as BODY.")  # fmt: skip
@click.option("--id", "request_id", type=DATA, metavar="ID",
              help="Request id: a repeat joins the first request.")  # fmt: skip
@click.option("--partials", is_flag=True, help="Print parts of the answer as they arrive.")
@output_option
@click.argument("service")
@click.argument("bodies", metavar="[BODY]...", type=DATA, nargs=-1)
@cli_errors.report_errors
def call(service: str, bodies: tuple[bytes, ...], output: str, **options: Any) -> None:
    """Calls SERVICE, and prints its answer.

    BODY is UTF-8, or hexadecimal after 0x; `-` reads all of standard input. Each BODY is a frame.
    """
    from . import commands as broker_commands

    broker_commands.call(service, bodies, output, options)


@click.group(cls=cli_errors.Program)
def worker() -> None:
    """Workers of services: run."""


@worker.command()
@broker_options("workers")
@click.option("--name", metavar="SERVICE", help="Name of the service.")
@click.option("--concurrency", type=click.IntRange(1, CONCURRENCY_MAX), metavar="N",
              help="Requests served at once.")  # fmt: skip
@click.option("--window", type=click.IntRange(1, WINDOW_MAX), metavar="N",
              help="Requests that the broker may send before an answer.")  # fmt: skip
@click.argument("target", metavar="MODULE:FUNCTION")
@cli_errors.report_errors
def run(target: str, **options: Any) -> None:
    """Serves with a function, or with a function decorated by @kelek.service.

    MODULE is looked up in this folder first. SIGTERM or an interrupt finishes the requests in work,
    then ends; a second one ends at once.
    """
    from . import worker as worker_commands

    worker_commands.work(target, options)


@click.group(cls=cli_errors.Program)
def broker() -> None:
    """Brokers: services, workers, queue, bench."""


def listing(command: Callable[..., None]) -> Callable[..., None]:
    """The options of all lists."""
    timeout = click.option("--timeout", "timeout_s", type=Seconds(0.1, 86_400), default=2.0,
                           show_default=True, metavar="SECONDS",
                           help="Timeout for each broker.")  # fmt: skip
    return broker_options("clients")(timeout(output_option(cli_errors.report_errors(command))))


@broker.command()
@listing
def services(**options: Any) -> None:
    """Lists the services with workers or requests, of each broker."""
    from . import lists as broker_lists

    broker_lists.services(options)


@broker.command()
@listing
def workers(**options: Any) -> None:
    """Lists the workers, their service and their load."""
    from . import lists as broker_lists

    broker_lists.workers(options)


@broker.command()
@listing
def queue(**options: Any) -> None:
    """Lists the services with waiting requests, the longest wait first."""
    from . import lists as broker_lists

    broker_lists.queue(options)


@broker.command()
@broker_options("clients")
@click.option("--workers-url", metavar="URL", help="The broker's url for workers, with --url.")
@click.option("--timeout", "timeout_s", type=Seconds(0.1, 86_400), default=10.0, show_default=True,
              metavar="SECONDS", help="Give up after this time without an answer.")  # fmt: skip
@click.option("--count", type=click.IntRange(1, 100_000_000), default=100_000, show_default=True,
              help="Number of requests.")  # fmt: skip
@click.option("--outstanding", type=click.IntRange(1, 65_536), default=100, show_default=True,
              help="Requests in flight.")  # fmt: skip
@click.option("--alone", type=click.IntRange(0, 1_000_000), default=200, show_default=True,
              help="Further requests, sent one at a time.")  # fmt: skip
@click.option("--size", type=click.IntRange(0, 64_000_000), default=64, show_default=True,
              help="Size of a request in bytes, without BODY.")  # fmt: skip
@click.option("--workers", type=click.IntRange(1, 1000), default=4, show_default=True,
              help="Number of the bench's own workers.")  # fmt: skip
@click.option("--window", type=click.IntRange(1, WINDOW_MAX), default=32, show_default=True,
              help="Window of each of them.")  # fmt: skip
@output_option
@click.argument("service", required=False)
@click.argument("bodies", metavar="[BODY]...", type=DATA, nargs=-1)
@cli_errors.report_errors
def bench(service: str | None, bodies: tuple[bytes, ...], output: str, **options: Any) -> None:
    """Measures throughput and latency at a running broker.

    The requests go to workers of this command, which return the body, or to SERVICE, which has to
    do that much work. `python -m kelek.bench broker` measures more, with brokers of its own.
    """
    from . import bench as broker_bench

    broker_bench.bench(service, bodies, output, options)
