"""kelek's operations on both kinds of tables: transactions, lifetimes, sessions, large values."""

import struct

import pytest

from kelek.protocols.zerodb.tables import operations
from kelek.protocols.zerodb.tables.operations import COUNTERS, FLOOR
from kelek.protocols.zerodb.tables.tables import SYSTEM, Outcome, Tables
from kelek.protocols.zerodb.tables.tables import TableEntry as TableEntry
from kelek.protocols.zerodb.wire.ops import (
    ABSENT,
    ALIVE,
    EQUAL,
    GREATER,
    LESS,
    NOT_ALIVE,
    NOT_EQUAL,
    OTHERWISE,
    PRESENT,
    REQUIRED,
    THEN,
    Attach,
    Compare,
    Delete,
    DeleteLimited,
    DeleteRange,
    Expire,
    Expiry,
    Get,
    Op,
    Part,
    Put,
    SessionEnd,
    SessionKeep,
    SessionOpen,
    Transaction,
    Truncate,
    pack,
)

REQID = b"request id 1"


def write(tables: Tables, *ops: Op) -> list[Outcome]:
    """As one entry behind the last."""
    return tables.write([TableEntry(tables.applied[0] + 1, 1, ops)])


def outcome_data(tables: Tables, op: Op) -> bytes:
    """The outcome's data of an operation."""
    outcome = write(tables, op)[0]
    assert outcome[:4] == (tables.applied[0], 0, outcome.data, "")
    return outcome.data


def keys(tables: Tables, table: int = 7) -> list[bytes]:
    return list(tables.keys(table))


def bookkeeping(tables: Tables) -> set[bytes]:
    """The keys of SYSTEM, without counters, records of effects and the database's own."""
    stored = set(tables.keys(SYSTEM)) - {COUNTERS, FLOOR, b"a"}
    return stored - set(tables.keys(SYSTEM, b"t", b"u")) - set(tables.keys(SYSTEM, b"w", b"y"))


# ---- transactions ----


def transaction(
    *compares: Compare,
    reqid: bytes = b"",
    then: list[Op] | None = None,
    other: list[Op] | None = None,
) -> Transaction:
    return Transaction(7, reqid or bytes(12), list(compares), then or [], other or [])


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (ABSENT, (False, False, True)),
        (PRESENT, (True, True, False)),
        (EQUAL, (False, True, False)),
        (NOT_EQUAL, (True, False, True)),
        (LESS, (True, False, False)),
        (GREATER, (False, False, False)),
    ],
)
def test_compares(tables: Tables, kind: int, wanted: tuple[bool, ...]) -> None:
    write(tables, Put(7, [b"a", b"b"], [b"1", b"2"]))
    for key, holds in zip((b"a", b"b", b"c"), wanted, strict=True):
        assert outcome_data(tables, transaction(Compare(7, key, kind, b"2")))[0] == holds
    assert outcome_data(tables, transaction(Compare(7, b"b", GREATER, b"1")))[0] == 1
    assert outcome_data(tables, transaction(Compare(99, b"b", PRESENT)))[0] == 0


def test_one_branch_is_done(tables: Tables) -> None:
    write(tables, Put(7, [b"a", b"b", b"c"], [b"1", b"2", b"3"]))
    swap = transaction(
        Compare(7, b"a", EQUAL, b"1"),
        Compare(7, b"x", ABSENT),
        then=[
            Put(7, [b"a"], [b"new"]), Delete(7, [b"b"]),
            Get(7, [b"a", b"x"]), Put(8, [b"k"], [b"v"]),
        ],
        other=[DeleteRange(7, b"b", b""), Get(7, [b"c"])],
    )  # fmt: skip
    absent = struct.pack("<I", 0xFFFFFFFF)
    assert outcome_data(tables, swap) == struct.pack("<BQI", 1, 1, 1) + b"1" + absent
    assert dict(tables.scan(7)) == {b"a": b"new", b"c": b"3"}
    assert dict(tables.scan(8)) == {b"k": b"v"}
    assert outcome_data(tables, swap) == struct.pack("<BQI", 0, 1, 1) + b"3"
    assert dict(tables.scan(7)) == {b"a": b"new"}


def test_a_transaction_sees_its_entry(tables: Tables) -> None:
    found = write(
        tables,
        Put(7, [b"a"], [b"1"]),
        transaction(Compare(7, b"a", EQUAL, b"1"), then=[Put(7, [b"a"], [b"2"])]),
        transaction(Compare(7, b"a", EQUAL, b"2"), then=[Put(7, [b"a"], [b"3"])]),
    )
    assert [(one.position, one.data[0]) for one in found] == [(1, 1), (2, 1)]
    assert tables.get(7, [b"a"]) == [b"3"]


def test_a_repeat_gets_the_same_answer(tables: Tables) -> None:
    once = transaction(Compare(7, b"a", ABSENT), reqid=REQID, then=[Put(7, [b"a"], [b"1"])])
    first = outcome_data(tables, once)
    assert outcome_data(tables, once) == first == struct.pack("<BQ", 1, 1)
    write(tables, Delete(7, [b"a"]))
    assert outcome_data(tables, once) == first
    assert keys(tables) == []
    assert tables.results([REQID, b"somebody els"]) == [first, None]


def test_results_are_bounded(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "RESULTS_MAX", 3)
    reqids = [b"%012d" % number for number in range(10)]
    for reqid in reqids:
        write(tables, transaction(reqid=reqid))
    assert [each is not None for each in tables.results(reqids)] == [False] * 7 + [True] * 3
    monkeypatch.setattr(operations, "RESULTS_BYTES_MAX", 20)
    write(tables, transaction(reqid=REQID))
    assert [each is not None for each in tables.results([*reqids, REQID])] == [False] * 9 + [
        True
    ] * 2


def test_gets_are_bounded(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "RESULT_BYTES_MAX", 100)
    write(tables, Put(7, [b"a"], [bytes(60)]))
    big = transaction(then=[Put(7, [b"b"], [b""]), Get(7, [b"a", b"a"])], reqid=REQID)
    (outcome,) = write(tables, big, Put(7, [b"c"], [b""]))
    assert outcome.data == b""
    assert "at most 100" in outcome.problem or "more than 100" in outcome.problem
    assert keys(tables) == [b"a", b"c"]
    assert tables.results([REQID]) == [None]


# ---- lifetimes ----


def test_keys_expire(tables: Tables) -> None:
    write(tables, Put(7, [b"a", b"b", b"c"], [b"1"] * 3), Expiry(7, 1000, [b"a", b"b", b"x"]))
    write(tables, Put(8, [b"a"], [b"1"]), Expiry(8, 500, [b"a"]))
    assert tables.expires_ms == 500
    assert outcome_data(tables, Expire(7, 499)) == struct.pack("<I", 0)
    assert outcome_data(tables, Expire(7, 999)) == struct.pack("<I", 1)
    assert keys(tables, 8) == []
    assert tables.expires_ms == 1000
    assert outcome_data(tables, Expire(7, 1000)) == struct.pack("<I", 2)
    assert keys(tables) == [b"c"]
    assert tables.expires_ms == 0
    assert bookkeeping(tables) == set()


@pytest.mark.parametrize(
    "keeps",
    [
        Put(7, [b"a"], [b"new"]),
        Delete(7, [b"a"]),
        DeleteRange(7, b"a", b"b"),
        DeleteLimited(7, b"", 1),
        Truncate(7),
    ],
)
def test_a_later_write_ends_an_expiry(tables: Tables, keeps: Op) -> None:
    session = int.from_bytes(outcome_data(tables, SessionOpen(7, 100, 0)), "little")
    write(tables, Put(7, [b"a"], [b"1"]), Expiry(7, 1000, [b"a"]), Attach(7, session, [b"a"]))
    write(tables, keeps)
    write(tables, Put(7, [b"a"], [b"stays"]))
    write(tables, SessionEnd(7, session), Expire(7, 2**64 - 1))
    assert tables.get(7, [b"a"]) == [b"stays"]
    assert bookkeeping(tables) == set()


def test_a_new_expiry_replaces_the_old(tables: Tables) -> None:
    write(tables, Put(7, [b"a"], [b"1"]), Expiry(7, 1000, [b"a", b"a"]), Expiry(7, 5000, [b"a"]))
    write(tables, Expire(7, 4999))
    assert keys(tables) == [b"a"]
    write(tables, Expire(7, 5000))
    assert keys(tables) == []


def test_an_expiry_in_the_past_is_found(tables: Tables) -> None:
    """An earlier Expire has already searched up to this time."""
    write(tables, Put(7, [b"a", b"b"], [b"", b""]), Expiry(7, 1000, [b"a"]))
    write(tables, Expire(7, 5000))
    write(tables, SessionOpen(7, 10, 0), Expiry(7, 2000, [b"b"]))
    assert tables.expires_ms == 10
    assert outcome_data(tables, Expire(7, 3000)) == struct.pack("<I", 2)
    assert keys(tables) == []
    assert tables.expires_ms == 0


def test_one_expire_does_a_bounded_number(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "EXPIRE_MAX", 3)
    many = [b"%d" % number for number in range(5)]
    write(tables, SessionOpen(7, 10, 0), Put(7, many, many))
    for key in many:
        write(tables, Expiry(7, 1000 - int(key), [key]))
    assert outcome_data(tables, Expire(7, 2000)) == struct.pack("<I", 3)
    assert keys(tables) == [b"0", b"1"]
    assert tables.expires_ms == 10
    assert outcome_data(tables, Expire(7, 2000)) == struct.pack("<I", 3)
    assert keys(tables) == []
    assert tables.expires_ms == 0


# ---- sessions ----


def test_keys_end_with_their_session(tables: Tables) -> None:
    data = outcome_data(tables, SessionOpen(7, 1000, 5000))
    session = int.from_bytes(data, "little")
    assert session == tables.applied[0]
    write(tables, Put(7, [b"a", b"b"], [b""] * 2), Attach(7, session, [b"a", b"nowhere"]))
    write(tables, Put(8, [b"c"], [b""]), Attach(8, session, [b"c"]))
    assert tables.expires_ms == 6000
    assert outcome_data(tables, SessionKeep(7, session, 5900)) == b"\1"
    # An older request does not shorten it.
    assert outcome_data(tables, SessionKeep(7, session, 4000)) == b"\1"
    assert tables.expires_ms == 6900
    write(tables, Expire(7, 6899))
    assert keys(tables) == [b"a", b"b"]
    assert outcome_data(tables, Expire(7, 6900)) == struct.pack("<I", 1)
    assert keys(tables) == [b"b"]
    assert keys(tables, 8) == []
    assert outcome_data(tables, SessionKeep(7, session, 6000)) == b"\0"
    assert outcome_data(tables, SessionEnd(7, session)) == b"\0"
    write(tables, Put(7, [b"late"], [b""]), Attach(7, session, [b"late"]))
    assert keys(tables) == [b"b"]
    assert bookkeeping(tables) == set()


def test_sessions_have_numbers_of_their_own(tables: Tables) -> None:
    found = write(tables, SessionOpen(7, 1, 1), SessionOpen(7, 1, 1), SessionOpen(7, 1, 1))
    assert len({one.data for one in found}) == 3
    local = tables.write([TableEntry(0, 0, [SessionOpen(7, 1, 1), SessionOpen(7, 1, 1)])])
    assert len({one.data for one in [*found, *local]}) == 5


def lock(session: int) -> Transaction:
    """A client takes a lock: it is free, and the client's session is alive."""
    alive = Compare(7, struct.pack("<Q", session), ALIVE)
    return transaction(
        Compare(7, b"lock", ABSENT), alive,
        then=[Put(7, [b"lock"], [struct.pack("<Q", session)]), Attach(7, session, [b"lock"])],
        other=[Get(7, [b"lock"])],
    )  # fmt: skip


def test_without_a_required_session_neither_branch_is_done(tables: Tables) -> None:
    session = int.from_bytes(outcome_data(tables, SessionOpen(7, 1000, 0)), "little")
    required = Compare(7, struct.pack("<Q", session), ALIVE, REQUIRED)
    write(tables, Put(7, [b"k"], [b"old"]))

    def branches(reqid: bytes) -> Transaction:
        absent = Compare(7, b"k", ABSENT)
        then, other = Put(7, [b"k"], [b"then"]), Put(7, [b"k"], [b"other"])
        return transaction(absent, required, reqid=reqid, then=[then], other=[other])

    assert outcome_data(tables, branches(REQID))[0] == OTHERWISE
    assert tables.get(7, [b"k"]) == [b"other"]
    write(tables, Delete(7, [b"k"]))
    assert outcome_data(tables, branches(b"request id 2"))[0] == THEN
    token = struct.unpack("<Q", outcome_data(tables, branches(b"request id 2"))[1:])[0]
    write(tables, SessionEnd(7, session))
    for _ in range(2):
        assert outcome_data(tables, branches(b"request id 3")) == struct.pack(
            "<BQ", NOT_ALIVE, token
        )
        assert tables.get(7, [b"k"]) == [b"then"]


def test_a_lock_passes_on_with_a_greater_token(tables: Tables) -> None:
    one, two = (
        int.from_bytes(outcome_data(tables, SessionOpen(7, 1000, now)), "little")
        for now in (0, 500)
    )
    acquired, first = struct.unpack("<BQ", outcome_data(tables, lock(one)))
    assert acquired
    assert outcome_data(tables, lock(two)) == struct.pack("<BQIQ", 0, first, 8, one)
    write(tables, Expire(7, 1000))
    assert outcome_data(tables, lock(one))[0] == 0, "it has ended"
    acquired, second = struct.unpack("<BQ", outcome_data(tables, lock(two)))
    assert acquired
    assert second > first


def test_the_token_grows_with_each_transaction_whose_compares_hold(tables: Tables) -> None:
    """Also without a compare, without an operation, and in another table; never if one fails."""
    held = (
        transaction(then=[Put(7, [b"k"], [b"v"])]),
        transaction(),
        transaction(Compare(7, b"k", PRESENT)),
        transaction()._replace(table=8),
    )
    failed = transaction(Compare(7, b"none", PRESENT), then=[Put(7, [b"k"], [b"w"])])
    tokens = []
    for op in held:
        taken, token = struct.unpack("<BQ", outcome_data(tables, op))
        assert taken == THEN
        assert outcome_data(tables, failed) == struct.pack("<BQ", OTHERWISE, token)
        tokens.append(token)
    assert tokens == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "op",
    [
        DeleteLimited(7, b"", 2),
        Expire(7, 1000),
        SessionOpen(7, 1000, 0),
        SessionKeep(7, 1, 500),
        SessionEnd(7, 1),
        transaction(then=[DeleteLimited(7, b"", 2)]),
        transaction(Compare(7, b"k3", PRESENT), then=[Delete(7, [b"k3"]), Put(7, [b"x"], [b""])]),
    ],
    ids=lambda op: type(op).__name__,
)
def test_an_entry_that_comes_again_changes_nothing(tables: Tables, op: Op) -> None:
    """A worker may read its last entry again; most operations would do more the second time."""
    write(tables, Put(8, [b"other"], [b"v"]), Put(7, [b"k%d" % n for n in range(9)], [b"v"] * 9))
    write(tables, SessionOpen(7, 500, 0), Expiry(7, 900, [b"k7"]), Expiry(7, 1500, [b"k8"]))
    entry = TableEntry(tables.applied[0] + 1, 1, [op])
    tables.write([entry])
    assert tables.applied == entry[:2]

    def state() -> object:
        return [list(tables.scan(table)) for table in (7, 8, SYSTEM)], tables.applied

    found = state()
    for _ in range(2):
        assert tables.write([entry]) == []
        assert state() == found


# ---- large values ----


def pieces_of(data: bytes, reqid: bytes = REQID) -> list[Part]:
    third = len(data) // 3
    pieces = data[:third], data[third : 2 * third], data[2 * third :]
    return [Part(7, reqid, number, 3, piece) for number, piece in enumerate(pieces)]


def test_pieces_are_applied_with_the_last(tables: Tables) -> None:
    ops: list[Op] = [Put(7, [b"a"], [bytes(1000)]), transaction(Compare(7, b"a", PRESENT))]
    first, second, third = pieces_of(pack(ops))
    assert write(tables, second) == write(tables, first) == write(tables, second) == []
    assert keys(tables) == []
    (outcome,) = write(tables, Put(8, [b"x"], [b""]), third)
    assert (outcome.position, outcome.data) == (1, struct.pack("<BQ", 1, 1))
    assert tables.get(7, [b"a"]) == [bytes(1000)]
    assert bookkeeping(tables) == set()


def test_malformed_pieces_are_refused(tables: Tables) -> None:
    for data in (pack([Put(7, [b"a"], [b"1"])])[:-1], b"junk", pack([*pieces_of(b"abcdef")])):
        *others, last = pieces_of(data)
        assert write(tables, *others) == []
        (outcome,) = write(tables, last)
        assert "pieces" in outcome.problem
        assert bookkeeping(tables) == set()
    assert tables.tables() == {}


def test_unfinished_pieces_are_bounded(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "UNFINISHED_MAX", 2)
    packed = pack([Put(7, [b"a"], [b"1"])])
    reqids = [b"%012d" % number for number in (3, 1, 2)]
    for reqid in reqids:
        write(tables, *pieces_of(packed, reqid)[:2])
    (outcome,) = write(tables, pieces_of(packed, reqids[0])[2])
    assert outcome.problem == "of 3 pieces 2 are missing", "the oldest was forgotten"
    assert keys(tables) == []
    write(tables, pieces_of(packed, reqids[2])[2])
    assert keys(tables) == [b"a"]
    monkeypatch.setattr(operations, "UNFINISHED_BYTES_MAX", 10)
    (outcome,) = write(tables, *pieces_of(packed, b"another one.")[:2])
    assert "more than 10 bytes" in outcome.problem
