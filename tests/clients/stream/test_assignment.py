"""Who has which partition of a group, and how far it is, without a cluster."""

from hypothesis import given
from hypothesis import strategies as st

from kelek.clients.stream.assignment import GroupProgress, GroupView, assign
from kelek.clients.stream.layout import PartitionState, member_key, partition_key
from kelek.clients.table.changes import Change

MEMBERS = st.sets(st.binary(min_size=8, max_size=8), max_size=20)
PREFIX = b"gorders\0billing\0"


@given(MEMBERS, st.integers(1, 64))
def test_every_partition_has_a_member_and_each_about_as_many(
    members: set[bytes], partitions: int
) -> None:
    found = assign(members, partitions)
    assert sorted(found) == (list(range(partitions)) if members else [])
    counts = [list(found.values()).count(member) for member in members]
    assert not counts or max(counts) - min(counts) <= 1
    assert assign(sorted(members, reverse=True), partitions) == found


@given(st.sets(st.binary(min_size=8, max_size=8), min_size=2, max_size=8), st.integers(1, 64))
def test_most_partitions_stay_when_a_member_goes(members: set[bytes], partitions: int) -> None:
    gone = min(members)
    before, after = assign(members, partitions), assign(members - {gone}, partitions)
    moved = sum(before[each] not in (gone, after[each]) for each in range(partitions))
    assert moved <= partitions * 3 // 4


def test_a_view_follows_the_changes_of_its_group() -> None:
    one, other = member_key(PREFIX, b"\0" * 8), member_key(PREFIX, b"\1" * 8)
    place = partition_key(PREFIX, 3)
    view = GroupView(PREFIX, [(one, b"host:1"), (place, b"state")])
    assert view.members == {b"\0" * 8: "host:1"}
    view.apply([Change(5, other, b"host:2"), Change(6, one, None)])
    assert view.members == {b"\1" * 8: "host:2"}
    assert view.is_member(b"\1" * 8)
    assert not view.is_member(b"\0" * 8)
    assert view.partition(3) == b"state"
    assert view.partition(4) is None
    view.apply([Change(7, PREFIX, None, PREFIX + b"n")])
    assert (view.members, view.partition(3)) == ({}, b"state")
    view.apply([Change(8, PREFIX, None, b"")])
    assert view.partition(3) is None


def test_the_state_of_a_partition_names_its_owner() -> None:
    assert PartitionState(7).owner == b""


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30)), max_size=30), st.integers(0, 30))
def test_progress_hands_out_each_record_of_a_partition_once(
    steps: list[tuple[int, int]], end: int
) -> None:
    """Partition p has the records p, p + 4, p + 8, ...; its committed offset never goes back."""
    progress = GroupProgress()
    committed = dict.fromkeys(range(4), 0)
    done: dict[int, list[int]] = {each: [] for each in range(4)}

    def read_to(end: int) -> None:
        for offset in range(progress.done, end):
            if progress.wants(offset % 4, offset):
                done[offset % 4].append(offset)
            progress.advance(offset + 1)
        for partition in progress.partitions:
            assert progress.offset(partition) >= committed[partition]
            committed[partition] = progress.offset(partition)

    for partition, offset in steps:
        if partition in progress.partitions:
            progress.drop(partition)
        else:
            progress.take(partition, committed[partition])
        read_to(offset)
    for partition in set(range(4)).difference(progress.partitions):
        progress.take(partition, committed[partition])
    read_to(40 + end)
    for partition, offsets in done.items():
        assert offsets == list(range(partition, 40 + end, 4))
