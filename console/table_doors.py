"""Whose tables a command of `kelek` is about, and a table opened there."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ..clients.errors import NoServer, TableError, TableTimeout, TableTooLarge
from ..clients.table import Table
from ..clients.urls import check_url
from .endings import FAILED, Ending

Where = dict[str, Any]
REACH_MS = 2000


class Doors(NamedTuple):
    """Where tables are asked for."""

    name: str  # For errors: the topology's path, or the urls.
    urls: dict[str, str]  # Node -> url; with --url each is its own name.
    by_topology: bool
    local: frozenset[int] = frozenset()  # Tables that each node has of its own, if that is known.


def find_tables(where: Where) -> Doors:
    """The doors to a cluster's tables: from --url, or from a topology. Raises Ending."""
    urls = where["urls"]
    if urls:
        for option in ("topology", "nodes"):
            if where[option]:
                raise Ending("--url: a topology or node is given too; leave one of them out")
        for url in urls:
            try:
                check_url(url)
            except ValueError as error:
                raise Ending(f"--url: {error}") from error
        return Doors(", ".join(urls), {url: url for url in urls}, False)
    # And with it YAML, for nothing with --url.
    from ..actors import run_dir
    from ..actors import topology as topologies
    from ..actors.errors import OperatorError

    path = where["topology"] or run_dir.default_path()
    try:
        found = topologies.load(path)
    except OperatorError as error:
        raise Ending(str(error)) from error
    known = {
        name: node.zerodb["url"] for name, node in found.nodes.items() if node.zerodb.get("url")
    }
    if not known:
        way_out = "give one `zerodb: {url: ...}` (docs/topology.md)"
        raise Ending(f"{path}: no node has a door to tables; {way_out}")
    for node in where["nodes"]:
        if node not in known:
            why = "has no `zerodb: {url: ...}`" if node in found.nodes else "is no node"
            raise Ending(f"{path}: --node {node}: {why}; those with one are {', '.join(known)}")
    chosen = where["nodes"] or known
    local = frozenset(found.zerodb.get("local", ()))
    return Doors(path, {name: known[name] for name in chosen}, True, local)


def check_whose(doors: Doors, number: int | None) -> None:
    """Raises Ending for a table of which each node has its own, when any of them may be asked."""
    if number in doors.local and len(doors.urls) > 1:
        nodes = ", ".join(doors.urls)
        raise Ending(f"table {number}: each node has its own; say whose with --node: {nodes}")


@contextmanager
def opened_table(number: int | None, where: Where) -> Iterator[Table]:
    """A Table for one command; what goes wrong with it ends the command with one line.

    number   None: the command is about no table, or about all
    """
    doors = find_tables(where)
    check_whose(doors, number)
    timeout_ms = int(where["timeout_s"] * 1000)
    with (
        Table(
            doors.urls.values(),
            number or 0,
            timeout_ms=min(REACH_MS, timeout_ms),
            sync=where.get("sync", "partsync"),
            stale=where.get("stale", False),
        ) as table,
        in_one_line(doors, number),
    ):
        table.server()  # Nobody waits long for servers that are not there at all.
        table.timeout_ms = timeout_ms
        yield table


@contextmanager
def in_one_line(doors: Doors, number: int | None) -> Iterator[None]:
    """Ends the command when a table can't do what was asked."""
    place = doors.name if number is None else f"{doors.name}: table {number}"
    try:
        yield
    except NoServer as error:
        way_out = f"start it: supervisor start {doors.name}"
        if not doors.by_topology:
            way_out = "does it run there, and is this its ZeroDB url?"
        urls = ", ".join(doors.urls.values())
        named = f"{doors.name}: " if doors.by_topology else ""
        raise Ending(f"{named}{error} at {urls}; {way_out}", FAILED) from error
    except TableTimeout as error:
        way_out = "" if error.reason else "; do all nodes run? supervisor status"
        raise Ending(f"{place}: {error}{way_out}", FAILED) from error
    except TableTooLarge as error:
        raise Ending(str(error)) from error
    except TableError as error:
        raise Ending(f"{place}: {error}", FAILED) from error
