"""`kelek log members`: lists, adds and removes members."""

import click

from ...actors.topology.schema import NAME, NAME_RULE, url_problem
from ...clients.errors import MembersConflict, MembersRefused
from ..cli_errors import FAILED, CliError
from ..options import ClusterOptions
from ..output import show_json
from .target import open_log


def show(options: ClusterOptions) -> None:
    """Prints the members by the leader's configuration."""
    with open_log(options) as (log, _):
        config = log.config()
    members = dict(config.members or ())
    if options.output == "json":
        show_json({"leader": config.leader, "members": members})
        return
    width = max(map(len, members), default=0)
    for name, url in members.items():
        leads = "  leader" if name == config.leader else ""
        click.echo(f"{name:<{width}}  {url}{leads}")


def add(name: str, url: str, options: ClusterOptions) -> None:
    """Adds a node, whose supervisor must run."""
    if not NAME.fullmatch(name):
        raise CliError(f"ID: {name!r} is not a name; use {NAME_RULE}")
    problem = url_problem(url)
    if problem:
        raise CliError(f"URL {url}: {'; '.join(problem)}")
    with open_log(options) as (log, target):
        try:
            index = log.add_member(name, url)
        except (MembersRefused, MembersConflict) as error:
            raise CliError(f"{target.source}: {name}: {_way_out(error)}", FAILED) from error
    _report(f"{name} is a member", index, options)


def remove(name: str, options: ClusterOptions) -> None:
    """Removes a node."""
    with open_log(options) as (log, target):
        try:
            index = log.remove_member(name)
        except (MembersRefused, MembersConflict) as error:
            raise CliError(f"{target.source}: {name}: {_way_out(error)}", FAILED) from error
    _report(f"{name} is not a member", index, options)


def _way_out(error: MembersRefused | MembersConflict) -> str:
    if isinstance(error, MembersConflict):
        return f"{error}; try again in a moment"
    ways = {
        "Unreachable": "does its supervisor run, and is this its url?",
        "QuorumLost": "start those nodes first",
    }
    way = ways.get(error.name)
    return f"{error.message}; {way}" if way else error.message


def _report(message: str, index: int, options: ClusterOptions) -> None:
    if options.output == "json":
        show_json({"index": index})
    else:
        click.echo(f"{message} since index {index}; change the topology, too")
