"""A program that closes no client: `python -m kelek.tests.clients.io.unclosed_clients KIND URL`.

io/test_resources.py runs it. When the collector or the exit waits, the program ends at its deadline
with a traceback of all threads and exit code 1.
"""

import asyncio
import faulthandler
import gc
import json
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import kelek
from kelek.clients.io.resources import Resources

DEADLINE_S = 20
ROUNDS = 3
ERRORS = kelek.TableError, kelek.LogError, kelek.BrokerError, kelek.NodeError, kelek.FarmError


@kelek.service("unclosed")
async def unclosed(body: kelek.Body) -> bytes:
    return body


class UnfinishedClient:
    """A client and its unfinished iterator, in a cycle that only the collector ends."""

    def __init__(self, client: Any, iterator: Any = None) -> None:
        self.client = client
        self.iterator = iterator
        self.cycle = self


def open_client(kind: str, url: str) -> Any:
    make = getattr(kelek, kind)
    match kind.removeprefix("Async"):
        case "Table":
            return make(url.split(","), 3)
        case "Log":
            return make(url.split(","))
        case "Broker":
            return make(url)
        case "Farm":
            return make(**json.loads(url))
    return make(tuning=kelek.NodeTuning(port=int(url), interface="127.0.0.1"))


def write(kind: str, client: Any) -> Any:
    match kind.removeprefix("Async"):
        case "Table":
            return client.put(b"a", b"1")
        case "Log" | "Farm":
            return client.append(b"one")
    return nothing() if kind.startswith("Async") else None


def iterate(kind: str, client: Any) -> Any:
    match kind.removeprefix("Async"):
        case "Table":
            return client.scan()
        case "Log" | "Farm":
            return client.watch()
        case "Broker":
            return client.stream("parts", b"1000")
    return client.events(0)


def use(kind: str, url: str) -> UnfinishedClient:
    client = open_client(kind, url)
    write(kind, client)
    iterator = iterate(kind, client)
    if kind != "Node":
        next(iterator)
    return UnfinishedClient(client, iterator)


async def use_async(kind: str, url: str) -> UnfinishedClient:
    if kind == "Worker":
        begun = asyncio.Event()
        worker = kelek.Worker(unclosed, url, on_begun=begun.set)
        task = asyncio.ensure_future(worker.serve())
        await begun.wait()
        return UnfinishedClient(worker, task)
    client = open_client(kind, url)
    await write(kind, client)
    iterator = iterate(kind, client)
    if kind != "AsyncNode":
        await anext(iterator)
    return UnfinishedClient(client, iterator)


class UnclosedProgram:
    def __init__(self, kind: str, url: str) -> None:
        self.kind, self.url = kind, url
        self.warnings: list[str] = []

    def note(self, message: Warning | str, kind: type[Warning], *_: object) -> None:
        self.warnings.append(f"{kind.__name__}: {message}")

    def drop(self, make: Callable[[], UnfinishedClient]) -> set[Resources]:
        """Drops a client, and runs the collector. Returns the client's sockets."""
        self.warnings.clear()
        before = open_resources()
        dropped = make()
        reference = weakref.ref(dropped.client)
        resources = open_resources() - before
        del dropped
        gc.collect()
        assert reference() is None, f"{self.kind} was not collected"
        warned = [text for text in self.warnings if "kelek." in text]
        assert len(warned) == 1, self.warnings
        assert warned[0].startswith(f"ResourceWarning: unclosed kelek.{self.kind}: use ")
        return resources

    def make(self) -> UnfinishedClient:
        return use(self.kind, self.url)

    def make_in_thread(self) -> UnfinishedClient:
        """A client of a thread that has ended."""
        made: list[UnfinishedClient] = []
        thread = threading.Thread(target=lambda: made.append(self.make()))
        thread.start()
        thread.join()
        return made.pop()

    def run(self) -> None:
        for _ in range(ROUNDS):
            assert_closed(self.drop(self.make))
            assert_closed(self.drop(self.make_in_thread))
        self.fork()
        open_at_exit.append(self.make())
        other = self.make()
        threading.Thread(target=self.block_forever, args=(other,), daemon=True).start()

    def fork(self) -> None:
        """The child drops a client that its parent continues to use."""
        unfinished = self.make()
        faulthandler.cancel_dump_traceback_later()  # The child would wait for its thread.
        child = os.fork()
        faulthandler.dump_traceback_later(DEADLINE_S, exit=True)
        if child == 0:
            self.use_inherited(unfinished.client)
            del unfinished
            gc.collect()
            sys.exit()
        assert os.waitpid(child, 0)[1] == 0
        if isinstance(unfinished.client, kelek.Table):
            assert unfinished.client.get(b"a") == b"1"
        if isinstance(unfinished.client, kelek.Log):
            unfinished.client.append(b"after the fork")

    def use_inherited(self, client: Any) -> None:
        """Each call must fail: libzmq would block on sockets of the process before a fork."""
        try:
            if self.kind == "Table":
                client.get(b"a")
            elif self.kind == "Log":
                client.append(b"one")
            elif self.kind == "Broker":
                client.call("parts")
            elif self.kind == "Farm":
                client.commit_index()
            else:
                client.join("group")
        except ERRORS as error:
            if "belongs to the process before the fork" in str(error):
                return
        raise AssertionError(f"a {self.kind} was used after a fork")

    def block_forever(self, unfinished: UnfinishedClient) -> None:
        """Runs in a daemon thread, which is in a call when the program ends."""
        # No isinstance(): loading a class here could hold the import lock when the program ends.
        client = unfinished.client
        match self.kind:
            case "Node":
                client.receive()
            case "Table" | "Log" | "Farm":
                list(client.watch())
            case _:
                client.call("unserved", timeout_ms=DEADLINE_S * 1000)

    # ---- asyncio ----

    def run_async(self) -> None:
        for _ in range(ROUNDS):
            assert_closed(self.drop(self.make_in_open_loop))
        if self.kind == "Worker":  # A running loop refers to it.
            open_at_exit.append(self.make_in_open_loop())
            return
        for _ in range(ROUNDS):
            assert_closed(self.drop(lambda: asyncio.run(self.make_async())))
        asyncio.run(self.drop_in_loop())

    async def make_async(self) -> UnfinishedClient:
        return await use_async(self.kind, self.url)

    def make_in_open_loop(self) -> UnfinishedClient:
        """A client of a loop that does not run and is not closed."""
        return asyncio.new_event_loop().run_until_complete(self.make_async())

    async def drop_in_loop(self) -> None:
        for _ in range(ROUNDS):
            made = [await self.make_async()]
            resources = self.drop(made.pop)
            await asyncio.create_task(nothing())  # The loop runs the scheduled close.
            assert_closed(resources)
        open_at_exit.append(await self.make_async())


async def nothing() -> None: ...


def open_resources() -> set[Resources]:
    return {it for it in gc.get_objects() if type(it) is Resources and not it.closed}


def assert_closed(resources: set[Resources]) -> None:
    for each in resources:
        assert each.closed
        assert not each.sockets


def main(kind: str, url: str) -> None:
    faulthandler.dump_traceback_later(DEADLINE_S, exit=True)
    warnings.simplefilter("always", ResourceWarning)
    program = UnclosedProgram(kind, url)
    warnings.showwarning = program.note  # type: ignore[assignment]
    gc.disable()  # drop() runs it.
    if kind.startswith("Async") or kind == "Worker":
        program.run_async()
    else:
        program.run()
    warnings.showwarning = print  # type: ignore[assignment]
    print("the end", flush=True)


open_at_exit: list[object] = []

if __name__ == "__main__":
    main(*sys.argv[1:])
