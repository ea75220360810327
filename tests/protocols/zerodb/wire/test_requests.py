"""Requests of ZeroDB: round trips, junk, and what a client of 2013 sends malformed."""

import re

import pytest
from hypothesis import given

from kelek.protocols.zerodb.wire import requests
from kelek.protocols.zerodb.wire.requests import (
    Request,
    RequestError,
    decode_request,
    encode_request,
    peek,
    type_of,
)
from kelek.tests.interop.zerodb import zerodb_malformed as malformed
from kelek.tests.interop.zerodb.zerodb_malformed import Invalid
from kelek.tests.protocols.zerodb.wire import messages

TABLE = 7


@given(messages.request())
def test_a_request_is_decoded_as_it_was_encoded(request: Request) -> None:
    frames = encode_request(request)
    assert decode_request(frames) == request
    assert peek(frames)[0] == type_of(request)


@given(messages.mutated(messages.encoded()))
def test_junk_is_refused_or_means_something(frames: list[bytes]) -> None:
    try:
        request = decode_request(frames)
    except RequestError as error:
        sound = "frame " in error.text
    else:
        sound = decode_request(encode_request(request)) == request
    assert sound


@pytest.mark.parametrize("bad", malformed.all_bad(), ids=str)
def test_malformed_requests_are_refused(bad: Invalid) -> None:
    with pytest.raises(RequestError) as found:
        requests.decode_request(bad.request(TABLE, *malformed.flags_of(bad.kind)))
    assert (found.value.request_type, found.value.code) == (bad.kind, bad.code)
    words = re.findall(r"frame \d+|\d+", found.value.text)
    assert set(bad.names) <= set(words), found.value.text
