"""RaftLog and DurableTracker compared with plain lists of one value for each entry."""

from collections.abc import Iterator
from itertools import pairwise
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kelek.protocols.errors import LocalProtocolError
from kelek.protocols.raft.log import DurableTracker, RaftLog
from kelek.protocols.raft.membership import Configuration
from kelek.protocols.raft.messages import EntryBatch


def batch(first_index: int, count: int, term: int) -> EntryBatch:
    return EntryBatch(first_index, count, term, bytes(count))


def trim(batch: EntryBatch, last_index: int) -> EntryBatch:
    keep = last_index + 1 - batch.first_index
    assert 0 < keep < batch.count
    return EntryBatch(batch.first_index, keep, batch.term, batch.block[:keep])


class Model:
    """A log as a list of terms."""

    def __init__(self, base_index: int, base_term: int) -> None:
        self.base_index = base_index
        self.terms = [base_term]

    def term_at(self, index: int) -> int | None:
        at = index - self.base_index
        return self.terms[at] if 0 <= at < len(self.terms) else None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "append", "truncate", "compact", "reset"]),
        st.integers(1, 9),
        st.integers(0, 2),
    ),
    max_size=40,
)


_ONE = ("append", 1, 0)


@given(STEPS, st.integers(0, 5), st.integers(0, 60))
@example([_ONE] * 6 + [("truncate", 1, 0)] + [_ONE] * 2, 0, 2)  # Below what has left the memory.
def test_raft_log_against_list(
    steps: list[tuple[str, int, int]], base_index: int, cache_bytes_max: int
) -> None:
    base_term = 1 if base_index else 0
    log = RaftLog(base_index, base_term, cache_bytes_max=cache_bytes_max)
    model = Model(base_index, base_term)
    for what, number, more in steps:
        if what == "append":
            term = max(log.last_term, 1) + more
            log.append(batch(log.last_index + 1, number, term))
            model.terms += [term] * number
        elif what == "reset" and more == 2:
            model = Model(log.last_index + number, log.last_term + more)
            log.reset(model.base_index, model.terms[0], Configuration(()))
        elif log.last_index > log.base_index:
            index = log.base_index + 1 + number % (log.last_index - log.base_index)
            if what == "compact":
                log.compact(index)
                del model.terms[: index - model.base_index]
                model.base_index = index
            elif what == "truncate":
                log.truncate(index, trim)
                del model.terms[index - model.base_index :]
        check(log, model)


def check(log: RaftLog, model: Model) -> None:
    last_index = model.base_index + len(model.terms) - 1
    assert (log.last_index, log.last_term) == (last_index, model.terms[-1])
    for index in range(last_index + 3):
        assert log.term_at(index) == model.term_at(index)
    runs = list(expected_runs(model))
    assert log.runs == runs
    for first_index, term in runs:
        assert log.term_first(first_index) == first_index
        last = log.run_last(first_index)
        assert model.term_at(last) == term != model.term_at(last + 1)
        assert log.term_last(term) == last
    base_term = model.terms[0]
    if base_term not in {term for _, term in runs}:
        assert log.term_last(base_term) == model.base_index
    assert log.term_last(log.last_term + 1) is None
    check_slices(log)
    again = RaftLog(log.base_index, log.base_term, log.runs, log.last_index)
    assert again.runs == log.runs


def expected_runs(model: Model) -> Iterator[tuple[int, int]]:
    before = None
    for at, term in enumerate(model.terms[1:], model.base_index + 1):
        if term != before:
            yield at, term
        before = term


def check_slices(log: RaftLog) -> None:
    assert log.slice(log.last_index + 1, 100) == []
    for first_index in range(log.base_index + 1, log.last_index + 1):
        found = log.slice(first_index, 20)
        if found is None:
            assert first_index < log.cached_first
            continue
        assert first_index >= log.cached_first
        assert found[0].first_index <= first_index <= found[0].last_index
        assert len(found) == 1 or sum(len(b.block) for b in found) <= 20
        for left, right in pairwise(found):
            assert right.first_index == left.last_index + 1
        for one in found:
            assert len(one.block) == one.count
            held = range(max(one.first_index, log.base_index + 1), one.last_index + 1)
            assert {log.term_at(i) for i in held} == {one.term}


def test_cache_keeps_the_newest() -> None:
    log = RaftLog(cache_bytes_max=100)
    for index in range(1, 2000):
        log.append(batch(index, 1, 1)._replace(block=bytes(10)))
    assert log.cached_first == 1990
    assert log.slice(1989, 1 << 20) is None
    found = log.slice(1990, 1 << 20)
    assert found is not None
    assert [one.first_index for one in found] == list(range(1990, 2000))
    assert all(one.block for one in found)


@pytest.mark.parametrize("wrong", [(3, 1, 1), (5, 1, 1), (4, 0, 1), (4, 1, 0)])
def test_append_that_does_not_follow(wrong: tuple[int, int, int]) -> None:
    log = RaftLog()
    log.append(batch(1, 3, 1))
    with pytest.raises(LocalProtocolError, match="does not follow"):
        log.append(EntryBatch(*wrong, b""))
    assert log.last_index == 3


@given(st.integers(0, 1 << 32))
def test_unsynced_never_claims_more_than_the_disk_has(seed: int) -> None:
    """The disk is a list of (term, stamp); it is written in order, in pieces, and truncated."""
    random = Random(seed)
    log: list[tuple[int, int]] = []
    disk: list[tuple[int, int]] = []
    waiting: list[tuple[int, list[tuple[int, int]], int]] = []
    unsynced = DurableTracker(0)
    term, stamp, skipped = 1, 0, False
    for _ in range(60):
        if random.random() < 0.6:
            first_index = len(log) + 1
            if log and random.random() < 0.3:
                first_index = random.randint(1, len(log))
                unsynced.truncate(first_index)
                del log[first_index - 1 :]
                term = random.choice([term, term + 1])  # The same pair may come again.
            stamp += 1
            entries = [(term, stamp)] * random.randint(1, 4)
            log += entries
            waiting.append((first_index, entries, term))
            unsynced.add(EntryBatch(first_index, len(entries), term, b""))
        elif waiting:
            for first_index, entries, piece_term in waiting[: random.randint(1, len(waiting))]:
                waiting.pop(0)
                disk[first_index - 1 :] = entries
                if random.random() < 0.8:  # The last one stands for all before it.
                    unsynced.on_durable(first_index + len(entries) - 1, piece_term)
                else:
                    skipped = True
        durable = unsynced.durable_index
        assert log[:durable] == disk[:durable]
    for first_index, entries, piece_term in waiting:
        disk[first_index - 1 :] = entries
        unsynced.on_durable(first_index + len(entries) - 1, piece_term)
    if waiting and not skipped:  # With one skipped, a pair that came twice may count as the older.
        assert unsynced.durable_index == len(log)


def test_unsynced_takes_part_of_a_batch() -> None:
    unsynced = DurableTracker(4)
    unsynced.add(batch(5, 6, 2))
    unsynced.on_durable(7, 2)
    assert unsynced.durable_index == 7
    unsynced.on_durable(9, 3)  # It never had this entry.
    assert unsynced.durable_index == 7
    unsynced.on_durable(10, 2)
    assert unsynced.durable_index == 10
