"""`kelek queue`: the jobs of queues (kelek.Queue), for operators."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any, NamedTuple

import click

from ...clients.queue.job import JobInfo
from ...clients.queue.operations import TABLE_PREFIX, TRIES_MAX, checked_id, table_of
from ...clients.queue.queue import Queue
from ...clients.queue.records import PRIORITY_MAX, TIME_MS_MAX
from ...clients.table.codecs import CODECS
from ..cli_errors import FAILED, CliError
from ..options import OUTPUT, Seconds, ServerOptions, argument, command, option
from ..render import show_json, show_rows, time_text
from ..table.target import open_table, reach, report_table_errors, resolve_tables

LIST_MAX = 1_000_000
BODY_CHARACTERS = 60  # Of a body in a list.
NAME = argument(metavar="NAME")
JOB = argument(metavar="JOB")
JOBS = argument(metavar="JOB...", nargs=-1, required=True)
QueueOptions = Annotated[ServerOptions, {"output": OUTPUT}]
CODEC = option("--codec", type=click.Choice([*CODECS]), default="msgpack", show_default=True,
               help="How the queue's bodies are stored.")  # fmt: skip
LIMIT = option("--limit", type=click.IntRange(1, LIST_MAX), metavar="N", default=100,
               show_default=True, help="At most so many jobs.")  # fmt: skip
KEYS = ("id", "state", "priority", "attempts", "due", "body")
DEAD_KEYS = ("id", "priority", "attempts", "error", "body")


class NewJobRequest(NamedTuple):
    """A job that the command line puts."""

    delay_s: float = option("--delay", type=Seconds(0, TIME_MS_MAX / 1e6), metavar="SECONDS",
                            default=0.0, help="It is due so long from now.")  # fmt: skip
    priority: int = option("--priority", type=click.IntRange(0, PRIORITY_MAX), metavar="N",
                           default=5, show_default=True,
                           help="0 to 9, the highest first.")  # fmt: skip
    unique: str = option("--unique", metavar="KEY", default="",
                         help="Put none while a job with this key waits or runs.")  # fmt: skip
    tries: int = option("--tries", type=click.IntRange(0, TRIES_MAX), metavar="N", default=0,
                        help="Failures that make it a dead letter (default: the "
                             "worker's).")  # fmt: skip


@command
def list_(
    options: QueueOptions,
    name: str = NAME,
    state: str = option(
        "--state",
        type=click.Choice(["waiting", "running", "dead", "ended"]),
        default="waiting",
        show_default=True,
        help="waiting: also those not due yet.",
    ),
    limit: int = LIMIT,
    codec: str = CODEC,
) -> None:
    """Lists the jobs of the queue NAME, in the order in which workers take them.

    `kelek queue info` lists the queues.
    """
    with opened(options, name, codec) as queue:
        jobs = queue.jobs(state, limit=limit)
    show_jobs(options, name, jobs, KEYS)


@command
def dead(options: QueueOptions, name: str = NAME, limit: int = LIMIT, codec: str = CODEC) -> None:
    """Lists the dead letters of the queue NAME, with their last failure."""
    with opened(options, name, codec) as queue:
        jobs = queue.jobs("dead", limit=limit)
    show_jobs(options, name, jobs, DEAD_KEYS)


@command
def show(options: QueueOptions, name: str = NAME, job: str = JOB, codec: str = CODEC) -> None:
    """Shows a job: its state, body, failures and progress."""
    with opened(options, name, codec) as queue:
        found = queue.get(checked_job(job))
        if found is None:
            raise CliError(f"{name}: there is no job {job}, or its end is no longer kept", FAILED)
        row = row_of(found)
        row["errors"] = [{"at": time_text(1000 * at), "text": text} for at, text in found.errors]
        if options.output == "json":
            show_json(row)
            return
        errors, row["body"] = row.pop("errors"), body_text(row["body"])
        for key, value in row.items():
            if value is not None:
                click.echo(f"{key:10} {value}")
        for error in errors:
            click.echo(f"failure    {error['at']} {error['text']}")


@command
def put(
    options: QueueOptions,
    request: NewJobRequest,
    name: str = NAME,
    body: str = argument(metavar="BODY"),
    codec: str = CODEC,
) -> None:
    """Puts a job into the queue NAME, and prints its id. BODY is JSON; other text is a string."""
    value: Any = body
    with suppress(ValueError):
        value = json.loads(body)
    if codec in ("text", "bytes"):
        value = body if codec == "text" else body.encode()
    with opened(options, name, codec) as queue:
        job = queue.put(
            value,
            delay_s=request.delay_s,
            priority=request.priority,
            unique=request.unique,
            tries=request.tries,
        )
    if options.output == "json":
        show_json({"id": job})
    else:
        click.echo(job)


@command
def cancel(options: QueueOptions, name: str = NAME, jobs: tuple[str, ...] = JOBS) -> None:
    """Ends jobs that wait or run, and removes dead letters.

    A function that runs is not interrupted; its result is not stored.
    """
    with opened(options, name) as queue:
        for job in jobs:
            if not queue.cancel(checked_job(job)):
                raise CliError(f"{name}: job {job} has ended, or there is none", FAILED)


@command
def retry(
    options: QueueOptions,
    name: str = NAME,
    jobs: tuple[str, ...] = argument(metavar="[JOB]...", nargs=-1),
    all_dead: bool = option("--all", is_flag=True, help="All dead letters."),
) -> None:
    """Makes dead letters waiting jobs again, with all their tries."""
    if bool(jobs) == all_dead:
        raise CliError("give a JOB, or --all")
    with opened(options, name) as queue:
        if all_dead:
            count = 0
            while found := queue.jobs("dead", limit=1000):
                count += sum(queue.retry(job.id) for job in found)
            click.echo(f"{count} jobs wait again")
            return
        for job in jobs:
            if not queue.retry(checked_job(job)):
                raise CliError(f"{name}: job {job} is no dead letter", FAILED)


def queue_names(tables: Iterable[str]) -> list[str]:
    """The queues of a cluster, by the names of its tables."""
    return [
        name.removeprefix(TABLE_PREFIX)
        for name in sorted(tables)
        if name.startswith(TABLE_PREFIX) and len(name) > len(TABLE_PREFIX)
    ]


@contextmanager
def opened(options: ServerOptions, name: str, codec: str = "msgpack") -> Iterator[Queue]:
    """The queue of a command; its errors end the command with one line."""
    try:
        table = table_of(name)
    except ValueError as error:
        raise CliError(str(error)) from error
    target = resolve_tables(options)
    with report_table_errors(target, table):
        queue = Queue(
            target.urls.values(), name, codec=codec, timeout_ms=options.timeout_ms, **target.keys
        )
        with queue:
            reach(queue._table, options.timeout_ms)
            yield queue


def checked_job(job: str) -> str:
    """Raises CliError."""
    try:
        checked_id(job)
    except ValueError as error:
        raise CliError(str(error)) from error
    return job


def check_known(name: str, known: list[str]) -> None:
    """Raises CliError."""
    if name not in known:
        raise CliError(f"no queue has the name {name}; list them: kelek queue info", FAILED)


def show_jobs(options: QueueOptions, name: str, jobs: list[JobInfo], keys: tuple[str, ...]) -> None:
    if not jobs:
        with open_table(None, options) as table:
            known = queue_names(table.names())
        check_known(name, known)
    rows = [row_of(job) for job in jobs]
    if options.output == "text":
        for row in rows:
            body = body_text(row["body"])
            row["body"] = body if len(body) <= BODY_CHARACTERS else f"{body[:BODY_CHARACTERS]}..."
    show_rows(options.output, rows, keys)


def row_of(job: JobInfo) -> dict[str, Any]:
    """A job as JSON can have it."""
    row: dict[str, Any] = {
        "id": job.id,
        "state": job.state,
        "priority": job.priority,
        "attempts": job.attempts,
        "put": time_of(job.put_s),
        "due": time_of(job.due_s),
        "session": job.session or None,
        "progress": None,
        "error": job.errors[-1][1] if job.errors else None,
        "body": job.body,
    }
    if job.progress is not None:
        row["progress"] = f"{job.progress[0]:.0%} {job.progress[1]}".rstrip()
    try:
        json.dumps(job.body)
    except (TypeError, ValueError):
        row["body"] = repr(job.body)
    return row


def body_text(body: Any) -> str:
    """A row's body for people, and for `kelek queue put` again."""
    return body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)


def time_of(at_s: float) -> str | None:
    """A Unix time in UTC; None: there is none."""
    return time_text(1000 * at_s) if at_s else None
