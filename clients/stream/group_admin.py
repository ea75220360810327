"""Consumer groups as a whole: what they are doing, and where they go on."""

from typing import NamedTuple

from ..errors import StreamConflict
from ..io.operations import Operation
from ..table.arguments import Range, behind_prefix
from ..table.batch import Batch
from ..table.operations import decoded
from ..table.pages import ScanQuery, pairs_of
from ..table.table import TableWrites
from .assignment import GroupView
from .core import StreamClient
from .layout import Head, PartitionState, decode_partition
from .membership import Membership, read_group
from .reader import Start

RESET_TTL_MS = 1000  # Of a membership that never joins.


class GroupMember(NamedTuple):
    """A member of a group.

    name         as it named itself; by default HOST:PROCESS
    partitions   those that it has
    """

    name: str
    partitions: list[int]


class GroupInfo(NamedTuple):
    """What a group is doing.

    name      of the group
    members   those that live
    free      partitions that no member has now
    offset    all records below it are done
    lag       how many records there are from offset on
    """

    name: str
    members: list[GroupMember]
    free: list[int]
    offset: int
    lag: int


def group_info(name: str, view: GroupView, head: Head) -> GroupInfo:
    owned: dict[bytes, list[int]] = {member: [] for member in view.members}
    free: list[int] = []
    offsets: list[int] = []
    for partition in range(head.partitions):
        data = view.partition(partition)
        state = PartitionState(head.first) if data is None else decoded(decode_partition, data)
        offsets.append(state.offset)
        owned.get(state.owner, free).append(partition)
    members = [GroupMember(each, owned[member]) for member, each in view.members.items()]
    offset = min(offsets)
    return GroupInfo(name, members, free, offset, max(head.next - max(offset, head.first), 0))


def list_groups(core: StreamClient) -> Operation[list[GroupInfo]]:
    """All groups of a stream, by name."""
    head = yield from core.reader.head()
    if head is None:
        return []
    prefix = core.stream.keys.groups
    found: dict[bytes, list[tuple[bytes, bytes]]] = {}
    query = ScanQuery(Range(prefix, behind_prefix(prefix)))
    for step in core.client._pages(query, pairs_of):
        if not isinstance(step, list):
            yield step
            continue
        for key, data in step:
            name = key[len(prefix) :].partition(b"\0")[0]
            found.setdefault(name, []).append((key, data))
    views = {name: GroupView(prefix + name + b"\0", pairs) for name, pairs in found.items()}
    return [group_info(name.decode(errors="replace"), each, head) for name, each in views.items()]


def reset_group(core: StreamClient, name: str, start: Start) -> Operation[int]:
    """Sets where a group goes on; returns that offset. Raises StreamConflict while it has members,
    StreamTrimmed."""
    head = (yield from core.reader.head()) or core.stream.defaults
    offset = yield from core.reader.offset_of(start, head)
    membership = Membership(core.stream, name, b"", RESET_TTL_MS)
    membership.view = yield from read_group(core.stream, membership.prefix)
    if membership.view.members:
        names = ", ".join(membership.view.members.values())
        raise StreamConflict(f"group {name} has members: {names}; stop them first")
    wanted = {each: PartitionState(offset) for each in range(head.partitions)}
    stored = yield from membership.store(wanted)
    if len(stored) < len(wanted):
        raise StreamConflict(f"group {name} has a new member; stop it first")
    return offset


def delete_group(core: StreamClient, name: str) -> Operation[bool]:
    """Forgets a group; False: there was none. Raises StreamConflict while it has members."""
    prefix = core.stream.keys.group(name)
    view = yield from read_group(core.stream, prefix)
    if view.members:
        raise StreamConflict(
            f"group {name} has members: {', '.join(view.members.values())}; stop them first"
        )
    batch = Batch(core.stream.number).delete_range(prefix=prefix)
    yield from TableWrites.commit(core.client, batch)
    return not view.is_empty
