"""What `kelek log` does: each command over one kelek.Log. It parses no command line."""

import base64
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import click

from ..actors import run_dir
from ..actors import topology as topologies
from ..actors.errors import OperatorError
from ..actors.schema import NAME, NAME_RULE, url_problem
from ..clients.errors import LogError, LogTimeout, NoLeader
from ..clients.log import Log
from ..protocols.record import RECORD_BYTES_MAX
from ..protocols.zmqraft.client_codec import LogInfo
from ..protocols.zmqraft.entry import Entry
from .endings import FAILED, IMPOSSIBLE, INTERRUPTED, Ending

KIND_NAMES = {0: "state", 1: "config", 2: "checkpoint"}
INFO_MS = 1000  # A node that has not answered by then is shown as not answering.
INFO_FIELDS = "term", "first_index", "applied_index", "commit_index", "last_index"
Where = dict[str, Any]


class Place(NamedTuple):
    """The cluster that a command is about."""

    name: str  # For errors: the topology's path, or the urls.
    cluster: str
    urls: dict[str, str]  # Node -> url; with --url each is its own name.


class Tail(NamedTuple):
    after: int | None
    entries: int
    follow: bool
    all_kinds: bool


class Load(NamedTuple):
    file: str
    skip_header: bool
    limit: int | None


class Bench(NamedTuple):
    updates: int
    size: int
    alone: int


def find_place(where: Where) -> Place:
    """From --url and --cluster, or from a topology. Raises Ending."""
    urls, cluster = where["urls"], where["cluster"]
    if cluster and not NAME.fullmatch(cluster):
        raise Ending(f"--cluster: {cluster!r} is not a name; use {NAME_RULE}")
    if urls:
        if where["topology"]:
            raise Ending("--url: a topology is given too; leave one of them out")
        if not cluster:
            raise Ending("--cluster: missing; --url needs to know the cluster's ident")
        for url in urls:
            problem = url_problem(url)
            if problem:
                raise Ending(f"--url {url}: {'; '.join(problem)}")
        return Place(", ".join(urls), cluster, {url: url for url in urls})
    path = where["topology"] or run_dir.default_path()
    try:
        found = topologies.load(path)
    except OperatorError as error:
        raise Ending(str(error)) from error
    urls = {name: node.url for name, node in found.nodes.items()}
    return Place(path, cluster or found.cluster, urls)


@contextmanager
def opened(where: Where) -> Iterator[tuple[Log, Place]]:
    """A Log for one command; what goes wrong with it ends the command with one line."""
    place = find_place(where)
    with Log(place.urls.values(), place.cluster, timeout_ms=int(where["timeout_s"] * 1000)) as log:
        try:
            yield log, place
        except NoLeader as error:
            way_out = f"is a majority of it running? supervisor status {place.name}"
            if where["urls"] or where["cluster"]:
                way_out = f"does it run, and is '{place.cluster}' its ident?"
            raise Ending(f"{place.name}: {error}; {way_out}", IMPOSSIBLE) from error
        except LogTimeout as error:
            way_out = "a majority of the nodes must run; what is on its way may still commit"
            raise Ending(f"{place.name}: {error}; {way_out}", FAILED) from error
        except LogError as error:
            raise Ending(f"{place.name}: {error}", FAILED) from error


def stdin() -> IO[bytes]:
    if sys.stdin is None:
        raise Ending("-: standard input is closed; give it a file or a pipe")
    return sys.stdin.buffer


def show_json(value: object) -> None:
    click.echo(json.dumps(value))


def put(data: Sequence[str], output: str, where: Where) -> None:
    """Appends a few entries and prints their indexes."""
    updates = [stdin().read() if one == "-" else os.fsencode(one) for one in data]
    for number, update in enumerate(updates, 1):
        if not 0 < len(update) <= RECORD_BYTES_MAX:
            size = f"{len(update)} bytes; an entry has 1 to {RECORD_BYTES_MAX}"
            raise Ending(f"DATA {number}: {size}")
    with opened(where) as (log, _):
        indexes = list(log.update_each(updates))
    if output == "json":
        show_json({"indexes": indexes})
    else:
        for index in indexes:
            click.echo(index)


def tail(options: Tail, output: str, where: Where) -> None:
    """Prints entries from somewhere on, to the end or for ever."""
    with opened(where) as (log, _):
        for entry in chosen(log, options):
            if output == "json":
                show_json(entry_json(entry))
            else:
                click.echo(entry_line(entry))
            if options.follow:
                sys.stdout.flush()


def chosen(log: Log, options: Tail) -> Iterator[Entry]:
    """Without --after the last entries that are shown, then what follows."""
    after = options.after
    if after is None:
        last: list[Entry] = []
        reach = options.entries
        after = end = log.info().applied_index
        while len(last) < options.entries and after > 0:
            # The cluster's own entries are rare: mostly the first reach is enough.
            after = max(0, end - reach)
            entries = log.entries(after, end - after) if end > after else iter(())
            last = [entry for entry in entries if shown(entry, options)]
            reach *= 4
        yield from last[-options.entries :]
        after = end
        if not options.follow:
            return
    for entry in log.follow(after) if options.follow else log.entries(after):
        if shown(entry, options):
            yield entry


def shown(entry: Entry, options: Tail) -> bool:
    return options.all_kinds or entry.type == 0


def entry_line(entry: Entry) -> str:
    text = entry.data.decode("utf-8", "backslashreplace")
    kind = "" if entry.type == 0 else f"({KIND_NAMES.get(entry.type, entry.type)}) "
    if not text.isprintable():  # One entry is one line, whatever is in it.
        text = "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in text)
    return f"{entry.index:>8}  {entry.term:>4}  {kind}{text}"


def entry_json(entry: Entry) -> dict[str, object]:
    found: dict[str, object] = {
        "index": entry.index,
        "term": entry.term,
        "kind": KIND_NAMES.get(entry.type, entry.type),
        "reqid": entry.reqid.hex() if entry.reqid else None,
    }
    try:
        found["data"] = entry.data.decode()
    except UnicodeDecodeError:
        found["data_base64"] = base64.b64encode(entry.data).decode()
    return found


def info(output: str, where: Where) -> None:
    """Asks every node for the state of its log; fails when none of them knows a leader."""
    place = find_place(where)
    answers: dict[str, LogInfo | None] = {}
    for name, url in place.urls.items():
        answers[name] = ask(place, url, where)
    leaders = [answer.leader for answer in answers.values() if answer and answer.leader]
    rows = [info_row(name, place.urls[name], answer) for name, answer in answers.items()]
    if output == "json":
        leader = max(set(leaders), key=leaders.count) if leaders else None
        show_json({"cluster": place.cluster, "leader": leader, "nodes": rows})
    else:
        show_rows(rows)
    if not leaders:
        raise Ending(f"{place.name}: no node that answers knows a leader", FAILED)


def ask(place: Place, url: str, where: Where) -> LogInfo | None:
    timeout_ms = min(INFO_MS, int(where["timeout_s"] * 1000))
    with Log([url], place.cluster, timeout_ms=timeout_ms) as log:
        try:
            return log.info(url)
        except LogTimeout:
            return None


def info_row(name: str, url: str, answer: LogInfo | None) -> dict[str, object]:
    row: dict[str, object] = {"node": name, "url": url, "answers": answer is not None}
    row.update(dict.fromkeys(("role", "leader", *INFO_FIELDS)))
    if answer is not None:
        row["role"] = "leader" if answer.leading else "follower"
        row["leader"] = answer.leader
        row.update({field: getattr(answer, field) for field in INFO_FIELDS})
    return row


def show_rows(rows: Sequence[dict[str, object]]) -> None:
    keys = ["node", "url", "role", "leader", *INFO_FIELDS]
    heads = [key.removesuffix("_index") for key in keys]
    cells = [["-" if row[key] is None else str(row[key]) for key in keys] for row in rows]
    for row, line in zip(rows, cells, strict=True):
        if not row["answers"]:
            line[2] = "no answer"
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    for line in [heads, *cells]:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def load(options: Load, output: str, where: Where) -> None:
    """Appends the lines of a file, with a progress bar when somebody watches."""
    with (
        lines_of(options.file) as (file, size),
        committed_so_far(options.file) as note,
        opened(where) as (log, _),
    ):
        began = time.monotonic()
        reader = Lines(file, options)
        with progress(reader, size) as show:
            count = log.update_many(reader, lambda count: (note(count), show and show(count)))
        seconds = time.monotonic() - began
        last_index = log.info().commit_index
    rate = round(count / max(seconds, 1e-9))
    if output == "json":
        figures = {"seconds": round(seconds, 3), "updates_per_s": rate, "commit_index": last_index}
        show_json({"updates": count, **figures})
    else:
        click.echo(f"loaded {count:,} updates in {seconds:.1f} s: {rate:,} updates/s")


@contextmanager
def committed_so_far(name: str) -> Iterator[Callable[[int], None]]:
    """A load that ends early says how far it came: those updates are committed, from the first."""
    committed = 0

    def note(count: int) -> None:
        nonlocal committed
        committed = count

    try:
        yield note
    except Ending as ending:
        if not committed:
            raise
        line = f"{ending}; at least the first {committed:,} updates are committed"
        raise Ending(line, FAILED) from ending
    except KeyboardInterrupt:
        line = f"{name}: interrupted; at least the first {committed:,} updates are committed"
        raise Ending(line, INTERRUPTED) from None


@contextmanager
def lines_of(name: str) -> Iterator[tuple[IO[bytes], int | None]]:
    """The file and its size, or standard input. Raises Ending when it can't be read."""
    if name == "-":
        yield stdin(), None
        return
    with ExitStack() as stack:
        try:
            file = stack.enter_context(Path(name).open("rb"))
            size = file.seek(0, io.SEEK_END) if file.seekable() else None
            if size is not None:
                file.seek(0)
        except OSError as error:
            raise Ending(f"{name}: {error.strerror}; give a file that can be read, or -") from error
        yield file, size


class Lines:
    """The lines of a file as updates, and how far it has been read."""

    def __init__(self, file: IO[bytes], options: Load) -> None:
        self.position = 0  # Bytes taken from the file.
        self.taken = 0  # Updates made of them.
        self._file = file
        self._options = options

    def __iter__(self) -> Iterator[bytes]:
        left = self._options.limit
        for number, line in enumerate(self._read(), 1):
            data = line.rstrip(b"\r\n")
            if not data or (number == 1 and self._options.skip_header):
                continue
            if left is not None:
                if left == 0:
                    return
                left -= 1
            if len(data) > RECORD_BYTES_MAX:
                size = f"at most {RECORD_BYTES_MAX} bytes make an entry"
                raise Ending(f"{self._options.file}:{number}: the line is too long; {size}")
            self.taken += 1
            yield data

    def _read(self) -> Iterator[bytes]:
        """Lines with a largest length: a file without line ends must not fill the memory."""
        try:
            while line := self._file.readline(RECORD_BYTES_MAX + 3):
                self.position += len(line)
                yield line
        except OSError as error:
            place = f"{self._options.file}: byte {self.position}"
            raise Ending(
                f"{place}: {error.strerror}; nothing behind it was sent", FAILED
            ) from error


@contextmanager
def progress(reader: Lines, size: int | None) -> Iterator[Callable[[int], None] | None]:
    """A bar over the bytes of the file; nothing when nobody watches."""
    if not sys.stderr.isatty():
        yield None
        return
    if not size:
        yield lambda count: click.echo(f"\r{count:,} updates", nl=False, err=True)
        click.echo(err=True)
        return
    steps = max(1, size // 200)
    with click.progressbar(
        length=size, file=sys.stderr, label="loading", update_min_steps=steps
    ) as bar:

        def on_committed(count: int) -> None:
            bar.label = f"{count:,} updates"
            # What was read runs ahead of what is committed.
            position = reader.position * count // max(reader.taken, 1)
            bar.update(max(0, position - bar.pos))

        yield on_committed


def bench(options: Bench, output: str, where: Where) -> None:
    """Measures the log as one client sees it: pipelined, then one update at a time."""
    with opened(where) as (log, _):
        log.update(b"." * options.size)  # The search for the leader is not measured.
        began = time.monotonic()
        log.update_many(b"." * options.size for _ in range(options.updates))
        seconds = time.monotonic() - began
        times_ms = sorted(one_ms(log, options.size) for _ in range(options.alone))
    figures: dict[str, Any] = {
        "updates": options.updates,
        "bytes": options.size,
        "updates_per_s": round(options.updates / max(seconds, 1e-9)),
    }
    if times_ms:
        figures["alone"] = options.alone
        figures["alone_p50_ms"] = round(times_ms[len(times_ms) // 2], 3)
        figures["alone_p99_ms"] = round(times_ms[len(times_ms) * 99 // 100], 3)
    if output == "json":
        show_json(figures)
        return
    rate = figures["updates_per_s"]
    click.echo(f"pipelined  {options.updates:,} x {options.size} B  {rate:>10,} updates/s")
    if times_ms:
        p50, p99 = figures["alone_p50_ms"], figures["alone_p99_ms"]
        click.echo(f"alone      {options.alone:,} x {options.size} B  p50 {p50} ms  p99 {p99} ms")


def one_ms(log: Log, size: int) -> float:
    began = time.monotonic()
    log.update(b"." * size)
    return (time.monotonic() - began) * 1000
