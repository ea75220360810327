"""The client's state machine alone: what it sends when, and how it handles each answer."""

from typing import Any

import pytest

from kelek.protocols.connections import Connect, Disconnect, Send
from kelek.protocols.errors import LocalProtocolError
from kelek.protocols.majordomo import codec, values
from kelek.protocols.majordomo.client import (
    FEATURES_ID,
    PROBE_ID,
    BrokerClientMachine,
    BrokerClientSetup,
    Call,
)
from kelek.protocols.majordomo.values import PART_COST

URLS = ("a", "b")
LATER = 1_000_000


def client_of(urls: tuple[str, ...] = URLS, **setup: Any) -> BrokerClientMachine:
    client = BrokerClientMachine(BrokerClientSetup(urls)._replace(**setup))
    assert client.ready(0) == [Connect(url) for url in urls]
    for url in urls:
        client.on_connected(url, 0)
    return client


def call_of(client: BrokerClientMachine, number: int, deadline_ms: int = LATER) -> Call:
    request = codec.Request(b"echo", str(number).encode(), [b"body"])
    return client.add(Call(request, deadline_ms, wants_parts=True))


def sent(client: BrokerClientMachine, now_ms: int) -> list[tuple[str, Any]]:
    return [
        (it.url, codec.CLIENT_COMMANDS.decode(it.frames)[1])
        for it in client.ready(now_ms)
        if isinstance(it, Send)
    ]


def answer(client: BrokerClientMachine, reply: codec.Reply, now_ms: int = 0) -> None:
    client.on_frames(client.broker, codec.encode(reply), now_ms)


def failure(code: int) -> list[bytes]:
    return codec.encode_failure(codec.Failure(code, "why"))


def test_answers_come_in_any_order_and_once() -> None:
    client = client_of()
    calls = [call_of(client, number) for number in range(3)]
    assert [request.request_id for _, request in sent(client, 1)] == [b"0", b"1", b"2"]
    answer(client, codec.Partial(b"echo", b"2", [b"part"]))
    answer(client, codec.Final(b"echo", b"2", [b"two"]))
    answer(client, codec.Final(b"echo", b"0", [b"zero"]))
    assert client.pop_updated() == [calls[2], calls[0]]
    assert client.pop_updated() == []
    assert [call.final for call in calls] == [[b"zero"], None, [b"two"]]
    assert client.pop_part(calls[2]) == [b"part"]
    assert client.pop_part(calls[2]) is None
    answer(client, codec.Final(b"echo", b"2", [b"again"]))
    answer(client, codec.Partial(b"echo", b"2", [b"again"]))
    assert calls[2].final == [b"two"]
    assert client.counters["strays"] == 2


def test_a_request_says_how_much_time_it_has() -> None:
    client = client_of()
    call_of(client, 1, deadline_ms=5000)
    assert [request.remaining_ms for _, request in sent(client, 1000)] == [4000]
    client.on_disconnected("a", 3000)
    assert [(url, it.remaining_ms) for url, it in sent(client, 3500)] == [("b", 1500)]
    plain = client_of(deadlines=False)
    call_of(plain, 1, deadline_ms=5000)
    assert [request.remaining_ms for _, request in sent(plain, 1000)] == [None]


def test_so_many_requests_and_octets_are_in_flight() -> None:
    client = client_of(requests_max=2)
    for number in range(3):
        call_of(client, number)
    assert len(sent(client, 0)) == 2
    answer(client, codec.Final(b"echo", b"0", [b""]))
    assert [request.request_id for _, request in sent(client, 0)] == [b"2"]
    client = client_of(bytes_max=10)
    for number in range(2):
        call_of(client, number)
    assert len(sent(client, 0)) == 1, "a large one goes alone"
    assert client.outstanding == 2
    assert not client_of(outstanding_max=0).has_room


def test_a_lost_broker_s_requests_go_to_the_next_in_order_under_the_same_ids() -> None:
    client = client_of(requests_max=3)
    calls = [call_of(client, number) for number in range(4)]
    sent(client, 0)
    answer(client, codec.Final(b"echo", b"1", [b"one"]))
    client.on_disconnected("a", 5)
    assert client.broker == "b"
    actions = client.ready(5)
    assert actions[:2] == [Disconnect("a"), Connect("a")], "RFC 18: on a new socket"
    resent = [codec.CLIENT_COMMANDS.decode(it.frames)[1] for it in actions if isinstance(it, Send)]
    assert [it.request_id for it in resent] == [b"0", b"2", b"3"]
    assert [call.resent for call in calls] == [1, 0, 1, 0]
    # The next broker is lost, too: the call waits for the first that returns.
    client.on_disconnected("b", 6)
    assert not client.broker
    client.ready(6)
    client.on_connected("b", 7)
    assert len(sent(client, 7)) == 3


def test_a_silent_broker_is_asked_and_left() -> None:
    client = client_of(silence_ms=100, liveness=3)
    call_of(client, 1)
    assert len(sent(client, 1000)) == 1
    for now_ms in (1100, 1200):
        ((url, probe),) = sent(client, now_ms)
        assert (url, probe.service, probe.request_id) == ("a", values.MMI_SERVICE, PROBE_ID)
        assert probe.body == [b"echo"]
    # An answer to that is a sign of life, and says whether there is a worker.
    answer(client, codec.Final(values.MMI_SERVICE, PROBE_ID, [b"404"]), 1250)
    assert client.unserved_service == b"echo"
    assert client.deadline_ms == 1350
    assert client.counters["strays"] == 0
    # However long we slept ourselves, it is asked first.
    assert len(sent(client, 99_000)) == 1
    assert len(sent(client, 99_100)) == 1
    assert client.broker == "a"
    assert [url for url, _ in sent(client, 99_200)] == ["b"]
    assert client.counters["silent"] == 1


def test_the_only_broker_is_connected_to_anew() -> None:
    client = client_of(("a",), silence_ms=100, liveness=1)
    call_of(client, 1)
    sent(client, 0)
    assert client.ready(100) == [Disconnect("a"), Connect("a")]
    assert sent(client, 101) == []
    client.on_connected("a", 200)
    assert len(sent(client, 200)) == 1


def test_an_error_is_no_answer() -> None:
    client = client_of()
    call = call_of(client, 1)
    sent(client, 0)
    answer(client, codec.Final(b"echo", b"1", failure(504)))
    assert call.done
    assert call.failure == codec.Failure(504, "why")
    assert client.pop_updated() == [call]


def test_a_client_refused_for_lack_of_room_sends_less_and_retries() -> None:
    client = client_of(requests_max=10)
    calls = [call_of(client, number) for number in range(3)]
    sent(client, 0)
    answer(client, codec.Final(b"echo", b"1", failure(429)))
    assert not calls[1].done
    assert client.deadline_ms is not None
    assert sent(client, 49) == []
    call_of(client, 3)
    assert sent(client, 60) == [], "two are in flight, and there was no room for a third"
    answer(client, codec.Final(b"echo", b"0", [b""]))
    assert [request.request_id for _, request in sent(client, 60)] == [b"1", b"3"], "room grows"
    # Told so again and again it gives up in time.
    call = call_of(client, 4, deadline_ms=100)
    for number in (1, 2, 3):
        answer(client, codec.Final(b"echo", str(number).encode(), [b""]))
    sent(client, 70)
    answer(client, codec.Final(b"echo", b"4", failure(429)), 70)
    assert call.done
    assert call.failure == codec.Failure(429, "why")


def test_deadlines() -> None:
    client = client_of()
    calls = [call_of(client, number, 100 + number) for number in range(3)]
    sent(client, 0)
    assert client.deadline_ms == 100
    client.ready(101)
    assert [call.timed_out for call in calls] == [True, True, False]
    assert client.pop_updated() == calls[:2]
    answer(client, codec.Final(b"echo", b"0", [b"late"]))
    assert calls[0].final is None
    assert client.counters == {"brokers": 1, "timeouts": 2, "strays": 1}


def test_what_is_done_does_not_pile_up() -> None:
    client = client_of()
    call_of(client, 0, deadline_ms=10)  # It keeps the first place.
    sent(client, 0)
    for number in range(1, 5000):
        call_of(client, number)
        sent(client, 0)
        answer(client, codec.Final(b"echo", str(number).encode(), [b""]))
    sent(client, 0)
    assert len(client.calls.deadlines) < 1100


def test_what_is_dropped_is_forgotten() -> None:
    client = client_of()
    call, other = call_of(client, 1), call_of(client, 2)
    sent(client, 0)
    answer(client, codec.Partial(b"echo", b"1", [b"part"]))
    client.cancel(call)
    assert call.done
    assert client.pop_part(call) is None
    answer(client, codec.Final(b"echo", b"1", [b""]))
    assert call.final is None
    assert client.outstanding == 1
    client.cancel(other)
    assert client.ready(5 * LATER) == []


def test_unread_parts_end_the_call() -> None:
    client = client_of(partial_bytes_max=100)
    call, other = call_of(client, 1), call_of(client, 2)
    sent(client, 0)
    answer(client, codec.Partial(b"echo", b"1", [b"x" * 60]))
    assert client.pop_part(call) == [b"x" * 60]
    answer(client, codec.Partial(b"echo", b"1", [b"x" * 60]))
    assert not call.done
    answer(client, codec.Partial(b"echo", b"2", [b"x" * 60]))
    assert "faster than they are read" in other.refusal
    assert not call.done


# ---- brokers that know names and credit ----

NAME = b"secret"
WINDOW = 4 * PART_COST


def named_client(knows: bool = True, **setup: Any) -> BrokerClientMachine:
    """Its broker a has answered the feature check."""
    client = client_of(name=NAME, **setup)
    call = call_of(client, 0)
    asked = [(request.service, request.body) for _, request in sent(client, 0)]
    assert asked == [
        (values.OWN_FEATURES, [values.FEATURE_BUNDLES]),
        (values.MMI_SERVICE, [b""]),
    ], "and no more"
    if knows:
        answer(client, codec.Final(values.OWN_FEATURES, FEATURES_ID, [values.FEATURE_NAMED]))
    answer(client, codec.Final(values.MMI_SERVICE, PROBE_ID, [b"404"]))
    client.cancel(call)
    return client


def said(client: BrokerClientMachine, now_ms: int = 0) -> list[codec.ClientCommand]:
    return [
        codec.CLIENT_COMMANDS.decode(it.frames)[1]
        for it in client.ready(now_ms)
        if isinstance(it, Send)
    ]


def part(
    client: BrokerClientMachine, number: int, run: int = 1, size: int = 0, request_id: bytes = b"1"
) -> None:
    answer(
        client, codec.Partial(b"echo", request_id, [bytes(size)], codec.PartPosition(run, number))
    )


def test_each_request_names_us_to_a_broker_with_names() -> None:
    client = named_client(partial_bytes_max=WINDOW)
    call = call_of(client, 1, deadline_ms=5000)
    (request,) = said(client, 1000)
    assert request == codec.Request(b"echo", b"1", [b"body"], 4000, NAME, WINDOW)
    plain = Call(codec.Request(b"echo", b"2", [b"body"]), LATER)
    plain.outlives_owner = True
    client.add(plain)
    assert said(client, 1000) == [codec.Request(b"echo", b"2", [b"body"], None, NAME, 0)]
    client.on_disconnected("a", 2000)
    first = said(client, 2000)
    assert [request.service for request in first] == [values.OWN_FEATURES, values.MMI_SERVICE]
    assert call.resent == 1


@pytest.mark.parametrize("answered", [[b"501"], None])
def test_a_broker_that_knows_no_names_gets_the_texts_requests(answered: list[bytes] | None) -> None:
    """Older brokers of kelek answer that; others may not answer at all."""
    client = named_client(knows=False)
    if answered is not None:
        client = client_of(name=NAME)
        sent(client, 0)
        answer(client, codec.Final(values.OWN_FEATURES, FEATURES_ID, answered))
    call_of(client, 1, deadline_ms=5000)
    (action,) = client.ready(1000)
    assert isinstance(action, Send)
    assert action.frames[0] == b"KLKD01"


def test_a_silent_broker_is_left() -> None:
    client = client_of(name=NAME, silence_ms=100, liveness=2)
    call_of(client, 1)
    assert len(sent(client, 0)) == 2
    assert len(sent(client, 100)) == 1
    assert client.ready(200)[:2] == [Disconnect("a"), Connect("a")]
    assert client.broker == "b"


def test_credit_is_given_as_parts_are_read() -> None:
    client = named_client(partial_bytes_max=WINDOW)
    call = call_of(client, 1)
    said(client)
    for number in range(4):
        part(client, number)
    assert call.credit == 0
    assert said(client) == []
    bodies = [client.pop_part(call) for _ in range(2)]
    assert client.on_parts_read(call, [body for body in bodies if body])
    assert said(client) == [codec.Credit(b"echo", b"1", NAME, WINDOW // 2)]
    body = client.pop_part(call)
    assert body is not None
    assert not client.on_parts_read(call, [body]), "a part alone is not worth a message"


def test_many_streams_share_what_may_lie_unread() -> None:
    client = named_client(partial_bytes_max=10 * PART_COST)
    for number in range(1, 6):
        call_of(client, number)
    credits = [request.credit for request in said(client) if isinstance(request, codec.Request)]
    assert credits == [2 * PART_COST] * 5


def test_one_part_may_be_larger_than_the_credit_but_no_more_come() -> None:
    client = named_client(partial_bytes_max=WINDOW)
    call = call_of(client, 1)
    said(client)
    part(client, 0, size=10 * WINDOW)
    assert not call.done
    part(client, 1, size=1)  # Its worker knows no credit.
    assert "faster than they are read" in call.refusal
    assert said(client) == [codec.Cancel(b"echo", b"1", NAME)]


@pytest.mark.parametrize("missing", ["first", "middle", "last", "of the next run"])
def test_a_part_that_is_missing_is_an_error(missing: str) -> None:
    client = named_client()
    call = call_of(client, 1)
    said(client)
    if missing != "first":
        part(client, 0)
    if missing == "last":
        final = codec.Final(b"echo", b"1", [b"end"], codec.PartPosition(1, 2))
        client.on_frames("a", codec.encode(final), 0)
    elif missing == "of the next run":
        part(client, 1, run=2)
    else:
        part(client, 1 if missing == "first" else 2)
    assert "a part of its answer was lost" in call.refusal
    assert call.final is None
    assert client.counters["gaps"] == 1
    assert said(client) == ([codec.Cancel(b"echo", b"1", NAME)])


def test_another_worker_may_begin_anew_and_a_call_wants_no_parts() -> None:
    client = named_client()
    call = call_of(client, 1)
    other = client.add(Call(codec.Request(b"echo", b"2", [b"body"]), LATER))
    said(client)
    for run, count in ((1, 2), (2, 3)):
        for number in range(count):
            part(client, number, run)
    for request_id in (b"1", b"2"):
        client.on_frames(
            "a",
            codec.encode(codec.Final(b"echo", request_id, [b"end"], codec.PartPosition(2, 3))),
            0,
        )
    assert (call.final, other.final) == ([b"end"], [b"end"])


@pytest.mark.parametrize("lasts", [False, True])
def test_the_broker_learns_when_a_call_is_abandoned(lasts: bool) -> None:
    """A request that outlives its owner continues without parts."""
    client = named_client()
    calls = [call_of(client, number, deadline_ms=100) for number in (1, 2)]
    for call in calls:
        call.outlives_owner = lasts
    said(client)
    told: list[codec.ClientCommand] = [
        codec.Credit(b"echo", request_id, NAME, 0)
        if lasts
        else codec.Cancel(b"echo", request_id, NAME)
        for request_id in (b"1", b"2")
    ]
    for _ in range(2):
        client.cancel(calls[0])
    assert said(client, 0) == told[:1]
    assert said(client, 100) == told[1:], "its time is over"


def test_a_broker_learns_of_abandoned_calls_when_we_reconnect() -> None:
    client = named_client()
    for number in (1, 2):
        call_of(client, number)
    said(client)
    client.on_disconnected("a", 0)  # b goes on with it.
    client.ready(0)
    client.on_connected("a", 0)
    answer(client, codec.Final(values.OWN_FEATURES, FEATURES_ID, [values.FEATURE_NAMED]))
    said(client)
    answer(client, codec.Final(b"echo", b"1", [b"end"], codec.PartPosition(1, 0)))
    client.on_disconnected("b", 0)
    client.ready(0)
    answer(client, codec.Final(values.OWN_FEATURES, FEATURES_ID, [values.FEATURE_NAMED]))
    cancelled, again = said(client)
    assert cancelled == codec.Cancel(b"echo", b"1", NAME)
    assert again.request_id == b"2"


def test_a_word_that_the_broker_is_there_is_a_sign_of_life() -> None:
    client = named_client(silence_ms=100)
    call_of(client, 1)
    said(client)
    answer(client, codec.Alive(), 90)
    assert client.deadline_ms == 190
    assert client.counters["junk"] == 0


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b"KLKC01"],
        [b"KLKC01", b"\x03", b"echo", b"1"],
        [b"MDPC02", b"\x03", b"echo", b"1"],
        [b"", b"MDPC01", b"echo", b""],
        [b"KLKC01", b"\x03", b"echo", b"1", b"KLK-ERROR", b"junk"],
    ],
)
def test_junk_is_counted(frames: list[bytes]) -> None:
    client = client_of()
    call = call_of(client, 1)
    sent(client, 0)
    client.on_frames("a", frames, 0)
    assert client.counters["junk"] == 1
    assert not call.done
    client.on_frames("b", frames, 0)
    assert client.counters["junk"] == 1, "what others say is not listened to"


def test_names_that_the_wire_does_not_know() -> None:
    client = client_of()
    for request in (
        codec.Request(b"", b"1", []),
        codec.Request(b"a\n", b"1", []),
        codec.Request(b"a", b"", []),
    ):
        with pytest.raises(LocalProtocolError):
            client.add(Call(request, LATER))
    assert client.outstanding == 0
