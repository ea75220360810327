"""The client's machine alone: what it sends when, and what it makes of each answer."""

import pytest

from kelek.protocols.connections import Connect, Disconnect, Send
from kelek.protocols.errors import LocalProtocolError
from kelek.protocols.majordomo import codec, values
from kelek.protocols.majordomo.client import PROBE_ID, Call, Client, ClientSetup
from kelek.protocols.majordomo.codec import Failure, Final, Partial, Request

URLS = ("a", "b")
LATER = 1_000_000


def client_of(urls: tuple[str, ...] = URLS, **setup: int) -> Client:
    client = Client(ClientSetup(urls)._replace(**setup))  # type: ignore[arg-type]
    assert client.ready(0) == [Connect(url) for url in urls]
    for url in urls:
        client.on_connected(url, 0)
    return client


def call_of(client: Client, number: int, deadline_ms: int = LATER) -> Call:
    request = Request(b"echo", str(number).encode(), [b"body"])
    return client.add(Call(request, deadline_ms, partials=True))


def sent(client: Client, now_ms: int) -> list[tuple[str, Request]]:
    return [
        (it.url, codec.decode_client_request(it.frames)[1])
        for it in client.ready(now_ms)
        if isinstance(it, Send)
    ]


def answer(client: Client, reply: codec.Reply, now_ms: int = 0) -> None:
    client.on_frames(client.broker, codec.encode_reply(reply), now_ms)


def failure(code: int) -> list[bytes]:
    return codec.encode_failure(Failure(code, "why"))


def test_answers_come_in_any_order_and_once() -> None:
    client = client_of()
    calls = [call_of(client, number) for number in range(3)]
    assert [request.request_id for _, request in sent(client, 1)] == [b"0", b"1", b"2"]
    answer(client, Partial(b"echo", b"2", [b"part"]))
    answer(client, Final(b"echo", b"2", [b"two"]))
    answer(client, Final(b"echo", b"0", [b"zero"]))
    assert client.news() == [calls[2], calls[0]]
    assert client.news() == []
    assert [call.final for call in calls] == [[b"zero"], None, [b"two"]]
    assert client.take_part(calls[2]) == [b"part"]
    assert client.take_part(calls[2]) is None
    answer(client, Final(b"echo", b"2", [b"again"]))
    answer(client, Partial(b"echo", b"2", [b"again"]))
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
    answer(client, Final(b"echo", b"0", [b""]))
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
    answer(client, Final(b"echo", b"1", [b"one"]))
    client.on_disconnected("a", 5)
    assert client.broker == "b"
    actions = client.ready(5)
    assert actions[:2] == [Disconnect("a"), Connect("a")], "RFC 18: on a new socket"
    resent = [codec.decode_client_request(it.frames)[1] for it in actions if isinstance(it, Send)]
    assert [it.request_id for it in resent] == [b"0", b"2", b"3"]
    assert [call.resent for call in calls] == [1, 0, 1, 0]
    # The next one is lost, too: it waits for whoever is back first.
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
    answer(client, Final(values.MMI_SERVICE, PROBE_ID, [b"404"]), 1250)
    assert client.unserved == b"echo"
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
    answer(client, Final(b"echo", b"1", failure(504)))
    assert call.done
    assert call.failure == Failure(504, "why")
    assert client.news() == [call]


def test_who_is_told_that_there_is_no_room_sends_less_and_tries_again() -> None:
    client = client_of(requests_max=10)
    calls = [call_of(client, number) for number in range(3)]
    sent(client, 0)
    answer(client, Final(b"echo", b"1", failure(429)))
    assert not calls[1].done
    assert client.deadline_ms is not None
    assert sent(client, 49) == []
    call_of(client, 3)
    assert sent(client, 60) == [], "two are in flight, and there was no room for a third"
    answer(client, Final(b"echo", b"0", [b""]))
    assert [request.request_id for _, request in sent(client, 60)] == [b"1", b"3"], "room grows"
    # Told so again and again it gives up in time.
    call = call_of(client, 4, deadline_ms=100)
    for number in (1, 2, 3):
        answer(client, Final(b"echo", str(number).encode(), [b""]))
    sent(client, 70)
    answer(client, Final(b"echo", b"4", failure(429)), 70)
    assert call.done
    assert call.failure == Failure(429, "why")


def test_deadlines() -> None:
    client = client_of()
    calls = [call_of(client, number, 100 + number) for number in range(3)]
    sent(client, 0)
    assert client.deadline_ms == 100
    client.ready(101)
    assert [call.timed_out for call in calls] == [True, True, False]
    assert client.news() == calls[:2]
    answer(client, Final(b"echo", b"0", [b"late"]))
    assert calls[0].final is None
    assert client.counters == {"brokers": 1, "timeouts": 2, "strays": 1}


def test_what_is_done_does_not_pile_up() -> None:
    client = client_of()
    call_of(client, 0, deadline_ms=10)  # It keeps the first place.
    sent(client, 0)
    for number in range(1, 5000):
        call_of(client, number)
        sent(client, 0)
        answer(client, Final(b"echo", str(number).encode(), [b""]))
    sent(client, 0)
    assert len(client._deadlines) < 1100


def test_what_is_dropped_is_forgotten() -> None:
    client = client_of()
    call, other = call_of(client, 1), call_of(client, 2)
    sent(client, 0)
    answer(client, Partial(b"echo", b"1", [b"part"]))
    client.drop(call)
    assert call.done
    assert client.take_part(call) is None
    answer(client, Final(b"echo", b"1", [b""]))
    assert call.final is None
    assert client.outstanding == 1
    client.drop(other)
    assert client.ready(5 * LATER) == []


def test_parts_that_nobody_reads_end_the_call() -> None:
    client = client_of(partial_bytes_max=100)
    call, other = call_of(client, 1), call_of(client, 2)
    sent(client, 0)
    answer(client, Partial(b"echo", b"1", [b"x" * 60]))
    assert client.take_part(call) == [b"x" * 60]
    answer(client, Partial(b"echo", b"1", [b"x" * 60]))
    assert not call.done
    answer(client, Partial(b"echo", b"2", [b"x" * 60]))
    assert "faster than they are read" in other.refusal
    assert not call.done


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
    for request in (Request(b"", b"1", []), Request(b"a\n", b"1", []), Request(b"a", b"", [])):
        with pytest.raises(LocalProtocolError):
            client.add(Call(request, LATER))
    assert client.outstanding == 0
