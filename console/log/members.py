"""`kelek log members`: lists, adds and removes members."""

from collections.abc import Callable

from ...actors.topology.schema import NAME, NAME_RULE, url_problem
from ...clients.errors import MembersConflict, MembersRefused
from ...clients.log.log import Log
from .. import completion
from ..cli_errors import FAILED, CliError
from ..options import ClusterOptions, argument, command
from ..render import show
from .target import open_log


@command
def list_(options: ClusterOptions) -> None:
    """Prints each member's id and url, and the leader."""
    with open_log(options) as (log, _):
        config = log.config()
    members = dict(config.members or ())
    width = max(map(len, members), default=0)
    lines = (
        f"{name:<{width}}  {url}{'  leader' * (name == config.leader)}"
        for name, url in members.items()
    )
    show(options.output, {"leader": config.leader, "members": members}, *lines)


@command
def add(
    options: ClusterOptions,
    name: str = argument(metavar="ID"),
    url: str = argument(metavar="URL"),
) -> None:
    """Adds the node ID, which serves clients at URL, to the members.

    Its supervisor must be running, with a topology that names it and the members. The command
    returns when the node has caught up and is a member.
    """
    if not NAME.fullmatch(name):
        raise CliError(f"ID: {name!r} is not a name; use {NAME_RULE}")
    problem = url_problem(url)
    if problem:
        raise CliError(f"URL {url}: {'; '.join(problem)}")
    _change(options, name, lambda log: log.add_member(name, url), f"{name} is a member")


@command
def remove(
    options: ClusterOptions,
    name: str = argument(metavar="ID", shell_complete=completion.members),
) -> None:
    """Removes the node ID from the members. You may stop its supervisor then."""
    _change(options, name, lambda log: log.remove_member(name), f"{name} is not a member")


def _way_out(error: MembersRefused | MembersConflict) -> str:
    if isinstance(error, MembersConflict):
        return f"{error}; try again in a moment"
    ways = {
        "Unreachable": "does its supervisor run, and is this its url?",
        "QuorumLost": "start those nodes first",
    }
    way = ways.get(error.name)
    return f"{error.message}; {way}" if way else error.message


def _change(options: ClusterOptions, name: str, change: Callable[[Log], int], message: str) -> None:
    with open_log(options) as (log, target):
        try:
            index = change(log)
        except (MembersRefused, MembersConflict) as error:
            raise CliError(f"{target.source}: {name}: {_way_out(error)}", FAILED) from error
    text = f"{message} since index {index}; change the topology, too"
    show(options.output, {"index": index}, text)
