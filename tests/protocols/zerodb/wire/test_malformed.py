"""Malformed requests that 2013's client sends to a server, against the codec alone."""

import re

import pytest

from kelek.protocols.zerodb.wire import codec, values
from kelek.protocols.zerodb.wire.requests import RequestError
from kelek.tests.interop.zerodb import zerodb_malformed as malformed
from kelek.tests.interop.zerodb.zerodb_malformed import Bad
from kelek.tests.interop.zerodb.zerodb_plain import Frames

TABLE = 7


@pytest.mark.parametrize("bad", malformed.all_bad(), ids=str)
def test_malformed(bad: Bad) -> None:
    with pytest.raises(RequestError) as found:
        codec.decode_request(bad.request(TABLE, *malformed.flags_of(bad.kind)))
    assert (found.value.request_type, found.value.code) == (bad.kind, bad.code)
    words = re.findall(r"frame \d+|\d+", found.value.text)
    assert set(bad.names) <= set(words), found.value.text


@pytest.mark.parametrize("frames", malformed.UNRECOGNIZED, ids=lambda it: it[0][:3].hex() or "none")
def test_unrecognized(frames: Frames) -> None:
    with pytest.raises(RequestError) as found:
        codec.decode_request(frames)
    assert found.value.request_type == values.PROTOCOL_ERROR
