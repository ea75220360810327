"""Collects what is known of a cluster: from the supervisors of this machine, and over the network.

The supervisors here answer for the nodes that they run; the leader, if it runs here, for the other
members. Only members of which neither says anything are asked over the network.
"""

import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ...actors.runtime.cluster_status import (
    DOWN,
    ELSEWHERE,
    NO_LEADER,
    READY,
    ClusterStatus,
    Row,
    add_lag,
    cluster_status,
    commits_before,
    commits_of,
    elsewhere_rows,
    highest,
)
from ..admin import supervisor_client as client
from ..cli_errors import FAILED, CliError

if TYPE_CHECKING:
    from ...clients.log.async_log import AsyncLog

T = TypeVar("T")
SETTLE_S = 2.0  # How long a missing leader or a lag may last before it is a problem.
POLL_S = 0.1
ANSWER_MS = 1000  # How long to wait for the answers of members elsewhere.
LOCAL = "127.", "[::1]", "localhost"


class Collected(NamedTuple):
    """Rows and what they say."""

    source: str  # The topology's path, or urls.
    rows: list[Row]
    status: ClusterStatus

    @property
    def here(self) -> bool:
        """Whether a node runs on this machine or answers elsewhere."""
        return any(row["pid"] or row["state"] == READY for row in self.rows)


def collect(source: str, read: Callable[[], list[Row]], topology: str = "") -> Collected:
    """What rows say of their cluster.

    A missing leader, or a lag that no supervisor has watched, is looked at again for up to 2 s.
    Raises what read() raises.

    topology   its path, for the commands in the ways out; "": they name none
    """
    first = rows = read()
    until = time.monotonic() + SETTLE_S
    while True:
        watched = commits_before(rows)
        others = [row for row in first if not watched or row["role"] in ELSEWHERE]
        status = cluster_status(rows, highest([watched, commits_of(others)]), topology)
        kinds = {problem.kind for problem in status.problems}
        passing = kinds & {NO_LEADER, "lagging"}
        if not passing or NO_LEADER in passing < kinds or time.monotonic() > until:
            return Collected(source, rows, status)
        time.sleep(POLL_S)
        rows = read()


def rows_of_topology(path: str, nodes: tuple[str, ...] = ()) -> list[Row]:
    """A row for each process here, and one for each member elsewhere.

    nodes   only of these nodes

    Raises CliError, OperatorError.
    """
    rows = client.rows_of(path, nodes)
    found = elsewhere_rows(rows)
    if not any(row.get("members") for row in rows):
        found = rows_of_file(path, {row["node"] for row in rows})
    if nodes:
        found = [row for row in found if row["node"] in nodes]
        for row in rows:
            known = row.get("security", {})
            row |= {"security": {node: known[node] for node in known if node in nodes}}
    if unknown := [row for row in found if row["state"] is None]:
        _ask_over_network(path, unknown)
    rows += found
    add_lag(rows)
    return rows


def rows_of_file(path: str, here: set[str]) -> list[Row]:
    """A row for each node of the topology that does not run here."""
    nodes = client.load(path).nodes
    return [remote_row(name, node.url) for name, node in nodes.items() if name not in here]


def _ask_over_network(path: str, rows: Sequence[Row]) -> None:
    """Completes rows by what their nodes answer."""
    asked = [row for row in rows if row["url"] and _may_listen(row["url"])]
    for row in rows:
        if row not in asked and row["role"] != "foreign":
            row["state"] = DOWN
            row["reason"] = f"nothing listens at {row['url']}"
    if not asked:
        return
    try:
        answers = _answers(path, [row["url"] for row in asked])
    except CliError as error:  # The topology says no key for this command.
        for row in asked:
            row["reason"] = str(error)
        return
    for row, answer in zip(asked, answers, strict=True):
        if answer is not None:
            row |= answer
        elif row["role"] != "foreign":
            row["state"], row["reason"] = DOWN, f"no answer from {row['url']}"


def _may_listen(url: str) -> bool:
    """Whether a program may listen at a url; for an address of this machine it is certain."""
    import socket  # Imported here: status rarely needs it.

    scheme, _, address = url.partition("://")
    target: tuple[str, int] | str = address
    family = socket.AF_UNIX
    if scheme == "tcp" and address.startswith(LOCAL):
        host, _, port = address.rpartition(":")
        family = socket.AF_INET6 if host == "[::1]" else socket.AF_INET
        target = host.strip("[]"), int(port)
    elif scheme != "ipc":
        return True
    with socket.socket(family) as probe:
        probe.settimeout(ANSWER_MS / 1000)
        return probe.connect_ex(target) == 0


def rows_of_urls(urls: Mapping[str, str], cluster: str, keys: Mapping[str, Any]) -> list[Row]:
    """A row for each member of the cluster, as they answer; without a leader, for each url.
    Raises CliError when none answers."""

    async def ask(log: "AsyncLog") -> tuple[Mapping[str, str], list[Row | None]]:
        members: Mapping[str, str] = urls
        problem: Error | None = None
        try:
            members = await log.members() or urls
        except Error as error:
            problem = error
        answers = await ask_each(log, [*members.values()])
        if problem is not None and not any(answers):
            raise CliError(str(problem), FAILED)
        return members, answers

    from ...clients.errors import Error

    members, answers = _run(cluster, [*urls.values()], keys, ask)
    rows = [{**remote_row(name, url), **(answer or {})}
            for (name, url), answer in zip(members.items(), answers, strict=True)]  # fmt: skip
    for row in rows:
        if row["state"] is None:
            row["state"], row["reason"] = DOWN, f"no answer from {row['url']}"
    add_lag(rows)
    return rows


def remote_row(name: str, url: str) -> Row:
    """Of a node that does not run here, without its state."""
    empty = dict.fromkeys(("pid", "state", "restarts", "uptime", "raft_role", "leader"))
    return {"node": name, "role": "remote", "name": "remote", **empty, "url": url}


def _answers(path: str, urls: Sequence[str]) -> list[Row | None]:
    """What the members at urls say of themselves; None: nothing. Raises CliError."""
    from ...actors.topology import client_topology
    from .. import client_keys

    topology = client_topology.load(path)
    keys = client_keys.of_topology(topology)
    return _run(topology.cluster, urls, keys, lambda log: ask_each(log, urls))


def _run(
    cluster: str,
    urls: Sequence[str],
    keys: Mapping[str, Any],
    ask: "Callable[[AsyncLog], Coroutine[Any, Any, T]]",
) -> T:
    """Runs questions on a client of the log."""
    import asyncio  # Imported here: most calls need neither asyncio nor the client of the log.

    from ...clients.log.async_log import AsyncLog

    async def run() -> T:
        async with AsyncLog(urls, cluster, timeout_ms=ANSWER_MS, **keys) as log:
            return await ask(log)

    return asyncio.run(run())


async def ask_each(log: "AsyncLog", urls: Sequence[str]) -> list[Row | None]:
    """What the members at urls say of themselves; None: nothing."""
    import asyncio

    from ...clients.errors import Error

    async def ask(url: str) -> Row | None:
        try:
            info = await log.info(url)
        except Error:
            return None
        return {
            "state": READY,
            "raft_role": "leader" if info.leading else "follower",
            "leader": info.leader,
            **{key: getattr(info, key) for key in ("term", "commit_index", "applied_index")},
        }

    return await asyncio.gather(*map(ask, urls))
