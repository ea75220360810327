"""A member of a consumer group: its session, and the partitions that it has taken.

A member takes a partition by a compare-and-put once the member before has released it, or has
ended. Each later write of the partition compares what the member wrote before. So a member that was
paused for longer than its session lives changes nothing of what it has lost.
"""

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ...protocols.zerodb.wire import answers, ops, requests
from ...protocols.zerodb.wire.values import PARTSYNC
from ..errors import SessionEnded
from ..io.operations import Operation
from ..lock.session import KeptSession
from ..table.arguments import Range, behind_prefix
from ..table.batch import Batch
from ..table.operations import decoded
from ..table.pages import ScanQuery, pairs_of
from ..table.table import TableWrites
from .assignment import GroupView, assign
from .layout import PartitionState, decode_partition, member_key, partition_key
from .reader import ChangeWatch

if TYPE_CHECKING:
    from .appender import StreamTable

MEMBER_BYTES = 8


def read_group(stream: "StreamTable", prefix: bytes) -> Operation[GroupView]:
    """All keys of a group."""
    pairs: list[tuple[bytes, bytes]] = []
    for step in stream.client._pages(ScanQuery(Range(prefix, behind_prefix(prefix))), pairs_of):
        if isinstance(step, list):
            pairs += step
        else:
            yield step
    return GroupView(prefix, pairs)


class Membership(KeptSession):
    """One member of a group.

    member   its id; empty: it has not joined, or its session has ended
    owned    the partitions that it has, and what is stored for them
    """

    def __init__(self, stream: "StreamTable", group: str, name: bytes, ttl_ms: int) -> None:
        super().__init__(stream.client, ttl_ms)
        self._stream, self._name = stream, name
        self.prefix = stream.keys.group(group)
        self.member = b""
        self.owned: dict[int, bytes] = {}
        self.view = GroupView(self.prefix)
        self.watch: ChangeWatch | None = None

    @property
    def is_needed(self) -> bool:
        return bool(self.member)

    def forget(self) -> None:
        self.session, self.member = 0, b""
        self.owned.clear()

    def join(self) -> Operation[None]:
        """Becomes a member under a new id."""
        while not self.member:
            yield from self._fresh_session()
            member = os.urandom(MEMBER_BYTES)
            batch = Batch(self._stream.number, session=self.session)
            batch.put(member_key(self.prefix, member), self._name)
            try:
                yield from TableWrites.commit(self._table, batch)
            except SessionEnded:
                self.forget()
                continue
            self.member = member
        yield from self.look()

    def look(self) -> Operation[None]:
        """Reads the group, and watches it from then on."""
        self.close_watch()
        index = yield from self._table._next_index()
        self.view = yield from read_group(self._stream, self.prefix)
        bounds = Range(self.prefix, behind_prefix(self.prefix))
        self.watch = ChangeWatch(self._stream.client, bounds, index)

    def close_watch(self) -> None:
        if self.watch is not None:
            self.watch.close()
            self.watch = None

    def update(self) -> Operation[bool]:
        """Applies the changes of the group that have arrived; False: there were none."""
        if self.watch is None or not self.watch.is_ready:
            return False
        changes = self.watch.take()
        if changes is None:
            yield from self.look()
        else:
            self.view.apply(changes)
        return changes is None or bool(changes)

    def mine(self, partitions: int) -> set[int]:
        """The partitions that this member should have."""
        assigned = assign(self.view.members, partitions)
        return {partition for partition, member in assigned.items() if member == self.member}

    def take(self, partitions: Iterable[int], first: int) -> Operation[dict[int, int]]:
        """Takes those partitions that no other member has. Returns their offsets.

        first   the offset of a partition that no member ever had
        """
        wanted: dict[int, PartitionState] = {}
        gone: set[bytes] = set()
        for partition in sorted(partitions):
            data = self.view.partition(partition)
            state = PartitionState(first) if data is None else decoded(decode_partition, data)
            if state.owner and state.owner != self.member:
                if self.view.is_member(state.owner):
                    continue  # It releases the partition soon, or its session ends.
                gone.add(state.owner)
            wanted[partition] = state._replace(owner=self.member)
        number = self._stream.number
        compares = [ops.Compare(number, self.session.to_bytes(8, "little"), ops.ALIVE, b"")]
        compares += [self._stream.compare(member_key(self.prefix, it), None) for it in gone]
        stored = yield from self.store(wanted, compares)
        return {partition: wanted[partition].offset for partition in stored}

    def store(
        self, wanted: Mapping[int, PartitionState], compares: Iterable[ops.Compare] = ()
    ) -> Operation[set[int]]:
        """Stores the states of partitions that are as this member knows them, in one step. Returns
        those; the others it has no more."""
        stream, left = self._stream, dict(wanted)
        while left:
            keys = {partition: partition_key(self.prefix, partition) for partition in left}
            known = {it: self.owned.get(it, self.view.partition(it)) for it in left}
            data = {partition: state.encode() for partition, state in left.items()}
            request = requests.Transaction(
                [*compares, *(stream.compare(keys[it], known[it]) for it in left)],
                [stream.put(keys[it], data[it]) for it in left],
                [ops.Get(stream.number, [keys[it]]) for it in left],
                stream.client._write_flags or PARTSYNC,
            )
            result = yield from stream.client._fetch(request, answers.TRANSACTION)
            if result.succeeded:
                for partition, state in left.items():
                    self._note(partition, keys[partition], data[partition], state)
                return set(left)
            found = dict(zip(left, result.values, strict=True))
            changed = {it: value for it, value in found.items() if value != known[it]}
            if not changed:
                return set()
            for partition, value in changed.items():
                state = PartitionState(0) if value is None else decoded(decode_partition, value)
                self._note(partition, keys[partition], value, state)
                if partition not in self.owned:
                    del left[partition]
        return set()

    def _note(self, partition: int, key: bytes, data: bytes | None, state: PartitionState) -> None:
        """What is stored for a partition now."""
        self.view.set(key, data)
        if data is not None and self.member and state.owner == self.member:
            self.owned[partition] = data
        else:
            self.owned.pop(partition, None)
