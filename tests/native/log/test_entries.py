"""Blocks cut into messages of entries, against the plain Python of the same."""

from random import Random

import pytest

from kelek.native.errors import NativeError
from kelek.native.log.entries import MessageLimits, add_entries, entries_fit
from kelek.native.net.messages import Frames
from kelek.protocols.record import Record, block_entries, encode_block
from kelek.tests.native.log.some_blocks import some_blocks


@pytest.mark.parametrize("seed", range(30))
def test_messages_of_entries_are_their_twins(seed: int) -> None:
    """What fits into a message, and its frames, whatever the buffer's size was before."""
    rng = Random(seed)
    batches = some_blocks(rng)
    entries = [
        e for batch in batches for e in block_entries(batch, batch.first_index, batch.last_index)
    ]
    base = batches[0].first_index
    index = base + rng.randrange(batches[0].count)
    last = rng.randint(index, batches[-1].last_index)
    blocks = [batch.block for batch in batches]
    out = Frames(1 << rng.randint(4, 16), 1 << rng.randint(2, 10))
    limits = MessageLimits(rng.choice([1, 500, 20_000, 1 << 30]), rng.choice([1, 7, 100_000]))
    expected, messages = index, []
    while index <= last:
        while batches[0].last_index < index:
            del batches[0], blocks[0]
        fit = entries_fit(blocks, index, last, limits)
        size = 0
        while expected <= last and expected - index < limits.entries:
            size += len(entries[expected - base])
            if size > limits.bytes and expected > index:
                size -= len(entries[expected - base])
                break
            expected += 1
        assert (fit.last_index, fit.bytes) == (expected - 1, size)
        add_entries(out, [b"route", b"head"], blocks, index, fit.last_index)
        messages.append([b"route", b"head", *entries[index - base : expected - base]])
        index = fit.last_index + 1
    assert out.messages() == messages


def test_what_the_blocks_do_not_hold_is_refused_and_leaves_nothing() -> None:
    batch = encode_block(5, 1, [Record(0, None, b"x")] * 3)
    out = Frames()
    out.add([b"before"])
    for first, last in ((4, 5), (5, 8), (8, 9)):
        with pytest.raises(NativeError):
            add_entries(out, [b"head"], [batch.block], first, last)
    with pytest.raises(NativeError):
        entries_fit([batch.block], 8, 9, MessageLimits(1, 1))
    out.add([b"behind"])
    assert out.messages() == [[b"before"], [b"behind"]]
