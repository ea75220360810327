"""The waiting jobs that a worker holds in memory, against a model."""

from hypothesis import given
from hypothesis import strategies as st

from kelek.clients.queue import records
from kelek.clients.queue.finder import KNOWN_BYTES_MAX, KNOWN_JOBS_MAX, WaitingJobs
from kelek.clients.queue.records import ReadyKey
from kelek.protocols.failover.limits import NEVER_MS

KEYS = st.builds(
    lambda priority, due_ms, number: ReadyKey(
        priority, due_ms, number.to_bytes(records.ID_BYTES, "big")
    ).encode(),
    st.integers(0, records.PRIORITY_MAX),
    st.integers(0, 50),
    st.integers(0, 3),
)
CHANGES = st.one_of(
    st.tuples(st.just("put"), KEYS, st.binary(max_size=5)),
    st.tuples(st.just("remove"), KEYS, st.just(b"")),
    st.tuples(st.just("range"), KEYS, KEYS),
)


@given(st.lists(CHANGES, max_size=60), st.integers(0, 60))
def test_waiting_jobs_are_those_that_were_put_and_not_removed(
    changes: list[tuple[str, bytes, bytes]], now_ms: int
) -> None:
    waiting, model = WaitingJobs(), dict[bytes, bytes]()
    for kind, key, data in changes:
        if kind == "put":
            waiting.put(key, data)
            model[key] = data
        elif kind == "remove":
            assert waiting.remove(key) == (model.pop(key, None) is not None)
        else:
            gone = [each for each in model if key <= each < data]
            assert waiting.remove_range(key, data) == bool(gone)
            for each in gone:
                del model[each]
    assert len(waiting) == len(model)
    due = [key for key in sorted(model) if ReadyKey.decode(key).due_ms <= now_ms]
    assert waiting.due(now_ms) == [(key, model[key]) for key in due]
    first_ms = min((ReadyKey.decode(key).due_ms for key in model), default=NEVER_MS)
    assert waiting.first_ms(lambda key: key.due_ms) == first_ms


def test_the_highest_priority_is_first_then_the_earliest() -> None:
    keys = [
        ReadyKey(priority, due_ms, bytes(records.ID_BYTES)).encode()
        for priority, due_ms in ((9, 1), (9, 7), (5, 0), (0, 0))
    ]
    waiting = WaitingJobs((key, b"") for key in keys[::-1])
    assert [key for key, _ in waiting.due(10)] == keys


def test_too_many_jobs_are_not_held() -> None:
    def key(number: int) -> bytes:
        return ReadyKey(5, number, bytes(records.ID_BYTES)).encode()

    for count in (KNOWN_JOBS_MAX, KNOWN_JOBS_MAX + 1):
        waiting = WaitingJobs((key(number), b"") for number in range(count))
        assert waiting.is_full == (count > KNOWN_JOBS_MAX)
    large = WaitingJobs([(key(0), bytes(KNOWN_BYTES_MAX)), (key(1), b"1")])
    assert large.is_full
    assert not WaitingJobs([(key(0), bytes(KNOWN_BYTES_MAX))]).is_full
