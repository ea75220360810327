"""Requests and answers of ZeroDB: round trips, and junk."""

from hypothesis import given

from kelek.protocols.zerodb.wire.client_codec import encode_request
from kelek.protocols.zerodb.wire.codec import decode_request, peek
from kelek.protocols.zerodb.wire.requests import Request, RequestError, type_of
from kelek.tests.protocols.zerodb.wire import messages


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
        sound = error.text.startswith("frame ")
    else:
        sound = decode_request(encode_request(request)) == request
    assert sound
