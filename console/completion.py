"""Shell completion of names in the topology. It contacts no node.

Without a topology it offers no names. Each function imports what it needs.
"""

from typing import Any

import click


def nodes(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The nodes that run under a supervisor."""
    found = _topology(context)
    return [] if found is None else _matching(found.own_nodes, incomplete)


def members(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """All nodes, including those of other implementations."""
    found = _topology(context)
    return [] if found is None else _matching(list(found.nodes), incomplete)


def roles(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The roles of the given nodes, or of all nodes."""
    found = _topology(context)
    if found is None:
        return []
    named = [name for name in context.params.get("nodes") or () if name in found.own_nodes]
    return _matching(_roles(found, named or found.own_nodes), incomplete)


def targets(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """NODE and NODE/ROLE, after the topology if that is the first word."""
    from .admin import processes as process_commands

    path, _ = process_commands.targets_of(context.params.get("words") or ())
    found = _topology(context, path)
    if found is None:
        return []
    named = [f"{node}/{role}" for node in found.own_nodes for role in _roles(found, [node])]
    return _matching([*found.own_nodes, *named], incomplete)


def farms(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The farms of the topology."""
    found = _topology(context)
    return [] if found is None else _matching(list(found.farms), incomplete)


def farm_servers(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The server ids of the given farm, or of all farms."""
    found, name = _topology(context), context.params.get("farm")
    if found is None:
        return []
    farms = [settings for farm, settings in found.farms.items() if name in (None, farm)]
    ids = [str(number) for settings in farms for number in settings.servers]
    return _matching(list(dict.fromkeys(ids)), incomplete)


def farm_publishers(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    """The choices for the publisher of a farm."""
    words = _matching(["auto", "none"], incomplete)
    return [*farm_servers(context, parameter, incomplete), *words]


def _topology(context: click.Context, path: str | None = None) -> Any:
    """The topology so far given, or the default; None: it cannot be loaded."""
    from ..actors.errors import OperatorError
    from ..actors.runtime import run_dir
    from ..actors.topology import topology as topologies

    path = path or context.params.get("topology")
    arguments = [one.name for one in context.command.params if isinstance(one, click.Argument)]
    if arguments[:1] == ["topology"]:
        # click stops parsing at the option to complete, and leaves arguments in context.args.
        path = path or next(iter(context.args), None)
    try:
        return topologies.load(path or run_dir.default_path())
    except OperatorError:
        return None


def _roles(found: Any, names: list[str]) -> list[str]:
    from ..actors.runtime import plan

    units = [
        unit for name in names for unit in plan.node_plan(found, name, one_process=False).units
    ]
    return list(dict.fromkeys(actor.name for unit in units for actor in unit.actors))


def _matching(words: list[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]
