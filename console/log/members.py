"""`kelek log members`: lists, adds and removes members."""

import click

from ...actors.topology.schema import NAME, NAME_RULE, url_problem
from ...clients.errors import MembersConflict, MembersRefused
from ..cli_errors import FAILED, CliError
from ..output import show_json
from ..targets import Where
from .target import opened


def show(output: str, where: Where) -> None:
    """Prints the members by the leader's configuration."""
    with opened(where) as (log, _):
        config = log.config()
    members = dict(config.members or ())
    if output == "json":
        show_json({"leader": config.leader, "members": members})
        return
    width = max(map(len, members), default=0)
    for name, url in members.items():
        leads = "  leader" if name == config.leader else ""
        click.echo(f"{name:<{width}}  {url}{leads}")


def add(name: str, url: str, output: str, where: Where) -> None:
    """Adds a node, whose supervisor must run."""
    if not NAME.fullmatch(name):
        raise CliError(f"ID: {name!r} is not a name; use {NAME_RULE}")
    problem = url_problem(url)
    if problem:
        raise CliError(f"URL {url}: {'; '.join(problem)}")
    with opened(where) as (log, place):
        try:
            index = log.add_member(name, url)
        except (MembersRefused, MembersConflict) as error:
            raise CliError(f"{place.name}: {name}: {_way_out(error)}", FAILED) from error
    _report(f"{name} is a member", index, output)


def remove(name: str, output: str, where: Where) -> None:
    """Removes a node."""
    with opened(where) as (log, place):
        try:
            index = log.remove_member(name)
        except (MembersRefused, MembersConflict) as error:
            raise CliError(f"{place.name}: {name}: {_way_out(error)}", FAILED) from error
    _report(f"{name} is no member any more", index, output)


def _way_out(error: MembersRefused | MembersConflict) -> str:
    if isinstance(error, MembersConflict):
        return f"{error}; try again in a moment"
    ways = {
        "Unreachable": "does its supervisor run, and is this its url?",
        "QuorumLost": "start those nodes first",
    }
    way = ways.get(error.name)
    return f"{error.message}; {way}" if way else error.message


def _report(what: str, index: int, output: str) -> None:
    if output == "json":
        show_json({"index": index})
    else:
        click.echo(f"{what} since index {index}; change the topology, too")
