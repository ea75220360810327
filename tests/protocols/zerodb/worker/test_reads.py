"""The index that a read tells."""

from kelek.protocols.zerodb.tables.tables import TableEntry
from kelek.protocols.zerodb.wire import answers, requests, values
from kelek.protocols.zerodb.wire.ops import (
    VERSION_INDEX,
    Compare,
    KeepVersions,
    OperationsKnown,
    Put,
)
from kelek.protocols.zerodb.wire.requests import Request
from kelek.tests.protocols.zerodb.worker.test_requests import (
    LIMITS,
    LOCAL,
    ROWS,
    RequestRig,
    with_id,
)


def test_a_read_tells_the_index_at_which_it_was_read() -> None:
    rig = RequestRig()
    rig.put(5, ROWS)
    asked: list[Request] = [
        requests.Read(5, [b"00001"], with_id(1, flags=values.WITH_INDEX)),
        requests.Exists(5, [b"00001"], with_id(2, flags=values.WITH_INDEX | values.PACKED)),
        requests.Count(5, extension=with_id(3, flags=values.WITH_INDEX)),
        requests.Scan(5, 1, b"", b"", with_id(4, flags=values.WITH_INDEX)),
        requests.Lifetimes(5, [b"00001"], with_id(5, flags=values.WITH_INDEX)),
        requests.Read(5, [b"00001"], with_id(6)),
        requests.Read(LOCAL, [b"k"], with_id(7, flags=values.WITH_INDEX)),
        requests.Put(LOCAL, [b"k"], [b"v"], 1, with_id(8, flags=values.WITH_INDEX)),
        requests.Read(5, [b"00001"], with_id(9, flags=values.WITH_INDEX)),
    ]
    for request in asked[:-1]:
        rig.ask(request)
    rig.ask(asked[-1], b"c2", log_index=42)
    told = {}
    for applied in (41, 42):
        for frames in rig.run_all(applied):
            answer = answers.decode_answer(frames[1:])
            told[int.from_bytes(answer.reqid, "big")] = answer.log_index
    assert told == {1: 41, 2: 41, 3: 41, 4: 41, 5: 41, 6: None, 7: 0, 8: 0, 9: 42}


def test_a_long_read_tells_the_index_at_which_it_began() -> None:
    rig = RequestRig()
    rig.put(5, ROWS)
    rig.ask(requests.Scan(5, None, b"", b"", with_id(1, flags=values.WITH_INDEX)))
    assert rig.run(7) == []
    rig.put(5, [(b"99999", b"later")])
    (frames,) = rig.run_all(8)
    answer = answers.decode_answer(frames[1:])
    assert answer.log_index == 7
    assert b"99999" not in answers.SCAN.decode(answer).keys


def test_an_error_tells_no_index() -> None:
    rig = RequestRig(LIMITS._replace(open_on_the_fly=False))
    rig.ask(requests.Read(5, [b"k"], with_id(1, flags=values.WITH_INDEX)))
    rig.ask(requests.Count(5, extension=with_id(2, flags=values.WITH_INDEX)))
    found = [answers.decode_answer(frames[1:]) for frames in rig.run_all()]
    assert [(it.failed, it.log_index, it.retry) for it in found] == [(True, None, False)] * 2


def test_a_packed_read_tells_versions() -> None:
    rig = RequestRig()
    rig.tables.write([TableEntry(1, 1, [OperationsKnown(0, 2)])])
    rig.apply(KeepVersions(5))
    rig.apply(Put(5, [b"a", b"b"], [b"1", b"2"]))
    rig.apply(Put(5, [b"a"], [b"3"]))
    rig.put(6, [(b"a", b"no versions")])
    flags = values.WITH_VERSIONS | values.PACKED
    keys = [b"b", b"a", b"none"]
    rig.ask(requests.Read(5, keys, with_id(1, flags=flags | values.WITH_INDEX)))
    rig.ask(requests.Read(6, [b"a"], with_id(2, flags=flags)))
    rig.ask(requests.Read(LOCAL, [b"a"], with_id(3, flags=flags)))
    rig.ask(requests.Read(5, [b"a"], with_id(4, flags=values.WITH_VERSIONS)))
    found = [answers.decode_answer(frames[1:]) for frames in rig.run_all(9)]
    told = [answers.decode_versions(it, len(it.frames[2])) for it in found[:3]]
    assert told == [[(3, 1), (4, 2), (0, 0)], [(0, 0)], [(0, 0)]]
    assert [it.log_index for it in found] == [9, None, None, None]
    assert found[3].frames == [b"3"], "the specification's form has no place for them"


def test_a_local_table_keeps_no_versions() -> None:
    rig = RequestRig()
    opened = requests.OpenTable(LOCAL, flags=values.KEEP_VERSIONS, extension=with_id(1))
    version = Compare(LOCAL, b"k", VERSION_INDEX, bytes(8))
    batch = requests.Transaction([version], [], [], extension=with_id(2))
    for request in (opened, batch):
        rig.ask(request)
    found = [answers.decode_answer(frames[1:]) for frames in rig.run_all()]
    assert [it.text for it in found] == ["a local table keeps no versions of its keys"] * 2
    assert rig.local.versioned_tables == set()
