"""kelek.Queue and kelek.AsyncQueue against a cluster of three nodes."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

import kelek
import kelek.testing
from kelek.clients.io.operations import Operation, Sleep
from kelek.clients.queue import records
from kelek.clients.queue.operations import TABLE_PREFIX
from kelek.clients.queue.worker import Claim, JobWorker
from kelek.testing.local_cluster import LocalCluster
from kelek.tests.waiting import wait_until

DEADLINE_S = 60.0
IDLE_MS = 100
NUMBERS = count(1)
QUICK = kelek.QueueTuning(tries=3, backoff_s=0.05, worker_ttl_s=3.0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with kelek.testing.cluster() as cluster:
        yield cluster


@pytest.fixture
def queue(cluster: LocalCluster) -> Iterator[kelek.Queue]:
    """A queue of its own for each test."""
    with kelek.Queue(cluster.table_urls, f"q{next(NUMBERS)}", tuning=QUICK) as queue:
        yield queue


def counts(queue: kelek.Queue) -> dict[str, int]:
    return {name: number for name, number in queue.info().items() if number}


def test_jobs_run_in_order_and_give_results(queue: kelek.Queue) -> None:
    done: list[Any] = []

    @queue.worker
    def work(job: kelek.Job) -> Any:
        done.append(job.body)
        return [job.body, job.attempt, job.priority]

    ids = queue.put_many(range(300))
    first = queue.put("urgent", priority=9)
    assert counts(queue) == {"waiting": 301}
    queue.run(idle_s=0.1)
    assert done == ["urgent", *range(300)]
    assert queue.result(ids[7]) == [7, 1, 5]
    assert queue.result(first) == ["urgent", 1, 9]
    assert counts(queue) == {"ended": 301}
    assert queue.counters["done"] == 301
    found = queue.get(ids[0])
    assert found is not None
    assert (found.state, found.body) == ("done", None)


def test_failures_are_tried_again_and_become_dead_letters(queue: kelek.Queue) -> None:
    errors: list[Exception] = []

    @queue.worker
    def work(job: kelek.Job) -> str:
        if job.body == "never":
            raise kelek.JobFailed("no use")
        if job.body == "bad" or job.attempt == 1:
            raise ValueError(f"attempt {job.attempt}")
        return "late"

    late, bad, never = queue.put_many(["late", "bad", "never"])
    once = queue.put("bad", tries=1)
    queue.run(idle_s=1.0, on_error=errors.append)
    assert queue.result(late) == "late"
    with pytest.raises(kelek.JobFailed, match=f"{bad} is a dead letter: ValueError: attempt 3"):
        queue.result(bad)
    assert len(errors) == 6
    dead = {job.id: job for job in queue.jobs("dead")}
    assert {*dead} == {bad, never, once}
    assert [text for _, text in dead[bad].errors] == [f"ValueError: attempt {n}" for n in (1, 2, 3)]
    assert (dead[bad].attempts, dead[never].attempts, dead[once].attempts) == (3, 1, 1)
    assert queue.retry(bad)
    assert not queue.retry(bad)
    assert not queue.retry(late)
    found = queue.get(bad)
    assert found is not None
    assert (found.state, found.attempts, len(found.errors)) == ("waiting", 0, 3)
    assert queue.cancel(never)
    queue.run(idle_s=1.0)
    assert counts(queue)["dead"] == 2


def test_delays_and_unique_keys(queue: kelek.Queue) -> None:
    times: list[float] = []

    @queue.worker
    def work(job: kelek.Job) -> None:
        times.append(time.time())

    begun_s = time.time()
    queue.put(1, delay_s=0.5)
    later = queue.put(2, at=begun_s + 1.0)
    first = queue.put("a", unique="k", delay_s=0.2)
    assert queue.put("b", unique="k") == first
    assert queue.put_many(["c", "d"], unique="k") == [first, first]
    found = queue.get(later)
    assert found is not None
    assert found.state == "delayed"
    assert counts(queue) == {"delayed": 3}
    queue.run(idle_s=1.5)
    assert len(times) == 3
    assert times[0] >= begun_s + 0.2
    assert times[1] >= begun_s + 0.5
    assert times[2] >= begun_s + 1.0
    assert queue.put("e", unique="k") != first, "the first one has ended"


def test_what_a_function_puts_takes_effect_with_the_end(
    queue: kelek.Queue, cluster: LocalCluster
) -> None:
    @queue.worker
    def work(job: kelek.Job) -> None:
        job.put("results", f"{job.id}/{job.attempt}", "done")
        job.delete("results", "old")
        if job.attempt == 1:
            raise ValueError

    with kelek.Table(cluster.table_urls, "results") as table:
        table.put("old", "1")
        jobs = queue.put_many(range(20))
        queue.run(idle_s=0.5)
        assert {*table.keys()} == {f"{job}/2".encode() for job in jobs}


def test_an_impossible_put_is_a_failure(queue: kelek.Queue) -> None:
    @queue.worker
    def work(job: kelek.Job) -> None:
        if job.body == "bad":
            job.put(0xFFFF_FFFF, "k", "v")  # A table that is not for clients.
        else:
            job.put("results", "k", "v")

    good, bad = queue.put_many(["good", "bad"], tries=1)
    queue.run(idle_s=0.3)
    assert queue.result(good) is None
    with pytest.raises(kelek.JobFailed, match="dead letter"):
        queue.result(bad)


def test_progress_and_cancelling(queue: kelek.Queue, cluster: LocalCluster) -> None:
    begun, cancelled = threading.Event(), threading.Event()
    lost: list[Exception] = []

    @queue.worker
    def work(job: kelek.Job) -> None:
        job.progress(0.5, "half")
        job.put("results", "cancelled", "no")
        begun.set()
        assert cancelled.wait(DEADLINE_S)
        job.progress(0.9)

    running, waiting = queue.put_many(["running", "waiting"])
    with (
        ThreadPoolExecutor() as pool,
        kelek.Queue(cluster.table_urls, queue.name) as other,
        kelek.Table(cluster.table_urls, "results") as table,
    ):
        work_done = pool.submit(queue.run, idle_s=0.2, on_error=lost.append)
        assert begun.wait(DEADLINE_S)
        found = other.get(running)
        assert found is not None
        assert (found.state, found.progress, found.attempts) == ("running", (0.5, "half"), 1)
        assert [job.progress for job in other.jobs("running") if job.id == running] == [
            (0.5, "half")
        ]
        assert other.cancel(waiting)
        assert other.cancel(running)
        assert not other.cancel(running)
        cancelled.set()
        work_done.result(DEADLINE_S)
        with pytest.raises(kelek.JobFailed, match="was cancelled") as error:
            other.result(running)
        assert error.value.state == "cancelled"
        assert isinstance(lost[0], kelek.ClaimLost)
        assert queue.counters["lost"] >= 1
        assert table.get("cancelled") is None


def test_batches_large_bodies_and_bad_results(queue: kelek.Queue) -> None:
    sizes: list[int] = []

    @queue.worker(batch=50)
    def work(jobs: list[kelek.Job]) -> list[Any]:
        sizes.append(len(jobs))
        return [len(job.body) for job in jobs]

    jobs = queue.put_many([b"x" * size for size in range(0, 60_000, 1000)])
    queue.run(idle_s=0.3)
    assert [queue.result(job) for job in jobs] == [*range(0, 60_000, 1000)]
    assert max(sizes) > 1
    with pytest.raises(kelek.TooLarge):
        queue.put(b"x" * (records.BODY_BYTES_MAX + 1))

    @queue.worker
    def bad(job: kelek.Job) -> object:
        return object()

    job = queue.put(1, tries=1)
    queue.run(idle_s=0.3)
    with pytest.raises(kelek.JobFailed, match="TypeError"):
        queue.result(job)


def test_a_result_is_waited_for(queue: kelek.Queue, cluster: LocalCluster) -> None:
    @queue.worker
    def work(job: kelek.Job) -> str:
        return f"{job.body}{job.body}"

    job = queue.put("ab", delay_s=0.5)
    with pytest.raises(kelek.Timeout, match="has not ended in 100 ms"):
        queue.result(job, timeout_s=0.1)
    with pytest.raises(kelek.JobGone):
        queue.result("00" * records.ID_BYTES)
    assert queue.get("00" * records.ID_BYTES) is None
    assert not queue.cancel("00" * records.ID_BYTES)
    with (
        ThreadPoolExecutor() as pool,
        kelek.Queue(cluster.table_urls, queue.name) as other,
    ):
        waits = pool.submit(other.result, job, timeout_s=DEADLINE_S)
        queue.run(idle_s=1.0)
        assert waits.result(DEADLINE_S) == "abab"


def test_a_rate_holds_for_all_workers(cluster: LocalCluster) -> None:
    name, times = f"q{next(NUMBERS)}", list[float]()
    tuning = kelek.QueueTuning(rate=20, burst=5)

    def run() -> None:
        with kelek.Queue(cluster.table_urls, name, tuning=tuning) as queue:

            @queue.worker
            def work(job: kelek.Job) -> None:
                times.append(time.monotonic())

            queue.run(idle_s=1.0)

    with kelek.Queue(cluster.table_urls, name) as queue, ThreadPoolExecutor() as pool:
        queue.put_many(range(25))
        for each in [pool.submit(run) for _ in range(2)]:
            each.result(DEADLINE_S)
    assert len(times) == 25
    assert max(times) - min(times) >= (25 - 5 - 1) / 20, "5 at once, then 20 a second"


def test_several_workers_share_the_jobs(cluster: LocalCluster) -> None:
    name, done = f"q{next(NUMBERS)}", list[int]()
    begun = threading.Barrier(4)

    def run() -> dict[str, int]:
        with kelek.Queue(cluster.table_urls, name, tuning=QUICK) as queue:

            @queue.worker
            def work(job: kelek.Job) -> None:
                done.append(job.body)

            begun.wait(DEADLINE_S)
            queue.run(idle_s=0.5)
            return queue.counters

    with kelek.Queue(cluster.table_urls, name) as queue, ThreadPoolExecutor() as pool:
        queue.put_many(range(1000))
        found = [pool.submit(run) for _ in range(4)]
        counters = [each.result(DEADLINE_S) for each in found]
        assert counts(queue) == {"ended": 1000}
    assert sorted(done) == [*range(1000)], "each once"
    assert sum(each["done"] for each in counters) == 1000


@pytest.fixture
def slow_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first claim of a worker fails after a while: others were faster, on a busy cluster."""
    claim, failed = JobWorker.claim, set[int]()

    def claim_slowly(self: JobWorker, most: int, holds: bool = False) -> Operation[list[Claim]]:
        if id(self) in failed:
            return (yield from claim(self, most, holds))
        failed.add(id(self))
        yield Sleep(2 * IDLE_MS)
        return []

    monkeypatch.setattr(JobWorker, "claim", claim_slowly)


@pytest.mark.usefixtures("slow_claims")
def test_a_slow_cluster_is_no_empty_queue(queue: kelek.Queue) -> None:
    queue.put_many(range(10))
    queue.worker(lambda job: None)
    queue.run(idle_s=IDLE_MS / 1000)
    assert counts(queue) == {"ended": 10}


@pytest.mark.usefixtures("slow_claims")
def test_a_slow_cluster_is_no_empty_queue_for_asyncio(cluster: LocalCluster) -> None:
    async def story() -> None:
        async with kelek.AsyncQueue(cluster.table_urls, f"q{next(NUMBERS)}") as queue:

            @queue.worker
            async def work(job: kelek.AsyncJob) -> None:
                return

            await queue.put_many(range(10))
            await queue.run(idle_s=IDLE_MS / 1000)
            assert (await queue.info())["ended"] == 10

    asyncio.run(asyncio.wait_for(story(), DEADLINE_S))


def test_jobs_behind_a_long_one_are_given_to_others(cluster: LocalCluster) -> None:
    name, go, held = f"q{next(NUMBERS)}", threading.Event(), threading.Event()
    done: list[str] = []

    def run(mine: str) -> None:
        with kelek.Queue(cluster.table_urls, name, tuning=QUICK) as queue:

            @queue.worker
            def work(job: kelek.Job) -> None:
                if job.body == "long":
                    held.set()
                    assert go.wait(DEADLINE_S)
                elif held.is_set():
                    done.append(mine)

            queue.run(idle_s=1.0)

    with kelek.Queue(cluster.table_urls, name) as queue, ThreadPoolExecutor() as pool:
        queue.put_many([*range(100), "long", *range(10)])
        first = pool.submit(run, "first")
        assert held.wait(DEADLINE_S)
        wait_until(lambda: counts(queue)["running"] == 1)
        assert counts(queue)["waiting"] == 10
        pool.submit(run, "second").result(DEADLINE_S)
        assert done == ["second"] * 10
        go.set()
        first.result(DEADLINE_S)
        assert counts(queue) == {"ended": 111}


def test_a_rate_is_reached(cluster: LocalCluster) -> None:
    """The worker waits for the next token, not for the next job."""
    tuning = kelek.QueueTuning(rate=10)
    with kelek.Queue(cluster.table_urls, f"q{next(NUMBERS)}", tuning=tuning) as queue:

        @queue.worker
        def work(job: kelek.Job) -> None:
            if job.body == 19:
                queue.stop()

        queue.put_many(range(20))
        begun_s = time.monotonic()
        queue.run()
        assert 1.8 < time.monotonic() - begun_s < 20


def test_a_schedule_puts_each_job_once(cluster: LocalCluster) -> None:
    """Two workers, and a last time that lies in the past."""
    name, done = f"q{next(NUMBERS)}", list[Any]()

    def run() -> None:
        with kelek.Queue(cluster.table_urls, name, tuning=QUICK) as queue:

            @queue.worker
            def work(job: kelek.Job) -> None:
                done.append(job.body)

            @queue.schedule("*/5 * * * *")
            def tick() -> str:
                return "tick"

            queue.run(idle_s=0.5)

    run()
    assert done == [], "it begins with the first time from now"
    with (
        kelek.Table(cluster.table_urls, TABLE_PREFIX + name) as table,
        ThreadPoolExecutor() as pool,
    ):
        key = records.SCHEDULE + b"tick"
        assert table.get(key) is not None
        hour_ago_ms = int(time.time() * 1000) - 3_600_000
        table.put(key, hour_ago_ms.to_bytes(8, "big"))
        for each in [pool.submit(run) for _ in range(2)]:
            each.result(DEADLINE_S)
    assert done == ["tick"], "of the times that passed the last one counts"


def test_a_stop_before_it_claims_ends_it(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal may come at any time: also when the worker has just seen that it is to go on."""
    done, keep_up = list[Any](), JobWorker.keep_up
    with kelek.Queue(cluster.table_urls, f"q{next(NUMBERS)}") as queue:

        def stop_behind(worker: JobWorker) -> Operation[None]:
            yield from keep_up(worker)
            if done:
                queue.stop()

        @queue.worker
        def work(job: kelek.Job) -> None:
            done.append(job.body)

        monkeypatch.setattr(JobWorker, "keep_up", stop_behind)
        queue.put("one")
        queue.run()
        assert done == ["one"]
        assert counts(queue) == {"ended": 1}


def test_old_ends_are_removed(cluster: LocalCluster) -> None:
    tuning = kelek.QueueTuning(result_ttl_s=0.05)
    with kelek.Queue(cluster.table_urls, f"q{next(NUMBERS)}", tuning=tuning) as queue:

        @queue.worker
        def work(job: kelek.Job) -> None:
            pass

        jobs = queue.put_many(range(50))
        queue.run(idle_s=0.2)
        assert counts(queue) == {"ended": 50}
        queue.run(idle_s=0.2)
        assert counts(queue) == {}
        with pytest.raises(kelek.JobGone):
            queue.result(jobs[0])


def test_a_worker_ends_by_stop_and_gives_jobs_back(queue: kelek.Queue) -> None:
    done: list[int] = []

    @queue.worker
    def work(job: kelek.Job) -> None:
        done.append(job.body)
        if len(done) == 200:
            queue.stop()

    queue.put_many(range(1000))
    queue.run()
    assert len(done) == 200
    assert counts(queue) == {"ended": 200, "waiting": 800}
    waiting = queue.jobs(limit=3)
    assert [(job.body, job.attempts) for job in waiting] == [(200, 0), (201, 0), (202, 0)]


def test_the_asyncio_twin(cluster: LocalCluster) -> None:
    async def story() -> None:
        async with kelek.AsyncQueue(cluster.table_urls, f"q{next(NUMBERS)}", tuning=QUICK) as queue:
            at_once: set[str] = set()
            most = 0

            @queue.worker(concurrency=8)
            async def work(job: kelek.AsyncJob) -> Any:
                nonlocal most
                at_once.add(job.id)
                most = max(most, len(at_once))
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.Event().wait(), 0.01)
                at_once.discard(job.id)
                if job.body == 3:
                    await job.progress(0.5)
                    raise kelek.JobFailed("three")
                job.put("results", job.id, b"async")
                return job.body

            jobs = await queue.put_many(range(100))
            waits = asyncio.create_task(queue.result(jobs[99], timeout_s=DEADLINE_S))
            await queue.run(idle_s=0.5)
            assert await waits == 99
            assert 1 < most <= 8
            with pytest.raises(kelek.JobFailed, match="three"):
                await queue.result(jobs[3])
            info = await queue.info()
            assert (info["ended"], info["dead"], info["running"]) == (100, 1, 0)
            dead = await queue.jobs("dead")
            assert [job.id for job in dead] == [jobs[3]]
            task = asyncio.create_task(queue.run())
            job = await queue.put("later")
            assert await queue.result(job, timeout_s=DEADLINE_S) == "later"
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    asyncio.run(asyncio.wait_for(story(), DEADLINE_S))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"priority": 10}, "priority is a number from 0 to 9"),
        ({"delay_s": -1}, "delay_s is 0 or more"),
        ({"at": 1.0, "delay_s": 1}, "not both"),
        ({"tries": 100_000}, "tries"),
        ({"unique": "k" * 2000}, "unique has at most"),
        ({"delay_s": "1h"}, "delay_s is a number of seconds, not str"),
        ({"at": "noon"}, "at is a number of seconds, not str"),
        ({"body": object()}, "codec msgpack cannot store this object: can not serialize 'object'"),
        ({"body": {"a": 1 << 64}}, "codec msgpack cannot store this dict: Integer value out of"),
    ],
)
def test_wrong_arguments(queue: kelek.Queue, arguments: dict[str, Any], error: str) -> None:
    with pytest.raises((ValueError, TypeError), match=error):
        queue.put(**{"body": 1, **arguments})


def test_wrong_queues(cluster: LocalCluster, queue: kelek.Queue) -> None:
    for name in ("", "a/b", "n" * 200):
        with pytest.raises(ValueError, match="name"):
            kelek.Queue(cluster.table_urls, name)
    with pytest.raises(ValueError, match="rate is 0"):
        kelek.Queue(cluster.table_urls, "a", tuning=kelek.QueueTuning(rate=-1))
    with pytest.raises(RuntimeError, match="has no worker"):
        queue.run()
    with pytest.raises(ValueError, match="30 digits"):
        queue.get("x")
    with pytest.raises(ValueError, match="a state is"):
        queue.jobs("done")
