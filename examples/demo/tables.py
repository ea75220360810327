"""The demo's tables: the flights by carrier and time, queried while a node is killed.

It uses kelek.Table and compares the answers with the CSV.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kelek.clients.errors import TableError
from kelek.clients.table.arguments import behind_prefix
from kelek.clients.table.table import Table
from kelek.console.cli_errors import CliError
from kelek.examples.demo.changes import step
from kelek.examples.demo.cluster import Cluster, fail, kill_node, say
from kelek.examples.demo.flights import log_hash

TABLE = 1
STALL_MS = 20_000
BACK_S = 60.0
LOOK_MS = 200
SHOWN = 44  # Characters of a line.
COLUMNS = ("year", "month", "day", "hour", "minute", "carrier", "flight")
Pair = tuple[bytes, bytes]


class Question(NamedTuple):
    """A query of the table, and of the sorted rows."""

    text: str
    ask: Callable[[Table], object]
    expected: object


def rows_of(header: bytes, flights: Sequence[bytes]) -> list[Pair]:
    """carrier/time/number of the line -> the line. Raises CliError when a column is missing."""
    names = header.decode().replace('"', "").split(",")
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise CliError(f"the flights have no column {', '.join(missing)}; give another file")
    places = [names.index(name) for name in COLUMNS]
    rows = []
    for number, line in enumerate(flights, 1):
        cells = line.decode().replace('"', "").split(",")
        year, month, day, hour, minute, carrier, flight = (cells[place] for place in places)
        when = f"{year}-{month:0>2}-{day:0>2}T{hour:0>2}:{minute:0>2}"
        rows.append((f"{carrier}/{when}/{flight}/{number:06}".encode(), line))
    return rows


def flights_of(pairs: Sequence[Pair]) -> list[bytes]:
    """The lines of rows in the order of the file."""
    numbered = sorted((int(key.rpartition(b"/")[2]), line) for key, line in pairs)
    return [line for _, line in numbered]


def questions_of(rows: Sequence[Pair]) -> list[Question]:
    """Queries of a carrier, of a day, and of the last flights."""
    rows = sorted(rows)
    keys = [key for key, _ in rows]

    def between(prefix: bytes) -> slice:
        end = behind_prefix(prefix)
        return slice(bisect_left(keys, prefix), bisect_left(keys, end) if end else None)

    carrier, when, _ = keys[len(keys) // 2].decode().split("/", 2)
    of_carrier = f"{carrier}/".encode()
    of_day = f"{carrier}/{when[:10]}".encode()
    first = keys[between(of_day)][0]
    last = keys[between(of_carrier)][-1]
    return [
        Question(
            f"flights of {carrier}",
            lambda table: table.count(prefix=of_carrier),
            len(keys[between(of_carrier)]),
        ),
        Question(
            f"of these on {when[:10]}",
            lambda table: table.count(prefix=of_day),
            len(keys[between(of_day)]),
        ),
        Question(
            "the first one of that day",
            lambda table: list(table.keys(prefix=of_day, limit=1)),
            [first],
        ),
        Question(
            f"the last one of {carrier} in the table",
            lambda table: list(table.keys(prefix=of_carrier, reverse=True, limit=1)),
            [last],
        ),
        Question(
            "the lines of both",
            lambda table: table.get_many([first, last]),
            [dict(rows)[first], dict(rows)[last]],
        ),
    ]


def shown(answer: object) -> str:
    """An answer on one line."""
    if isinstance(answer, int):
        return f"{answer:,}"
    assert isinstance(answer, list)
    lines = (one.decode() for one in answer)
    return " | ".join(f"{one[:SHOWN]}..." if len(one) > SHOWN else one for one in lines)


class Tables:
    """The demo's steps with a table; `problems` says what was wrong."""

    def __init__(self, cluster: Cluster, header: bytes, flights: Sequence[bytes]) -> None:
        nodes = cluster.topology.nodes
        own = cluster.topology.own_nodes
        self.table_urls = {name: url for name in own if (url := nodes[name].tables_url)}
        self.problems: list[str] = []
        self.cluster = cluster
        self.rows = rows_of(header, flights) if self.table_urls else []
        self._flights = flights

    def open(self, *urls: str, number: int = TABLE) -> Table:
        return self.cluster.table(number, *urls, timeout_ms=STALL_MS)

    def run(self) -> None:
        """Runs all steps. Raises TableError."""
        if not self.table_urls:
            say("  no node of this topology serves tables: they are left out")
            return
        with self.open(*self.table_urls.values()) as table:
            self._load(table)
            questions = questions_of(self.rows)
            self._answer(table, questions)
            self._ask_while_one_dies(table, questions)
            self._prove(table)

    def _load(self, table: Table) -> None:
        count = len(self.rows)
        with step(f"{count:,} flights into table {TABLE}, by carrier and time") as details:
            began = time.monotonic()
            table.put_many(self.rows)
            details.append(f"{count / (time.monotonic() - began):,.0f}/s")

    def _answer(self, table: Table, questions: Sequence[Question]) -> None:
        for question in questions:
            with step(question.text) as details:
                answer = question.ask(table)
                details.append(shown(answer))
            self._check(question, answer)

    def _check(self, question: Question, answer: object) -> None:
        if answer != question.expected:
            self.problems.append(f"the table is wrong about {question.text}: {answer}")

    def _ask_while_one_dies(self, table: Table, questions: Sequence[Question]) -> None:
        """Queries until the killed node answers again."""
        url = table.server().url
        node = next(name for name, each in self.table_urls.items() if each == url)
        processes = self.cluster.processes()
        with step(f"SIGKILL to {node}, which answered") as details:
            kill_node(processes, node)
            queries, longest_s = 0, 0.0
            until = time.monotonic() + BACK_S
            while table.server().url == url or not self._is_back(url):
                for question in questions:
                    began = time.monotonic()
                    self._check(question, question.ask(table))
                    longest_s = max(longest_s, time.monotonic() - began)
                    queries += 1
                if time.monotonic() > until:
                    fail(f"{url}: is not back within {BACK_S} s; see: {self.cluster.logs}")
            details.append(f"until it is back {queries:,} answers by others, all of them right")
            details.append(f"the longest took {longest_s:.2f} s")

    def _is_back(self, url: str) -> bool:
        with self.cluster.table(TABLE, url, timeout_ms=LOOK_MS) as table:
            try:
                return table.info() is not None
            except TableError:
                return False

    def _prove(self, table: Table) -> None:
        with step(f"the table read back, {len(self.rows):,} rows, and hashed in the file's order"):
            pairs = [pair for page in table.scan_pages() for pair in page]
            if log_hash(flights_of(pairs)) != log_hash(self._flights):
                self.problems.append("the table does not hold each flight once")
        with step(f"the same hash of the table on {', '.join(self.table_urls)}") as details:
            hashes = {name: self._content(url) for name, url in self.table_urls.items()}
            details.append(next(iter(hashes.values()))[:16])
            if len(set(hashes.values())) != 1:
                self.problems.append(f"the tables differ: {hashes}")

    def _content(self, url: str) -> str:
        """A node's hash over all keys and values of the table."""
        with self.open(url) as table:
            details: dict[str, Any] = table.info(content=True) or {}
            return str(details.get("content", "none"))
