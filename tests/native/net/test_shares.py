"""A plain Python twin counts the messages of each client."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kelek.native.net.messages import Arena
from kelek.native.net.shares import FEW, MessageShares

CLIENT_MAX, CROWDED, ALL_MAX = 6, 8, 15
SECRET = b"8 bytes."  # By it no two clients share a number, as by one secret of a thousand.
CLIENTS = st.lists(st.integers(0, 4), max_size=30)


@given(st.lists(st.tuples(CLIENTS, st.integers(0, 9)), max_size=8), st.booleans())
def test_a_history_of_messages_is_its_twins(
    steps: list[tuple[list[int], int]], has_slots: bool
) -> None:
    shares = MessageShares(CLIENT_MAX, CROWDED, ALL_MAX, SECRET)
    counts: Counter[int] = Counter()
    waiting: list[tuple[int, int]] = []
    refused = 0
    for clients, released in steps:
        messages = [[b"%d" % client, b"text"] for client in clients]
        # Foreign peers share the slot 1; their routing ids tell them apart.
        slots = [1 if client % 2 else client for client in clients] if has_slots else None
        taken = shares.take(Arena.from_messages(messages, slots), range(len(messages)), 1)
        expected = []
        for number, client in enumerate(clients):
            most = CLIENT_MAX if counts.total() < CROWDED else FEW
            if counts[client] < most and counts.total() < ALL_MAX:
                counts[client] += 1
                expected.append(number)
            else:
                refused += 1
        assert [number for number, _ in taken] == expected
        waiting += [(clients[number], share) for number, share in taken]
        for client, share in waiting[:released]:
            counts[client] -= 1
            shares.release(share)
        del waiting[:released]
        assert (len(shares), shares.refused) == (counts.total(), refused)
