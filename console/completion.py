"""Shell completion of names in the topology. It contacts no node.

Without a topology it offers no names. Each function imports what it needs.
"""

from collections.abc import Callable, Iterable
from typing import Any

import click

Completion = Callable[[click.Context, click.Parameter, str], list[str]]


def _of_topology(words: Callable[[Any, click.Context], Iterable[str]]) -> Completion:
    """Completes words of the topology so far given, or of the default."""

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        found = _topology(context)
        known = () if found is None else words(found, context)
        return [word for word in dict.fromkeys(known) if word.startswith(incomplete)]

    return complete


def _topology(context: click.Context) -> Any:
    """None: it cannot be loaded."""
    from ..actors.errors import OperatorError
    from ..actors.runtime import run_dir
    from ..actors.topology import topology as topologies

    path = context.params.get("topology") or _leading_topology(context)
    try:
        return topologies.load(path or run_dir.default_path())
    except OperatorError:
        return None


def _leading_topology(context: click.Context) -> str | None:
    """The topology as the first argument of `supervisor`."""
    if "words" in context.params:
        from .admin.processes import targets_of

        return targets_of(context.params["words"] or ())[0]
    arguments = [one.name for one in context.command.params if isinstance(one, click.Argument)]
    # click stops parsing at the option to complete, and leaves arguments in context.args.
    return next(iter(context.args), None) if arguments[:1] == ["topology"] else None


def _roles(found: Any, names: Iterable[str]) -> list[str]:
    from ..actors.runtime import plan

    plans = [plan.node_plan(found, name, one_process=False) for name in names]
    return [actor.name for each in plans for unit in each.units for actor in unit.actors]


def _roles_of_nodes(found: Any, context: click.Context) -> list[str]:
    named = [name for name in context.params.get("nodes") or () if name in found.own_nodes]
    return _roles(found, named or found.own_nodes)


def _targets(found: Any, context: click.Context) -> list[str]:
    own: list[str] = found.own_nodes
    return [*own, *(f"{node}/{role}" for node in own for role in _roles(found, [node]))]


def _farm_servers(found: Any, context: click.Context) -> list[str]:
    name = context.params.get("farm")
    farms = [settings for farm, settings in found.farms.items() if name in (None, farm)]
    return [str(number) for settings in farms for number in settings.servers]


nodes = _of_topology(lambda found, _: found.own_nodes)  # Those that run under a supervisor.
members = _of_topology(lambda found, _: found.nodes)  # Also those of other implementations.
roles = _of_topology(_roles_of_nodes)  # Of the given nodes, or of all nodes.
targets = _of_topology(_targets)  # NODE and NODE/ROLE, after the topology.
farms = _of_topology(lambda found, _: found.farms)
farm_servers = _of_topology(_farm_servers)  # The ids in the given farm, or in all farms.


def farm_publishers(context: click.Context, parameter: click.Parameter, word: str) -> list[str]:
    fixed = [each for each in ("auto", "none") if each.startswith(word)]
    return [*farm_servers(context, parameter, word), *fixed]
