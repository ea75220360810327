"""What the page asks for: the supervisor's report, logs of this machine, tables, jobs, services."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...actors.runtime.cluster_status import (
    CommitHistory,
    Row,
    add_lag,
    cluster_status,
    commits_before,
    elsewhere_rows,
    highest,
)
from ...actors.runtime.setup import ActorSetup
from ...clients.broker.async_broker import AsyncBroker
from ...clients.broker.operations import BrokerTuning
from ...clients.errors import Error, NotAllowed, Timeout
from ...clients.log.async_log import AsyncLog
from ...clients.table.async_table import AsyncTable
from ...net.clock import monotonic_ms
from ...net.errors import OperatorError
from ...protocols.majordomo.values import OWN_SERVICES, OWN_WORKERS, Headers
from ..broker.lists import page_of
from ..cli_errors import CliError
from ..logs.commands import EVENT_LOGS
from ..logs.files import LogFiles
from ..logs.lines import EVENTS, LogLine, stamp_of
from ..status.collect import ask_each, remote_row
from ..table.jobs import parse_job
from .browse import BrowseError, BrowseRequest
from .documents import NetworkAnswer, Picture
from .processes import Usage

ASK_MS = 1500  # For the answer of a node.
ANSWERS_S = 0.25  # How long a picture waits for answers; later ones are in the next picture.
PERIODS_S = {"tables": 5.0, "jobs": 2.0}  # Between two questions; others are asked each second.
EVENTS_MAX = 300
EVENTS_SINCE = "1h"
JOBS_MAX = 20  # Of each node.
BROWSE_S_MAX = 5.0
REMOTE = "remote"
Question = Callable[[], Awaitable[Any]]


class Sources:
    """Asks only what an open page shows, and keeps its clients while a page is open."""

    def __init__(self, setup: ActorSetup, report: Callable[[], Awaitable[list[Row]]]) -> None:
        self._report = report
        self.adopt(setup)
        self._usage = Usage()
        self._rows: list[Row] = []  # Of the last report.
        self._commits = CommitHistory()
        self._logs: LogFiles | None = None
        self._events: deque[LogLine] = deque(maxlen=EVENTS_MAX)
        self._unknown: list[Row] = []  # Members that only an answer of theirs tells of.
        self._clients: dict[str, AsyncTable | AsyncBroker | AsyncLog] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._due: dict[str, float] = {}
        self._answers: dict[str, NetworkAnswer] = {}
        self._browsing = asyncio.Semaphore(2)

    def adopt(self, setup: ActorSetup) -> None:
        """Takes another setup. Clients and answers of the former one end at the next picture."""
        settings = setup.settings.web
        assert settings is not None
        self._setup, self._settings, self._is_new = setup, settings, True

    async def picture(self, views: Iterable[str]) -> Picture:
        """All that documents of these views need."""
        if self._is_new:
            self._is_new = False
            await self.close()
        views = set(views)
        problem = ""
        rows: list[Row] = []
        try:
            rows = await self._report()
        except TimeoutError:
            problem = "the supervisor of this node does not answer: it may hang, or end just now"
        self._usage.add_to(rows)
        self._add_elsewhere(rows)
        questions = self._questions(views)
        for name, question in questions.items():
            is_due = time.monotonic() >= self._due.get(name, 0.0)
            if is_due and (name not in self._tasks or self._tasks[name].done()):
                self._due[name] = time.monotonic() + PERIODS_S.get(name, 0.0)
                self._tasks[name] = asyncio.create_task(self._ask(name, question))
        if questions:
            await asyncio.wait([self._tasks[name] for name in questions], timeout=ANSWERS_S)
        self._add_remote(rows)
        at = time.time()
        if rows:
            self._rows = rows
            self._commits.add(rows, monotonic_ms())
        committed = highest([commits_before(rows), self._commits.known(monotonic_ms())])
        if views & {"overview", "raft"}:
            self._read_events()
        setup = self._setup
        return Picture(
            at, setup.node, setup.cluster, rows, cluster_status(rows, committed), [*self._events],
            {name: self._answers.get(name, NetworkAnswer()) for name in questions}, problem,
        )  # fmt: skip

    # ---- members elsewhere ----

    def _add_elsewhere(self, rows: list[Row]) -> None:
        if not rows:
            return
        found = elsewhere_rows(rows)
        if not any(row.get("members") for row in rows):
            here = {row["node"] for row in rows}
            members = self._setup.settings.members.items()
            found = [remote_row(name, its.url) for name, its in members if name not in here]
        self._unknown = [row for row in found if row["state"] is None and row["url"]]
        rows += found
        add_lag(rows)

    def _add_remote(self, rows: list[Row]) -> None:
        known = self._answers.get(REMOTE, NetworkAnswer()).value or {}
        for row in self._unknown:
            if row["node"] in known:
                row |= known[row["node"]]
        if known:
            add_lag(rows)

    async def _ask_remote(self) -> dict[str, Row]:
        rows = self._unknown
        urls = [row["url"] for row in rows]
        log = self._client(",".join(urls), lambda keys: AsyncLog(
            urls, self._setup.cluster, timeout_ms=ASK_MS, **keys))  # fmt: skip
        assert isinstance(log, AsyncLog)
        answers = await ask_each(log, urls)
        return {
            row["node"]: answer or {"state": "down", "reason": f"no answer from {row['url']}"}
            for row, answer in zip(rows, answers, strict=True)
        }

    # ---- events ----

    def _read_events(self) -> None:
        if self._logs is None:
            names = {row["node"] for row in self._rows}
            folders = {name: Path(path) for name, path in self._settings.logs.items()
                       if name in names}  # fmt: skip
            self._logs = LogFiles(
                folders,
                lambda it: it.partition("/")[2] in EVENT_LOGS,
                lambda it: it.event in EVENTS,
            )
            self._events.extend(self._logs.last(EVENTS_MAX, stamp_of(EVENTS_SINCE)))
        self._events.extend(sorted(self._logs.read_new(), key=lambda line: line.time))

    # ---- questions over the network ----

    def _questions(self, views: set[str]) -> dict[str, Question]:
        found: dict[str, Question] = {}
        if views & {"tables", "pipeline"} and self._settings.tables:
            found |= {"tables": self._ask_tables, "jobs": self._ask_jobs}
        if "services" in views and self._settings.brokers:
            found |= {"services": self._ask_services}
        if self._unknown:
            found |= {REMOTE: self._ask_remote}
        return found

    async def _ask(self, name: str, question: Question) -> None:
        """Keeps the last answer beside the problem of a later one."""
        last = self._answers.get(name, NetworkAnswer()).value
        try:
            self._answers[name] = NetworkAnswer(await question())
        except (Error, CliError, OperatorError, OSError, ValueError) as error:
            self._answers[name] = NetworkAnswer(last, str(error))

    def _keys(self) -> dict[str, Any]:
        """The keys of a client. Raises CliError."""
        if self._setup.settings.security is None:
            return {}
        if not self._settings.key_file:
            way_out = "`web: {key_file: ...}` names one with grants such as `observer`"
            raise CliError(f"the page has no key for this; {way_out}")
        servers = {url: key or None for url, key in self._settings.server_keys.items()}
        return {"key": self._settings.key_file, "server_keys": servers}

    def _client(self, name: str, make: Callable[[dict[str, Any]], Any]) -> Any:
        if name not in self._clients:
            self._clients[name] = make(self._keys())
        return self._clients[name]

    def _table(self, urls: Sequence[str]) -> AsyncTable:
        found = self._client(",".join(urls), lambda keys: AsyncTable(
            urls, timeout_ms=ASK_MS, **keys))  # fmt: skip
        assert isinstance(found, AsyncTable)
        return found

    def _broker(self, url: str) -> AsyncBroker:
        tuning = BrokerTuning(headers=Headers.of(self._setup.settings.broker))
        found = self._client(url, lambda keys: AsyncBroker(
            url, timeout_ms=ASK_MS, tuning=tuning, **keys))  # fmt: skip
        assert isinstance(found, AsyncBroker)
        return found

    @property
    def _tables_urls(self) -> list[str]:
        """This node's own, so that sizes are those of one node; else all."""
        known = self._settings.tables
        own = known.get(self._setup.node)
        return [own] if own else [*known.values()]

    async def _ask_tables(self) -> dict[int, dict[str, Any]]:
        return await self._table(self._tables_urls).tables()

    async def _ask_jobs(self) -> list[dict[str, Any]]:
        """Of all nodes that answer; raises the error of the first one if none does."""
        nodes = self._settings.tables.items()
        answers = await asyncio.gather(
            *(self._table([url]).jobs(limit=JOBS_MAX) for _, url in nodes), return_exceptions=True
        )
        found = [parse_job(node, job)
                 for (node, _), answer in zip(nodes, answers, strict=True)
                 if not isinstance(answer, BaseException) for job in answer]  # fmt: skip
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        if len(errors) == len(answers):
            raise errors[0]
        return sorted(found, key=lambda job: -job["started"])[:JOBS_MAX]

    async def _ask_services(self) -> dict[str, list[dict[str, Any]]]:
        """The services and workers of each broker that answers."""
        brokers = self._settings.brokers.items()
        found: dict[str, list[dict[str, Any]]] = {
            "services": [], "workers": [],
            "brokers": [{"node": node, "url": url} for node, url in brokers],
        }  # fmt: skip
        errors: list[Error] = []
        for node, url in brokers:
            broker = self._broker(url)
            try:
                for name, service in (("services", OWN_SERVICES), ("workers", OWN_WORKERS)):
                    frames = (await broker.call(service)).frames
                    found[name] += ({"broker": node, **row} for row in page_of(frames))
            except Timeout as error:
                errors.append(error)
        if errors and len(errors) == len(brokers):
            raise errors[0]
        return found

    async def browse(self, asked: BrowseRequest) -> Mapping[str, Any]:
        """Rows of a table. Raises BrowseError."""
        if not self._settings.tables:
            raise BrowseError("no node has tables", 404)
        try:
            async with (
                asyncio.timeout(BROWSE_S_MAX),
                self._browsing,
                AsyncTable(
                    self._tables_urls, asked.table, timeout_ms=ASK_MS, **self._keys()
                ) as table,
            ):
                return await asked.read(table)
        except TimeoutError:
            raise BrowseError("no answer in time", 504) from None
        except (NotAllowed, CliError) as error:
            raise BrowseError(str(error), 403) from None
        except (Error, OperatorError, OSError, ValueError) as error:
            raise BrowseError(str(error), 502) from None

    async def close(self) -> None:
        """Ends the clients, and forgets what they have answered."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        clients = [*self._clients.values()]
        for found in (self._tasks, self._due, self._clients, self._answers):
            found.clear()
        self._rows = []
        self._commits = CommitHistory()
        self._events.clear()
        self._logs = None
        for client in clients:
            with contextlib.suppress(Error):
                await client.aclose()
