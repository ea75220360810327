"""The commands `kelek call`, `kelek worker` and `kelek broker`: services, from a shell.

Only click is imported before a command runs; what commands do is in broker/commands.py,
broker/worker.py, broker/lists.py and broker/bench.py.
"""

from collections.abc import Callable
from typing import Any

import click

from .. import cli_errors
from ..options import DATA, F, Seconds, output_option

CONCURRENCY_MAX = 1024  # As clients/broker/service_worker.py has it.
WINDOW_MAX = 65_535


def broker_options(whose: str) -> Callable[[F], F]:
    """Which broker is meant."""

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
              metavar="SECONDS", help="Give up after so long.")  # fmt: skip
@click.option("--identity", type=DATA, metavar="NAME",
              help="Be the client of this name: octets, as BODY.")  # fmt: skip
@click.option("--id", "request_id", type=DATA, metavar="ID",
              help="The request's id: a second one of this client is the first again.")  # fmt: skip
@click.option("--partials", is_flag=True, help="Print parts of the answer as they come.")
@output_option
@click.argument("service")
@click.argument("bodies", metavar="[BODY]...", type=DATA, nargs=-1)
@cli_errors.report_errors
def call(service: str, bodies: tuple[bytes, ...], output: str, **options: Any) -> None:
    """Asks SERVICE, and prints its answer.

    BODY is UTF-8, or with 0x in front hexadecimal; `-` is all of standard input. Each is a frame of
    its own.
    """
    from . import commands as broker_commands

    broker_commands.call(service, bodies, output, options)


@click.group(cls=cli_errors.Program)
def worker() -> None:
    """Workers that offer services at a broker: run."""


@worker.command()
@broker_options("workers")
@click.option("--name", metavar="SERVICE", help="Offer it as this one.")
@click.option("--concurrency", type=click.IntRange(1, CONCURRENCY_MAX), metavar="N",
              help="Serve so many requests at once.")  # fmt: skip
@click.option("--window", type=click.IntRange(1, WINDOW_MAX), metavar="N",
              help="Have so many handed out ahead.")  # fmt: skip
@click.argument("target", metavar="MODULE:FUNCTION")
@cli_errors.report_errors
def run(target: str, **options: Any) -> None:
    """Serves with a function, or with what @kelek.service has made of one.

    MODULE is looked for in this folder first. With SIGTERM, or when it is interrupted, it finishes
    what it has and ends; the second time it ends at once.
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
                           help="Wait so long for a broker.")  # fmt: skip
    return broker_options("clients")(timeout(output_option(cli_errors.report_errors(command))))


@broker.command()
@listing
def services(**options: Any) -> None:
    """The services that have workers or requests, of each broker."""
    from . import lists as broker_lists

    broker_lists.services(options)


@broker.command()
@listing
def workers(**options: Any) -> None:
    """The workers, what they offer and what they have to do."""
    from . import lists as broker_lists

    broker_lists.workers(options)


@broker.command()
@listing
def queue(**options: Any) -> None:
    """The services whose requests wait for a worker, the one that waits longest first."""
    from . import lists as broker_lists

    broker_lists.queue(options)


@broker.command()
@broker_options("clients")
@click.option("--workers-url", metavar="URL", help="The broker's url for workers, with --url.")
@click.option("--timeout", "timeout_s", type=Seconds(0.1, 86_400), default=10.0, show_default=True,
              metavar="SECONDS", help="Give up after so long without an answer.")  # fmt: skip
@click.option("--count", type=click.IntRange(1, 100_000_000), default=100_000, show_default=True,
              help="How many requests.")  # fmt: skip
@click.option("--outstanding", type=click.IntRange(1, 65_536), default=100, show_default=True,
              help="How many of them at a time.")  # fmt: skip
@click.option("--alone", type=click.IntRange(0, 1_000_000), default=200, show_default=True,
              help="How many more, each sent when the one before is answered.")  # fmt: skip
@click.option("--size", type=click.IntRange(0, 64_000_000), default=64, show_default=True,
              help="Bytes in each, where no BODY is given.")  # fmt: skip
@click.option("--workers", type=click.IntRange(1, 1000), default=4, show_default=True,
              help="How many workers of our own.")  # fmt: skip
@click.option("--window", type=click.IntRange(1, WINDOW_MAX), default=32, show_default=True,
              help="How many requests each of them is given ahead.")  # fmt: skip
@output_option
@click.argument("service", required=False)
@click.argument("bodies", metavar="[BODY]...", type=DATA, nargs=-1)
@cli_errors.report_errors
def bench(service: str | None, bodies: tuple[bytes, ...], output: str, **options: Any) -> None:
    """Measures requests a second and their latency at a broker that runs.

    They are for workers of our own that send back what they get, or for SERVICE, which then does
    so much work. `python -m kelek.bench broker` measures more, on brokers of its own.
    """
    from . import bench as broker_bench

    broker_bench.bench(service, bodies, output, options)
