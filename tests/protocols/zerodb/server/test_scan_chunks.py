"""Chunks of a scan: every pair once, and no more at a time than requested."""

from hypothesis import given
from hypothesis import strategies as st

from kelek.protocols.zerodb.server.scan_chunks import CHUNK_PAIRS, ColumnBuilder, PairChunks, Pairs
from kelek.protocols.zerodb.wire import columns

SIZES = st.lists(st.integers(0, 300), max_size=400)


@given(SIZES, st.lists(st.tuples(st.integers(1, 150), st.integers(1, 20_000)), min_size=1))
def test_reads(sizes: list[int], takes: list[tuple[int, int]]) -> None:
    pairs = [(b"%06d" % place, bytes(size)) for place, size in enumerate(sizes)]
    pieces = PairChunks(iter(pairs))
    got: list[bytes] = []
    ended = False
    while not ended:
        pairs_max, bytes_max = takes[len(got) % len(takes)]
        flat: list[bytes] = []
        taken = pieces.read(pairs_max, bytes_max, flat.extend)
        ended = taken.ended
        assert (taken.pairs, taken.size) == (len(flat) // 2, sum(map(len, flat)))
        assert taken.pairs <= pairs_max
        assert taken.size - sum(map(len, flat[-2:])) < bytes_max, "it ends with what reaches it"
        assert ended or taken.pairs == pairs_max or taken.size >= bytes_max
        packed = ColumnBuilder()
        packed.add(flat)
        packed.add([])
        assert packed.frames() == [*columns.join(flat[::2]), *columns.join(flat[1::2])]
        got += flat
    assert list(zip(got[::2], got[1::2], strict=True)) == pairs


def test_large_values_are_read_one_by_one() -> None:
    read = 0

    def large() -> Pairs:
        nonlocal read
        for place in range(1000):
            read += 1
            yield b"%06d" % place, bytes(2 << 20)

    pieces = PairChunks(large())
    for number in range(8):
        assert pieces.read(1000, 1, lambda _: None).pairs == 1, number
    assert read < 16
    assert CHUNK_PAIRS > 16
