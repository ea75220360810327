"""The intake, case by case: what each request is answered, and what goes to the log."""

import random
import struct
from typing import Any

import pytest

from kelek.native.errors import NativeError
from kelek.native.log.updates import (
    MARKED_ACCEPTED,
    MARKED_ALONE,
    MARKED_REFUSED,
    PACK_COUNT_MAX,
    Reqids,
    Updates,
    View,
)
from kelek.native.net.guard import RIGHT_INTERNAL, AllowedKeys, KeyRow
from kelek.native.net.messages import Arena, Frames
from kelek.protocols.record import Record, decode_block, encode_block
from kelek.tests.native.log.block_twin import record_write

NOW_S = 1_800_000_000
VIEW = View(True, b"\xc0", next_index=1, commit_index=0, now_ms=1000, unix_s=NOW_S)
ID = b"demo"
PACK = b"\x6b\x3d"


def reqid(number: int, seconds: int = NOW_S) -> bytes:
    return struct.pack(">IQ", seconds, number)


def record(number: int, data: bytes = b"data", seconds: int = NOW_S, kind: int = 0) -> bytes:
    return record_write(kind, reqid(number, seconds), data)


def pack(numbers: range, previous: bytes = b"") -> list[bytes]:
    records = b"".join(record(number) for number in numbers)
    return [b"R", reqid(numbers[0]), PACK, ID, previous, records]


class Intake:
    """Updates with everything around them."""

    def __init__(self, **limits: int) -> None:
        self.updates = Updates(ID, Reqids(bytes(range(16))), **limits)
        self.view = VIEW
        self.sender: tuple[Any, ...] = ()  # The slot and the keys, with CURVE.
        self.others: list[int] = []

    def receive(self, *messages: list[bytes]) -> list[list[bytes]]:
        """Takes messages in; returns the answers."""
        out = Frames()
        arena = Arena.from_messages(messages, *self.sender)
        self.others = self.updates.receive(arena, self.view, out).others
        return out.messages()

    def propose(self) -> list[Record]:
        """Hands everything taken out, as a leader's next entries."""
        records: list[Record] = []
        while block_and_count := self.updates.block(self.view.next_index, 3):
            batch, found = decode_block(block_and_count[0])
            assert (batch.first_index, batch.term) == (self.view.next_index, 3)
            assert batch.count == block_and_count[1]
            self.view = self.view._replace(next_index=batch.last_index + 1)
            records += found
        return records

    def commit(self, index: int) -> list[list[bytes]]:
        out = Frames()
        waiting = self.updates.waiting
        assert self.updates.commit(index, out) == waiting - self.updates.waiting
        self.view = self.view._replace(commit_index=index)
        return out.messages()

    def count(self, name: str) -> int:
        return self.updates.counters()[name]


def runs(*pairs: tuple[int, int]) -> bytes:
    return b"".join(struct.pack("<IQ", count, first) for count, first in pairs)


def test_text_and_node_form_become_records_and_are_answered_with_the_index() -> None:
    intake = Intake()
    assert (
        intake.receive([b"A", reqid(1), b"=", b"x"], [b"B", reqid(2), b"=", ID, b"y", b"more"])
        == []
    )
    assert intake.propose() == [Record(0, reqid(1), b"x"), Record(0, reqid(2), b"y")]
    assert intake.commit(1) == [[b"A", reqid(1), b"\x01", b"\x01"]]
    assert intake.commit(2) == [[b"B", reqid(2), b"\x01", b"\x02"]]
    assert intake.updates.deadline_ms is None


@pytest.mark.parametrize(
    ("index", "encoded"),
    [
        (127, b"\x7f"),
        (128, b"\xcc\x80"),
        (256, b"\xcd\x01\x00"),
        (65536, b"\xce\x00\x01\x00\x00"),
        (2**32, b"\xcf\x00\x00\x00\x01\x00\x00\x00\x00"),
    ],
)
def test_indexes_have_the_smallest_encoding(index: int, encoded: bytes) -> None:
    intake = Intake()
    intake.view = VIEW._replace(next_index=index)
    intake.receive([b"A", reqid(1), b"=", b"x"])
    assert intake.commit(index) == [[b"A", reqid(1), b"\x01", encoded]]
    assert intake.receive([b"B", reqid(1), b"=", b"x"]) == [[b"B", reqid(1), b"\x01", encoded]]


@pytest.mark.parametrize(
    "message",
    [
        [b"A", reqid(1), b"="],
        [b"A", reqid(1), b"=", b"else", b"data"],
        [b"A", reqid(1)[:11], b"=", b"data"],
        [b"A", reqid(1) + b"x", b"=", ID, b"data"],
        [b"A", reqid(1), PACK, ID, b""],
        [b"A", reqid(1), PACK, b"else", b"", record(1)],
        [b"A", reqid(1), PACK, ID, b"eleven byte", record(1)],
        [b"A", b"", PACK, ID, b"", record(1)],
    ],
)
def test_other_shapes_are_dropped_and_counted(message: list[bytes]) -> None:
    intake = Intake()
    assert intake.receive(message) == []
    assert (intake.count("dropped"), intake.updates.pending) == (1, 0)
    intake.view = VIEW._replace(leader=False)
    assert intake.receive(message) == []


def test_the_ident_alone_is_no_data() -> None:
    """A client in node form that drops an empty frame sends that."""
    intake = Intake()
    assert intake.receive([b"A", reqid(1), b"=", ID]) == [[b"A", reqid(1), b""]]
    assert (intake.count("refused"), intake.updates.pending) == (1, 0)
    intake.receive([b"A", reqid(2), b"=", ID, ID])
    assert intake.propose() == [Record(0, reqid(2), ID)]


def test_other_messages_are_left_to_the_caller() -> None:
    intake = Intake()
    others = [[b"A"], [b"A", b"id"], [b"A", b"id", b"^"], [b"A", b"id", b"k+"], [b"A", b"", b""]]
    assert intake.receive(*others, [b"A", reqid(1), b"=", b"x"], *others) == []
    assert intake.others == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]


@pytest.mark.parametrize(
    "message",
    [
        [b"A", reqid(1), b"=", b""],
        [b"A", reqid(1), b"=", bytes(101)],
        [b"A", reqid(1, NOW_S - 8 * 3600 - 1), b"=", b"x"],
        [b"A", reqid(1, NOW_S + 901), b"=", b"x"],
        [b"A", bytes(12), b"=", b"x"],
        [b"A", reqid(1, NOW_S - 500), b"=", b"x"],
    ],
)
def test_unacceptable_requests_are_refused_for_good(message: list[bytes]) -> None:
    intake = Intake(record_bytes_max=100)
    intake.updates.reqids.forget(NOW_S - 500)
    assert intake.receive(message) == [[b"A", message[1], b""]]
    assert intake.count("refused") == 1


def test_the_limits_of_accepted_values() -> None:
    intake = Intake(record_bytes_max=100)
    intake.receive(
        [b"A", reqid(1), b"=", bytes(100)],
        [b"A", reqid(2, NOW_S - 8 * 3600), b"=", b"x"],
        [b"A", reqid(3, NOW_S + 900), b"=", b"x"],
    )
    assert len(intake.propose()) == 3


def test_a_repeat_is_never_a_second_entry() -> None:
    intake = Intake()
    update = [b"A", reqid(1), b"=", b"x"]
    assert intake.receive(update, [b"B", *update[1:]]) == [[b"B", reqid(1), b"\x01"]]
    assert len(intake.propose()) == 1
    assert intake.commit(1) == [[r, reqid(1), b"\x01", b"\x01"] for r in (b"A", b"B")]
    intake.view = intake.view._replace(unix_s=NOW_S + 10**6)
    assert intake.receive(update) == [[b"A", reqid(1), b"\x01", b"\x01"]]
    assert intake.count("repeated") == 2


def test_not_the_leader() -> None:
    intake = Intake()
    intake.view = VIEW._replace(leader=False, refusal=b"\xa2n2")
    assert intake.receive([b"A", reqid(1), b"=", b""], pack(range(2, 4))) == [
        [b"A", reqid(1), b"", b"\xa2n2"],
        [b"R", reqid(2), PACK, b"\x00", b"\xa2n2"],
    ]
    assert intake.count("astray") == 2


def test_a_step_down_answers_all_clients_and_drops_queued_updates() -> None:
    intake = Intake()
    intake.receive([b"A", reqid(1), b"=", b"x"], pack(range(2, 4)))
    out = Frames()
    assert intake.updates.refuse(b"\xc0", out) == 2
    assert out.messages() == [
        [b"A", reqid(1), b"", b"\xc0"],
        [b"R", reqid(2), PACK, b"\x00", b"\xc0"],
    ]
    assert (intake.updates.waiting, intake.updates.pending) == (0, 0)
    intake.updates.reqids.truncate(0)
    assert intake.receive([b"A", reqid(2), b"=", b"y"]) == []
    assert intake.propose() == [Record(0, reqid(2), b"y")]


def test_reminders_after_100_ms_and_each_100_ms() -> None:
    intake = Intake()
    intake.receive([b"A", reqid(1), b"=", b"x"])
    intake.view = intake.view._replace(now_ms=1050)
    intake.receive(pack(range(2, 3)))
    sent = {}
    for now_ms in range(1000, 1321, 10):
        out = Frames()
        assert intake.updates.deadline_ms is not None
        due = intake.updates.deadline_ms <= now_ms
        intake.updates.remind(now_ms, out)
        assert bool(len(out)) <= due
        if len(out):
            sent[now_ms] = out.messages()
    plain, packed = [[b"A", reqid(1), b"\x01"]], [[b"R", reqid(2), PACK, b"\x01", b""]]
    assert sent == {1100: plain, 1150: packed, 1200: plain, 1250: packed, 1300: plain}


# ---- packs ----


def test_a_pack_is_answered_with_runs() -> None:
    intake = Intake()
    assert intake.receive(pack(range(10, 13)), pack(range(13, 15), reqid(12))) == []
    assert [r.reqid for r in intake.propose()] == [reqid(n) for n in range(10, 15)]
    assert intake.commit(4) == [[b"R", reqid(10), PACK, b"\x01", runs((3, 1))]]
    assert intake.commit(5) == [[b"R", reqid(13), PACK, b"\x01", runs((2, 4))]]


def test_nothing_overtakes() -> None:
    intake = Intake()
    assert intake.receive(pack(range(5, 7), reqid(4))) == [[b"R", reqid(5), PACK, b"\x02", b""]]
    assert (intake.count("gaps"), intake.updates.pending) == (1, 0)


def ends_known(numbers: range, previous: bytes = b"") -> list[bytes]:
    """A pack whose last update is one that was committed before: a client has repeated it."""
    records = b"".join(record(number) for number in (*numbers, 1))
    return [b"R", reqid(numbers[0]), PACK, ID, previous, records]


GAP = [[b"R", reqid(9), PACK, b"\x02", b""]]


@pytest.mark.parametrize("why", ["over", "astray", "refused", "gaps", "led again"])
def test_nothing_overtakes_a_pack_that_was_not_taken(why: str) -> None:
    """Although the id before it is known, of an earlier time."""
    intake = Intake(inflight_max=3)
    intake.receive(pack(range(1, 2)))
    intake.propose()
    intake.commit(1)
    dropped = ends_known(range(5, 8))
    if why == "over":
        intake.receive(pack(range(3, 4)))
        assert intake.receive(dropped) == []
    elif why == "refused":
        dropped[-1] += record(4, b"")
        [[*_, status, _]] = intake.receive(dropped)
        assert status == b"\x03"
    elif why == "gaps":
        dropped[4] = reqid(77)
        [[*_, status, _]] = intake.receive(dropped)
        assert status == b"\x02"
    elif why == "astray":
        intake.view = intake.view._replace(leader=False)
        [[*_, status, _]] = intake.receive(dropped)
        assert status == b"\x00"
        intake.view = intake.view._replace(leader=True)
    else:  # It was taken, but not proposed before the leader stepped down.
        assert intake.receive(dropped) == []
        out = Frames()
        intake.updates.refuse(b"\xc0", out)
        assert out.count == 1
        intake.updates.reqids.truncate(1)
    before = intake.updates.pending
    assert intake.receive(pack(range(9, 10), reqid(1))) == GAP
    assert intake.receive(pack(range(9, 10), reqid(1))) == GAP
    assert intake.updates.pending == before
    other = [b"other", *pack(range(20, 21), reqid(1))[1:]]
    assert bool(intake.receive(other)) is (why == "led again"), "others have lost nothing"
    intake.propose()
    intake.commit(9)
    assert intake.receive(ends_known(range(5, 7))) == []
    assert intake.receive(pack(range(9, 10), reqid(1))) == []
    assert [each.reqid for each in intake.propose()][-3:] == [reqid(5), reqid(6), reqid(9)]


def test_only_new_updates_of_a_repeated_pack_are_accepted() -> None:
    intake = Intake()
    intake.receive(pack(range(1, 4)))
    intake.propose()
    intake.commit(3)
    assert intake.receive(pack(range(1, 4))) == [[b"R", reqid(1), PACK, b"\x01", runs((3, 1))]]
    intake.receive([b"R", reqid(99), b"=", b"x"])
    mixed = [record(n) for n in (2, 7, 8, 3, 99, 9, 7)]
    assert intake.receive([b"R", reqid(2), PACK, ID, b"", b"".join(mixed)]) == []
    assert [r.reqid for r in intake.propose()] == [reqid(n) for n in (99, 7, 8, 9)]
    answer = runs((1, 2), (2, 5), (2, 3), (1, 7), (1, 5))
    assert intake.commit(7)[1:] == [[b"R", reqid(2), PACK, b"\x01", answer]]


def test_a_pack_in_flight_sent_again_is_accepted_and_answered_twice() -> None:
    intake = Intake()
    intake.receive(pack(range(1, 4)))
    assert intake.receive(pack(range(1, 4))) == [[b"R", reqid(1), PACK, b"\x01", b""]]
    assert intake.commit(3) == [[b"R", reqid(1), PACK, b"\x01", runs((3, 1))]] * 2


@pytest.mark.parametrize(
    ("records", "position", "reason"),
    [
        ([], 0, b"empty"),
        ([record(1), record(2, b"")], 1, b"empty"),
        ([record(1), record(2, kind=1)], 1, b"malformed"),
        ([record(1), b"\x05\x00abcd"], 1, b"malformed"),
        ([record(1), record(2)[:-1]], 1, b"malformed"),
        ([record(2)], 0, b"malformed"),
        ([record(1), record(2, seconds=NOW_S - 30_000)], 1, b"expired"),
        ([record(1), record(2, seconds=NOW_S + 901)], 1, b"too early"),
        ([record(1), record(2, seconds=NOW_S - 500)], 1, b"forgotten"),
        ([record(1), record(2, bytes(5000))], 1, b"too large"),
        ([record(n) for n in range(1, PACK_COUNT_MAX + 2)], PACK_COUNT_MAX, b"too large"),
        ([record(n, bytes(4000)) for n in range(1, 301)], 1, b"too large"),
    ],
)
def test_a_pack_is_accepted_or_refused_as_a_whole(
    records: list[bytes], position: int, reason: bytes
) -> None:
    intake = Intake(record_bytes_max=4096)
    intake.updates.reqids.forget(NOW_S - 500)
    [[_, id_, type_, status, why]] = intake.receive(
        [b"R", reqid(1), PACK, ID, b"", b"".join(records)]
    )
    assert (id_, type_, status) == (reqid(1), PACK, b"\x03")
    assert (
        why
        == b"\x92"
        + (bytes([position]) if position < 128 else b"\xcd" + position.to_bytes(2))
        + bytes([0xA0 | len(reason)])
        + reason
    )
    assert (intake.updates.pending, len(intake.updates.reqids)) == (0, 0)


def test_a_large_update_is_a_pack_alone() -> None:
    intake = Intake()
    large = record(1, bytes(10 << 20))
    assert intake.receive([b"R", reqid(1), PACK, ID, b"", large]) == []
    assert intake.propose() == [Record(0, reqid(1), bytes(10 << 20))]


# ---- limits and blocks ----


def test_beyond_what_may_be_in_flight_nothing_is_answered() -> None:
    intake = Intake(inflight_max=3)
    messages = [[b"A", reqid(n), b"=", b"x"] for n in range(5)]
    assert intake.receive(*messages) == []
    assert (intake.updates.pending, intake.count("over")) == (3, 2)
    assert intake.receive(pack(range(10, 11))) == []
    intake.propose()
    intake.commit(2)
    intake.receive(*messages[3:])
    assert len(intake.propose()) == 2


def test_bytes_in_flight_are_limited() -> None:
    intake = Intake(inflight_bytes_max=1000)
    intake.receive([b"A", reqid(1), b"=", bytes(5000)], [b"A", reqid(2), b"=", b"x"])
    assert (intake.updates.pending, intake.count("over")) == (1, 1)


def fill(intake: Intake, name: bytes, first: int, size: int = 1) -> int:
    """Sends until the client gets no more in; returns how many it got in."""
    before = intake.updates.pending
    for number in range(first, first + 1000):
        over = intake.count("over")
        intake.receive([name, reqid(number), b"=", bytes(size)])
        if intake.count("over") > over:
            break
    return intake.updates.pending - before


def test_a_client_that_floods_leaves_the_others_their_share() -> None:
    intake = Intake(inflight_max=100)
    intake.updates.share(None)
    assert fill(intake, b"A", 1) == 75
    assert fill(intake, b"B", 1000) == 18  # Three times what is left.
    assert fill(intake, b"C", 2000) > 0
    intake.propose()
    intake.commit(75)  # A has nothing now.
    assert fill(intake, b"A", 3000) > 0


def test_bytes_are_shared_too_and_large_updates_of_a_new_client_are_accepted() -> None:
    intake = Intake(inflight_bytes_max=100_000)
    intake.updates.share(None)
    assert fill(intake, b"A", 1, 1000) == 73
    assert fill(intake, b"B", 1000, 25_000) == 1
    assert fill(intake, b"C", 2000, 200_000) == 0


def test_a_refusal_returns_the_shares() -> None:
    intake = Intake(inflight_max=100)
    intake.updates.share(None)
    fill(intake, b"A", 1)
    intake.updates.refuse(b"\xc0", Frames())
    intake.updates.reqids.truncate(0)
    assert fill(intake, b"A", 1) == 75


def test_all_connections_of_a_key_are_one_client_but_those_without_keys() -> None:
    keys = AllowedKeys([KeyRow(1, 0), KeyRow(1, 0)])
    intake = Intake(inflight_max=100)
    intake.updates.share(1)
    intake.sender = 0, keys.state
    assert fill(intake, b"A", 1) == 75
    assert fill(intake, b"B", 1000) == 0
    intake.sender = 1, keys.state
    assert fill(intake, b"C", 2000) == 18
    assert fill(intake, b"D", 3000) > 0


def test_blocks_are_cut_at_one_mebibyte() -> None:
    intake = Intake()
    intake.receive(*([b"A", reqid(n), b"=", bytes([n]) * 300_000] for n in range(1, 8)))
    sizes = []
    while block_and_count := intake.updates.block(intake.view.next_index, 3):
        sizes.append(block_and_count[1])
        intake.view = intake.view._replace(next_index=intake.view.next_index + block_and_count[1])
    assert sizes == [3, 3, 1]
    intake.receive([b"A", reqid(100), b"=", b"x"])
    assert intake.propose() == [Record(0, reqid(100), b"x")]


def test_a_wrong_index_is_our_own_mistake() -> None:
    intake = Intake()
    intake.receive([b"A", reqid(1), b"=", b"x"])
    with pytest.raises(NativeError):
        intake.updates.block(2, 1)
    intake.view = intake.view._replace(next_index=5)
    with pytest.raises(NativeError):
        intake.receive([b"A", reqid(2), b"=", b"x"])


def test_limits_of_the_limits() -> None:
    for limits in ({"ttl_s": 0}, {"ttl_s": 60_001}, {"record_bytes_max": 0}, {"inflight_max": 0}):
        with pytest.raises(ValueError):
            Updates(ID, Reqids(), **limits)


def test_ids_come_back_from_blocks() -> None:
    reqids = Reqids()
    block = encode_block(5, 1, [Record(0, reqid(1), b"x"), Record(2, None, b"y")]).block
    assert reqids.add_block(block) == NOW_S
    assert (reqids.find(reqid(1)), reqids.find(reqid(2)), len(reqids)) == (5, None, 1)
    with pytest.raises(ValueError):
        reqids.find(b"short")


def test_a_table_bounded_while_it_grows_ends_as_one_bounded_once() -> None:
    """A start reads a log of any length: its table must not grow with it first."""
    rng = random.Random(5)
    often, once = Reqids(b"sixteen bytes..."), Reqids(b"sixteen bytes...")
    ids: list[bytes] = []
    for first_index in range(1, 3000, 10):
        seconds = [1_790_000_000 + first_index // 10 + rng.randrange(-50, 50) for _ in range(10)]
        added = [second.to_bytes(4, "big") + rng.randbytes(8) for second in seconds]
        block = encode_block(first_index, 1, [Record(0, one, b"x") for one in added]).block
        ids += added
        often.add_block(block)
        often.bound(200)
        once.add_block(block)
    once.bound(200)
    assert often.forgotten_s == once.forgotten_s
    assert [often.find(one) for one in ids] == [once.find(one) for one in ids]
    assert len(often) == len(once) <= 200


MARK = b"kLT\x01"  # What operations of tables begin with.


def table_pack(*data: bytes) -> list[bytes]:
    records = b"".join(record(number, each) for number, each in enumerate(data, 1))
    return [b"R", reqid(1), PACK, ID, b"", records]


def test_table_servers_bring_nothing_but_operations_and_get_a_kind_of_their_own() -> None:
    intake = Intake()
    intake.view = VIEW._replace(marked=MARKED_ALONE, kind=3)
    large = MARK + bytes(300)  # Its size takes two bytes.
    assert intake.receive(table_pack(MARK, large)) == []
    assert intake.receive([b"A", reqid(9), b"=", MARK]) == []
    assert intake.others == [0], "packs alone"
    assert intake.propose() == [Record(3, reqid(1), MARK), Record(3, reqid(2), large)]
    assert intake.receive(table_pack(MARK, large)) == [[b"R", reqid(1), PACK, b"\1", b""]], (
        "a repeat"
    )
    (answer,) = intake.receive([b"R", reqid(7), PACK, ID, b"", record(7, MARK[:3])])
    assert answer[3:] == [b"\3", b"\x92\x00\xaenot for tables"]


def test_clients_bring_no_operations_of_tables() -> None:
    intake = Intake()
    known = [b"A", reqid(1), b"=", MARK]
    assert intake.receive(known, table_pack(MARK)) == [[b"R", reqid(1), PACK, b"\1", b""]]
    intake.propose()
    intake.commit(1)
    intake.view = intake.view._replace(marked=MARKED_REFUSED)
    assert intake.receive([b"A", reqid(2), b"=", MARK], [b"A", reqid(3), b"=", ID, MARK]) == [
        [b"A", reqid(2), b""],
        [b"A", reqid(3), b""],
    ]
    answers = intake.receive([b"R", reqid(4), PACK, ID, b"", record(4) + record(5, MARK)])
    reason = b"reserved for table servers"
    assert answers == [[b"R", reqid(4), PACK, b"\3", b"\x92\x01\xba" + reason]]
    assert intake.receive(known)[0][3:] == [b"\1"], "what is in the log is told again"
    assert intake.propose() == []


@pytest.mark.parametrize("marked", [MARKED_ACCEPTED, MARKED_REFUSED])
def test_keys_of_clients_bring_no_operations_of_tables(marked: int) -> None:
    """Neither while older members or those of other implementations would accept them."""
    intake = Intake()
    keys = AllowedKeys([KeyRow(1, RIGHT_INTERNAL - 1), KeyRow(1, RIGHT_INTERNAL)])
    intake.sender, intake.view = (0, keys.state), VIEW._replace(marked=marked)
    messages = [b"A", reqid(2), b"=", MARK], [b"A", reqid(3), b"=", ID, MARK], table_pack(MARK)
    single, of_node, pack = intake.receive(*messages)
    assert (single, of_node) == ([b"A", reqid(2), b""], [b"A", reqid(3), b""])
    assert pack[3:] == [b"\3", b"\x92\x00\xba" + b"reserved for table servers"]
    assert intake.receive([b"A", reqid(4), b"=", MARK[1:]]) == []
    assert intake.propose() == [Record(0, reqid(4), MARK[1:])]
    intake.sender = 1, keys.state
    answers = intake.receive([b"A", reqid(5), b"=", MARK])
    assert answers == ([[b"A", reqid(5), b""]] if marked == MARKED_REFUSED else [])
