"""Services and workers in threads, for tests of brokers and their clients."""

import asyncio
import threading
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import kelek
from kelek.tests.waiting import wait_until

FAST = kelek.BrokerTuning(silence_ms=500)
PARTS = 5


@kelek.service("echo", concurrency=2, window=64)
def echo(body: kelek.Body) -> bytes:
    return body


@kelek.service("frames")
def count_frames(body: kelek.Body) -> list[bytes]:
    return [b"%d" % len(body.frames), *body.frames]


@kelek.service("parts")
def parts(body: kelek.Body) -> Generator[str, None, str]:
    for number in range(int(body)):
        yield str(number)
    return "end"


async def run_other_tasks() -> None:
    """Lets the other tasks of the loop run once."""

    async def nothing() -> None: ...

    await asyncio.get_running_loop().create_task(nothing())


@kelek.service("later", concurrency=8)
async def later(body: kelek.Body) -> bytes:
    await run_other_tasks()
    return body


@kelek.service("async parts")
async def async_parts(body: kelek.Body) -> AsyncIterator[bytes]:
    for number in range(int(body)):
        yield b"%d" % number


@kelek.service("fails")
def fails(body: kelek.Body) -> None:
    if body == b"own":
        raise kelek.ServiceRefused(409, "not now")
    raise ValueError("no good")


@kelek.service("remaining")
def remaining(body: kelek.Body) -> str:
    return str(body.remaining_ms())


@contextmanager
def serving(
    *served: kelek.Service[..., Any], urls: str, **options: Any
) -> Iterator[list[kelek.Worker]]:
    """Workers in threads, each with its own loop."""
    workers = [kelek.Worker(it, urls, **options) for it in served]
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        yield workers
    finally:
        for worker, thread in zip(workers, threads, strict=True):
            wait_until(partial(has_started, worker, thread))
            if thread.is_alive():
                worker.drain()
            thread.join(60)
            assert not thread.is_alive()


def has_started(worker: kelek.Worker, thread: threading.Thread) -> bool:
    """Whether it serves, or has ended: a worker that is drained before its start ends at once."""
    return worker.serving or bool(worker.counters) or not thread.is_alive()


@kelek.service("who")
def who(body: kelek.Body) -> list[bytes]:
    return [body.client, body.request_id]


@kelek.service("async who")
async def async_who(body: kelek.Body) -> list[bytes]:
    return [body.client, body.request_id]
