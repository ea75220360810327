"""A program that drops clients whose servers never answer, with work that was never sent.

`python -m kelek.tests.clients.io.dropped_clients KIND URL` prints when it ends (monotonic, in s);
io/test_resources.py runs it. Another client is still open then.
"""

import asyncio
import faulthandler
import gc
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import kelek

DEADLINE_S = 30
DROP_S = 1  # Of a busy machine; a drop that waits for a server or for libzmq takes longer.
TIMEOUT_MS = 20


@kelek.service("dropped")
async def dropped(body: kelek.Body) -> bytes:
    return body


def open_client(kind: str, url: str) -> Any:
    options: dict[str, Any] = {}
    match kind.removeprefix("Async"):
        case "Worker":
            return kelek.Worker(dropped, url)
        case "Node":
            tuning = kelek.NodeTuning(beacons=False, interface="127.0.0.1", static_peers=(url,))
            return getattr(kelek, kind)(tuning=tuning)
        case "Farm":
            url = url.replace("tcp://", "tls://")
            options = {"user": "demo", "password": "secret"}
    return getattr(kelek, kind)(url, timeout_ms=TIMEOUT_MS, **options)


def begin(client: Any) -> Any:
    """Begins work that needs a server."""
    match type(client).__name__.removeprefix("Async"):
        case "Log" | "Farm":
            return client.append(b"unsent")
        case "Table":
            return client.put(b"key", b"unsent")
        case "Broker":
            return client.submit("dropped", b"unsent")
        case "Worker":
            return client.serve()
    return client.shout("group", b"unsent")


def drop(clients: list[Any]) -> None:
    began = time.monotonic()
    clients.clear()
    gc.collect()
    took = time.monotonic() - began
    assert took < DROP_S, f"the drop took {took:.1f} s"


def use(kind: str, url: str) -> list[Any]:
    client = open_client(kind, url)
    with suppress(kelek.Error):
        begin(client)
    return [client]


async def use_async(kind: str, url: str) -> list[Any]:
    client = open_client(kind, url)
    task = asyncio.ensure_future(begin(client))
    await asyncio.wait([task], timeout=TIMEOUT_MS / 1000)
    return [client, task]


async def drop_in_loop(kind: str, url: str) -> list[Any]:
    drop(await use_async(kind, url))
    return await use_async(kind, url)


def main(kind: str, url: str) -> None:
    faulthandler.dump_traceback_later(DEADLINE_S, exit=True)
    warnings.simplefilter("ignore", ResourceWarning)
    gc.freeze()  # Later collections look at clients only.
    make: Callable[[], list[Any]] = lambda: use(kind, url)  # noqa: E731
    if kind.startswith("Async") or kind == "Worker":
        drop(asyncio.run(drop_in_loop(kind, url)))
        loop = asyncio.new_event_loop()
        make = lambda: loop.run_until_complete(use_async(kind, url))  # noqa: E731
    drop(make())
    open_at_exit.extend(make())
    print(time.monotonic(), flush=True)


open_at_exit: list[Any] = []

if __name__ == "__main__":
    main(*sys.argv[1:])
