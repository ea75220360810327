"""The ledger's requests and answers, and its handling of junk."""

from random import Random

import msgpack
import pytest

from kelek.protocols.majordomo import records, values
from kelek.protocols.majordomo.codec import (
    LATE,
    UNFINISHED,
    Request,
    decode_failure,
    encode_failure,
)
from kelek.protocols.majordomo.ledger import DurableSetup, Ledger
from kelek.protocols.majordomo.records import ENDS, REQUESTS, Pair, Sender
from kelek.protocols.majordomo.values import Framing

NOW = 1_700_000_000_000
TTL_MS = 1000
ME = b"me"


def a_ledger(
    token: bytes = b"token  1", bytes_max: int = 1 << 30, inflight_max: int = 100
) -> Ledger:
    ttls_ms = {b"work": TTL_MS}
    return Ledger(DurableSetup("n", token, ttls_ms, bytes_max=bytes_max, inflight_max=inflight_max))


def taken(ledger: Ledger) -> list[list[bytes]]:
    replies = list(ledger.replies)
    ledger.replies.clear()
    return replies


def ask(ledger: Ledger, request_id: bytes, client: bytes = ME) -> None:
    ledger.add_request(Sender(client), Framing.TEXT, Request(b"work", request_id, [b"x"]), NOW)


def written(ledger: Ledger) -> list[Pair]:
    """Writes everything that is to be written."""
    pairs = ledger.pack_requests(NOW) + ledger.pack_ends(NOW)
    ledger.on_written(key for key, _ in pairs)
    return pairs


def begun(ledger: Ledger, request_id: bytes, client: bytes = ME) -> tuple[bytes, bytes]:
    """The name of a request that a worker has."""
    ask(ledger, request_id, client)
    written(ledger)
    (record,) = ledger.pop_queued()
    return record.name


def final(request_id: bytes, *body: bytes, kind: bytes = b"\3") -> list[bytes]:
    return [ME, b"KLKC01", kind, b"work", request_id, *body]


def test_nothing_is_answered_before_it_is_written() -> None:
    ledger = a_ledger()
    ask(ledger, b"1")
    assert list(ledger.pop_queued()) == []
    written(ledger)
    (record,) = ledger.pop_queued()
    ledger.answer(record.name, False, [b"part"])
    assert taken(ledger) == [final(b"1", b"part", kind=b"\2")], "parts go at once"
    ledger.answer(record.name, True, [b"end"])
    assert taken(ledger) == []
    written(ledger)
    assert taken(ledger) == [final(b"1", b"end")]


def test_a_repeated_request_gets_the_whole_answer() -> None:
    ledger = a_ledger()
    name = begun(ledger, b"1")
    ledger.answer(name, False, [b"part"])
    taken(ledger)
    ask(ledger, b"1")
    assert taken(ledger) == [final(b"1", b"part", kind=b"\2")], "what there is"
    ledger.answer(name, True, [b"end"])
    written(ledger)
    taken(ledger)
    ask(ledger, b"1")
    assert taken(ledger) == [final(b"1", b"part", kind=b"\2"), final(b"1", b"end")]
    assert ledger.counters["requests"] == 1


NAMED = b"a secret"
COST = values.PART_COST + 4


def named_ask(
    ledger: Ledger, credit: int, where: bytes = b"here", request_id: bytes = b"1"
) -> None:
    request = Request(b"work", request_id, [b"x"], None, NAMED, credit)
    ledger.add_request(Sender(where), Framing.TEXT, request, NOW)


def places(replies: list[list[bytes]]) -> list[tuple[bytes, bytes, int, bytes]]:
    return [
        (where, kind, int.from_bytes(place[4:], "big"), body)
        for where, _, kind, _, _, place, body in replies
    ]


def test_a_client_is_known_by_its_name_on_any_connection() -> None:
    """Parts carry positions, as far as the client's credit goes."""
    ledger = a_ledger()
    named_ask(ledger, 2 * COST)
    written(ledger)
    (record,) = ledger.pop_queued()
    assert record.name == (NAMED, b"1")
    for _ in range(3):
        ledger.answer(record.name, False, [b"part"])
    ledger.answer(record.name, True, [b"end"])
    written(ledger)
    first = [(b"here", b"\4", number, b"part") for number in range(2)]
    assert places(taken(ledger)) == first
    ledger.add_credit(record.name, 1)
    rest = [(b"here", b"\4", 2, b"part"), (b"here", b"\5", 3, b"end")]
    assert places(taken(ledger)) == rest
    # By a new connection all of it is told there, in another run.
    named_ask(ledger, 10 * COST, where=b"there")
    again = taken(ledger)
    assert places(again) == [(b"there", *each[1:]) for each in first + rest]
    assert ledger.counters["requests"] == 1


def test_a_client_without_parts_gets_the_final_answer() -> None:
    ledger = a_ledger()
    named_ask(ledger, 0)
    named_ask(ledger, COST, request_id=b"2")
    written(ledger)
    names = [record.name for record in ledger.pop_queued()]
    ledger.add_credit(names[1], 0)
    for name in names:
        ledger.answer(name, False, [b"part"])
        ledger.answer(name, True, [b"end"])
    written(ledger)
    assert [reply[2:] for reply in taken(ledger)] == [
        [b"\3", b"work", request_id, b"end"] for request_id in (b"1", b"2")
    ]


def test_a_client_that_lost_a_part_gets_no_more_until_it_asks_again() -> None:
    ledger = a_ledger()
    name = begun(ledger, b"1")
    ledger.answer(name, False, [b"part"])
    ledger.detach_client(ME, b"1")
    taken(ledger)
    ledger.answer(name, True, [b"end"])
    written(ledger)
    assert taken(ledger) == []
    ask(ledger, b"1")
    assert taken(ledger) == [final(b"1", b"part", kind=b"\2"), final(b"1", b"end")]


def test_another_process_knows_all_of_it() -> None:
    first, second = a_ledger(), a_ledger(b"token  2")
    for number in range(3):
        ask(first, b"%d" % number)
    pairs = written(first)
    for record in first.pop_queued():
        if record.name[1] != b"2":
            first.answer(record.name, False, [b"part"])
            first.answer(record.name, True, [b"end"])
    pairs += written(first)
    for key, value in pairs:
        second.load(key, value)
    assert [record.name for record in second.pop_queued()] == [(ME, b"2")]
    ask(second, b"0")
    assert taken(second) == [final(b"0", b"part", kind=b"\2"), final(b"0", b"end")]
    assert second.counts_by_service() == {b"work": [1, 2]}


def test_what_has_ended_goes_in_its_order() -> None:
    ledger = a_ledger()
    name = begun(ledger, b"1")
    assert ledger.deletable(NOW + 10 * TTL_MS, 10) == []
    ledger.answer(name, True, [b"end"])
    written(ledger)
    (requests,) = ledger.deletable(NOW, 10)
    assert requests[:1] == REQUESTS
    assert ledger.deletable(NOW + TTL_MS, 10) == [], "its end stays while it is there"
    ledger.on_deleted([requests])
    (ends,) = ledger.deletable(NOW + 2 * TTL_MS, 10)
    assert ends[:1] == ENDS
    ledger.on_delete_refused([ends])
    assert ledger.deletable(NOW, 10) == [ends]
    ledger.on_deleted([ends])
    assert (ledger.count, ledger.size) == (0, 0)


def test_a_request_that_no_worker_had_may_be_asked_again() -> None:
    ledger = a_ledger()
    late, done = begun(ledger, b"1"), begun(ledger, b"2")
    ledger.answer(late, True, encode_failure(LATE))
    ledger.answer(done, True, [b"end"])
    pairs = written(ledger)
    assert final(b"1", *encode_failure(LATE)) in taken(ledger)
    for kind in REQUESTS, ENDS:
        keys = ledger.deletable(NOW, 10)
        assert all(key[:1] == kind for key in keys)
        ledger.on_deleted(keys)
    assert ledger.count == 1, "the other answer is kept"
    ask(ledger, b"1")
    assert taken(ledger) == []
    written(ledger)
    assert [record.name for record in ledger.pop_queued()] == [(ME, b"1")]
    other = a_ledger(b"token  2")
    for key, value in pairs:
        other.load(key, value)
    assert len(other.deletable(NOW, 10)) == 1, "the next owner knows it, too"


def test_a_request_that_an_earlier_owner_may_have_dispatched_ends_once() -> None:
    ledger = a_ledger()
    ask(ledger, b"1")
    pairs = written(ledger)
    ledger.on_owner_changed()
    (record,) = ledger.pop_queued()
    ledger.answer(record.name, True, encode_failure(LATE))
    pairs += written(ledger)
    end = final(b"1", *encode_failure(UNFINISHED))
    assert taken(ledger) == [end]
    ledger.on_deleted(ledger.deletable(NOW, 10))
    assert ledger.deletable(NOW, 10) == [], "its end is kept"
    ask(ledger, b"1")
    assert taken(ledger) == [end]
    other = a_ledger(b"token  2")
    other.load(*pairs[1])
    assert other.deletable(NOW, 10) == [], "the next owner keeps it, too"
    ask(other, b"1")
    assert taken(other) == [end]


def test_clients_of_mdp_have_one_answer_and_no_ids() -> None:
    ledger = a_ledger()
    for framing in (Framing.MDP01, Framing.MDP02):
        for _ in range(2):
            ledger.add_request(Sender(ME), framing, Request(b"work", b"", [b"x"]), NOW)
    written(ledger)
    for record in ledger.pop_queued():
        ledger.answer(record.name, False, [b"part"])
        ledger.answer(record.name, True, [b"end"])
    written(ledger)
    replies = taken(ledger)
    assert replies.count([ME, b"", b"MDPC01", b"work", b"part", b"end"]) == 2
    assert replies.count([ME, b"MDPC02", b"\2", b"work", b"part"]) == 2
    assert replies.count([ME, b"MDPC02", b"\3", b"work", b"end"]) == 2


def test_a_client_without_a_name_is_answered_by_its_own_connection() -> None:
    first, second = a_ledger(), a_ledger(b"token  2")
    nobody = b"\0\1\2\3\4"
    name = begun(first, b"1", nobody)
    assert name != (nobody, b"1")
    first.answer(name, True, [b"end"])
    for key, value in written(first):
        second.load(key, value)
    assert taken(first) == [[nobody, *final(b"1", b"end")[1:]]]
    ask(second, b"1", nobody)
    assert taken(second) == [], "it is another one"
    assert second.has_requests_to_write


@pytest.mark.parametrize(("bytes_max", "inflight_max"), [(600, 10), (1 << 20, 1)])
def test_what_finds_no_room_is_refused(bytes_max: int, inflight_max: int) -> None:
    ledger = a_ledger(bytes_max=bytes_max, inflight_max=inflight_max)
    ask(ledger, b"1")
    assert taken(ledger) == []
    ask(ledger, b"2")
    (reply,) = taken(ledger)
    failure = decode_failure(reply[5:])
    assert failure is not None
    assert failure.code == 429


@pytest.mark.parametrize(
    ("bytes_max", "inflight_max", "most"),
    [(10 * (records.OVERHEAD_BYTES + 300), 10, 5), (1 << 20, 2, 8)],
)
def test_the_clients_of_a_key_have_a_limit_together(
    bytes_max: int, inflight_max: int, most: int
) -> None:
    """Of requests, or of bytes. Other keys go on; what has ended leaves room."""
    ledger = a_ledger(bytes_max=bytes_max, inflight_max=inflight_max)

    def is_taken(number: int, key: str) -> bool:
        request = Request(b"work", b"1", [bytes(300)])
        ledger.add_request(Sender(b"c%d" % number, 1, key), Framing.TEXT, request, NOW)
        return not taken(ledger)

    assert [is_taken(number, "ann") for number in range(most + 1)] == [True] * most + [False]
    assert not is_taken(98, "ann")
    assert is_taken(99, "bob")
    written(ledger)
    for record in list(ledger.pop_queued()):
        ledger.answer(record.name, True, [])
    written(ledger)
    taken(ledger)
    assert is_taken(101, "ann"), "the stored answers have no body"


def test_answers_beyond_the_limit_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "RECORD_BYTES_MAX", 1000)
    ledger = a_ledger()
    name = begun(ledger, b"1")
    for _ in range(10):
        ledger.answer(name, False, [bytes(300)])
    ledger.answer(name, True, [b"end"])
    written(ledger)
    failure = decode_failure(taken(ledger)[-1][5:])
    assert failure is not None
    assert failure.code == 413


def test_what_a_former_owner_wrote_does_not_count() -> None:
    ledger = a_ledger()
    name = begun(ledger, b"1")
    ledger.answer(name, True, [b"mine"])
    pairs = ledger.pack_ends(NOW)
    ledger.on_refused(key for key, _ in pairs)
    assert taken(ledger) == []
    assert [record.name for record in ledger.pop_queued()] == [name]
    # It was written all the same, and only the word of it was lost.
    ledger.load(*pairs[0])
    assert taken(ledger) == [final(b"1", b"mine")]


def test_two_copies_of_a_request_stay_until_its_end() -> None:
    """Two brokers wrote it. Their clocks give an order of keys that is not that of the log, and
    brokers read in both orders. None may take one copy's end for that of the request."""
    first, second = a_ledger(b"token  1"), a_ledger(b"token  2")
    ask(first, b"1")
    (one,) = first.pack_requests(NOW + 5000)
    ask(second, b"1")
    (other,) = second.pack_requests(NOW)
    for pair in (one, other):  # The order of the log.
        second.load(*pair)
    owner = a_ledger(b"token  3")
    for pair in (other, one):  # The order of the keys.
        owner.load(*pair)
    assert owner.deletable(NOW, 10) == []
    (record,) = owner.pop_queued()
    owner.answer(record.name, True, [b"end"])
    ((key, end),) = written(owner)
    assert sorted(owner.deletable(NOW, 10)) == sorted([one[0], other[0]])
    # Whatever copy goes first, the client of the second broker is answered.
    second.on_deleted([one[0]])
    assert second.deletable(NOW, 10) == [], "it would lose the request as the next owner"
    second.load(key, end)
    assert taken(second) == [final(b"1", b"end")]
    # A copy that comes late keeps the end, or a broker that reads both would begin it again.
    third = a_ledger(b"token  4")
    ask(third, b"1")
    late = third.pack_requests(NOW)
    owner.on_deleted([one[0], other[0]])
    owner.load(*late[0])
    assert owner.deletable(NOW + TTL_MS, 10) == [late[0][0]]
    assert owner.deletable(NOW + TTL_MS, 10) == []
    owner.on_deleted([late[0][0]])
    assert owner.deletable(NOW + 2 * TTL_MS, 10) == [key]


def test_junk_in_the_store_is_counted() -> None:
    dice, ledger = Random(1), a_ledger()
    key = REQUESTS + bytes(8) + b"token  2"
    row = [ME, b"1", 0, 0, [b"x"], None]
    whole = msgpack.packb([1, b"work", [row]])
    for number in range(300):
        junk = bytearray(whole)
        junk[dice.randrange(len(junk))] = dice.randrange(256)
        ledger.load(key + number.to_bytes(4, "big"), bytes(junk[: dice.randrange(len(junk) + 1)]))
    before = ledger.counters["junk"]
    assert before > 200
    bad_rows = [
        row[:-1],
        [b"", *row[1:]],
        [ME, b"i" * 256, *row[2:]],
        [ME, b"1", 3, *row[3:]],
        [*row[:3], -1, *row[4:]],
        [*row[:4], [], None],
        [*row[:5], 7],
    ]
    wrong: list[object] = [[1, b"work", [one]] for one in bad_rows]
    wrong += [[2, b"work", [row]], [1, 7, [row]], 5, [1, b"work", 5], [1, b"\xff", [row]]]
    wrong += [[1, b"mmi.x", [row]]]
    for number, bad in enumerate(wrong):
        ledger.load(key + (1000 + number).to_bytes(4, "big"), msgpack.packb(bad))
    assert ledger.counters["junk"] - before == len(wrong)


# ---- keys ----


def test_a_stored_answer_belongs_to_the_name_of_its_key() -> None:
    ledger = a_ledger()
    mine = Sender(b"here", 1, "mine")
    request = Request(b"work", b"1", [b"x"], None, NAMED, 1 << 20)
    ledger.add_request(mine, Framing.TEXT, request, NOW)
    written(ledger)
    (record,) = ledger.pop_queued()
    ledger.answer(record.name, True, [b"secret"])
    written(ledger)
    assert [reply[0] for reply in taken(ledger)] == [b"here"]
    for thief in (Sender(b"here", 2, "other"), Sender(b"here"), Sender(NAMED, 2, "other")):
        ledger.add_request(thief, Framing.TEXT, request, NOW)  # A request of its own.
        ledger.add_credit((ledger.identity(thief, NAMED), b"1"), 1 << 20)
        assert taken(ledger) == []
    after_rotation = Sender(b"there", 3, "mine")  # Another key of the same name.
    ledger.add_request(after_rotation, Framing.TEXT, request, NOW)
    assert [(reply[0], reply[-1]) for reply in taken(ledger)] == [(b"there", b"secret")]


def test_identities_of_keys_fit_the_store_and_keep_them_apart() -> None:
    ledger = a_ledger()
    senders = [
        Sender(rid, 1, key) for rid in (b"a", b"x" * 255, b"\0auto") for key in ("", "k", "n" * 128)
    ]
    identities = {ledger.identity(sender) for sender in senders}
    assert len(identities) == len(senders)
    assert all(len(each) <= records.NAME_BYTES_MAX for each in identities)
    for sender in senders:
        assert records.key_of(ledger.identity(sender)) == records.key_digest(sender.key)


def test_titanic_answers_belong_to_their_key() -> None:
    ledger = a_ledger()
    mine, other = Sender(b"c", 1, "mine"), Sender(b"c", 2, "other")
    request = Request(values.TITANIC_REQUEST, b"1", [b"work", b"x"])
    ledger.add_titanic_request(mine, Framing.TEXT, request)
    written(ledger)
    uuid = taken(ledger)[0][-1]
    (record,) = ledger.pop_queued()
    ledger.answer(record.name, True, [b"secret"])
    written(ledger)
    assert ledger.titanic_reply(other, uuid) == [b"400"]
    assert ledger.titanic_reply(Sender(b"c"), uuid) == [b"400"]
    assert ledger.titanic_reply(Sender(b"d", 3, "mine"), uuid) == [b"200", b"secret"]
    close = Request(values.TITANIC_CLOSE, b"2", [uuid])
    ledger.add_request(other, Framing.TEXT, close, NOW)
    assert ledger.titanic_reply(mine, uuid) == [b"200", b"secret"]
    ledger.add_request(mine, Framing.TEXT, close, NOW)
    assert ledger.titanic_reply(mine, uuid) == [b"400"]


def test_clients_of_a_revoked_key_get_no_answers() -> None:
    ledger = a_ledger()
    for slot in (1, 2):
        sender = Sender(b"client %d" % slot, slot, "k")
        ledger.add_request(sender, Framing.TEXT, Request(b"work", b"%d" % slot, [b"x"]), NOW)
    ledger.detach_key(1)
    written(ledger)
    for record in ledger.pop_queued():
        ledger.answer(record.name, True, [b"answer"])
    written(ledger)
    assert [reply[0] for reply in taken(ledger)] == [b"client 2"]
    assert not ledger.detach_client(b"client 1", b"1")
    assert ledger.detach_client(b"client 2", b"2") is False  # It has ended.


def test_titanic_answers_a_request_whose_end_another_broker_has_stored() -> None:
    """The repeat is not written here yet when the end of the first one is read."""
    ledger, other = a_ledger(), a_ledger(b"token  2")
    request = Request(values.TITANIC_REQUEST, b"1", [b"work", b"x"])
    for each in (ledger, other):
        each.add_titanic_request(Sender(ME), Framing.TEXT, request)
    written(other)
    (accepted,) = taken(other)
    (record,) = other.pop_queued()
    other.answer(record.name, True, [b"end"])
    (end,) = written(other)
    pairs = ledger.pack_requests(NOW)
    ledger.load(*end)
    assert taken(ledger) == [accepted]
    ledger.on_written(key for key, _ in pairs)
    assert taken(ledger) == []
    assert ledger.titanic_reply(Sender(ME), accepted[-1]) == [b"200", b"end"]
