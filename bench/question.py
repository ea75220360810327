"""A question with goals of its own: how to run it, alone or with the others, and how to show it."""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from kelek.bench.kelek_cluster import Kelek
from kelek.bench.machine import BenchError, describe
from kelek.bench.report import Section, aligned, rows_of_figures, with_section

QUICK_ROUNDS = 3


class Question(NamedTuple):
    """What `python -m kelek.bench NAME` runs."""

    name: str
    text: str | None  # The module's docstring, for --help: it says what is held equal.
    measure: Callable[[Path, int], Section]  # Arguments: an empty directory, rounds.
    rounds: int


def say(text: str) -> None:
    """Prints progress to stderr; stdout is for the result."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def ask(question: Question, directory: Path, rounds: int) -> Section:
    """Measures, and notes the time and the machine's load. Raises BenchError."""
    before = os.getloadavg()[0]
    section = question.measure(directory / question.name, rounds)
    load = f"load {before:.1f} before and {os.getloadavg()[0]:.1f} after"
    return section._replace(note=f"{rounds} rounds, {load}. {section.note}")


def main(question: Question, arguments: list[str]) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        prog=f"python -m kelek.bench {question.name}",
        description=question.text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a look, not a measurement")
    parser.add_argument("--rounds", type=int, help=f"rounds, in place of {question.rounds}")
    parser.add_argument("--dir", type=Path, help="where the data is written (a temporary one)")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    parser.add_argument("--results", type=Path, help="writes its section of that page, too")
    options = parser.parse_args(arguments)
    if platform.system() != "Linux":
        print("bench: needs Linux (/proc)", file=sys.stderr)
        return 2
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else question.rounds)
    with tempfile.TemporaryDirectory(prefix="kelek-bench-", dir=options.dir) as directory:
        try:
            section = ask(question, Path(directory), rounds)
            if (page := options.results) is not None:
                old = page.read_text(encoding="utf-8") if page.exists() else ""
                new = with_section(old, section, conditions(Path(directory)))
                page.write_text(new, encoding="utf-8")
        except BenchError as error:
            print(f"bench {question.name}: {error}", file=sys.stderr)
            return 2
    if options.output == "json":
        print(json.dumps(section.json()))
        return 0
    parts = (rows_of_figures(section.figures), section.rows)
    print(section.note, *(aligned(rows) for rows in parts if len(rows) > 1), sep="\n\n")
    return 0


def conditions(directory: Path) -> list[str]:
    """Returns time, place and versions."""
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    found = {**describe(directory), "kelek": Kelek(directory / "none").version()}
    return [date, *(f"{key} {value}" for key, value in found.items())]


def timed(work: Callable[[], object]) -> float:
    """Returns the milliseconds that a call takes."""
    started = time.monotonic()
    work()
    return (time.monotonic() - started) * 1e3


def row(name: str, values: list[float], unit: str, form: str = ".0f") -> list[str]:
    """Returns a table row: name, median, spread, unit."""
    low, middle, high = (
        format(value, form) for value in (min(values), statistics.median(values), max(values))
    )
    return [name, middle, f"{low}-{high}", unit]


ROW_HEAD = ["what", "median", "spread", "unit"]
