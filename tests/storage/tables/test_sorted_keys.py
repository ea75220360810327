"""Sorted keys and ranges of keys against the simplest implementation."""

from hypothesis import given
from hypothesis import strategies as st

from kelek.storage.tables import sorted_keys
from kelek.storage.tables.sorted_keys import Ranges, SortedKeys

KEYS = [bytes([one, two]) for one in range(8) for two in range(8)]
KEY = st.sampled_from([b"", *KEYS])
STEPS = st.tuples(st.sampled_from(["add", "remove", "between", "not above"]), KEY, KEY)


@given(st.lists(STEPS, max_size=200), st.integers(1, 4))
def test_keys_are_in_order(steps: list[tuple[str, bytes, bytes]], part_keys: int) -> None:
    before, sorted_keys.PART_KEYS = sorted_keys.PART_KEYS, part_keys
    try:
        keys, model = SortedKeys(), set[bytes]()
        for step, one, other in steps:
            if step == "add":
                keys.update([one, other])
                model |= {one, other}
            elif step == "remove":
                keys.discard(one)
                model.discard(one)
            elif step == "between":
                expected = sorted(key for key in model if one <= key and (not other or key < other))
                assert list(keys.between(one, other)) == expected
            else:
                assert keys.not_above(one) == max((it for it in model if it <= one), default=None)
            assert keys.last() == max(model, default=b"")
    finally:
        sorted_keys.PART_KEYS = before


@given(st.lists(st.tuples(KEY, KEY), max_size=30))
def test_ranges_contain_added_keys(added: list[tuple[bytes, bytes]]) -> None:
    ranges = Ranges()
    valid = [(start, end) for start, end in added if not end or start < end]
    for start, end in valid:
        ranges.add(start, end)
    for key in [b"", *KEYS]:
        within = [end for start, end in valid if start <= key and (not end or key < end)]
        assert (key in ranges) == bool(within)
        behind = ranges.end_of(key)
        assert behind is None or behind not in ranges
        if not within:
            assert behind == key
