"""The process table_worker without a process: what it does when nobody takes what it has."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from kelek.actors import actor, credit, table_worker
from kelek.actors.actor import ActorSetup, Host
from kelek.actors.credit import TAKEN
from kelek.actors.table_worker import TableWorker
from kelek.protocols.zerodb import ops, requests
from kelek.protocols.zerodb.client_codec import encode_request
from kelek.protocols.zerodb.handoff import ANSWER, HEAD, MARK, WRITE
from kelek.storage.disk import Disk
from kelek.storage.log import Log
from kelek.storage.segment import Identity
from kelek.storage.tables import Outcome

EPOCH = 7
DEADLINE_S = 20
OPTIONS = {
    "workers": 1,
    "local": [9],
    "cache_bytes": 8 << 20,
    "write_buffer_bytes": 8 << 20,
    "request_timeout_ms": 5000,
    "response_bytes_max": 1 << 20,
    "open_on_the_fly": False,
}

Socket = zmq.Socket[bytes]


class Watched(TableWorker):
    """Its loop ends when something is so."""

    until: Callable[[], object] = staticmethod(lambda: True)

    def on_wake(self, now_ms: int) -> None:
        super().on_wake(now_ms)
        if self.until():
            self.stop()

    def deadline_ms(self) -> int | None:
        """Now and then it looks whether the test waits for nothing."""
        return min(super().deadline_ms() or 1 << 60, self.now_ms + 200)


class Rig:
    """A table_worker beside an empty log; the test is zerodb_server and job_server."""

    def __init__(self, folder: Path) -> None:
        (folder / "raft").mkdir()
        self.log = Log.open(
            Disk(folder / "raft"), Identity("c", "n1"), epoch=1, segment_bytes=16 << 10
        )
        self.context: zmq.Context[Socket] = zmq.Context()
        self.stop_in, self.stop_out = os.pipe()
        self.bound = {
            name: self.bind(zmq.PULL, name)
            for name in ("zerodb_server.done", "zerodb_server.reports", "job_server.requests")
        }
        self.control = self.context.socket(zmq.ROUTER)
        self.control.bind("inproc://control")
        setup = ActorSetup(
            "n1", "table_worker", "table_worker", "c", "inproc://rig", str(folder / "raft"),
            "inproc://control", EPOCH, False, {"zerodb": OPTIONS, "members": {"n1": {}}}, {},
        )  # fmt: skip
        self.actor = Watched(setup, Host(self.stop_in, 2, self.context))
        self.actor._open()
        self.actor.on_start()
        self.actor._starting = False
        self.sending = {name: self.connect(f"table_worker.{name}") for name in ("work", "taken")}
        self.tickets = 0

    def bind(self, kind: int, name: str) -> Socket:
        socket = self.context.socket(kind)
        socket.bind(f"inproc://rig/n1/{name}")
        return socket

    def connect(self, name: str) -> Socket:
        socket = self.context.socket(zmq.PUSH)
        socket.connect(f"inproc://rig/n1/{name}")
        return socket

    def turn(self, until: Callable[[], object]) -> None:
        late = time.monotonic() + DEADLINE_S

        def ends() -> object:
            assert time.monotonic() < late, "nothing more happens"
            return until()

        self.actor.until = ends
        self.actor.running = not until()
        self.actor.run_loop()

    def ask(self, request: requests.Request) -> None:
        self.tickets += 1
        head = HEAD.pack(ANSWER, 0, 0, EPOCH, 0, self.tickets)
        self.sending["work"].send_multipart([head, b"route", *encode_request(request)])

    def answer(self) -> list[bytes]:
        done = self.bound["zerodb_server.done"]
        self.turn(lambda: done.poll(0))
        return done.recv_multipart()

    def take_all(self) -> list[list[bytes]]:
        """The answers that are there once it stands still."""
        done, found = self.bound["zerodb_server.done"], []
        looks = 0

        def stands() -> bool:
            nonlocal looks
            looks = 0 if done.poll(0) else looks + 1
            while done.poll(0):
                found.append(done.recv_multipart())
            return looks == 3

        self.turn(stands)
        return found

    def end(self) -> None:
        self.actor.on_stop()
        self.actor.close_sockets()
        self.context.destroy(linger=0)
        self.log.close()
        os.close(self.stop_in)
        os.close(self.stop_out)


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(actor, "REPORT_MS", 3_600_000)  # Reports wake it, too.
    made = Rig(tmp_path)
    yield made
    made.end()


def test_answers_that_nobody_takes_are_bounded_by_bytes(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credit, "UNTAKEN_BYTES_MAX", 1_000_000)
    monkeypatch.setattr("kelek.storage.table_requests.OUT_BYTES", 200_000)
    rig.ask(requests.OpenTable(9))
    rig.ask(requests.Put(9, [b"k"], [bytes(100_000)], 1))
    assert [rig.answer()[2][2] for _ in range(2)] == [0x01, 0x20]
    for _ in range(40):
        rig.ask(requests.Read(9, [b"k"]))
    found = rig.take_all()
    assert 10 <= len(found) <= 14
    size = sum(len(frame) for message in found for frame in message)
    rig.sending["taken"].send(
        TAKEN.pack(1, 0)
    )  # A server that is new: nothing is on its way to it.
    found += rig.take_all()
    assert 20 <= len(found) <= 28
    for _ in range(2):
        rig.sending["taken"].send(TAKEN.pack(1, size))
        found += rig.take_all()
    assert len(found) == 40
    places = [MARK.unpack(message[0])[4] for message in found]
    assert places == list(range(3, 43))


def test_a_job_writes_open_tables_alone(rig: Rig) -> None:
    entry = ops.pack([ops.Put(9, [b"k"], [b"v"])])
    head = HEAD.pack(WRITE, 0, 0, 0, 0, 55)
    rig.sending["work"].send_multipart([head, b"", b"\x09\0\0\0", entry])
    jobs = rig.bound["job_server.requests"]
    rig.turn(lambda: jobs.poll(0))
    _, text = jobs.recv_multipart()
    assert text == b"table 9 is not open"


def test_results_for_a_server_that_hears_nothing_are_bounded(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_worker, "RESULTS_BYTES_MAX", 100_000)
    worker = rig.actor
    worker._results = [Outcome(1, 0, b"", "refused")]
    worker._results += [Outcome(index, 0, bytes(1000)) for index in range(2, 500)]
    worker._forget_results()
    assert worker._results[0].problem == "refused"
    assert [outcome.log_index for outcome in worker._results[1:]] == list(range(458, 500))
    assert worker._results_bytes < 60_000
