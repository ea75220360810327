"""Status documents: encoding and decoding."""

import json
from typing import Any

import pytest

from kelek.protocols.errors import LocalProtocolError, RemoteProtocolError
from kelek.protocols.garlicfarm.app.documents import (
    DEPTH_MAX,
    DOCUMENT_BYTES_MAX,
    PublishConfig,
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
        b'{"cluster":"farm","date":1,"id":1,"more":[1e999]}',
        b'{"cluster":"farm","date":1,"id":1,"more":-1e999}',
        b"[" * 100_000,
        b'{"date":' + b"9" * 10_000 + b"}",
        b'"' + b"x" * DOCUMENT_BYTES_MAX + b'"',
    ],
    ids=range(10),
)
def test_other_entries_are_no_documents(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_status(data)


def test_what_can_not_be_json() -> None:
    for value in (b"bytes", float("nan"), "\ud800"):
        with pytest.raises(LocalProtocolError):
            encode_status({**FULL, "more": value})


@pytest.mark.parametrize(("inner", "more"), [(DEPTH_MAX - 1, True), (DEPTH_MAX, False)])
def test_how_deep_a_document_may_be(inner: int, more: bool) -> None:
    """The limit is the same for all interpreters, and counts only nested arrays."""
    deep = b"[" * inner + b"]" * inner
    flat = b",".join([b"[]"] * 2 * DEPTH_MAX)
    data = b'{"cluster":"farm","date":1,"id":1,"deep":%s,"flat":[%s]}' % (deep, flat)
    if more:
        assert decode_status(data).data == data
    else:
        with pytest.raises(RemoteProtocolError):
            decode_status(data)
