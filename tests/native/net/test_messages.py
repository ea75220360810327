"""Arena and Frames hold what a list of lists of bytes holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.native.broker.relay import heads, stamp
from kelek.native.errors import NativeError
from kelek.native.net.messages import BYTES_MAX, FRAMES_MAX, Arena, Frames

MESSAGES = st.lists(st.lists(st.binary(max_size=300), min_size=1, max_size=12), max_size=40)


@given(MESSAGES)
def test_an_arena_gives_back_its_messages(messages: list[list[bytes]]) -> None:
    arena = Arena.from_messages(messages)
    assert arena.count == len(messages)
    assert arena.messages() == messages
    assert [arena.message(i) for i in range(arena.count)] == messages


@given(MESSAGES, MESSAGES)
def test_frames_grow_and_are_cleared(first: list[list[bytes]], second: list[list[bytes]]) -> None:
    frames = Frames(bytes_max=1, frames_max=1)
    for messages in (first, second):
        for message in messages:
            frames.add(message)
        assert (len(frames), frames.messages()) == (len(messages), messages)
        frames.clear()
        assert (len(frames), frames.messages()) == (0, [])


@given(MESSAGES, st.integers(0, 40), st.binary(max_size=40))
def test_a_stamp_is_its_twin(messages: list[list[bytes]], offset: int, data: bytes) -> None:
    end = offset + len(data)
    arena = Arena.from_messages(messages)
    if any(len(frames[0]) < end for frames in messages):
        with pytest.raises(NativeError):
            stamp(arena, offset, data)
        assert arena.messages() == messages
        return
    stamp(arena, offset, data)
    assert arena.messages() == [
        [frames[0][:offset] + data + frames[0][end:], *frames[1:]] for frames in messages
    ]


@given(MESSAGES, st.integers(0, 3))
def test_heads_are_their_twin(messages: list[list[bytes]], size: int) -> None:
    arena = Arena.from_messages(messages)
    if any(len(frames[0]) != size for frames in messages):
        with pytest.raises(NativeError):
            heads(arena, size)
        messages = [[bytes(size), *frames[1:]] for frames in messages]
        arena = Arena.from_messages(messages)
    assert heads(arena, size) == b"".join(frames[0] for frames in messages)


def test_what_can_not_be() -> None:
    with pytest.raises(ValueError, match="at least one frame"):
        Frames().add([])
    for sizes in ((0, 1), (1, 0), (BYTES_MAX + 1, 1), (1, FRAMES_MAX + 1)):
        with pytest.raises(ValueError, match="a buffer of"):
            Arena(*sizes)
    with pytest.raises(IndexError):
        Arena.from_messages([[b"x"]]).message(-1)
