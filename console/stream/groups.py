"""`kelek stream groups`, reset and forget: the consumer groups of a stream."""

from typing import Any, NamedTuple

from ...clients.stream.group_admin import GroupInfo
from ...clients.stream.reader import Start
from .. import render
from ..cli_errors import FAILED, CliError
from ..options import ServerOptions, argument, command, option
from .target import NAME, START, OutputOptions, StreamPlace, missing, open_stream

GROUP = argument(metavar="GROUP")


@command
def groups(
    options: OutputOptions,
    place: StreamPlace,
    name: str = NAME,
    members: bool = option("--members", is_flag=True, help="Print the members of each group."),
) -> None:
    """Prints the consumer groups of the stream NAME: members, offset, lag.

    All records below the offset are done; the lag is how many there are from there on. Without a
    member none of the partitions is read.
    """
    with open_stream(name, options, place) as stream:
        if stream.info() is None:
            raise missing(name)
        found = stream.groups()
    if options.output == "json":
        for each in found:
            render.show_json({**each._asdict(), "members": [it._asdict() for it in each.members]})
        return
    if members:
        rows = [row for each in found for row in member_rows(each)]
        render.show_table(["group", "member", "partitions"], rows)
        return
    render.show_table(
        ["group", "members", "offset", "lag"],
        [[each.name, len(each.members), each.offset, each.lag] for each in found],
    )


def member_rows(group: GroupInfo) -> list[list[Any]]:
    rows = [[group.name, it.name, " ".join(map(str, it.partitions))] for it in group.members]
    if group.free:
        rows.append([group.name, "-", " ".join(map(str, group.free))])
    return rows


class ResetRequest(NamedTuple):
    start: Start = option(
        "--start", type=START, metavar="START", required=True, help="Where it goes on."
    )


@command
def reset(
    options: OutputOptions,
    place: StreamPlace,
    request: ResetRequest,
    name: str = NAME,
    group: str = GROUP,
) -> None:
    """Sets where GROUP of the stream NAME goes on, and prints that offset. It has no members."""
    with open_stream(name, options, place) as stream:
        if stream.info() is None:
            raise missing(name)
        offset = stream.reset_group(group, request.start)
    render.show(options.output, {"group": group, "offset": offset}, offset)


@command
def forget(
    options: ServerOptions, place: StreamPlace, name: str = NAME, group: str = GROUP
) -> None:
    """Forgets how far GROUP of the stream NAME is. It has no members."""
    with open_stream(name, options, place) as stream:
        if not stream.delete_group(group):
            way_out = f"list them: kelek stream groups {name}"
            raise CliError(f"stream {name}: has no group {group}; {way_out}", FAILED)
