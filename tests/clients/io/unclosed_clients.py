"""A program that closes nothing: `python -m kelek.tests.clients.io.unclosed_clients KIND URL`.

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


@kelek.service("left")
async def left(body: kelek.Body) -> bytes:
    return body


class UnfinishedClient:
    """A client, and an iterator of it that is not finished: only the collector ends them."""

    def __init__(self, client: Any, iterator: Any = None) -> None:
        self.client = client
        self.iterator = iterator
        self.itself = self


def used(kind: str, url: str) -> UnfinishedClient:
    match kind:
        case "Table":
            table = kelek.Table(url.split(","), 3)
            table.put(b"a", b"1")
            pairs = table.scan()
            next(pairs)
            return UnfinishedClient(table, pairs)
        case "Log":
            log = kelek.Log(url.split(","))
            log.append(b"one")
            entries = log.watch()
            next(entries)
            return UnfinishedClient(log, entries)
        case "Broker":
            broker = kelek.Broker(url)
            stream = broker.stream("parts", b"1000")
            next(stream)
            return UnfinishedClient(broker, stream)
        case "Farm":
            farm = kelek.Farm(**json.loads(url))
            farm.append(b"one")
            values = farm.watch()
            next(values)
            return UnfinishedClient(farm, values)
    node = kelek.Node(tuning=kelek.NodeTuning(port=int(url), interface="127.0.0.1"))
    return UnfinishedClient(node, node.events(0))


async def used_async(kind: str, url: str) -> UnfinishedClient:
    match kind:
        case "AsyncTable":
            table = kelek.AsyncTable(url.split(","), 3)
            await table.put(b"a", b"1")
            pairs = table.scan()
            await anext(pairs)
            return UnfinishedClient(table, pairs)
        case "AsyncLog":
            log = kelek.AsyncLog(url.split(","))
            await log.append(b"one")
            entries = log.watch()
            await anext(entries)
            return UnfinishedClient(log, entries)
        case "AsyncBroker":
            broker = kelek.AsyncBroker(url)
            stream = broker.stream("parts", b"1000")
            await anext(stream)
            return UnfinishedClient(broker, stream)
        case "AsyncFarm":
            farm = kelek.AsyncFarm(**json.loads(url))
            await farm.append(b"one")
            values = farm.watch()
            await anext(values)
            return UnfinishedClient(farm, values)
        case "Worker":
            begun = asyncio.Event()
            worker = kelek.Worker(left, url, on_begun=begun.set)
            serving = worker.serve()
            task = asyncio.ensure_future(serving)
            await begun.wait()
            return UnfinishedClient(worker, task)
    node = kelek.AsyncNode(tuning=kelek.NodeTuning(port=int(url), interface="127.0.0.1"))
    return UnfinishedClient(node, node.events(0))


class UnclosedProgram:
    def __init__(self, kind: str, url: str) -> None:
        self.kind, self.url = kind, url
        self.warned: list[str] = []

    def note(self, message: Warning | str, kind: type[Warning], *_: object) -> None:
        self.warned.append(f"{kind.__name__}: {message}")

    def drop(self, make: Callable[[], UnfinishedClient]) -> set[Resources]:
        """Drops a client that is part of a cycle, and has the collector end it. Returns the
        client's sockets."""
        self.warned.clear()
        before = open_resources()
        dropped = make()
        seen = weakref.ref(dropped.client)
        resources = open_resources() - before
        del dropped
        gc.collect()
        assert seen() is None, f"{self.kind} was not collected"
        ours = [text for text in self.warned if "kelek." in text]
        assert len(ours) == 1, self.warned
        assert ours[0].startswith(f"ResourceWarning: unclosed kelek.{self.kind}: use ")
        return resources

    def make(self) -> UnfinishedClient:
        return used(self.kind, self.url)

    def of_a_thread(self) -> UnfinishedClient:
        """Of a thread that has ended."""
        made: list[UnfinishedClient] = []
        thread = threading.Thread(target=lambda: made.append(self.make()))
        thread.start()
        thread.join()
        return made.pop()

    def run(self) -> None:
        for _ in range(ROUNDS):
            assert_closed(self.drop(self.make))
            assert_closed(self.drop(self.of_a_thread))
        self.fork()
        kept.append(self.make())
        beside = self.make()
        threading.Thread(target=self.wait_for_ever, args=(beside,), daemon=True).start()

    def fork(self) -> None:
        """The child drops what belongs to its parent, which goes on with it."""
        mine = self.make()
        faulthandler.cancel_dump_traceback_later()  # The child would wait for its thread.
        child = os.fork()
        faulthandler.dump_traceback_later(DEADLINE_S, exit=True)
        if child == 0:
            self.use_inherited(mine.client)
            del mine
            gc.collect()
            sys.exit()
        assert os.waitpid(child, 0)[1] == 0
        if isinstance(mine.client, kelek.Table):
            assert mine.client.get(b"a") == b"1"
        if isinstance(mine.client, kelek.Log):
            mine.client.append(b"behind the fork")

    def use_inherited(self, client: Any) -> None:
        """libzmq waits for ever on sockets of the process before a fork."""
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
        raise AssertionError(f"a {self.kind} was used behind a fork")

    def wait_for_ever(self, beside: UnfinishedClient) -> None:
        """As a daemon thread that the end of the program finds in a call."""
        # By its name: loading another class here could hold the import lock when the program ends.
        client = beside.client
        match self.kind:
            case "Node":
                client.receive()
            case "Table":
                list(client.watch())
            case "Log":
                list(client.watch())
            case "Farm":
                list(client.watch())
            case _:
                client.call("nobody", timeout_ms=DEADLINE_S * 1000)

    # ---- asyncio ----

    def run_async(self) -> None:
        for _ in range(ROUNDS):
            assert_closed(self.drop(self.of_an_open_loop))
        if self.kind == "Worker":  # The end of a loop ends it, and a loop that runs keeps it.
            kept.append(self.of_an_open_loop())
            return
        for _ in range(ROUNDS):
            assert_closed(self.drop(lambda: asyncio.run(self.make_async())))
        asyncio.run(self.within_a_loop())

    async def make_async(self) -> UnfinishedClient:
        return await used_async(self.kind, self.url)

    def of_an_open_loop(self) -> UnfinishedClient:
        """Of a loop that runs no more and that nobody closes."""
        return asyncio.new_event_loop().run_until_complete(self.make_async())

    async def within_a_loop(self) -> None:
        for _ in range(ROUNDS):
            made = [await self.make_async()]
            resources = self.drop(made.pop)
            await asyncio.create_task(nothing())  # The loop closes them first.
            assert_closed(resources)
        kept.append(await self.make_async())


async def nothing() -> None: ...


def open_resources() -> set[Resources]:
    return {it for it in gc.get_objects() if type(it) is Resources and not it.closed}


def assert_closed(resources: set[Resources]) -> None:
    for one in resources:
        assert one.closed
        assert not one.sockets


def main(kind: str, url: str) -> None:
    faulthandler.dump_traceback_later(DEADLINE_S, exit=True)
    warnings.simplefilter("always", ResourceWarning)
    program = UnclosedProgram(kind, url)
    warnings.showwarning = program.note  # type: ignore[assignment]
    gc.disable()  # It runs when it is told to.
    if kind.startswith("Async") or kind == "Worker":
        program.run_async()
    else:
        program.run()
    warnings.showwarning = print  # type: ignore[assignment]
    print("the end", flush=True)


kept: list[object] = []  # Until the interpreter's exit.

if __name__ == "__main__":
    main(*sys.argv[1:])
