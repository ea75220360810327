"""Which member of a consumer group has which partition, and how far it is. It does no I/O.

No member leads: all that see the same members work out the same assignment.
"""

import zlib
from collections.abc import Collection, Iterable

from ..table.changes import Change
from .layout import member_key, partition_key


def assign(members: Collection[bytes], partitions: int) -> dict[int, bytes]:
    """The member of each partition; empty: there are no members.

    Each member has as many as the others, or one more. Of those with room a partition goes to the
    one with the highest hash, so that few move when members come and go.
    """
    if not members:
        return {}
    least, more = divmod(partitions, len(members))
    counts = dict.fromkeys(members, 0)
    found: dict[int, bytes] = {}
    for partition in range(partitions):
        number = partition.to_bytes(4, "big")
        limit = least + (more > 0)
        with_room = [each for each, count in counts.items() if count < limit]
        chosen = max(with_room, key=lambda each: (zlib.crc32(each + number), each))
        more -= counts[chosen] == least
        counts[chosen] += 1
        found[partition] = chosen
    return found


class GroupView:
    """The keys of a group, as of one index of the log."""

    def __init__(self, prefix: bytes, pairs: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self._prefix = prefix
        self._pairs = dict(pairs)

    def set(self, key: bytes, data: bytes | None) -> None:
        if data is None:
            self._pairs.pop(key, None)
        else:
            self._pairs[key] = data

    def apply(self, changes: Iterable[Change]) -> None:
        for _, start, value, end in changes:
            if end is None:
                self.set(start, value)
                continue
            for key in [it for it in self._pairs if it >= start and (not end or it < end)]:
                del self._pairs[key]

    @property
    def is_empty(self) -> bool:
        return not self._pairs

    @property
    def members(self) -> dict[bytes, str]:
        """Their names, by id, in the order of the ids."""
        prefix = member_key(self._prefix, b"")
        found = sorted(key for key in self._pairs if key.startswith(prefix))
        return {it[len(prefix) :]: self._pairs[it].decode(errors="replace") for it in found}

    def is_member(self, member: bytes) -> bool:
        return member_key(self._prefix, member) in self._pairs

    def partition(self, number: int) -> bytes | None:
        """What is stored for a partition; None: nothing."""
        return self._pairs.get(partition_key(self._prefix, number))


class GroupProgress:
    """How far a member is in its partitions. It reads the stream once for all of them.

    done   all records of its partitions below this offset are done, but for those of a partition
           below its start
    """

    def __init__(self) -> None:
        self.done = 0
        self._starts: dict[int, int] = {}

    @property
    def partitions(self) -> list[int]:
        return sorted(self._starts)

    def take(self, partition: int, offset: int) -> bool:
        """The member has a further partition, which is done below an offset. True: read on at
        `done`, which has changed."""
        before = self.done
        if not self._starts:
            self.done = offset
        elif offset < self.done:
            for each, start in self._starts.items():
                self._starts[each] = max(start, self.done)
            self.done = offset
        self._starts[partition] = offset
        return self.done != before

    def drop(self, partition: int) -> None:
        """The member has the partition no more."""
        self._starts.pop(partition, None)

    def clear(self) -> None:
        self._starts.clear()

    def wants(self, partition: int, offset: int) -> bool:
        """Whether a record is the member's, and was not done before."""
        start = self._starts.get(partition)
        return start is not None and offset >= start

    def advance(self, offset: int) -> None:
        """All records below are done, or of other members."""
        self.done = max(self.done, offset)

    def offset(self, partition: int) -> int:
        """Below it all records of a partition are done."""
        return max(self._starts[partition], self.done)
