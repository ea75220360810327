"""What a queue's table holds: round trips, the order of jobs, and values that are of no queue."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kelek
from kelek.clients.queue import records
from kelek.clients.queue.records import Group, JobEnd, JobRecord, ReadyKey
from kelek.clients.queue.store import JobIds, NewJob, packs

TIMES = st.integers(0, records.TIME_MS_MAX - 1)
IDS = st.binary(min_size=records.ID_BYTES, max_size=records.ID_BYTES)
RECORDS = st.builds(
    JobRecord,
    TIMES,
    TIMES,
    st.integers(0, 1000),
    st.binary(max_size=40),
    st.none() | st.binary(max_size=40),
    st.integers(0, 1000),
    st.booleans(),
    st.lists(st.tuples(TIMES, st.text(max_size=20)), max_size=3).map(tuple),
)
GROUPS = st.builds(Group, TIMES, st.dictionaries(IDS, st.binary(max_size=40), max_size=5))
ENDS = st.builds(JobEnd, st.sampled_from(["done", "dead"]), TIMES, TIMES, st.binary(max_size=9))


@given(RECORDS, GROUPS, ENDS)
def test_round_trips(record: JobRecord, group: Group, end: JobEnd) -> None:
    assert JobRecord.decode(record.encode()) == record
    assert Group.decode(group.encode()) == group
    assert Group.decode(group.encode()).encode() == group.encode(), "a compare finds it"
    assert JobEnd.decode(end.encode()) == end


@given(st.lists(st.tuples(st.integers(0, 9), TIMES), min_size=2, max_size=2))
def test_keys_are_in_the_order_of_jobs(jobs: list[tuple[int, int]]) -> None:
    ids = JobIds()
    made = [ids.new(priority, due_ms) for priority, due_ms in jobs]
    keys = [records.first_ready(job) for job in made]
    assert [ReadyKey.decode(key) for key in keys] == [
        (priority, due_ms, job) for (priority, due_ms), job in zip(jobs, made, strict=True)
    ]
    (one, first_ms), (other, second_ms) = jobs
    assert (keys[0] < keys[1]) == ((-one, first_ms) <= (-other, second_ms))


@given(st.binary(max_size=30))
def test_other_values_are_errors(data: bytes) -> None:
    for kind in (JobRecord, Group, JobEnd):
        try:
            kind.decode(records.VERSION + data)
        except (kelek.TableError, TypeError):
            continue
    if not data.startswith(records.VERSION):
        with pytest.raises(kelek.TableError, match="a newer kelek"):
            JobRecord.decode(data)


def test_jobs_are_packed_in_order() -> None:
    ids = JobIds()
    jobs = [
        NewJob(ids.new(5, number), JobRecord(0, number, 0, b"u" * (number % 100 == 0), None), b"")
        for number in range(2000)
    ]
    found = [*packs(jobs)]
    assert [new for pack in found for new in pack] == jobs
    assert all(len({bool(new.record.unique) for new in pack}) == 1 for pack in found)
    large = [NewJob(new.job, new.record, bytes(200_000)) for new in jobs[1:5]]
    assert [len(pack) for pack in packs(large)] == [1, 1, 1, 1]
