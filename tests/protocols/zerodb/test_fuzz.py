"""A server and its workers in virtual time, against valid and mutated requests of all kinds.

Each request is answered once, with its own type or the protocol error, and with its reqid. Proposed
entries can be applied, and no exception is raised.
"""

from typing import Any

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from kelek.native.net.messages import Arena
from kelek.protocols.zerodb.server.outbox import KEY_PREFIX
from kelek.protocols.zerodb.tables.tables import TableEntry, TablePartition
from kelek.protocols.zerodb.wire import answers, ops, requests, values
from kelek.protocols.zerodb.wire.requests import encode_request, peek
from kelek.protocols.zerodb.wire.values import Extension, decode_extension
from kelek.protocols.zerodb.wire.worker_pipe import ENVELOPE, ONE_WAY, RESULT_QUERY, OperationResult
from kelek.protocols.zerodb.worker.requests import (
    Databases,
    TableRequestLimits,
    TableRequests,
)
from kelek.protocols.zerodb.worker.tickets import QueuedRequest
from kelek.tests.protocols.zerodb.server.served import UNIX_MS, FakeWorker, SessionHarness, head
from kelek.tests.protocols.zerodb.wire import messages
from kelek.tests.storage.memory_tables import MemoryTables

LOCAL = frozenset({1, 2})
SMALL = 300  # Size of an entry: larger writes have parts.
EXAMPLES = settings().max_examples  # Of the profile: each example is a whole server.
Message = tuple[bool, list[bytes]]  # True: with a REQ socket's empty frame.


class RequestRig(FakeWorker):
    """A worker on tables in memory."""

    def __init__(self, harness: "WholeServer", number: int) -> None:
        super().__init__(harness.session, number)
        self.harness = harness
        self.owner = TablePartition(number, 2, LOCAL)
        self.tables = MemoryTables()
        databases = Databases("table_worker", self.owner, self.tables, MemoryTables())
        limits = TableRequestLimits(1 << 20, 5000, True)
        self.requests = TableRequests(databases, limits, lambda index: [], {})
        self.applied = 0

    def take(self, messages: Arena, position: int) -> int:
        end = super().take(messages, position)
        for kind, flags, _, index, ticket, route, frames in self.taken:
            envelope = bool(flags & ENVELOPE)
            asked = QueuedRequest(route, frames, index, ticket, kind != ONE_WAY, envelope)
            if kind == RESULT_QUERY:
                self.requests.add_result_query(asked, self.harness.now_ms)
            else:
                self.requests.add(asked, self.harness.now_ms)
        self.taken.clear()
        return end

    def apply(self) -> list[tuple[int, OperationResult]]:
        """Applies committed entries; results of kelek's operations are reported."""
        results = []
        for index, (_, data) in enumerate(self.harness.log.records, 1):
            if index > self.applied and ops.is_packed(data):
                batch = [op for op in ops.unpack(data) if self.owner.applies(op)]
                for outcome in self.tables.write([TableEntry(index, 1, batch)]):
                    code = values.ERROR if outcome.problem else values.OK
                    told = outcome.problem.encode() or outcome.data
                    results.append((outcome.log_index, OperationResult(code, told)))
        self.applied = len(self.harness.log.records)
        return results

    def run(self) -> None:
        """Reads behave as if the log held the leader's first entry, too."""
        self.requests.run(self.applied + 1, self.harness.now_ms, UNIX_MS)
        while self.requests.has_work:
            self.requests.run(self.applied + 1, self.harness.now_ms, UNIX_MS)
        for _, *answer in self.requests.out.messages():
            if answer[0].startswith(KEY_PREFIX):
                self.session.outbox.on_part(self.owner.number, answer)
            else:
                self.harness.answers.append(answer)
        self.requests.out.clear()
        self.channel.on_handled(self.requests.completed_ticket)


class WholeServer(SessionHarness):
    """Two workers, some local tables, small entries."""

    def __init__(self, open_on_the_fly: bool = True) -> None:
        super().__init__(
            workers=2, local=LOCAL, entry_bytes_max=SMALL, open_on_the_fly=open_on_the_fly
        )
        self.desks = [RequestRig(self, number) for number in range(2)]
        self.workers = list(self.desks)
        self.lead("n1")

    def act(self) -> None:
        for desk in self.desks:
            self.session.writes.proposals.on_results(desk.apply())
        super().act()
        for desk in self.desks:
            desk.run()

    def serve(self, batch: list[Message]) -> dict[bytes, list[list[bytes]]]:
        """Answers by routing id; [] for requests to job_server."""
        arrived = [[b"%d" % i, *[b""] * env, *frames] for i, (env, frames) in enumerate(batch)]
        for message in arrived:
            self.later(message)
        self.run(lambda: self.done >= len(batch), 8000)
        self.run(lambda: not self.session.inflight, 8000)
        found: dict[bytes, list[list[bytes]]] = {message[0]: [] for message in arrived}
        for routing_id, *answer in self.answers:
            found[routing_id].append(answer)
        return found

    def later(self, message: list[bytes]) -> None:
        arena = Arena.from_messages([message])
        self.at(0, lambda: self.session.on_requests(arena, self.now))

    @property
    def done(self) -> int:
        return len(self.answers) + len(self.jobs)


@st.composite
def message(draw: st.DrawFn) -> list[bytes]:
    request: Any = draw(messages.request())  # Not all requests have a table.
    if request.extension.reqid:  # Requests never share a reqid.
        reqid = draw(st.integers(1, 2**90)).to_bytes(12, "big")
        request = request._replace(extension=request.extension._replace(reqid=reqid))
    if hasattr(request, "table") and draw(st.integers(0, 3)):
        request = request._replace(table=draw(st.integers(0, 4)))
    return encode_request(request)


def check_answer(sent: Message, answer: list[bytes]) -> None:
    envelope, frames = sent
    if envelope:
        assert answer.pop(0) == b""
    decoded = answers.decode_answer(answer)
    request_type = peek(frames)[0]
    assert decoded.request_type in (request_type, values.PROTOCOL_ERROR)
    if decoded.request_type == request_type != values.PROTOCOL_ERROR:
        offset = 4 if request_type in values.WRITE_TYPES | {values.OPEN_TABLE} else 3
        try:
            assert decoded.reqid == decode_extension(frames[0], offset).reqid
        except ValueError:
            assert decoded.failed or request_type in values.WRITE_TYPES
    if decoded.failed:
        assert decoded.text


def seen(batch: list[Message]) -> list[Message]:
    """The messages as the server sees them: an emptied first frame is an envelope. Watches are left
    out, since they would wait for ever."""
    found = []
    for envelope, frames in batch:
        if not envelope and frames and not frames[0]:
            envelope, frames = True, frames[1:]
        if peek(frames)[0] != values.WATCH:
            found.append((envelope, frames))
    return found


INFO_OF_ALL = head(values.TABLE_INFO, 0, Extension(reqid=b"r" * 12))


# Shrinking takes minutes.
@settings(max_examples=EXAMPLES * 3 // 5, phases=[Phase.explicit, Phase.generate])
@example([(False, [INFO_OF_ALL]), (True, [INFO_OF_ALL])], True)  # Each worker answers a part.
@given(
    st.lists(
        st.tuples(st.booleans(), st.one_of(message(), messages.mutated(message()))), max_size=8
    ),
    st.booleans(),
)
def test_each_junk_request_is_answered_once(batch: list[Message], open_on_the_fly: bool) -> None:
    batch = seen(batch)
    harness = WholeServer(open_on_the_fly)
    found = harness.serve(batch)
    handed = [job[1] for job in harness.jobs]
    assert sorted([*handed, *(one[0] for one in harness.answers)]) == sorted(found)
    for i, sent in enumerate(batch):
        for answer in found[b"%d" % i]:
            check_answer(sent, list(answer))


@settings(max_examples=EXAMPLES * 3 // 10, phases=[Phase.generate])
@given(st.lists(st.one_of(message(), messages.mutated(message())).filter(bool), max_size=8))
def test_pull_and_sub_get_no_answers(batch: list[list[bytes]]) -> None:
    harness = WholeServer()
    arena = Arena.from_messages(batch)
    harness.at(0, lambda: harness.session.on_one_way(arena, harness.now))
    harness.run(lambda: harness.now_ms > 0 and not harness.session.inflight, 8000)
    assert not harness.answers
    assert not harness.jobs
    written = [op for _, data in harness.log.records for op in ops.unpack(data)]
    assert not any(isinstance(op, ops.Transaction | ops.SessionOpen) for op in written)


def test_a_time_to_live_above_the_limit_is_refused() -> None:
    for ttl_ms in (values.TTL_MS_MAX + 1, 2**64 - 1):
        put = requests.Put(5, [b"k"], [b"v"], 1, Extension(reqid=b"r" * 12, ttl_ms=ttl_ms))
        answer = WholeServer().serve([(False, encode_request(put))])[b"0"]
        decoded = answers.decode_answer(answer[0])
        assert (decoded.code, decoded.reqid) == (values.ERROR, b"r" * 12)
        assert str(values.TTL_MS_MAX) in decoded.text


@pytest.mark.parametrize("flags", [0, 3])
def test_a_write_over_the_entry_limit_goes_in_parts(flags: int) -> None:
    harness = WholeServer()
    put = requests.Put(5, [b"k"], [bytes(10 * SMALL)], flags)
    read = requests.Read(5, [b"k"])
    found = harness.serve([(False, encode_request(put)), (False, encode_request(read))])
    assert found[b"0"] == [[b"\x31\x01\x20\x00"]]
    assert harness.desks[1].tables.get(5, [b"k"]) == [bytes(10 * SMALL)]
    assert len(harness.log.records) > 10
