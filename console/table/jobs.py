"""`kelek table copy`, `map` and `jobs`: jobs that run on a node.

Each node numbers its own jobs.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from threading import Thread
from typing import Any, NamedTuple, TypeVar

import click

from ...clients.errors import TableError, TableRefused
from ...clients.table.table import Table
from ...protocols.zerodb.wire.values import (
    COPY_TABLE,
    LIMIT_MAX,
    LISTED_JOBS_MAX,
    MAP_TABLE,
    MAPPER_BYTES_MAX,
    THREADS_MAX,
)
from ..cli_errors import FAILED, INTERRUPTED, CliError
from ..client_keys import of_urls
from ..loading import read_file
from ..options import (
    DATA,
    TABLE,
    TABLE_TYPE,
    KeyRange,
    OutputOptions,
    ServerOptions,
    argument,
    command,
    option,
)
from ..render import progress_line, show, show_json, show_table
from ..targets import reach
from .target import check_local, open_table, resolve_tables

WASM, BITCODE = b"\0asm", b"BC\xc0\xde"
KINDS = {MAP_TABLE: "map", COPY_TABLE: "copy"}  # All others are range jobs.
VERBS = {"map": "mapped", "copy": "copied", "range": "handed out"}
AMOUNTS = "rows", "bytes", "chunks", "puts", "deletes"
ON_SPARK = "tasks", "tasks_done", "staged"
NUMBERS = "apid", "request_type", "table", "target", *AMOUNTS, *ON_SPARK
TIMES = "started", "ended"
HEADERS = ["node", "job", "kind", "table", "into", "state", "rows", "puts", "deletes", "began", "s"]
RUNNING, DONE = "running", "done"

T = TypeVar("T")
Job = dict[str, Any]  # A node's statistics, with numbers converted, and `node`.


class JobNode(NamedTuple):
    name: str
    options: ServerOptions  # They select only this node.
    words: str  # The same for a command line.


def job_nodes(options: ServerOptions) -> list[JobNode]:
    """The nodes of the command. Raises CliError."""
    target = resolve_tables(options)
    nodes = []
    for name, url in target.urls.items():
        file = f"-t {options.topology} " if options.topology else ""
        words = f"{file}--node {name}" if target.topology else f"--url {url}"
        nodes.append(JobNode(name, options.only(url), words))
    return nodes


class JobRequest(NamedTuple):
    """The source and target table of a job, and whether to wait for it."""

    number: int | str = TABLE
    target: int | str = argument(metavar="TARGET", type=TABLE_TYPE)
    wait: bool = option("--wait/--no-wait", default=True, show_default=True,
                        help="Wait until the job has ended, or only until it has "
                             "started.")  # fmt: skip


def serving_node(job: JobRequest, options: ServerOptions) -> JobNode:
    """The node that serves the table now. The job runs there without this client."""
    check_local(resolve_tables(options), job.target)
    with open_table(job.number, options) as table:
        url = table.server().url
    return next(node for node in job_nodes(options) if node.options.urls == (url,))


# ---- start a job ----


@command
def copy(options: OutputOptions, job: JobRequest, key_range: KeyRange) -> None:
    """Makes a node copy a snapshot of TABLE, or of a range of it, into the table TARGET.

    Other keys in TARGET stay. The job continues when you interrupt the command: see `kelek table
    jobs`.
    """
    number, bounds = job.number, key_range.bounds()
    if number == job.target:
        raise CliError(f"TARGET: table {number} cannot be copied into itself; name another one")
    node = serving_node(job, options)
    with open_table(number, node.options) as table:
        apid = table.copy_into(job.target, **bounds)
        follow(StartedJob(node, table, apid, "copied"), job.wait)


class Parameter(click.ParamType[tuple[bytes, bytes]]):
    """KEY=VALUE, both as DATA."""

    name = "parameter"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[bytes, bytes]:
        if isinstance(value, tuple):
            return value
        key, sign, rest = value.partition("=")
        if not key or not sign:
            self.fail(f"{value!r} is no parameter; write KEY=VALUE", param, ctx)
        return DATA.convert(key, param, ctx), DATA.convert(rest, param, ctx)


class MapRequest(NamedTuple):
    parameters: tuple[tuple[bytes, bytes], ...] = option(
        "-p", "--parameter", multiple=True, type=Parameter(), metavar="KEY=VALUE",
        help="For the mapper; repeatable.",
    )  # fmt: skip
    threads: int = option("--threads", type=click.IntRange(1, THREADS_MAX), default=1,
                          show_default=True,
                          help="Number of concurrent mappers; their outputs mix.")  # fmt: skip
    mapper: str = argument(metavar="MAPPER", type=click.Path(allow_dash=True))


@command
def map_(options: OutputOptions, job: JobRequest, request: MapRequest) -> None:
    """Makes a node run the program in the file MAPPER over a snapshot of TABLE.

    The node writes the program's output to the table TARGET. MAPPER is WebAssembly, compiled or as
    text (.wat), or LLVM bitcode: see docs/guides/mapper.md. The job continues when you interrupt
    the command: see `kelek table jobs`.
    """
    mapper = read_mapper(request.mapper)
    node = serving_node(job, options)
    with open_table(job.number, node.options) as table:
        apid = table.map_into(
            job.target, mapper, parameters=request.parameters, threads=request.threads
        )
        follow(StartedJob(node, table, apid, "mapped"), job.wait)


def read_mapper(name: str) -> bytes:
    """A mapper as WebAssembly or bitcode; WebAssembly text is compiled. Raises CliError."""
    data = read_file(name, MAPPER_BYTES_MAX, "; give a mapper that can be read, or -")
    if len(data) > MAPPER_BYTES_MAX:
        raise CliError(f"{name}: a mapper has at most {MAPPER_BYTES_MAX} bytes")
    if data.startswith((WASM, BITCODE)):
        return data
    if not data.lstrip().startswith((b"(", b";;")):
        forms = "WebAssembly, its text (.wat) or LLVM bitcode"
        raise CliError(f"{name}: not a mapper; a mapper is {forms} (docs/guides/mapper.md)")
    return compile_text(name, data)


def compile_text(name: str, text: bytes) -> bytes:
    try:
        import wasmtime
    except ImportError as error:
        way_out = "pip install 'kelek[wasm]', or give it compiled"
        raise CliError(f"{name}: WebAssembly's text needs wasmtime here; {way_out}") from error
    try:
        return bytes(wasmtime.wat2wasm(text))
    except wasmtime.WasmtimeError as error:
        raise CliError(f"{name}: {first_error(str(error))}") from error


def first_error(message: str) -> str:
    """The position and the first line of a compiler's message."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    arrow = next((line for line in lines if line.startswith("-->")), "")
    position = arrow.partition(">")[2].strip().removeprefix("<anon>:")
    return f"{position}: {lines[0]}" if position else lines[0]


# ---- wait for a job ----


class StartedJob(NamedTuple):
    """A job that the command waits for."""

    node: JobNode
    table: Table
    apid: int
    verb: str  # Of its result: copied, mapped.

    @property
    def name(self) -> str:
        return f"job {self.apid} of {self.node.name}"

    @property
    def command(self) -> str:
        return f"kelek table jobs {self.apid} {self.node.words}"


def follow(job: StartedJob, wait: bool) -> None:
    """Waits until a job has ended and prints its result. Raises CliError when it failed."""
    output = job.node.options.output
    if not wait:
        text = f"{job.name} has started; show it: {job.command}"
        show(output, {"node": job.node.name, "apid": job.apid}, text)
        return
    try:
        with progress_line() as show_line:
            statistics = job.table.wait_job(
                job.apid,
                progress=lambda now: show_line(
                    f"{int(now['rows']):,} rows read, {int(now['puts']):,} put"
                ),
            )
    except KeyboardInterrupt:
        way_out = f"show it: {job.command}; cancel it: {job.command} --end"
        raise CliError(f"{job.name} continues; {way_out}", INTERRUPTED) from None
    except TableRefused as error:
        way_out = "its output stays; start it again"
        raise CliError(
            f"{job.name} is lost with its process: {error}; {way_out}", FAILED
        ) from error
    except TableError as error:
        raise CliError(f"{job.name}: {error}; show it: {job.command}", FAILED) from error
    found = parse_job(job.node.name, statistics)
    if output == "json":
        show_json(found)
    if found["state"] != DONE:
        raise CliError(f"{job.name} {failure_text(found)}", FAILED)
    if output == "text":
        seconds = max(found["ended"] - found["started"], 1) / 1000
        written = f"{found['puts']:,} puts, {found['deletes']:,} deletes"
        rate = f"{round(found['rows'] / seconds):,} rows/s"
        click.echo(f"{job.verb} {found['rows']:,} rows in {seconds:.1f} s: {rate}; {written}")


def failure_text(job: Job) -> str:
    written = f"{job['puts']:,} puts and {job['deletes']:,} deletes were written before"
    if job["state"] != "failed":
        return f"was {job['state']}; {written}"
    reason = f": {job['reason']}" if job["reason"] else ""
    return f"has failed{reason}; {written}"


# ---- list, show and end jobs ----


class JobsRequest(NamedTuple):
    apid: int | None = argument(metavar="[JOB]", type=click.IntRange(0, LIMIT_MAX), required=False)
    running: bool = option("--running", is_flag=True, help="Only running jobs.")
    limit: int = option("-n", "--limit", type=click.IntRange(1, LISTED_JOBS_MAX), default=20,
                        show_default=True, metavar="N",
                        help="At most N jobs of each node.")  # fmt: skip
    wait: bool = option("--wait", is_flag=True,
                        help="Wait until JOB has ended; exit code 1 if it failed.")  # fmt: skip
    end: bool = option("--end", is_flag=True, help="Cancel JOB; its output stays.")


@command
def jobs(options: OutputOptions, request: JobsRequest) -> None:
    """Prints the newest copy, map and range jobs of each node, or the details of one JOB."""
    apid = request.apid
    if apid is None:
        if request.end or request.wait:
            raise CliError("--end and --wait need the number of a job")
        list_jobs(request, options)
        return
    if request.end and request.wait:
        raise CliError("--end: --wait is given too; leave one of them out")
    known = find_job(apid, options)
    if not (request.end or request.wait):
        for number, (_, job) in enumerate(known):
            if number and options.output == "text":
                click.echo()
            show_job(job, options.output)
        return
    if len(known) > 1:
        way_out = " or ".join(node.words for node, _ in known)
        raise CliError(f"job {apid}: several nodes have a job of that number; add {way_out}")
    ((node, job),) = known
    if request.end:
        show_job(end_job(node, apid), options.output)
        return
    with open_table(None, node.options) as table:
        follow(StartedJob(node, table, apid, VERBS[job["kind"]]), True)


def show_job(job: Job, output: str) -> None:
    if output == "json":
        show_json(job)
        return
    for name, value in job.items():
        text = time_text(value) if name in TIMES else value
        click.echo(f"{name:<14} {f'{text:,}' if name in AMOUNTS else text}")


def end_job(node: JobNode, apid: int) -> Job:
    with open_table(None, node.options) as table:
        try:
            table.end_job(apid)
        except TableRefused as error:
            raise CliError(f"job {apid} of {node.name}: {error}", FAILED) from error
        return parse_job(node.name, table.job_status(apid))


def list_jobs(request: JobsRequest, options: ServerOptions) -> None:
    """Prints the newest jobs of every node. Raises CliError when no node answers."""
    answers, silent = query_all(
        options, lambda table: table.jobs(running=request.running, limit=request.limit)
    )
    found = [parse_job(node.name, statistics) for node, answer in answers for statistics in answer]
    if options.output == "json":
        for job in found:
            show_json(job)
    elif found:
        show_table([*HEADERS, ""], [job_row(job) for job in found])
    for node, error in silent:
        click.echo(f"{node.name}: {error}", err=True)
    if not answers:
        raise CliError("no node answers; does one run? kelek table info", FAILED)


def find_job(apid: int, options: ServerOptions) -> list[tuple[JobNode, Job]]:
    """The nodes that know the job, at least one, and its state there. Raises CliError."""
    answers, errors = query_all(options, lambda table: table.job_status(apid))
    if answers:
        return [(node, parse_job(node.name, answer)) for node, answer in answers]
    problems = (
        str(error) if isinstance(error, TableRefused) else f"{node.name}: {error}"
        for node, error in errors
    )
    raise CliError(f"job {apid}: {'; '.join(dict.fromkeys(problems))}", FAILED)


def query_all(
    options: ServerOptions, query: Callable[[Table], T]
) -> tuple[list[tuple[JobNode, T]], list[tuple[JobNode, TableError]]]:
    """The answers of the nodes, and the errors of the others.

    Each is asked in a thread of its own, so lost nodes cost one timeout; asyncio would cost more to
    import than to run.
    """
    answers: dict[JobNode, T] = {}
    errors: dict[JobNode, TableError] = {}

    def ask(table: Table, within_ms: int) -> T:
        table.timeout_ms = within_ms
        return query(table)

    def query_node(node: JobNode, table: Table) -> None:
        try:
            with table:
                answers[node] = reach(partial(ask, table), node.options.timeout_ms)
        except TableError as error:
            errors[node] = error

    nodes = job_nodes(options)
    threads = []
    for node in nodes:
        urls = node.options.urls
        table = Table(urls, **of_urls(urls))
        threads.append(Thread(target=query_node, args=(node, table), daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join()
    return (
        [(node, answers[node]) for node in nodes if node in answers],
        [(node, errors[node]) for node in nodes if node in errors],
    )


def parse_job(node: str, statistics: dict[str, str]) -> Job:
    """A node's statistics of a job, with numbers converted."""
    job: Job = {"node": node}
    for name, value in statistics.items():
        job[name] = int(value) if name in (*NUMBERS, *TIMES) else value
    job["kind"] = KINDS.get(job.get("request_type", 0), "range")
    return job


def job_row(job: Job) -> Sequence[str]:
    ended_ms = job["ended"] or time.time() * 1000
    seconds = max(0, ended_ms - job["started"]) / 1000
    numbers = (f"{job[name]:,}" for name in ("rows", "puts", "deletes"))
    kind = job["kind"], str(job["table"]), str(job.get("target", "-"))
    times = time_text(job["started"]), f"{seconds:.1f}"
    return (job["node"], str(job["apid"]), *kind, job["state"], *numbers, *times, job["reason"])


def time_text(unix_ms: int) -> str:
    if not unix_ms:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_ms / 1000))
