"""Blocks of the log for tests of what cuts them."""

from random import Random

from kelek.protocols.raft.messages import EntryBatch
from kelek.protocols.record import Record, encode_block


def some_blocks(dice: Random) -> list[EntryBatch]:
    """Of several terms, with and without request ids, small and large."""
    blocks, index = [], dice.randint(1, 1000)
    for term in range(1, dice.randint(2, 6)):
        records = [
            Record(
                dice.choice([0, 0, 0, 1, 2]),
                dice.choice([None, dice.randbytes(12)]),
                dice.randbytes(dice.choice([1, 30, dice.randint(1, 5000)])),
            )
            for _ in range(dice.randint(1, 40))
        ]
        blocks.append(encode_block(index, term, records))
        index += len(records)
    return blocks
