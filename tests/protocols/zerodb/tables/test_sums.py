"""Increments, appends and reads of ranges: a model, applied once, unknown to older members."""

from random import Random

import pytest

from kelek.protocols.raft.messages import KIND_CONFIG, KIND_STATE, EntryBatch
from kelek.protocols.record import Record, encode_block
from kelek.protocols.zerodb.tables import sums
from kelek.protocols.zerodb.tables.gate import KNOWN_FROM
from kelek.protocols.zerodb.tables.operations import RESULT_BYTES_MAX, apply
from kelek.protocols.zerodb.tables.sums import SumRefused, resolved
from kelek.protocols.zerodb.tables.tables import SYSTEM, TableEntry, TablePartition
from kelek.protocols.zerodb.wire import ops
from kelek.protocols.zerodb.wire.requests import Watch
from kelek.protocols.zerodb.wire.values import (
    NO_NUMBER,
    NUMBER_DIGITS_MAX,
    SUMS_UNKNOWN,
    VALUES_TOO_LARGE,
    is_number,
)
from kelek.protocols.zerodb.worker.watch import LogChanges
from kelek.protocols.zerodb.worker.worker import Applier
from kelek.protocols.zmqraft.wire.config_codec import ConfigEntry, encode_config_entry
from kelek.tests.storage.memory_tables import MemoryTables

REQID = b"r" * 12
ADD = ops.Increment(5, [b"n"], [b"7"])
MEMBERS = (("n1", "tcp://127.0.0.1:1"),)


def transaction(*steps: ops.Op, reqid: bytes = REQID) -> ops.Transaction:
    return ops.Transaction(5, reqid, [], [*steps], [])


def step(dice: Random) -> ops.Op:
    keys = [b"%d" % dice.randrange(4)]
    number = b"%d" % dice.randrange(-20, 20)
    start, end = sorted(b"%d" % dice.randrange(5) for _ in range(2))
    found: list[ops.Op] = [
        ops.Put(dice.choice([4, 5]), keys, [number]),
        ops.Delete(5, keys),
        ops.DeleteRange(5, start, end),
        ops.Increment(dice.choice([4, 5]), keys, [number]),
        ops.Increment(5, keys, [number]),
        ops.Append(5, keys, [b"%d" % dice.randrange(10)]),
    ]
    return dice.choice(found)


def do(model: dict[tuple[int, bytes], bytes], op: ops.Op) -> list[bytes]:
    """One operation after the other, as the documents say. Raises SumRefused."""
    if isinstance(op, ops.DeleteRange):
        for table, key in [*model]:
            if table == op.table and op.start <= key < op.end:
                del model[table, key]
        return []
    assert isinstance(op, ops.Put | ops.Delete | ops.Increment | ops.Append)
    at = op.table, op.keys[0]
    if isinstance(op, ops.Delete):
        model.pop(at, None)
        return []
    if isinstance(op, ops.Put):
        model[at] = op.values[0]
        return []
    if isinstance(op, ops.Append):
        model[at] = model.get(at, b"") + op.values[0]
        return [b"%d" % len(model[at])]
    before = model.get(at, b"0")
    if not is_number(before):
        raise SumRefused
    model[at] = b"%d" % (int(before) + int(op.values[0]))
    return [model[at]]


@pytest.mark.parametrize("seed", range(20))
def test_they_do_what_a_model_does(seed: int) -> None:
    dice = Random(seed)
    tables = MemoryTables()
    model: dict[tuple[int, bytes], bytes] = {}
    tables.write([TableEntry(1, 1, [ops.OperationsKnown(0, 1)])])
    for index in range(2, 60):
        branch = [step(dice) for _ in range(dice.randint(1, 8))]
        after = dict(model)
        results: list[bytes] = []
        try:
            for op in branch:
                results += do(after, op)
            refused = False
        except SumRefused:
            refused = True
        reqid = b"%012d" % index
        (outcome,) = tables.write([TableEntry(index, 1, [transaction(*branch, reqid=reqid)])])
        assert bool(outcome.problem) == refused
        if not refused:
            model = after
            sizes = [len(data).to_bytes(4, "little") + data for data in results]
            assert outcome.data[9:] == b"".join(sizes)
        found = {
            (table, key): value for table in tables.tables() for key, value in tables.scan(table)
        }
        assert found == model


@pytest.mark.parametrize("seed", range(20))
def test_steps_that_are_joined_do_the_same(seed: int) -> None:
    dice = Random(seed)
    branch = [step(dice) for _ in range(30)]
    branch = [op for op in branch if isinstance(op, ops.SUMS) or dice.random() < 0.2]
    branch = [op for op in branch if not isinstance(op, ops.Append)] + branch[:5]
    joined = ops.joined(branch)
    assert len(joined) < len(branch)
    found = []
    for each in (branch, joined):
        tables = MemoryTables()
        (outcome,) = tables.write([TableEntry(0, 0, [transaction(*each)])])
        found.append((outcome, contents(tables)))
    assert found[0] == found[1]


def test_a_sum_that_is_refused_changes_nothing() -> None:
    tables = MemoryTables()
    digits = b"9" * NUMBER_DIGITS_MAX
    tables.write(
        [TableEntry(1, 1, [ops.OperationsKnown(0, 1), ops.Put(5, [b"t", b"d"], [b"x", digits])])]
    )
    for wrong in (
        ops.Increment(5, [b"t"], [b"1"]),
        ops.Increment(5, [b"n"], [b"1.5"]),
        ops.Increment(5, [b"d"], [b"1"]),
    ):
        before = dict(tables.data[5])
        entry = [transaction(ops.Put(5, [b"a"], [b"1"]), wrong, reqid=b"%012d" % id(wrong))]
        (outcome,) = tables.write([TableEntry(tables.applied[0] + 1, 1, entry)])
        assert NO_NUMBER in outcome.problem
        assert tables.data[5] == before


def test_appends_of_a_transaction_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "APPENDED_BYTES_MAX", 10)
    tables = MemoryTables()
    more = ops.Append(5, [b"a"], [b"123"])
    assert resolved(tables, [more, more])[1] == [[b"3"], [b"6"]]  # 3 and 6 bytes are written.
    with pytest.raises(SumRefused, match=VALUES_TOO_LARGE):
        resolved(tables, [more, more, more])


def test_an_entry_that_comes_again_adds_nothing() -> None:
    """After a restart the worker reads entries from the applied index on; a client repeats."""
    tables = MemoryTables()
    tables.write([TableEntry(1, 1, [ops.OperationsKnown(0, 1)])])
    (first,) = tables.write([TableEntry(2, 1, [transaction(ADD)])])
    assert tables.applied == (2, 1)
    assert tables.write([TableEntry(2, 1, [transaction(ADD)])]) == []
    (again,) = tables.write([TableEntry(3, 1, [transaction(ADD)])])  # The same reqid.
    assert again.data == first.data
    assert tables.get(5, [b"n"]) == [b"7"]


def test_a_put_before_it_is_of_the_same_step_and_a_get_is_not() -> None:
    tables = MemoryTables()
    tables.write([TableEntry(1, 1, [ops.OperationsKnown(0, 1), ops.Put(5, [b"n"], [b"1"])])])
    steps = ops.Put(5, [b"n"], [b"10"]), ADD, ops.Get(5, [b"n"])
    (outcome,) = tables.write([TableEntry(2, 1, [transaction(*steps)])])
    assert outcome.data[9:] == b"\2\0\0\0" + b"17" + b"\1\0\0\0" + b"1"


def test_a_range_is_what_was_before_the_branch() -> None:
    tables = MemoryTables()
    keys = [b"a", b"b", b"c", b"d"]
    steps = (
        ops.Delete(5, [b"b"]),
        ops.GetRange(5, b"a", b"d", 0),
        ops.GetRange(5, b"b", b"", 2),
        ops.GetRange(6, b"", b"", 0),
    )
    before = ops.Put(5, keys, keys), ops.Delete(5, [b"a"])  # In the same entry.
    tables.write([TableEntry(1, 1, [ops.OperationsKnown(0, 1)])])
    outcome = tables.write([TableEntry(2, 1, [*before, transaction(*steps)])])[-1]
    both, none = ops.pack_pairs([(b"b", b"b"), (b"c", b"c")]), ops.pack_pairs([])
    sized = [len(each).to_bytes(4, "little") + each for each in (both, both, none)]
    assert outcome.data[9:] == b"".join(sized)
    assert [*tables.scan(5)] == [(b"c", b"c"), (b"d", b"d")]


@pytest.mark.parametrize("limit", [1, 2**63, 2**64 - 1])
def test_a_range_has_any_limit(limit: int) -> None:
    tables = MemoryTables()
    tables.write([TableEntry(1, 1, [ops.OperationsKnown(0, 1), ops.Put(5, [b"a"], [b"1"])])])
    entry = [transaction(ops.GetRange(5, b"", b"", limit))]
    (outcome,) = tables.write([TableEntry(2, 1, entry)])
    assert outcome.data[13:] == ops.pack_pairs([(b"a", b"1")])


def test_a_range_with_too_much_changes_nothing() -> None:
    tables = MemoryTables()
    half = bytes(RESULT_BYTES_MAX // 2)
    tables.write(
        [TableEntry(1, 1, [ops.OperationsKnown(0, 1), ops.Put(5, [b"a", b"b"], [half, half])])]
    )
    steps = ops.Delete(5, [b"a"]), ops.GetRange(5, b"", b"", 0)
    (outcome,) = tables.write([TableEntry(2, 1, [transaction(*steps)])])
    assert f"more than {RESULT_BYTES_MAX} bytes" in outcome.problem
    assert tables.get(5, [b"a"]) == [half]


@pytest.mark.parametrize("step", [ADD, ops.GetRange(5, b"", b"", 0)])
def test_pieces_of_a_large_write_hold_none(step: ops.Op) -> None:
    """Older versions refuse them, too."""
    tables = MemoryTables()
    tables.write([TableEntry(1, 1, [ops.OperationsKnown(0, 1)])])
    part = ops.Part(5, REQID, 0, 1, ops.pack([transaction(step)]))
    (outcome,) = tables.write([TableEntry(2, 1, [part])])
    assert "one entry alone" in outcome.problem
    assert 5 not in tables.tables()


# ---- members that do not know them ----


def batch(index: int, kind: int, data: bytes) -> EntryBatch:
    return encode_block(index, 1, [Record(kind, None, data)])


def config(operations: int) -> bytes:
    return encode_config_entry(ConfigEntry(MEMBERS, tables_from=1, operations=operations))


def contents(tables: MemoryTables) -> object:
    system = {
        key: value for key, value in tables.data[SYSTEM].items() if key not in KNOWN_FROM.values()
    }
    return {**tables.data, SYSTEM: system}


def test_an_entry_changes_nothing_until_all_members_know_it() -> None:
    """An older node takes it for malformed; so the tables stay equal."""
    log = [
        batch(1, KIND_STATE, ops.pack([ops.Put(5, [b"n"], [b"1"])])),
        batch(2, KIND_STATE, ops.pack([transaction(ADD, reqid=b"1" * 12)])),
        batch(3, KIND_CONFIG, config(0)),
        batch(4, KIND_STATE, ops.pack([transaction(ADD, reqid=b"2" * 12)])),
    ]
    new, old = MemoryTables(), MemoryTables()
    applier = Applier(TablePartition(0, 1), new, lambda op, at: "")
    for each in log:
        applier.commit = (each.last_index, 1)
        applier.apply([each], 0)
    old.write([TableEntry(1, 1, [ops.Put(5, [b"n"], [b"1"])])])
    assert contents(new) == contents(old)
    assert [(it.log_index, it.problem) for it in applier.outcomes] == [
        (2, SUMS_UNKNOWN),
        (4, SUMS_UNKNOWN),
    ]
    applier.outcomes = []
    more = [
        batch(5, KIND_CONFIG, config(1)),
        batch(6, KIND_STATE, ops.pack([transaction(ADD, reqid=b"3" * 12)])),
        batch(7, KIND_CONFIG, config(1)),
    ]
    applier.apply(more, 0)
    assert new.get(5, [b"n"]) == [b"8"]
    assert [it.problem for it in applier.outcomes] == [""]
    assert new.applied == (7, 1)
    # A watch tells what was done, and nothing of the others.
    changes = LogChanges(TablePartition(0, 1), lambda index: [*log, *more][index - 1 :])
    _, told = changes.read(new, Watch(5, b"", b"", 1), 1)
    made = [(1, [ops.Put(5, [b"n"], [b"1"])]), (6, [ops.Put(5, [b"n"], [b"8"])])]
    assert [(it.log_index, it.ops) for it in told] == made


def test_local_tables_need_no_other_member() -> None:
    tables = MemoryTables()
    (outcome,) = tables.write([TableEntry(0, 0, [transaction(ADD)])])
    assert not outcome.problem
    assert tables.get(5, [b"n"]) == [b"7"]


def test_they_stand_in_transactions_only() -> None:
    for op in (ADD, ops.Append(5, [b"n"], [b"7"])):
        with pytest.raises(ValueError, match="outside a transaction"):
            ops.pack([op])
    with pytest.raises(Exception, match="is no operation of a table"):
        apply(MemoryTables(), 1, ADD)
