"""Clients of one node's tables, which write down what they call and see.

    python -m kelek.tests.crash.histories.history_client URL TABLE SEED SECONDS FILE [stale]

Each has one call at a time, on one of a few keys that all clients use for the same short time. A
line of FILE is a key and the fields of a Call as JSON; times are those of the system's monotonic
clock, which is one for all processes and network namespaces of a machine. It prints how many calls
have ended each half second, for the driver.
"""

import asyncio
import itertools
import json
import logging
import sys
import threading
import time
from collections.abc import Awaitable
from random import Random
from typing import Any, TextIO

import kelek
from kelek.tests.crash.histories.linear import COMPARE, NEVER, PUT, READ, SWAP, Call

CLIENTS = 4
KEYS = 4  # At any time.
KEY_S = 0.5  # How long a key is used: a long history takes long to check.
TIMEOUT_MS = 2000
REPORT_S = 0.5
PAUSE_S = 0.01  # After an error.
NEVER_SET = threading.Event()
KINDS = READ, READ, PUT, SWAP, COMPARE


class HistoryClient:
    def __init__(self, table: "kelek.AsyncTable", number: int, file: TextIO) -> None:
        self._table = table
        self._file = file
        self._dice = Random(number)
        # The client's number is in each value, so that no two writes have the same.
        self._values = itertools.count(number * 1_000_000_000 + 1)
        self.ended = 0
        self._seen: int | None = None  # The last value seen of the current key.
        self._key = ""

    async def run(self, until_s: float) -> None:
        while (began := time.monotonic()) < until_s:
            key = f"{int(began / KEY_S)}/{self._dice.randrange(KEYS)}"
            if key != self._key:
                self._key, self._seen = key, None
            kind = self._dice.choice(KINDS)
            call = Call(kind, began, NEVER, next(self._values), self._seen)
            try:
                result = await self._call(key, call)
            except kelek.TableError:
                await asyncio.to_thread(NEVER_SET.wait, PAUSE_S)
            else:
                call = call._replace(ended=time.monotonic(), result=result)
                self.ended += 1
                self._seen = result if kind in (READ, SWAP) else call.value
            if kind != READ or call.ended < NEVER:
                self._file.write(f"{json.dumps([key, *call])}\n")

    async def _call(self, key: str, call: Call) -> int | bool | None:
        match call.kind:
            case "get":
                return number(await self._table.get(key))
            case "put":
                await self._table.put(key, str(call.value))
                return None
            case "swap":
                return number(await self._table.swap(key, str(call.value)))
            case _:
                expected = None if call.expected is None else str(call.expected)
                return await self._table.compare_and_put(key, expected, str(call.value))


def number(value: str | None) -> int | None:
    return None if value is None else int(value)


def report(clients: list[HistoryClient]) -> None:
    while not NEVER_SET.wait(REPORT_S):
        print(sum(client.ended for client in clients), flush=True)


async def main(url: str, table: str, seed: str, secs: str, path: str, *stale: str) -> None:
    until_s = time.monotonic() + float(secs)
    settings: Any = {"timeout_ms": TIMEOUT_MS, "codec": "text", "stale": bool(stale)}
    with open(path, "w", encoding="ascii") as file:
        tables = [kelek.AsyncTable([url], int(table), **settings) for _ in range(CLIENTS)]
        first = int(seed) * CLIENTS
        clients = [HistoryClient(it, first + at, file) for at, it in enumerate(tables)]
        work: list[Awaitable[None]] = [client.run(until_s) for client in clients]
        threading.Thread(target=report, args=(clients,), daemon=True).start()
        await asyncio.gather(*work)
        for it in tables:
            await it.aclose()


if __name__ == "__main__":
    logging.getLogger("kelek").setLevel(logging.ERROR)  # Of requests that wait there are many.
    asyncio.run(main(*sys.argv[1:]))
