"""Status documents, and the choice of the publisher as a function of the log."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.protocols.errors import LocalProtocolError, RemoteProtocolError
from kelek.protocols.garlicfarm.documents import (
    DOCUMENT_BYTES_MAX,
    SERVERS_KEPT,
    WINDOW_MS,
    PublishConfig,
    SharedState,
    decode_status,
    encode_status,
)

NOW = 1_558_000_000_000
FULL = {
    "cluster": "farm",
    "date": NOW,
    "id": 2,
    "config": {"any": "thing"},
    "meta": {
        "destination": "abcd",
        "lastPublishedLS": "AAAA",
        "lastPublishedTime": NOW - 5,
        "publishConfig": "on",
        "publishing": True,
    },
    "router": {"lastPublishedRI": "BBBB", "uptime": 12345, "job lag": 3},
    "destinations": [{"destination": "efgh", "uptime": 99, "Current tunnels": 4}],
    "ours alone": ["ü", None, 1.5],
}


def document(server_id: int, date: int = NOW, uptime: int = 0, wish: str = "auto") -> bytes:
    return encode_status(
        {
            "cluster": "farm",
            "date": date,
            "id": server_id,
            "meta": {"publishConfig": wish},
            "router": {"uptime": uptime},
        }
    )


def state_of(*documents: bytes) -> SharedState:
    state = SharedState("farm")
    for each in documents:
        state.apply(each)
    return state


def test_the_texts_keys() -> None:
    status = decode_status(encode_status(FULL))
    assert status[:3] == ("farm", NOW, 2)
    assert (status.publish_config, status.is_publishing) == (PublishConfig.ON, True)
    assert status.uptime_ms == 12345
    assert status.document == FULL, "unknown keys are kept"
    bare = decode_status(b'{"cluster":"farm","date":0,"id":-1}')
    assert (bare.publish_config, bare.is_publishing) == (PublishConfig.AUTO, False)
    assert bare.uptime_ms == 0


@pytest.mark.parametrize(
    "change",
    [
        {"cluster": ""},
        {"cluster": 1},
        {"date": None},
        {"date": 1.5},
        {"date": True},
        {"date": -1},
        {"date": 2**63},
        {"id": "2"},
        {"id": 2**31},
        {"config": []},
        {"meta": None},
        {"meta": {"publishConfig": "maybe"}},
        {"meta": {"publishConfig": ["on"]}},
        {"meta": {"publishing": 1}},
        {"router": "x"},
        {"router": {"uptime": "long"}},
        {"destinations": {}},
        {"destinations": [1]},
    ],
)
def test_documents_that_are_none(change: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_status(json.dumps({**FULL, **change}).encode())
    with pytest.raises(LocalProtocolError):
        encode_status({**FULL, **change})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello:world",
        b"[]",
        b"\xff",
        b'{"cluster":"farm","date":NaN,"id":1}',
        b"[" * 100_000,
        b'{"date":' + b"9" * 10_000 + b"}",
        b'"' + b"x" * DOCUMENT_BYTES_MAX + b'"',
    ],
    ids=range(8),
)
def test_other_entries_are_no_documents(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_status(data)
    state = state_of(document(1), data)
    assert state.counters == {"status": 1, "other": 1}
    assert state.publisher([1]) == 1


def test_what_can_not_be_json() -> None:
    for value in (b"bytes", float("nan"), "\ud800"):
        with pytest.raises(LocalProtocolError):
            encode_status({**FULL, "more": value})


# ---- the publisher ----


@pytest.mark.parametrize(
    ("documents", "publisher"),
    [
        ([], None),
        ([document(1, wish="off")], None),
        ([document(2), document(1)], 1),
        ([document(1, uptime=5), document(2, uptime=6)], 2),
        ([document(1, uptime=9), document(2, wish="on")], 2),
        ([document(1, wish="on"), document(2, wish="on", uptime=1)], 2),
        ([document(1, uptime=9, wish="off"), document(2)], 2),
        ([document(1, uptime=9, date=NOW - WINDOW_MS), document(2)], 1),
        ([document(1, uptime=9, date=NOW - WINDOW_MS - 1), document(2)], 2),
        ([document(9, uptime=99), document(2)], 2),  # Who is no member.
        ([document(1, wish="on"), document(1, date=NOW + 1, wish="off"), document(2)], 2),
        ([document(1, date=NOW + 1, wish="off"), document(1, wish="on"), document(2)], 1),
        ([document(9, date=2**63 - 1), document(2)], 2),
        ([document(1, date=2**63 - 1), document(2, wish="on")], 1),
        ([document(1, date=2**63 - 1), document(2, wish="on"), document(1)], 2),
    ],
)
def test_who_publishes(documents: list[bytes], publisher: int | None) -> None:
    assert state_of(*documents).publisher([1, 2, 3]) == publisher


def test_time_is_the_logs() -> None:
    """Who says nothing for long is gone once others have gone on, and not before."""
    state = state_of(document(1, uptime=9), document(2))
    assert state.publisher([1, 2]) == 1
    state.apply(document(2, date=NOW + WINDOW_MS + 1))
    assert state.publisher([1, 2]) == 2
    assert state.publisher([1, 2], window_ms=2 * WINDOW_MS) == 1
    assert state.publisher([1]) == 1, "who has left is no measure"


def test_documents_of_another_farm() -> None:
    state = state_of(encode_status({**FULL, "cluster": "other"}))
    assert state.statuses == {}
    assert state.counters == {"foreign": 1}


def test_servers_that_are_kept_have_a_limit() -> None:
    """Who has not posted for longest goes."""
    state = state_of(*(document(number) for number in range(SERVERS_KEPT)), document(0))
    state.apply(document(1000))
    assert 0 in state.statuses
    assert 1 not in state.statuses
    assert len(state.statuses) == SERVERS_KEPT


DOCUMENTS = st.builds(
    document,
    st.integers(1, 4),
    st.integers(NOW, NOW + 3 * WINDOW_MS),
    st.integers(0, 3),
    st.sampled_from(["off", "on", "auto"]),
)


@given(st.lists(DOCUMENTS | st.just(b"other"), max_size=12), st.integers(0, 12))
def test_a_snapshot_changes_nothing(log: list[bytes], cut: int) -> None:
    """A server that has begun with a snapshot comes to the same answer as one that read it all."""
    whole = state_of(*log)
    early = SharedState.decode(state_of(*log[:cut]).encode(), "farm")
    for value in log[cut:]:
        early.apply(value)
    assert early.encode() == whole.encode()
    assert early.publisher([1, 2, 3]) == whole.publisher([1, 2, 3])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"cluster":"other","documents":[]}',
        b'{"cluster":"farm"}',
        b'{"cluster":"farm","documents":[{}]}',
    ],
)
def test_snapshots_that_are_none(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        SharedState.decode(data, "farm")
