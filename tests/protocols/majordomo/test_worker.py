"""The worker's state machine alone: registration, heartbeat, requests, drain."""

from functools import partial

import pytest

from kelek.protocols.connections import Connect, Disconnect, Send, Warn
from kelek.protocols.failover.limits import NOTICE_MS
from kelek.protocols.majordomo import codec
from kelek.protocols.majordomo.values import CREDIT_UNLIMITED, REMAINING_MS_UNKNOWN
from kelek.protocols.majordomo.worker import WorkerMachine, WorkerRequest, Workers, WorkerSetup

SETUP = WorkerSetup(b"echo", window=2, heartbeat_interval_ms=100, liveness=3)
CLIENT = b"client"
# The later ones are for brokers that do not know the first.
READY = [
    codec.WorkerReady(b"echo", 2, True, credit=True, bundles=True),
    codec.WorkerReady(b"echo", 2, True, credit=True),
    codec.WorkerReady(b"echo", 2, True),
]


def worker_of(setup: WorkerSetup = SETUP) -> WorkerMachine:
    worker = WorkerMachine("a", setup)
    assert worker.ready(0) == [Connect("a")]
    worker.on_connected(0)
    own = READY if setup.deadlines else [codec.WorkerReady(setup.service, setup.window)]
    assert said(worker, 0) == [
        ready._replace(service=setup.service, window=setup.window) for ready in own
    ]
    return worker


def said(worker: WorkerMachine, now_ms: int) -> list[codec.WorkerCommand]:
    return [
        codec.WORKER_COMMANDS.decode(it.frames)[1]
        for it in worker.ready(now_ms)
        if isinstance(it, Send)
    ]


def hear(worker: WorkerMachine, order: codec.Order, now_ms: int = 0) -> None:
    worker.on_frames(codec.encode(order), now_ms)


def ask(
    worker: WorkerMachine, number: int, left_ms: int = 1000, now_ms: int = 0
) -> list[WorkerRequest]:
    hear(worker, codec.WorkRequest(CLIENT, str(number).encode(), [b"body"], left_ms), now_ms)
    return worker.pop_requests()


def test_a_request_is_answered_once() -> None:
    worker = worker_of()
    (job,) = ask(worker, 1, now_ms=500)
    assert (job.client, job.request_id, job.body) == (CLIENT, b"1", [b"body"])
    assert job.deadline_ms == 1500
    assert worker.partial(job, [b"part"])
    assert worker.final(job, [b"done"])
    assert not worker.final(job, [b"again"])
    assert not worker.partial(job, [b"again"])
    assert said(worker, 500) == [
        codec.WorkPartial(CLIENT, b"1", [b"part"]),
        codec.WorkFinal(CLIENT, b"1", [b"done"]),
    ]
    assert worker.counters["late"] == 2


def test_a_request_that_fails() -> None:
    worker = worker_of()
    (job,) = ask(worker, 1, REMAINING_MS_UNKNOWN)
    assert job.deadline_ms is None
    assert worker.fail(job, codec.Failure(500, "why"))
    (final,) = said(worker, 0)
    assert isinstance(final, codec.WorkFinal)
    assert codec.decode_failure(final.body) == codec.Failure(500, "why")


def test_parts_are_sent_for_credit_and_more_may_come() -> None:
    worker = worker_of()
    hear(worker, codec.WorkRequest(CLIENT, b"1", [b"body"], 1000, 10))
    (job,) = worker.pop_requests()
    told: list[bool] = [job.has_credit]
    job.on_change = lambda: told.append(job.has_credit)
    job.spent += 15  # The last part may be larger than what is left.
    told.append(job.has_credit)
    hear(worker, codec.WorkCredit(CLIENT, b"1", 5))
    hear(worker, codec.WorkCredit(CLIENT, b"1", 1))
    hear(worker, codec.WorkCredit(CLIENT, b"2", 1))  # Its FINAL is on its way.
    job.spent += 100
    hear(worker, codec.WorkCredit(CLIENT, b"1", CREDIT_UNLIMITED))
    assert told == [True, False, False, True, True]
    hear(worker, codec.WorkRequest(CLIENT, b"3", [b"body"], 1000, CREDIT_UNLIMITED))
    (other,) = worker.pop_requests()
    other.spent = 1 << 40
    assert other.has_credit
    assert worker.counters["junk"] == 0


def test_a_cancelled_request_still_has_its_final_and_a_lost_one_none() -> None:
    worker = worker_of()
    (job,), (other,) = ask(worker, 1), ask(worker, 2)
    told: list[WorkerRequest] = []
    for each in (job, other):
        each.on_change = partial(told.append, each)
    hear(worker, codec.WorkCancel(CLIENT, b"1"))
    assert (job.cancelled, other.cancelled) == (True, False)
    assert worker.fail(job, codec.Failure(499, "the client withdrew it"))
    assert worker.counters["failed"] == 0
    worker.on_disconnected(0)
    assert told == [job, other]
    assert not other.answerable


def test_without_deadlines_the_body_begins_behind_the_id() -> None:
    worker = worker_of(SETUP._replace(deadlines=False))
    hear(worker, codec.WorkRequest(CLIENT, b"1", [b"12345678"]))
    (job,) = worker.pop_requests()
    assert (job.body, job.deadline_ms) == ([b"12345678"], None)


def test_a_ping_in_each_silent_interval() -> None:
    worker = worker_of()
    (job,) = ask(worker, 1, now_ms=50)
    assert worker.deadline_ms == 150
    # Its own words are no reason to be silent: it hears nothing.
    for now_ms in (100, 149):
        worker.partial(job, [b"part"])
        assert [type(it) for it in said(worker, now_ms)] == [codec.WorkPartial]
    assert said(worker, 150) == [codec.Ping()]
    assert said(worker, 249) == []
    hear(worker, codec.Pong(), 240)
    assert said(worker, 339) == []
    assert said(worker, 340) == [codec.Ping()]


def test_a_silent_broker_is_left_for_a_new_conversation() -> None:
    worker = worker_of()
    (job,) = ask(worker, 1)
    assert said(worker, 100) == [codec.Ping()]
    assert said(worker, 200) == [codec.Ping()]
    assert worker.ready(300) == [Disconnect("a")]
    assert not job.answerable
    assert not worker.final(job, [b"late"])
    assert worker.ready(300) == [Connect("a")]
    worker.on_connected(350)
    assert said(worker, 350) == READY
    # A worker that was suspended asks first.
    assert said(worker, 99_000) == [codec.Ping()]
    assert said(worker, 99_001) == []


def test_a_lost_connection_is_made_on_a_new_socket() -> None:
    worker = worker_of()
    ask(worker, 1)
    worker.on_disconnected(5)
    assert worker.ready(5) == [Disconnect("a"), Connect("a")]
    worker.on_disconnected(6)
    assert worker.ready(6) == [], "it is known already"
    worker.on_connected(7)
    assert said(worker, 7) == READY
    assert ask(worker, 1), "another registration: the same request may come again"


@pytest.mark.parametrize("header", [b"KLKW01", b"MDPW02"])
def test_nothing_is_sent_after_disconnect(header: bytes) -> None:
    worker = worker_of()
    (job,) = ask(worker, 1)
    worker.final(job, [b"not sent yet"])
    worker.ready(1)
    (job,) = ask(worker, 2)
    worker.on_frames([header, b"\x06"], 1)
    assert not worker.final(job, [b"late"])
    assert worker.ready(1) == [Disconnect("a")]
    assert worker.deadline_ms == 101
    assert worker.ready(100) == []
    assert worker.ready(101) == [Connect("a")]
    # A broker that does not want it is asked less and less often, until it says something else.
    worker.on_connected(110)
    hear(worker, codec.Disconnect(), 120)
    assert worker.deadline_ms == 320
    worker.ready(320)
    worker.on_connected(330)
    hear(worker, codec.Pong(), 340)
    hear(worker, codec.Disconnect(), 350)
    assert worker.deadline_ms == 450


def test_a_socket_that_is_to_be_closed_does_not_register() -> None:
    """It may connect again before the owner has closed it."""
    worker = worker_of()
    hear(worker, codec.Disconnect())
    worker.on_disconnected(0)
    worker.on_connected(0)
    assert worker.ready(0) == [Disconnect("a")]
    assert worker.ready(100) == [Connect("a")]
    worker.on_connected(100)
    assert said(worker, 100) == READY


def test_the_window_is_not_exceeded() -> None:
    worker = worker_of()
    assert len(ask(worker, 1) + ask(worker, 2)) == 2
    assert ask(worker, 3) == []
    assert worker.counters["overrun"] == 1
    worker.ready(0)
    worker = worker_of()
    assert len(ask(worker, 1)) == 1
    assert ask(worker, 1) == [], "nor is one handed out twice"


def test_it_goes_home_when_it_has_finished_what_it_has() -> None:
    worker = worker_of()
    (job,) = ask(worker, 1)
    worker.drain()
    assert said(worker, 1) == []
    assert ask(worker, 2) == [], "of another client"
    assert worker.counters["declined"] == 1
    assert said(worker, 101) == [codec.Ping()], "it is still there"
    worker.final(job, [b"done"])
    assert said(worker, 102) == [codec.WorkFinal(CLIENT, b"1", [b"done"]), codec.Disconnect()]
    assert worker.stopped
    assert worker.deadline_ms is None
    assert worker.ready(99_000) == []
    worker.on_connected(99_001)
    assert worker.ready(99_001) == []


def test_with_nothing_to_do_it_goes_at_once() -> None:
    worker = worker_of()
    worker.drain()
    assert said(worker, 1) == [codec.Disconnect()]
    assert worker.stopped
    # Nor does it wait for a broker that is not there.
    lost = worker_of()
    ask(lost, 1)
    lost.drain()
    lost.on_disconnected(5)
    assert lost.ready(5) == [Disconnect("a")]
    assert lost.stopped
    unborn = WorkerMachine("a", SETUP)
    unborn.drain()
    assert unborn.ready(0) == []
    assert unborn.stopped


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b"KLKW01"],
        [b"KLKW01", b"PING"],
        [b"KLKW01", b"\x02", CLIENT, b"", b"1", b"short"],
        [b"MDPW02", b"\x05"],
        [b"", b"MDPW01", b"\x04"],
        [b"KLKC01", b"\x01", b"echo", b"1", b""],
    ],
)
def test_junk_is_counted_and_no_sign_of_life(frames: list[bytes]) -> None:
    worker = worker_of()
    worker.on_frames(frames, 50)
    assert worker.counters["junk"] == 1
    assert worker.pop_requests() == []
    assert worker.deadline_ms == 100


def test_one_registration_at_each_broker() -> None:
    workers = Workers(["a", "b"], SETUP)
    assert workers.ready(0) == [Connect("a"), Connect("b")]
    workers.on_connected("a", 0)
    workers.on_connected("b", 30)
    assert [it.url for it in workers.ready(30) if isinstance(it, Send)] == [*"aaabbb"]
    assert workers.deadline_ms == 100
    request = codec.encode(codec.WorkRequest(CLIENT, b"1", [b""], 5))
    for url in "ab":
        workers.on_frames(url, request, 40)
    first, second = workers.pop_requests()
    assert first.worker.final(first, [b"x"])
    assert second.answerable, "the same id at another broker is another job"
    workers.drain()
    workers.ready(50)
    assert [workers.workers[url].stopped for url in "ab"] == [True, False]
    second.worker.final(second, [b"x"])
    workers.ready(60)
    assert workers.stopped
    assert workers.counters == {"connected": 2, "answered": 2}


def test_a_worker_without_a_broker_says_so_once() -> None:
    workers = Workers(["a", "b"], SETUP)
    workers.ready(0)
    assert workers.deadline_ms == NOTICE_MS
    (warning,) = workers.ready(NOTICE_MS)
    problem = "no connection to a, b; does a broker take workers there?"
    assert warning == Warn(f"service 'echo' gets no requests: {problem}")
    assert not workers.ready(2 * NOTICE_MS)
    workers.on_connected("b", 2 * NOTICE_MS)
    workers.ready(2 * NOTICE_MS)
    workers.on_disconnected("b", 3 * NOTICE_MS)
    workers.ready(3 * NOTICE_MS)
    assert workers.ready(4 * NOTICE_MS) == [warning]


def test_a_refused_key_has_a_warning_of_its_own() -> None:
    workers = Workers(["a"], SETUP)
    workers.ready(0)
    workers.on_refused("a", "its key is unknown", "add it")
    assert not workers.ready(NOTICE_MS)
