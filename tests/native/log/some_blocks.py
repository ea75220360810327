"""Blocks of the log for tests of what cuts them."""

from random import Random

from kelek.protocols.raft.messages import EntryBatch
from kelek.protocols.record import Record, encode_block


def some_blocks(rng: Random) -> list[EntryBatch]:
    """Of several terms, with and without request ids, small and large."""
    blocks, index = [], rng.randint(1, 1000)
    for term in range(1, rng.randint(2, 6)):
        records = [
            Record(
                rng.choice([0, 0, 0, 1, 2]),
                rng.choice([None, rng.randbytes(12)]),
                rng.randbytes(rng.choice([1, 30, rng.randint(1, 5000)])),
            )
            for _ in range(rng.randint(1, 40))
        ]
        blocks.append(encode_block(index, term, records))
        index += len(records)
    return blocks
