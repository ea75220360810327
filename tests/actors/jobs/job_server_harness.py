"""A job_server in the test's thread: the test is its client, zerodb_server and table_worker."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq

from kelek.actors.jobs.server import JobServer
from kelek.actors.topology.settings import TableEndpoints, TableSettings
from kelek.protocols.zerodb.tables.tables import TableEntry
from kelek.protocols.zerodb.wire import answers, requests
from kelek.protocols.zerodb.wire.ops import Put, unpack
from kelek.protocols.zerodb.wire.requests import encode_request
from kelek.protocols.zerodb.wire.worker_pipe import (
    CHECKPOINT,
    JOB_WRITE,
    LOG_POSITION,
    PIPE_HEADER,
)
from kelek.storage.engine.families import Resources
from kelek.storage.engine.rocks import open_tables
from kelek.tests.actors.actor_harness import ActorHarness
from kelek.tests.actors.node_settings import node_settings

SETTINGS = TableSettings(mapper="wasm", local_tables=(9,), chunk_pairs=10)
REQID = b"request-id-1"
ROWS = 25


class JobServerHarness(ActorHarness):
    """A job_server between a client and the tables, all in one thread."""

    sections: Mapping[str, Any] = {}  # Further sections of its settings.

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        super().__init__()
        self.folder = folder
        self.asks = self.bind("zerodb_server.asks")
        self.done = self.bind("zerodb_server.done")
        self.tables = open_tables(str(folder / "tables"), Resources.of(8 << 20, 64 << 20), True)
        self.index = 0
        # Takes a write (message, ticket) in place of the tables; False: they get it.
        self.take_write: Callable[[list[bytes], int], bool] = lambda message, ticket: False
        self.write(Put(7, [b"%05d" % i for i in range(ROWS)], [b"v%d" % i for i in range(ROWS)]))
        self.settings = replace(SETTINGS, **settings)
        self.start("inproc://jobs")

    def start(self, jobs_url: str) -> None:
        endpoints = TableEndpoints(jobs_url=jobs_url)
        settings = node_settings({"zerodb": endpoints}, zerodb=self.settings, **self.sections)
        self.actor = self.start_actor(JobServer, str(self.folder), 7, settings)
        self.client = self.socket(zmq.DEALER)
        self.client.connect(jobs_url)
        self.requests = self.connect("job_server.requests")

    def kill(self) -> None:
        """Ends the job_server as SIGKILL would: it closes no job and removes no snapshot."""
        self.actor.close_sockets()
        self.client.close()
        self.requests.close()

    def write(self, *operations: Any) -> None:
        self.index += 1
        self.tables.write([TableEntry(self.index, 1, operations)])

    def fill(self, count: int) -> None:
        """Fills table 9 with rows of different values."""
        numbers = range(count)
        self.write(Put(9, [b"%06d" % i for i in numbers], [b"%d" % i for i in numbers]))

    # ---- the other processes ----

    def run_until(self, is_done: Callable[[], object]) -> None:
        """Runs the job_server and answers its requests, until the condition holds."""

        def served() -> object:
            while self.asks.poll(0):
                self.on_ask(self.asks.recv_multipart())
            return is_done()

        super().run_until(served)

    def on_ask(self, message: list[bytes]) -> None:
        """Answers a request of the job_server to the node's tables."""
        kind, *_, ticket = PIPE_HEADER.unpack(message[0])
        table, data = message[1:]
        if kind == CHECKPOINT:
            position = LOG_POSITION.pack(*self.tables.checkpoint(os.fsdecode(data)))
            self.reply(CHECKPOINT, ticket, data, position)
        elif not self.take_write(message, ticket):
            assert kind == JOB_WRITE
            operations = unpack(data)
            assert {op.table for op in operations} == {int.from_bytes(table, "little")}
            self.write(*operations)
            self.reply(JOB_WRITE, ticket)

    def reply(self, kind: int, ticket: int, *frames: bytes, flags: int = 0, index: int = 0) -> None:
        self.requests.send_multipart([PIPE_HEADER.pack(kind, flags, 0, 0, index, ticket), *frames])

    # ---- the client ----

    def send(self, request: requests.Request) -> None:
        self.client.send_multipart(encode_request(request))

    def receive(self) -> list[bytes]:
        self.run_until(lambda: self.client.poll(0))
        return self.client.recv_multipart()

    def ask(self, request: requests.Request) -> answers.Answer:
        self.send(request)
        return answers.decode_answer(self.receive())

    def start_job(self, request: requests.Request) -> int:
        return answers.JOB.decode(self.ask(request))[0]

    def chunk(self, apid: int) -> tuple[int, list[bytes]]:
        head, *frames = self.ask_raw(requests.ClientData(apid))
        assert head[:3] == b"\x31\x01\x50"
        return head[3], frames

    def ask_raw(self, request: requests.Request) -> list[bytes]:
        """The frames of the answer."""
        self.send(request)
        return self.receive()

    def read(self, apid: int) -> list[tuple[bytes, bytes]]:
        """All pairs of a job."""
        frames: list[bytes] = []
        flags = 0
        while not flags:
            flags, chunk = self.chunk(apid)
            frames += chunk
        return list(zip(frames[::2], frames[1::2], strict=True))

    def state(self, apid: int) -> dict[str, str]:
        return answers.STATUS.decode(self.ask(requests.JobStatus(apid)))

    def wait_job(self, apid: int) -> dict[str, str]:
        """The state of a job once it has ended."""
        self.run_until(lambda: apid not in self.actor.table.jobs)
        return self.state(apid)

    @property
    def leases(self) -> list[str]:
        """The folders of the snapshots on disk."""
        return sorted(it.name for it in (self.folder / "jobs").glob("lease.*"))

    def pairs(self, table: int) -> list[tuple[bytes, bytes]]:
        return list(self.tables.scan(table))

    def close(self) -> None:
        super().close()
        self.tables.close()


WAT = """(module
  (memory (export "memory") 64)
  (func (export "kelek_alloc") (param i32) (result i32) (i32.const 1024))
  (func (export "kelek_output") (result i32) (i32.const 2097152))
  (func (export "kelek_map") (param $at i32) (param $size i32) (result i32) {body}))"""
# Deletes the first key of each batch.
DELETES = """
  (local $key i32)
  (local.set $key (i32.load (local.get $at)))
  (i32.store8 (i32.const 2097152) (i32.const 1))
  (i32.store offset=1 (i32.const 2097152) (local.get $key))
  (i32.store offset=5 (i32.const 2097152) (i32.const 0))
  (memory.copy (i32.const 2097161) (i32.add (local.get $at) (i32.const 8)) (local.get $key))
  (i32.add (i32.const 9) (local.get $key))"""

# Puts the value of the first pair of each batch under the key "k".
PUTS = """
  (local $key i32)
  (local $value i32)
  (local.set $key (i32.load (local.get $at)))
  (local.set $value (i32.load offset=4 (local.get $at)))
  (i32.store8 (i32.const 2097152) (i32.const 0))
  (i32.store offset=1 (i32.const 2097152) (i32.const 1))
  (i32.store offset=5 (i32.const 2097152) (local.get $value))
  (i32.store8 (i32.const 2097161) (i32.const 107))
  (memory.copy
    (i32.const 2097162)
    (i32.add (i32.add (local.get $at) (i32.const 8)) (local.get $key))
    (local.get $value))
  (i32.add (i32.const 10) (local.get $value))"""


# Takes about 0.2 s for each batch.
SLOW = """
  (local $count i32)
  (loop $again
    (local.set $count (i32.add (local.get $count) (i32.const 1)))
    (br_if $again (i32.lt_u (local.get $count) (i32.const 100000000))))
  (i32.const 0)"""


def mapper(body: str) -> bytes:
    wasmtime = pytest.importorskip("wasmtime")
    return bytes(wasmtime.wat2wasm(WAT.format(body=body)))
