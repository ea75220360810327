"""No answer to RequestEntries or RequestLogInfo is older than an earlier answer."""

import pytest

from kelek.native.net.messages import Arena
from kelek.protocols.host.border import Requests
from kelek.protocols.host.read_queue import HELD_MS_MAX
from kelek.protocols.raft.messages import AppendAck, AppendEntries, AppendResponse
from kelek.protocols.zmqraft.server.cluster_info import ANSWERS_A_WAKE
from kelek.protocols.zmqraft.server.entry_readers import BACKUP_REST_MS
from kelek.protocols.zmqraft.server.state_streams import CONTAINER_CHUNKS_AHEAD
from kelek.protocols.zmqraft.server.values import Applied
from kelek.protocols.zmqraft.snapshots.orders import ChunkRead, ReadChunk, Snapshot
from kelek.protocols.zmqraft.wire import extensions as own
from kelek.protocols.zmqraft.wire.client_codec import (
    ENTRIES_ANSWER,
    LOG_INFO_ANSWER,
    EntriesAnswer,
    EntriesStatus,
    Form,
    LogInfo,
    RequestEntries,
    RequestLogInfo,
    encode_client_request,
)
from kelek.protocols.zmqraft.wire.snapshot_codec import CHUNK_BYTES_MAX
from kelek.tests.protocols.zmqraft.server.test_peer import CLUSTER, Alone, entries, lead
from kelek.tests.protocols.zmqraft.server.test_reads import LeaderHarness

REQID = b"request-id-1"


def entries_request(prev_index: int) -> list[bytes]:
    return encode_client_request(RequestEntries(REQID, prev_index), CLUSTER, Form.NODE)


INFO_REQUEST = encode_client_request(RequestLogInfo(REQID), CLUSTER, Form.NODE)


def taken(answers: list[list[bytes]]) -> EntriesAnswer:
    (answer,) = answers
    return ENTRIES_ANSWER.decode(answer)


def info(answers: list[list[bytes]]) -> LogInfo:
    (answer,) = answers
    return LOG_INFO_ANSWER.decode(answer)


def grow(leading: LeaderHarness, count: int, *, written: bool = True) -> None:
    """The log is longer, and n2 and n3 have it on disk; our own disk only when it is written."""
    core, alone = leading.peer.core, leading.alone
    batch = entries(core.log.last_index + 1, count, core.term)
    alone.reader.held = [entries(1, 1, core.term), batch]
    core.propose(batch)
    wake = alone.peer.wake(alone.now_ms)
    assert wake.job is not None
    if written:
        alone.peer.receive(AppendAck(1, wake.job.seq), alone.now_ms)
    for name in ("n2", "n3"):
        core.step(name, AppendResponse(core.term, True, core.log.last_index), alone.now_ms)
    alone.peer.wake(alone.now_ms)
    assert core.commit_index == core.log.last_index
    leading.take_answers()


def test_entries_are_served_before_they_are_applied() -> None:
    leading = LeaderHarness()
    grow(leading, 3)
    assert not leading.ask(entries_request(1)), "it confirms first that it leads"
    answer = taken(leading.confirm())
    assert (answer.status, answer.last_index, len(answer.entries)) == (EntriesStatus.LAST, 4, 3)
    assert leading.peer.last_applied == 0


def test_what_is_committed_and_not_on_our_own_disk_is_waited_for() -> None:
    leading = LeaderHarness()
    grow(leading, 3, written=False)
    leading.ask(entries_request(1))
    assert not leading.confirm()
    leading.peer.receive(AppendAck(1, leading.peer.append_queue.seq), leading.alone.now_ms)
    assert taken(leading.told()).last_index == 4


def test_a_request_behind_the_end_gets_its_own_index() -> None:
    leading = LeaderHarness()
    leading.ask(entries_request(9))
    assert taken(leading.confirm()) == EntriesAnswer(EntriesStatus.LAST, 9)


def test_a_new_leader_answers_once_it_has_committed_and_applied() -> None:
    """Its commit index may be behind that of the leader before it."""
    alone = Alone()
    lead(alone)
    assert not alone.ask_all([[b"route", *entries_request(0)]], "clients")
    assert not alone.ask_all([[b"route", *INFO_REQUEST]], "clients")
    core, peer = alone.peer.core, alone.peer
    alone.reader.held = [entries(1, 1, core.term)]
    core.step("n2", AppendResponse(core.term, True, 1), alone.now_ms)
    assert not alone.ask_all([], "clients"), "now a round begins"
    core.step("n2", AppendResponse(core.term, True, 1, read_round=1), alone.now_ms)
    assert taken(alone.ask_all([], "clients")).last_index == 1
    peer.receive(Applied(1, 1), alone.now_ms)
    found = info(alone.ask_all([], "clients"))
    assert (found.leading, found.applied_index, found.commit_index) == (True, 1, 1)


def test_a_wake_answers_some_of_many_requests_for_log_info() -> None:
    """Heartbeats must not wait for thousands of answers."""
    leading = LeaderHarness()
    number = 3 * ANSWERS_A_WAKE + 1
    assert not leading.ask(*[INFO_REQUEST] * number)
    assert not leading.confirm(), "nothing is applied"
    index = leading.peer.core.commit_index
    leading.peer.receive(Applied(index, index), leading.alone.now_ms)
    answers = [len(leading.told())]
    while sum(answers) < number:
        assert leading.peer.deadline_ms <= leading.alone.now_ms
        answers.append(len(leading.told()))
    assert answers == [ANSWERS_A_WAKE] * 3 + [1]
    assert leading.peer.deadline_ms > leading.alone.now_ms


def test_a_leader_that_cannot_confirm_itself_refuses_in_time() -> None:
    leading = LeaderHarness()
    assert not leading.ask(entries_request(0), INFO_REQUEST)
    leading.alone.now_ms += HELD_MS_MAX
    assert leading.peer.deadline_ms <= leading.alone.now_ms
    leading.peer.entry_readers.answer_some(1, leading.alone.now_ms)
    assert taken(leading.take_answers()) == EntriesAnswer(EntriesStatus.NOT_LEADER)
    leading.peer.cluster_info.answer_ready(leading.peer.peer_status, leading.alone.now_ms)
    found = info(leading.take_answers())
    assert (found.leading, found.leader) == (False, None)


def test_log_info_does_not_wait_for_ever_for_a_state_machine() -> None:
    leading = LeaderHarness()
    leading.ask(INFO_REQUEST)
    assert not leading.confirm()
    leading.alone.now_ms += HELD_MS_MAX
    leading.peer.cluster_info.answer_ready(leading.peer.peer_status, leading.alone.now_ms)
    found = info(leading.take_answers())
    assert (found.leading, found.applied_index, found.commit_index) == (True, 0, 1)


def test_waiting_clients_learn_that_a_leader_was_deposed() -> None:
    leading = LeaderHarness()
    leading.ask(INFO_REQUEST, entries_request(0))
    leading.alone.append(AppendEntries(leading.peer.core.term + 1, "n2", 0, 0, 0))
    refused, told = leading.take_answers()
    assert ENTRIES_ANSWER.decode(refused) == EntriesAnswer(EntriesStatus.NOT_LEADER, leader="n2")
    assert not info([told]).leading


# ---- any peer ----


def ask_anywhere(alone: Alone, prev_index: int) -> list[EntriesAnswer]:
    request = RequestEntries(REQID, prev_index, packed=True, any_peer=True)
    answers = alone.ask(
        *own.ENTRIES_PACKED_REQUEST.encode(request, cluster=CLUSTER), socket="clients"
    )
    return [own.ENTRIES_PACKED_ANSWER.decode(answer) for answer in answers]


def waited(alone: Alone) -> list[EntriesAnswer]:
    answers = alone.ask_all([], "clients")
    return [own.ENTRIES_PACKED_ANSWER.decode(answer) for answer in answers]


def test_a_follower_waits_until_it_knows_what_is_committed() -> None:
    """It has just started: what it served before it has forgotten."""
    alone = Alone()
    batch = entries(1, 4, 1)
    alone.reader.held = [batch]
    assert not ask_anywhere(alone, 0)
    alone.append(AppendEntries(1, "n2", 0, 0, 9, (batch,)))
    assert not waited(alone), "nine are committed, it has four of them"
    more = entries(5, 5, 1)
    alone.reader.held = [batch, more]
    alone.append(AppendEntries(1, "n2", 4, 1, 9, (more,)))
    (answer,) = waited(alone)
    assert (answer.status, answer.last_index) == (EntriesStatus.LAST, 9)
    assert [it.last_index for it in ask_anywhere(alone, 9)] == [9]


def test_a_follower_of_a_leader_that_has_not_committed_waits() -> None:
    """What earlier leaders have committed that one does not know yet."""
    alone = Alone()
    batch = entries(1, 4, 1)
    alone.reader.held = [batch]
    assert not ask_anywhere(alone, 0)
    alone.append(AppendEntries(2, "n2", 0, 0, 2, (batch,)))
    assert not waited(alone)
    alone.reader.held = [batch, entries(5, 1, 2)]
    alone.append(AppendEntries(2, "n2", 4, 1, 5, (entries(5, 1, 2),)))
    assert [it.last_index for it in waited(alone)] == [5]


def test_a_follower_serves_its_snapshot_for_a_backup() -> None:
    """The container alone: the state of its snapshot comes from the leader."""
    alone = Alone()
    batch = entries(1, 4, 1)
    alone.append(AppendEntries(1, "n2", 0, 0, 4, (batch,)))
    alone.peer.snapshots.newest = Snapshot(3, 1, 9000, 10)
    alone.peer.core.log.compact(3)
    (refused,) = ask_anywhere(alone, 0)
    assert refused.status is EntriesStatus.NOT_LEADER
    request = RequestEntries(b"a backup", 0, packed=True, any_peer=True, container=True)
    frames = own.ENTRIES_PACKED_REQUEST.encode(request, cluster=CLUSTER)
    alone.peer.receive(Requests("url", Arena.from_messages([[b"route", *frames]]), 0), alone.now_ms)
    orders = [order for order in alone.wake().orders if isinstance(order, ReadChunk)]
    assert [(order.offset, order.size, order.plain) for order in orders] == [(0, 9000, False)]
    alone.append(AppendEntries(1, "n2", 4, 1, 4))  # It goes on as a follower meanwhile.
    alone.wake()
    alone.peer.receive(ChunkRead(orders[0].to, 3, 1, 0, bytes(9000), True), alone.now_ms)
    (answer,) = waited(alone)
    assert (answer.status, answer.last_index) == (EntriesStatus.SNAPSHOT, 3)
    assert answer.data == bytes(9000)


def test_a_backup_gets_one_piece_at_a_time_while_the_log_grows() -> None:
    alone = Alone()
    alone.append(AppendEntries(1, "n2", 0, 0, 4, (entries(1, 4, 1),)))
    alone.peer.snapshots.newest = Snapshot(3, 1, 40 << 20, 10)
    alone.peer.core.log.compact(3)
    request = RequestEntries(b"a backup", 0, packed=True, any_peer=True, container=True)

    def ask(*offsets: int | None) -> None:
        asked = [request._replace(offset=offset) for offset in offsets]
        frames = [own.ENTRIES_PACKED_REQUEST.encode(each, cluster=CLUSTER) for each in asked]
        messages = Arena.from_messages([[b"route", *each] for each in frames])
        alone.peer.receive(Requests("url", messages, 0), alone.now_ms)

    def reads() -> int:
        return sum(isinstance(order, ReadChunk) for order in alone.wake().orders)

    piece = CHUNK_BYTES_MAX
    ask(None)
    assert reads() == CONTAINER_CHUNKS_AHEAD
    ask(piece, 2 * piece)
    assert reads() == 1, "the log has grown since the last piece"
    assert (reads(), alone.peer.deadline_ms) == (0, alone.now_ms + BACKUP_REST_MS)
    alone.now_ms += BACKUP_REST_MS
    assert reads() == 1
    ask(3 * piece, 4 * piece)
    assert reads() == 2, "at rest it gets what it asks for"
    alone.append(AppendEntries(1, "n2", 4, 1, 5, (entries(5, 1, 1),)))
    ask(5 * piece, 6 * piece)
    assert reads() == 1
    assert alone.peer.is_calm, "others' wakes stay quick meanwhile"


@pytest.mark.parametrize("known", [False, True])
def test_a_follower_redirects_clients_with_newer_knowledge(known: bool) -> None:
    alone = Alone()
    if known:
        batch = entries(1, 4, 1)
        alone.append(AppendEntries(1, "n2", 0, 0, 4, (batch,)))
    answers = ask_anywhere(alone, 5)
    alone.now_ms += 0 if known else HELD_MS_MAX
    answers += waited(alone)
    assert [it.status for it in answers] == [EntriesStatus.NOT_LEADER]


def test_a_new_leader_answers_the_clients_that_waited_at_it() -> None:
    alone = Alone()
    assert not ask_anywhere(alone, 0)
    lead(alone)
    alone.wake()
    core = alone.peer.core
    alone.reader.held = [entries(1, 1, core.term)]
    core.step("n2", AppendResponse(core.term, True, 1), alone.now_ms)
    alone.wake()
    core.step(
        "n2", AppendResponse(core.term, True, 1, read_round=core.read_round - 1), alone.now_ms
    )
    assert [it.last_index for it in waited(alone)] == [1]
