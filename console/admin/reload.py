"""`supervisor reload`: nodes that run adopt a changed topology."""

from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn

import click

from ...actors.runtime import run_dir
from ..cli_errors import CliError
from ..options import command, option
from ..render import show_json
from . import rolling
from . import supervisor_client as client

VALUE_CHARACTERS = 28  # Of a shown value; -o json has all of it.


class _Answers(NamedTuple):
    """What the supervisors of a topology on this machine say of its file.

    changes        by key: key, old, new, place
    refused        place, problem, way out
    steps          node, unit, verb
    fingerprints   by node, of what its supervisor has read
    """

    changes: dict[str, list[Any]]
    refused: list[list[str]]
    steps: list[rolling.Step]
    fingerprints: dict[str, str]


@command
def reload(
    topology: str | None = client.TOPOLOGY,
    dry_run: bool = option("--dry-run", is_flag=True, help="Only show what would change."),
    output: str = client.OUTPUT,
) -> None:
    """Has the nodes that run here adopt the topology as its file is now.

    Restarts only processes whose settings have changed and that can't adopt them while they run.
    One node goes after the other: the next one when the previous one has caught up, the leader's
    node last, after it has handed over leadership. A broken file or an impossible change is
    refused, and nothing restarts. On several machines, copy the file to each and reload one machine
    after the other.
    """
    path = client.path_of(topology)
    running = client.running_nodes(path, ())
    if not running:
        raise client.nothing_runs(path)
    found = _ask_all(path, running, dry_run)
    rows = [row for row in client.rows_of(path) if row["role"] != "supervisor"]
    if output != "json":
        for key, old, new, _ in found.changes.values():
            click.echo(_line(key, old, new))
    if found.refused:
        _refuse(path, found, dry_run, output)
    done = [] if dry_run else rolling.carry_out(path, found.steps, output, found.fingerprints)
    if output == "json":
        show_json(_as_json(path, found, done))
        return
    if dry_run:
        for node, unit, verb in found.steps:
            click.echo(f"would {verb} node={node} unit={unit}")
        restarted, updated = _counts(
            (verb, _size(rows, node, unit)) for node, unit, verb in found.steps
        )
        and_updated = f", update {updated}" if updated else ""
        click.echo(f"would restart {restarted} of {len(rows)} processes{and_updated}")
        return
    restarted, updated = _counts((it["verb"], len(it["roles"])) for it in done)
    and_updated = f", {updated} updated" if updated else ""
    count = len(found.changes)
    changed = f"{count} change{'s' * (count != 1)}" if count else "no change"
    processes = f"{restarted} of {len(rows)} processes restarted{and_updated}"
    click.echo(f"reloaded {path}: {changed}, {processes}")
    _show_elsewhere(path, running, found)


def _refuse(path: str, found: _Answers, dry_run: bool, output: str) -> NoReturn:
    """Raises CliError with the first refusal; a dry run shows the others, too."""
    place, problem, way_out = found.refused[0]
    also = ""
    if dry_run and output == "json":
        show_json(_as_json(path, found, []))
    elif dry_run:
        for each in found.refused[1:]:
            click.echo("{}: {}; {}".format(*each), err=True)
    elif more := len(found.refused) - 1:
        also = f" (and {more} more: --dry-run shows them)"
    raise CliError(f"{place}: {problem}; {way_out}{also}; nothing was changed")


def _size(rows: rolling.Rows, node: str, unit: str) -> int:
    """The number of a unit's processes; a unit that is new has one."""
    return sum((row["node"], row.get("unit")) == (node, unit) for row in rows) or 1


def _counts(steps: Iterable[tuple[str, int]]) -> tuple[int, int]:
    """(processes that restart, start or stop; that adopt their settings while they run)"""
    known = [*steps]
    updated = sum(count for verb, count in known if verb == "update")
    return sum(count for _, count in known) - updated, updated


def _ask_all(path: str, running: dict[str, dict[str, Any]], dry: bool) -> _Answers:
    """Asks each supervisor once. Raises CliError if the file is broken."""
    answers = _Answers({}, [], [], {})
    base, asked = run_dir.of_topology(path), dict[int, str]()
    for node, found in running.items():
        pid = found.get("pid", 0)
        if pid not in asked:
            answer = client.ask(base, node, b"ask-reload", found, dry)
            if answer["problem"]:
                raise CliError(answer["problem"])
            asked[pid] = answer["fingerprint"]
            answers.changes.update({change[0]: change for change in answer["changes"]})
            answers.refused.extend(
                each for each in answer["refused"] if each not in answers.refused
            )
            answers.steps.extend((name, unit, verb) for name, unit, verb in answer["steps"])
        answers.fingerprints[node] = asked[pid]
    return answers


def _as_json(path: str, found: _Answers, done: list[dict[str, Any]]) -> dict[str, Any]:
    change, step = ("key", "old", "new", "place"), ("node", "unit", "verb")
    return {
        "topology": path,
        "changes": [dict(zip(change, each, strict=True)) for each in found.changes.values()],
        "refused": [f"{place}: {problem}; {way_out}" for place, problem, way_out in found.refused],
        "steps": [dict(zip(step, each, strict=True)) for each in found.steps],
        "done": done,
    }


def _line(key: str, old: Any, new: Any) -> str:
    if isinstance(old, dict) or isinstance(new, dict):
        return f"{key}: {'added' if old is None else 'removed'}"
    return f"{key}: {_text(old)} -> {_text(new)}"


def _text(value: Any) -> str:
    text = "none" if value in (None, "") else str(value)
    return text if len(text) <= VALUE_CHARACTERS else f"{text[: VALUE_CHARACTERS - 2]}.."


def _show_elsewhere(path: str, running: dict[str, dict[str, Any]], found: _Answers) -> None:
    """What else is to be done: at nodes that do not run here."""
    if not found.changes:
        return
    nodes = client.load(path).nodes
    own = [name for name, node in nodes.items() if node.dialect == "kelek"]
    added = [name for name in own if f"nodes.{name}" in found.changes]
    others = [name for name in own if name not in running and name not in added]
    for name in added:
        url = nodes[name].url
        click.echo(
            f"{name} is new: `supervisor start --node {name}`, then "
            f"`kelek log members add {name} {url}`"
        )
    if others:
        verb = "do" if len(others) > 1 else "does"
        click.echo(
            f"{', '.join(others)} {verb} not run here: copy the file to the other machines, then "
            "`supervisor reload` there"
        )
