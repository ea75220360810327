"""Errors that a broker owes: all are sent in the end, clients take turns, and limits hold."""

from kelek.protocols.majordomo.owed import (
    OWED_CLIENT_MAX,
    OWED_MAX,
    RETRY_CLIENT_MAX,
    RETRY_MAX,
    RETRY_MS,
    OwedErrors,
)


def test_clients_take_turns_and_each_error_is_sent_once() -> None:
    owed = OwedErrors()
    clients = [b"%d" % number for number in range(2 * RETRY_MAX // RETRY_CLIENT_MAX)]
    wanted = [[client, b"%d" % it] for client in clients for it in range(RETRY_CLIENT_MAX + 1)]
    assert all(owed.add(error, 0) for error in wanted)
    sent: list[list[bytes]] = []
    now_ms = 0
    while owed.deadline_ms is not None:
        assert owed.deadline_ms == now_ms + RETRY_MS
        now_ms = owed.deadline_ms
        due = owed.pop_due(now_ms)
        assert 0 < len(due) <= RETRY_MAX
        sent += due
        if now_ms == 2 * RETRY_MS:
            assert {error[0] for error in sent} == {*clients}, "each had a turn"
    assert sorted(sent) == sorted(wanted)
    assert owed.count == 0


def test_one_client_can_not_take_the_room_of_all() -> None:
    owed = OwedErrors()
    assert sum(owed.add([b"c", b"%d" % it], 0) for it in range(OWED_MAX)) == OWED_CLIENT_MAX
    assert owed.add([b"d", b"1"], 0)
    others = [[b"%d" % (it % 100), b"%d" % it] for it in range(OWED_MAX)]
    assert sum(owed.add(error, 0) for error in others) == OWED_MAX - OWED_CLIENT_MAX - 1
    owed.remove_client(b"c")
    assert owed.count == OWED_MAX - OWED_CLIENT_MAX
    assert owed.add([b"e", b"1"], 0)
