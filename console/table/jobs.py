"""`kelek table copy`, `map` and `jobs`: jobs that run on a node.

Each node numbers its own jobs.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from ...clients.errors import TableError, TableRefused
from ...clients.table.async_table import AsyncTable
from ...clients.table.table import Table
from ...protocols.zerodb.wire.values import COPY_TABLE, MAP_TABLE, MAPPER_BYTES_MAX
from ..cli_errors import FAILED, INTERRUPTED, CliError
from ..output import show_json, show_table, stdin
from ..targets import Where
from .commands import bounds
from .target import REACH_MS, check_local, find_tables, opened_table

WASM, BITCODE = b"\0asm", b"BC\xc0\xde"
KINDS = {MAP_TABLE: "map", COPY_TABLE: "copy"}  # All others are range jobs.
DONE_WORDS = {"map": "mapped", "copy": "copied", "range": "handed out"}
AMOUNTS = "rows", "bytes", "chunks", "puts", "deletes"
ON_SPARK = "tasks", "tasks_done", "staged"
NUMBERS = "apid", "request_type", "table", "target", *AMOUNTS, *ON_SPARK
TIMES = "started", "ended"
HEADS = (
    "node",
    "job",
    "kind",
    "table",
    "into",
    "state",
    "rows",
    "puts",
    "deletes",
    "began",
    "s",
    "",
)
RUNNING, DONE = "running", "done"

T = TypeVar("T")
Job = dict[str, Any]  # A node's statistics, with numbers converted, and `node`.


class JobNode(NamedTuple):
    """A node that may have jobs."""

    name: str
    where: Where  # Options that select only this node.
    words: str  # The same for a command line.


def nodes_of(where: Where) -> list[JobNode]:
    """The nodes of the command. Raises CliError."""
    target = find_tables(where)
    found = []
    for name, url in target.urls.items():
        one = {**where, "urls": [url], "topology": None, "nodes": ()}
        file = f"-t {where['topology']} " if where["topology"] else ""
        words = f"{file}--node {name}" if target.by_topology else f"--url {url}"
        found.append(JobNode(name, one, words))
    return found


def node_of(number: int, target: int, where: Where) -> JobNode:
    """The node that serves the table now. The job runs there without this client."""
    check_local(find_tables(where), target)
    with opened_table(number, where) as table:
        url = table.server().url
    return next(node for node in nodes_of(where) if node.where["urls"] == [url])


# ---- jobs begin ----


def copy(number: int, target: int, output: str, options: Where) -> None:
    """Starts a copy of a range."""
    asked = bounds(options)
    if number == target:
        raise CliError(f"TARGET: table {number} cannot be copied into itself; name another one")
    node = node_of(number, target, options)
    with opened_table(number, node.where) as table:
        apid = table.copy_into(target, **asked)
        follow(Begun(node, table, apid, "copied"), output, options["wait"])


def map_(number: int, target: int, output: str, options: Where) -> None:
    """Starts a mapper."""
    mapper = mapper_of(options["mapper"])
    node = node_of(number, target, options)
    with opened_table(number, node.where) as table:
        apid = table.map_into(
            target, mapper, parameters=options["parameters"], threads=options["threads"]
        )
        follow(Begun(node, table, apid, "mapped"), output, options["wait"])


def mapper_of(name: str) -> bytes:
    """A mapper as WebAssembly or bitcode; WebAssembly text is compiled. Raises CliError."""
    try:
        if name == "-":
            data = stdin().read(MAPPER_BYTES_MAX + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(MAPPER_BYTES_MAX + 1)
    except OSError as error:
        raise CliError(f"{name}: {error.strerror}; give a mapper that can be read, or -") from error
    if len(data) > MAPPER_BYTES_MAX:
        raise CliError(f"{name}: a mapper has at most {MAPPER_BYTES_MAX} bytes")
    if data.startswith((WASM, BITCODE)):
        return data
    if not data.lstrip().startswith((b"(", b";;")):
        forms = "WebAssembly, its text (.wat) or LLVM bitcode"
        raise CliError(f"{name}: not a mapper; a mapper is {forms} (docs/mapper.md)")
    return compiled(name, data)


def compiled(name: str, text: bytes) -> bytes:
    try:
        import wasmtime
    except ImportError as error:
        way_out = "pip install 'kelek[wasm]', or give it compiled"
        raise CliError(f"{name}: WebAssembly's text needs wasmtime here; {way_out}") from error
    try:
        return bytes(wasmtime.wat2wasm(text))
    except wasmtime.WasmtimeError as error:
        raise CliError(f"{name}: {where_in(str(error))}") from error


def where_in(message: str) -> str:
    """The position and the first line of a compiler's message."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    place = next((line for line in lines if line.startswith("-->")), "")
    at = place.partition(">")[2].strip().removeprefix("<anon>:")
    return f"{at}: {lines[0]}" if at else lines[0]


# ---- while one runs ----


class Begun(NamedTuple):
    """A job that the command waits for."""

    node: JobNode
    table: Table
    apid: int
    done: str  # The verb for its result.

    @property
    def name(self) -> str:
        return f"job {self.apid} of {self.node.name}"

    @property
    def command(self) -> str:
        return f"kelek table jobs {self.apid} {self.node.words}"


def follow(job: Begun, output: str, wait: bool) -> None:
    """Waits until a job has ended and prints its result. Raises CliError when it failed."""
    if not wait:
        if output == "json":
            show_json({"node": job.node.name, "apid": job.apid})
        else:
            click.echo(f"{job.name} has started; show it: {job.command}")
        return
    try:
        with progress() as show:
            told = job.table.wait_job(job.apid, progress=show)
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
    found = job_of(job.node, told)
    if output == "json":
        show_json(found)
    if found["state"] != DONE:
        raise CliError(f"{job.name} {how_it_ended(found)}", FAILED)
    if output == "text":
        seconds = max(found["ended"] - found["started"], 1) / 1000
        wrote = f"{found['puts']:,} puts, {found['deletes']:,} deletes"
        rate = f"{round(found['rows'] / seconds):,} rows/s"
        click.echo(f"{job.done} {found['rows']:,} rows in {seconds:.1f} s: {rate}; {wrote}")


def how_it_ended(job: Job) -> str:
    written = f"{job['puts']:,} puts and {job['deletes']:,} deletes were written before"
    reason = f": {job['reason']}" if job["reason"] else ""
    return (
        f"has {job['state']}{reason}; {written}"
        if job["state"] == "failed"
        else (f"was {job['state']}; {written}")
    )


@contextmanager
def progress() -> Iterator[Callable[[dict[str, str]], None] | None]:
    """A line with the progress; none without a terminal."""
    if not sys.stderr.isatty():
        yield None
        return

    def show(told: dict[str, str]) -> None:
        rows, puts = int(told["rows"]), int(told["puts"])
        click.echo(f"\r{rows:,} rows read, {puts:,} put", nl=False, err=True)

    yield show
    click.echo(err=True)


# ---- what there is ----


def jobs(options: Where, output: str) -> None:
    """Lists jobs; or prints, awaits or cancels one."""
    if options["apid"] is None:
        if options["end"] or options["wait"]:
            raise CliError("--end and --wait need the number of a job")
        listed(options, output)
        return
    if options["end"] and options["wait"]:
        raise CliError("--end: --wait is given too; leave one of them out")
    known = found_jobs(options["apid"], options)
    if not (options["end"] or options["wait"]):
        for number, (_, job) in enumerate(known):
            if number and output == "text":
                click.echo()
            show_job(job, output)
        return
    if len(known) > 1:
        way_out = " or ".join(node.words for node, _ in known)
        apid = options["apid"]
        raise CliError(f"job {apid}: several nodes have a job of that number; add {way_out}")
    ((node, job),) = known
    if options["end"]:
        show_job(ended(node, job["apid"]), output)
        return
    with opened_table(None, node.where) as table:
        follow(Begun(node, table, job["apid"], DONE_WORDS[job["kind"]]), output, True)


def show_job(job: Job, output: str) -> None:
    if output == "json":
        show_json(job)
        return
    for name, value in job.items():
        text = time_text(value) if name in TIMES else value
        click.echo(f"{name:<14} {f'{text:,}' if name in AMOUNTS else text}")


def ended(node: JobNode, apid: int) -> Job:
    with opened_table(None, node.where) as table:
        try:
            table.end_job(apid)
        except TableRefused as error:
            raise CliError(f"job {apid} of {node.name}: {error}", FAILED) from error
        return job_of(node, table.job_status(apid))


def listed(options: Where, output: str) -> None:
    """The newest jobs of every node. Raises CliError when no node answers."""
    found: list[Job] = []
    silent: dict[str, TableError] = {}
    nodes = nodes_of(options)

    def question(table: AsyncTable) -> Awaitable[list[dict[str, str]]]:
        return table.jobs(running=options["running"], limit=options["limit"])

    for node, told in zip(nodes, asked(nodes, question), strict=True):
        if isinstance(told, TableError):
            silent[node.name] = told
        else:
            found += [job_of(node, one) for one in told]
    if output == "json":
        for job in found:
            show_json(job)
    elif found:
        show_table(HEADS, [row_of(job) for job in found])
    for name, why in silent.items():
        click.echo(f"{name}: {why}", err=True)
    if len(silent) == len(nodes):
        raise CliError("no node answers; does one run? kelek table info", FAILED)


def asked(
    nodes: Sequence[JobNode], question: Callable[[AsyncTable], Awaitable[T]]
) -> list[T | TableError]:
    """Each node's answer. All requests run concurrently, so lost nodes cost one timeout."""

    async def ask(node: JobNode) -> T | TableError:
        timeout_ms = min(REACH_MS, int(node.where["timeout_s"] * 1000))
        try:
            async with AsyncTable(node.where["urls"], timeout_ms=timeout_ms) as table:
                return await question(table)
        except TableError as error:
            return error

    async def ask_all() -> list[T | TableError]:
        return await asyncio.gather(*map(ask, nodes))

    return asyncio.run(ask_all())


def found_jobs(apid: int, options: Where) -> list[tuple[JobNode, Job]]:
    """The nodes that know the job, at least one, and its state there. Raises CliError."""
    known: list[tuple[JobNode, Job]] = []
    problems: list[str] = []
    nodes = nodes_of(options)
    for node, told in zip(nodes, asked(nodes, lambda table: table.job_status(apid)), strict=True):
        if isinstance(told, TableRefused):
            problems.append(str(told))
        elif isinstance(told, TableError):
            problems.append(f"{node.name}: {told}")
        else:
            known.append((node, job_of(node, told)))
    if known:
        return known
    raise CliError(f"job {apid}: {'; '.join(dict.fromkeys(problems))}", FAILED)


def job_of(node: JobNode, told: dict[str, str]) -> Job:
    """A node's statistics of a job, with numbers converted."""
    job: Job = {"node": node.name}
    for name, value in told.items():
        job[name] = int(value) if name in (*NUMBERS, *TIMES) else value
    job["kind"] = KINDS.get(job.get("request_type", 0), "range")
    return job


def row_of(job: Job) -> Sequence[str]:
    ended_ms = job["ended"] or time.time() * 1000
    seconds = max(0, ended_ms - job["started"]) / 1000
    numbers = (f"{job[name]:,}" for name in ("rows", "puts", "deletes"))
    kind = job["kind"], str(job["table"]), str(job.get("target", "-"))
    ends = time_text(job["started"]), f"{seconds:.1f}", job["reason"]
    return (job["node"], str(job["apid"]), *kind, job["state"], *numbers, *ends)


def time_text(unix_ms: int) -> str:
    if not unix_ms:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_ms / 1000))
