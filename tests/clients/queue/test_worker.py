"""The parts of a worker that need no cluster: the bucket of a rate, and parts of a transaction."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.clients.queue import records
from kelek.clients.queue.operations import Prefetch
from kelek.clients.queue.records import JobRecord
from kelek.clients.queue.worker import (
    END_OPS,
    FUNCTION_OPS_MAX,
    SETTLE_JOBS_MAX,
    SETTLE_OPS_MAX,
    Bucket,
    Claim,
    JobOutcome,
    parts,
)
from kelek.clients.table.batch import Batch
from kelek.protocols.zerodb.wire import ops
from kelek.protocols.zerodb.wire.values import COMPARES_MAX

RECORD = JobRecord(0, 0, 0, b"", b"")


@given(
    st.floats(0.5, 10_000),
    st.integers(1, 50),
    st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 100)), max_size=40),
)
def test_a_bucket_gives_its_rate(rate: float, burst: int, turns: list[tuple[int, int]]) -> None:
    """However often it is asked: no more than the burst and what the rate gives in the time."""
    begun_ms = now_ms = 1_000_000
    stored: bytes | None = None
    given_tokens = 0
    for pause_ms, wanted in turns:
        now_ms += pause_ms
        bucket = Bucket(stored, rate, burst, now_ms)
        count = min(bucket.tokens, wanted)
        if not count:
            assert bucket.wait_ms > 0
            assert Bucket(stored, rate, burst, now_ms + bucket.wait_ms + 1).tokens > 0
            continue
        batch = Batch(0)
        bucket.add_to(batch, count)
        (put,) = batch.ops
        assert isinstance(put, ops.Put)
        stored = put.values[0]
        given_tokens += count
        assert given_tokens <= burst + (now_ms - begun_ms) / 1000 * rate * 1.01 + 1


@given(st.lists(st.integers(0, FUNCTION_OPS_MAX), max_size=300))
def test_parts_fit_into_a_transaction(sizes: list[int]) -> None:
    put = ops.Put(0, [b"k"], [b""])
    outcomes = [
        JobOutcome(Claim(b"%d" % number, b"g", RECORD, b""), ops=(put,) * size)
        for number, size in enumerate(sizes)
    ]
    found = [*parts(outcomes)]
    assert [outcome for part in found for outcome in part] == outcomes
    for part in found:
        assert len(part) <= SETTLE_JOBS_MAX
        # A group of its own for each job takes one operation more.
        size = sum(len(outcome.ops) + END_OPS for outcome in part)
        assert size <= SETTLE_OPS_MAX <= COMPARES_MAX


@pytest.mark.parametrize(("seconds", "count"), [(0.0001, 128), (1.0, 1), (0.02, 4)])
def test_a_worker_claims_what_it_does_in_a_tenth_of_a_second(seconds: float, count: int) -> None:
    prefetch = Prefetch(128)
    for _ in range(20):
        prefetch.on_done(prefetch.count, prefetch.count * seconds)
    assert prefetch.count == count


def test_a_groups_key_names_its_session() -> None:
    assert records.session_of(records.group_key(77, 3)) == 77
