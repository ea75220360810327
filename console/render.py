"""Standard input, and the formats of output: JSON, aligned columns, keys and values, progress."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, TypeVar

import click

from .cli_errors import CliError

BAR_STEPS = 200  # Drawings of a progress bar, at most.
T = TypeVar("T")


def stdin() -> IO[bytes]:
    if sys.stdin is None:
        raise CliError("-: standard input is closed; give it a file or a pipe")
    return sys.stdin.buffer


def show_json(value: object) -> None:
    click.echo(json.dumps(value))


def show(output: str, value: object, *lines: object) -> None:
    """Prints a value as JSON, or lines of text."""
    for line in [json.dumps(value)] if output == "json" else lines:
        click.echo(line)


def printer(
    output: str, as_json: Callable[[T], object], as_text: Callable[[T], str]
) -> Callable[[T], None]:
    """A function that prints one of many values: one object or line each."""
    if output == "json":
        return lambda value: show_json(as_json(value))
    return lambda value: click.echo(as_text(value))


def show_rows(
    output: str, rows: Sequence[dict[str, Any]], keys: Sequence[str], heads: Sequence[str] = ()
) -> None:
    """Prints rows as one JSON object each, or as a table of some of their keys."""
    if output == "json":
        for row in rows:
            show_json(row)
    else:
        show_table(heads or keys, [[row.get(key) for key in keys] for row in rows])


def time_text(unix_ms: float) -> str:
    """A time in UTC, to the millisecond."""
    second_s, ms = divmod(round(unix_ms), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(second_s))}.{ms:03}Z"


def show_table(heads: Sequence[str], lines: Sequence[Sequence[object]]) -> None:
    """Prints aligned columns; None is a dash."""
    for line in table_lines(heads, lines):
        click.echo(line)


def table_lines(heads: Sequence[str], lines: Sequence[Sequence[object]]) -> list[str]:
    cells = [["-" if value is None else str(value) for value in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in [heads, *cells]]


def data_text(data: bytes) -> str:
    """UTF-8 on one line, with other characters escaped."""
    text = data.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def pair_text(key: bytes, value: bytes) -> str:
    return f"{data_text(key)}\t{data_text(value)}"


def data_json(name: str, data: bytes | None) -> dict[str, object]:
    """{name: text}, or {name_base64: ...} for data that is not UTF-8."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        import base64  # Few commands print such data.

        return {f"{name}_base64": base64.b64encode(data).decode()}


def pair_json(key: bytes, value: bytes) -> str:
    return json.dumps({**data_json("key", key), **data_json("value", value)})


def timed_ms(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return (time.monotonic() - began) * 1000


def per_second(count: int, seconds: float) -> int:
    return round(count / max(seconds, 1e-9))


def percentiles_ms(
    times: Sequence[float], prefix: str = "", unit_ms: float = 1.0
) -> dict[str, float]:
    """The median and the 99th percentile of some times, or nothing without any."""
    ordered = sorted(times)
    return {
        f"{prefix}p{percent}_ms": round(ordered[len(ordered) * percent // 100] * unit_ms, 3)
        for percent in ((50, 99) if ordered else ())
    }


@contextmanager
def progress_bar(label: str, length: int | None) -> Iterator[Callable[..., None]]:
    """A progress bar on a terminal; the function that it yields takes the position, and a label."""
    if not length or not sys.stderr.isatty():
        yield lambda position, label="": None
        return
    steps = max(1, length // BAR_STEPS)
    with click.progressbar(
        length=length, label=label, file=sys.stderr, update_min_steps=steps
    ) as bar:

        def draw(position: int, label: str = label) -> None:
            bar.label = label
            bar.update(max(0, min(position, length) - bar.pos))

        yield draw


@contextmanager
def progress_line() -> Iterator[Callable[[str], None]]:
    """A line on a terminal; the function that it yields writes over it."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    yield lambda text: click.echo(f"\r{text}", nl=False, err=True)
    click.echo(err=True)
