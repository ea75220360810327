"""`kelek log snapshot`: orders snapshots."""

from typing import Any

import click

from ...clients.errors import LogError, LogTimeout, SnapshotUnsupported
from ...clients.log.log import Log
from ..cli_errors import FAILED, CliError
from ..output import show_json
from ..targets import Where
from .target import find_place


def make(output: str, where: Where) -> None:
    """Makes every kelek node take a snapshot; lists members of other implementations.

    Raises CliError when a kelek node makes none, or there is no kelek node.
    """
    place = find_place(where)
    rows: list[dict[str, Any]] = []
    for name, url in place.urls.items():
        row: dict[str, Any] = {"node": name, "index": 0, "size": 0, "problem": "", "foreign": False}
        rows.append(row)
        if name in place.foreign:
            row |= {"problem": "not kelek: it makes snapshots by itself", "foreign": True}
            continue
        try:
            with Log([url], place.cluster, timeout_ms=int(where["timeout_s"] * 1000)) as log:
                made = log.make_snapshot(url)
            row |= {"index": made.last_index, "size": made.size}
        except SnapshotUnsupported as error:
            row |= {"problem": str(error), "foreign": True}
        except LogTimeout:
            row["problem"] = "no answer"
        except LogError as error:
            row["problem"] = str(error)
    if output == "json":
        show_json({"cluster": place.cluster, "nodes": rows})
    else:
        width = max(len(row["node"]) for row in rows)
        for row in rows:
            words = row["problem"] or f"up to {row['index']}, {row['size']} bytes"
            click.echo(f"{row['node']:<{width}}  {words}")
    failed = [row["node"] for row in rows if row["problem"] and not row["foreign"]]
    if all(row["foreign"] for row in rows):
        raise CliError(f"{place.name}: no node is kelek, so none makes a snapshot", FAILED)
    if failed:
        raise CliError(f"{place.name}: no snapshot of {', '.join(failed)}", FAILED)
