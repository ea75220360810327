"""The broker's state machine: single rules, and random schedules of clients and workers."""

from random import Random

import msgpack
import pytest

from kelek.native.broker.exchange import PROBE_MS
from kelek.native.net.messages import Arena, Frames
from kelek.protocols.majordomo import broker as machine
from kelek.protocols.majordomo import codec, values
from kelek.protocols.majordomo.broker import HEAD_FRAMES, BrokerMachine, BrokerSetup
from kelek.protocols.majordomo.codec import decode_failure
from kelek.protocols.majordomo.owed import RETRY_MS

Message = list[bytes]
SETUP = BrokerSetup(heartbeat_interval_ms=100, liveness=3, request_ttl_ms=2000, inflight_max=3)
EXPIRY_MS = 300
C, W = b"KLKC01", b"KLKW01"
REQUEST = [C, b"\1", b"echo"]
READY = [W, b"\1", b"echo"]


def taken(frames: Frames) -> list[Message]:
    messages = frames.messages()
    frames.clear()
    return messages


def number(client: int) -> bytes:
    """The number of a client for workers; the first one is 1."""
    return client.to_bytes(8, "big")


class ServiceTable:
    """A broker, and the messages it has sent since the last look."""

    def __init__(self, setup: BrokerSetup = SETUP) -> None:
        self.now_ms = 0
        self.broker = BrokerMachine(setup, 0)

    def client(self, *messages: Message) -> None:
        self.broker.on_requests(Arena.from_messages(messages), self.now_ms)
        self.broker.ready(self.now_ms)

    def worker(self, *messages: Message) -> None:
        self.broker.on_answers(Arena.from_messages(messages), self.now_ms)
        self.broker.ready(self.now_ms)

    def later(self, ms: int) -> None:
        self.now_ms += ms
        self.broker.ready(self.now_ms)

    def dropped(self, heads: list[Message]) -> None:
        self.broker.on_dropped(heads, self.now_ms)

    @property
    def to_clients(self) -> list[Message]:
        return taken(self.broker.clients)

    @property
    def to_workers(self) -> list[Message]:
        return taken(self.broker.workers)

    def count(self, counter: str) -> int:
        return self.broker.status().get(counter, 0)


@pytest.fixture
def table() -> ServiceTable:
    return ServiceTable()


# ---- the text's rules ----


def test_any_number_of_partials_and_one_final(table: ServiceTable) -> None:
    table.worker([b"w", *READY])
    table.client([b"c", *REQUEST, b"id", b"one", b"two"])
    work = [number(1), b"", b"id"]
    assert table.to_workers == [[b"w", W, b"\2", *work, b"one", b"two"]]
    table.worker(
        [b"w", W, b"\3", *work, b"1"],
        [b"w", W, b"\3", *work, b"2"],
        [b"w", W, b"\4", *work, b"end"],
    )
    answers = [(b"\2", b"1"), (b"\2", b"2"), (b"\3", b"end")]
    assert table.to_clients == [[b"c", C, kind, b"echo", b"id", body] for kind, body in answers]
    assert not table.to_workers


def test_one_request_a_worker_unless_it_asks_for_more(table: ServiceTable) -> None:
    table.worker([b"w", *READY], [b"v", *READY, b"\0\2"])
    table.client(*([b"%d" % i, *REQUEST, b"id", b"x"] for i in range(4)))
    assert [message[0] for message in table.to_workers] == [b"w", b"v", b"v"]
    table.worker([b"w", W, b"\3", number(1), b"", b"id", b"part"])
    assert not table.to_workers, "a PARTIAL does not free it"
    table.worker([b"w", W, b"\4", number(1), b"", b"id", b"all"])
    assert [message[0] for message in table.to_workers] == [b"w"]


def test_a_ping_is_answered_in_the_middle_of_work(table: ServiceTable) -> None:
    table.worker([b"w", *READY])
    table.client([b"c", *REQUEST, b"id", b"x"])
    assert len(table.to_workers) == 1
    table.worker([b"w", W, b"PING"])
    assert table.to_workers == [[b"w", W, b"PONG"]]


UNEXPECTED = {
    "PING before READY": [[W, b"PING"]],
    "FINAL before READY": [[W, b"\4", b"c", b"", b"id", b"x"]],
    "a second READY": [READY, READY],
    "FINAL without a REQUEST": [READY, [W, b"\4", b"c", b"", b"id", b"x"]],
    "PARTIAL for another's request": [READY, [W, b"\3", b"other", b"", b"id", b"x"]],
    "READY for the broker's own": [[W, b"\1", b"mmi.service"]],
}


@pytest.mark.parametrize("case", UNEXPECTED)
def test_what_is_valid_but_unexpected_is_disconnected(table: ServiceTable, case: str) -> None:
    table.worker(*([b"w", *frames] for frames in UNEXPECTED[case]))
    assert table.to_workers == [[b"w", W, b"\6"]]
    table.worker([b"w", *READY], [b"w", W, b"PING"])
    assert not table.to_workers, "it is silenced until it comes on a new socket"
    assert table.count("silenced") == 2
    assert table.count("workers") == 0


def test_a_worker_that_answers_twice_loses_what_it_has(table: ServiceTable) -> None:
    table.worker([b"w", *READY, b"\0\2"], [b"v", *READY])
    table.client([b"c", *REQUEST, b"1", b"x"], [b"c", *REQUEST, b"2", b"x"])
    assert [message[0] for message in table.to_workers] == [b"w", b"v"]
    table.client([b"d", *REQUEST, b"3", b"x"])
    assert [message[0] for message in table.to_workers] == [b"w"]
    final = [b"w", W, b"\4", number(1), b"", b"1", b"x"]
    table.worker(final, final)
    table.worker([b"v", W, b"\4", number(1), b"", b"2", b"x"])
    assert table.to_workers == [[b"w", W, b"\6"], [b"v", W, b"\2", number(2), b"", b"3", b"x"]]
    assert [message[4] for message in table.to_clients] == [b"1", b"2"]


@pytest.mark.parametrize(
    "frames",
    [[W], [W, b"\2"], [W, b"\5"], [b"junk"], [W, b"\4", b"c", b"x", b"id"], [W, b"PING", b"more"]],
)
def test_a_worker_with_an_invalid_message_is_removed(table: ServiceTable, frames: Message) -> None:
    table.worker([b"w", *READY], [b"v", *READY])
    table.client([b"c", *REQUEST, b"id", b"x"])
    assert [message[0] for message in table.to_workers] == [b"w"]
    table.worker([b"w", *frames], [b"nobody", *frames])
    assert [message[0] for message in table.to_workers] == [b"v"]
    assert (table.count("invalid_commands"), table.count("workers_invalid")) == (2, 1)
    table.worker([b"w", W, b"PING"])
    assert table.to_workers == [[b"w", W, b"\6"]]


def test_a_silent_worker_is_held_dead_and_its_late_final_dropped(table: ServiceTable) -> None:
    table.worker([b"w", *READY], [b"v", *READY])
    table.client([b"c", *REQUEST, b"id", b"x"])
    assert [message[0] for message in table.to_workers] == [b"w"]
    for _ in range(EXPIRY_MS // 100):
        table.later(100)
        table.worker([b"v", W, b"PING"])
    assert [message for message in table.to_workers if message[2] != b"PONG"] == []
    table.later(1)
    assert table.to_workers == [[b"v", W, b"\2", number(1), b"", b"id", b"x"]]
    table.worker([b"w", W, b"\4", number(1), b"", b"id", b"late"])
    assert (table.to_workers, table.to_clients) == ([[b"w", W, b"\6"]], [])
    table.worker([b"v", W, b"\4", number(1), b"", b"id", b"right"])
    assert table.to_clients == [[b"c", C, b"\3", b"echo", b"id", b"right"]]


def test_a_worker_that_disconnects_gets_nothing_more(table: ServiceTable) -> None:
    table.worker([b"w", *READY])
    table.client([b"c", *REQUEST, b"id", b"x"])
    assert len(table.to_workers) == 1
    table.worker([b"w", b"MDPW02", b"\6"])  # As the text prints it.
    table.worker([b"w", *READY], [b"v", *READY])
    assert [message[0] for message in table.to_workers] == [b"v"]


def test_silenced_routing_ids_are_bounded(
    table: ServiceTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "SILENCED_MAX", 2)
    table.worker(*([b"%d" % i, W, b"PING"] for i in range(3)))
    assert len(table.to_workers) == 3
    table.worker([b"0", *READY], [b"2", *READY])
    assert table.count("workers") == 1, "the oldest one was forgotten"


# ---- clients ----


def test_the_same_id_again_is_a_resend_until_its_final(table: ServiceTable) -> None:
    table.worker([b"w", *READY])
    ask = [b"c", *REQUEST, b"id", b"x"]
    table.client(ask, ask)
    table.client(ask)
    assert len(table.to_workers) == 1
    assert table.count("repeated") == 2
    table.worker([b"w", W, b"\4", number(1), b"", b"id", b"y"])
    table.client(ask)
    assert len(table.to_workers) == 1, "after the FINAL the id is free"


def failure(message: Message) -> tuple[int, str]:
    found = decode_failure(message[5:])
    assert found
    return found.code, found.message


def test_a_client_has_so_many_requests_and_no_more(table: ServiceTable) -> None:
    table.client(*([b"c", *REQUEST, b"%d" % i, b"x"] for i in range(4)))
    table.client([b"d", *REQUEST, b"0", b"x"], [b"c", b"MDPC02", b"\1", b"echo", b"x"])
    answers = table.to_clients
    assert [message[:5] for message in answers] == [[b"c", C, b"\3", b"echo", b"3"]]
    assert failure(answers[0])[0] == 429
    assert table.count("refused") == 2, "a client of MDP is told nothing"


def test_a_queue_has_so_many_bytes_and_no_more() -> None:
    table = ServiceTable(SETUP._replace(service_bytes_max=5000))
    table.client([b"c", *REQUEST, b"1", bytes(3000)], [b"d", *REQUEST, b"1", bytes(3000)])
    table.client([b"e", C, b"\1", b"other", b"1", bytes(3000)])
    answers = table.to_clients
    assert [message[0] for message in answers] == [b"d"]
    assert failure(answers[0]) == (429, "too many requests wait for this service")
    table = ServiceTable(SETUP._replace(bytes_max=5000))
    table.client(*([b"%d" % i, C, b"\1", b"echo", b"1", bytes(3000)] for i in range(2)))
    assert len(table.to_clients) == 1


def test_services_are_bounded_and_forgotten() -> None:
    table = ServiceTable(SETUP._replace(services_max=2))
    table.client(*([b"%d" % i, C, b"\1", b"%d" % i, b"1", b"x"] for i in range(3)))
    assert len(table.to_clients) == 1
    table.later(SETUP.request_ttl_ms)
    assert len(table.to_clients) == 2
    table.client([b"c", C, b"\1", b"new", b"1", b"x"])
    assert not table.to_clients


def test_a_request_without_a_worker_waits_and_expires(table: ServiceTable) -> None:
    table.client([b"c", *REQUEST, b"1", b"x"], [b"c", b"MDPC02", b"\1", b"echo", b"x"])
    assert table.broker.deadline_ms == SETUP.request_ttl_ms
    table.later(SETUP.request_ttl_ms - 1)
    table.client([b"c", *REQUEST, b"2", b"x"])
    assert not table.to_clients
    table.later(1)
    answers = table.to_clients
    assert [message[4] for message in answers] == [b"1"]
    assert failure(answers[0]) == (504, "no worker took the request in time")
    table.worker([b"w", *READY])
    assert [message[5] for message in table.to_workers] == [b"2"]


def test_an_expired_request_of_a_lost_worker_is_not_one_that_no_worker_took(
    table: ServiceTable,
) -> None:
    table.worker([b"w", *READY])
    table.client([b"c", *REQUEST, b"1", b"x"])
    assert len(table.to_workers) == 1
    table.worker([b"w", W, b"\6"])
    table.client([b"c", *REQUEST, b"2", b"x"])
    table.later(SETUP.request_ttl_ms)
    found = {message[4]: failure(message) for message in table.to_clients}
    assert found == {
        b"1": (504, "no worker finished the request in time"),
        b"2": (504, "no worker took the request in time"),
    }


def test_one_client_with_many_requests_holds_up_no_other(table: ServiceTable) -> None:
    table.client(*([b"c", *REQUEST, b"%d" % i, b"x"] for i in range(3)))
    table.client([b"d", *REQUEST, b"d", b"x"])
    table.worker([b"w", *READY, b"\0\4"])
    clients = [message[3] for message in table.to_workers]
    assert clients == [number(each) for each in (1, 2, 1, 1)]


def test_what_a_client_that_is_gone_has_queued_is_dropped(table: ServiceTable) -> None:
    table.worker([b"w", *READY])
    table.client([b"c", *REQUEST, b"1", b"x"], [b"c", *REQUEST, b"2", b"x"])
    assert len(table.to_workers) == 1
    table.broker.on_clients_gone([b"c", b"nobody"], 0)
    table.worker([b"w", W, b"\4", number(1), b"", b"1", b"y"])
    assert (table.to_clients, table.to_workers) == ([], [])
    assert (table.count("cancelled"), table.count("discarded"), table.count("held")) == (1, 1, 0)


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [C],
        [C, b"\1"],
        [C, b"\1", b"echo"],
        [C, b"\1", b"echo", b"id"],
        [C, b"\1", b"echo", b"", b"x"],
        [C, b"\1", b"echo", b"i" * 256, b"x"],
        [C, b"\1", b"", b"id", b"x"],
        [C, b"\1", b"a\nb", b"id", b"x"],
        [C, b"\2", b"echo", b"id", b"x"],
        [b"KLKD01", b"\1", b"echo", b"id", b"short", b"x"],
        [b"MDPC02", b"\1", b"echo"],
        [b"", b"MDPC01", b"echo"],
        [b"", b"\0" * 9],
        [b"KLKN01", b"\1", b"echo", b"1", b"\xff" * 16, b"x"],
        [b"KLKN01", b"\1", b"echo", b"1", b"\xff" * 16 + b"\0me", b"x"],
        [b"KLKN01", b"\1", b"echo", b"1", b"\xff" * 16 + b"n" * 256, b"x"],
        [b"KLKN01", b"\1", b"echo", b"1", b"\xff" * 16 + b"me"],
        [b"KLKN01", b"\4", b"echo", b"1", b"\xff" * 16 + b"me", b"x"],
        [b"KLKN01", b"\6", b"echo", b"1", b"\xff" * 16 + b"me"],
        [C, b"\4", b"echo", b"1", b"\xff" * 16 + b"me"],
    ],
)
def test_invalid_requests_are_dropped_and_counted(table: ServiceTable, frames: Message) -> None:
    table.client([b"c", *frames], [b"c", *REQUEST, b"i" * 255, b"x"])
    assert table.count("invalid_requests") == 1
    assert table.count("requests") == 1
    assert not table.to_clients


# ---- crossing framings ----


def test_requests_of_mdp_clients_get_ids(table: ServiceTable) -> None:
    table.worker([b"w", *READY, b"\0\5"])
    table.client([b"c", b"MDPC02", b"\1", b"echo", b"x"], [b"d", b"", b"MDPC01", b"echo", b"y"])
    one, two = table.to_workers
    assert one[5] != two[5]
    assert len(one[5]) == 8
    for kind in (b"\3", b"\3", b"\4"):
        table.worker(*([b"w", W, kind, *work[3:6], kind] for work in (one, two)))
    assert table.to_clients == [
        [b"c", b"MDPC02", b"\2", b"echo", b"\3"],
        [b"c", b"MDPC02", b"\2", b"echo", b"\3"],
        [b"c", b"MDPC02", b"\3", b"echo", b"\4"],
        [b"d", b"", b"MDPC01", b"echo", b"\3", b"\3", b"\4"],  # PARTIALs in front of the REPLY.
    ]


def test_mdp_workers_have_one_request_at_a_time_and_keep_no_id(table: ServiceTable) -> None:
    table.worker([b"1", b"", b"MDPW01", b"\1", b"echo"], [b"2", b"MDPW02", b"\1", b"echo"])
    table.client(*([b"c", *REQUEST, b"%d" % i, b"x"] for i in range(3)))
    assert table.to_workers == [
        [b"1", b"", b"MDPW01", b"\2", number(1), b"", b"x"],
        [b"2", b"MDPW02", b"\2", number(1), b"", b"x"],
    ]
    table.worker(
        [b"2", b"MDPW02", b"\3", number(1), b"", b"p"],
        [b"2", b"MDPW02", b"\4", number(1), b"", b"f"],
    )
    table.worker([b"1", b"", b"MDPW01", b"\3", number(1), b"", b"r"])
    assert [message[2:] for message in table.to_clients] == [
        [b"\2", b"echo", b"1", b"p"],
        [b"\3", b"echo", b"1", b"f"],
        [b"\3", b"echo", b"0", b"r"],
    ]
    assert table.to_workers == [[b"2", b"MDPW02", b"\2", number(1), b"", b"x"]]


def test_mdp_workers_get_heartbeats_and_send_them(table: ServiceTable) -> None:
    table.worker([b"1", b"", b"MDPW01", b"\1", b"echo"], [b"2", b"MDPW02", b"\1", b"echo"])
    assert table.broker.deadline_ms == 100
    beats = []
    for _ in range(8):
        table.later(60)
        table.worker([b"1", b"", b"MDPW01", b"\4"])
        beats += table.to_workers
    assert beats.count([b"1", b"", b"MDPW01", b"\4"]) >= 3
    assert beats.count([b"2", b"MDPW02", b"\5"]) >= 2, "until it was held dead"
    assert table.count("workers") == 1


def test_partials_that_are_collected_are_bounded(table: ServiceTable) -> None:
    table.worker([b"w", *READY])
    table.client([b"d", b"", b"MDPC01", b"echo", b"y"])
    work = table.to_workers[0][3:6]
    for _ in range(17):
        table.worker([b"w", W, b"\3", *work, bytes(1 << 20)])
    table.worker([b"w", W, b"\4", *work, b"end"])
    assert (table.to_clients, table.count("discarded"), table.count("held_bytes")) == ([], 1, 0)


def test_deadlines_go_to_workers_that_ask_for_them(table: ServiceTable) -> None:
    table.worker([b"w", *READY, b"\0\5", b"D"])
    table.client([b"c", b"KLKD01", *REQUEST[1:], b"1", (70).to_bytes(8, "big"), b"x"])
    table.client([b"c", *REQUEST, b"2", b"x"])
    assert [message[6] for message in table.to_workers] == [(70).to_bytes(8, "big"), b"\xff" * 8]
    table.client([b"c", b"KLKD01", *REQUEST[1:], b"3", bytes(8), b"x"])
    answers = table.to_clients
    assert [failure(message)[0] for message in answers] == [504]
    assert not table.to_workers


# ---- clients with names, credit for parts ----

N, UNTIMED = b"KLKN01", b"\xff" * 8
CREDIT_READY = [W, b"\7", b"echo", b"\0\5"]
PART_COST = values.PART_COST


def amount(octets: int) -> bytes:
    return octets.to_bytes(8, "big")


def named(credit: int = 0, left: bytes = UNTIMED, name: bytes = b"secret") -> bytes:
    return left + amount(credit) + name


def asked(credit: int = 0, left: bytes = UNTIMED, request_id: bytes = b"1") -> Message:
    return [N, b"\1", b"echo", request_id, named(credit, left), b"x"]


def commanded(command: bytes, credit: int = 0, request_id: bytes = b"1") -> Message:
    return [N, command, b"echo", request_id, named(credit)]


def work_of(message: Message) -> Message:
    return message[3:6]


def test_a_client_is_known_by_its_name_and_answered_where_it_asked_last(
    table: ServiceTable,
) -> None:
    table.worker([b"w", *READY])
    table.client([b"old", *asked()], [b"new", *asked()], [b"other", *REQUEST, b"1", b"x"])
    work = work_of(table.to_workers[0])
    assert table.count("repeated") == 1
    table.client([b"old", *asked(request_id=b"2")])  # It was read late: the client is gone.
    table.worker([b"w", W, b"\4", *work, b"end"])
    assert table.to_clients == [[b"new", C, b"\3", b"echo", b"1", b"end"]]
    table.broker.on_clients_gone([b"old"], 0)
    assert table.count("cancelled") == 0


def test_parts_have_places_and_come_for_credit_that_is_passed_on(table: ServiceTable) -> None:
    table.worker([b"w", *CREDIT_READY])
    table.client([b"c", *asked(20_000)])
    (message,) = table.to_workers
    assert message[6] == UNTIMED + amount(20_000)
    work = work_of(message)
    table.worker([b"w", W, b"\3", *work, b"one"], [b"w", W, b"\3", *work, b"two"])
    table.client([b"c", *commanded(b"\4", 500)])
    assert table.to_workers == [[b"w", W, b"\7", *work, amount(500)]]
    table.worker([b"w", W, b"\4", *work, b"end"])
    found = [(message[2], message[5][4:], message[6]) for message in table.to_clients]
    assert found == [
        (b"\4", bytes(4), b"one"),
        (b"\4", b"\0\0\0\1", b"two"),
        (b"\5", b"\0\0\0\2", b"end"),
    ]


def test_the_next_worker_is_given_what_credit_is_left_and_begins_another_run(
    table: ServiceTable,
) -> None:
    table.worker([b"w", *CREDIT_READY])
    table.client([b"c", *asked(20_000)])
    table.worker([b"w", W, b"\3", *work_of(table.to_workers[0]), b"one"])
    table.worker([b"w", W, b"\6"], [b"v", *CREDIT_READY])
    (message,) = table.to_workers
    assert message[6] == UNTIMED + amount(20_000 - PART_COST - 3)
    table.worker([b"v", W, b"\3", *work_of(message), b"again"])
    one, again = (message[5] for message in table.to_clients)
    assert one[:4] != again[:4]
    assert one[4:] == again[4:] == bytes(4)
    # A connection is lost, and with it parts, or credit: all that is there now is said anew.
    table.client([b"d", *asked(20_000)])
    assert table.to_workers == [[b"v", W, b"\7", *work_of(message), amount(2 * PART_COST + 8)]]


def test_a_client_without_parts_gets_none_and_blocks_no_other(table: ServiceTable) -> None:
    table.worker([b"w", *CREDIT_READY])
    table.client([b"c", *asked()], [b"c", *asked(20_000, request_id=b"2")])
    one, two = table.to_workers
    assert one[6] == UNTIMED * 2
    table.client([b"c", *commanded(b"\4", 0, b"2")])
    assert table.to_workers == [[b"w", W, b"\7", *work_of(two), UNTIMED]]
    for work in (work_of(one), work_of(two)):
        table.worker([b"w", W, b"\3", *work, b"part"], [b"w", W, b"\4", *work, b"end"])
    assert [message[5:] for message in table.to_clients] == [[b"end"]] * 2


def test_a_connection_has_so_many_names_and_no_more(table: ServiceTable) -> None:
    """They are searched one by one."""
    for number in range(9):
        table.client([b"c", N, b"\1", b"echo", b"1", named(name=b"%d" % number), b"x"])
    (refused,) = table.to_clients
    assert failure(refused)[0] == 429
    assert refused[0] == b"c"


def test_what_is_cancelled_leaves_the_queue_or_its_worker(table: ServiceTable) -> None:
    table.worker([b"w", W, b"\7", b"echo", b"\0\1"])
    table.client([b"c", *asked(20_000)], [b"c", *asked(request_id=b"2")])
    (message,) = table.to_workers
    table.client([b"c", *commanded(b"\5")], [b"c", *commanded(b"\5", request_id=b"2")])
    assert table.to_workers == [[b"w", W, b"\x08", *work_of(message)]]
    assert (table.count("cancelled"), table.count("held")) == (2, 1)
    table.client([b"c", *asked()])
    assert failure(table.to_clients[0])[0] == 429, "its id is in use until its worker has ended it"
    table.worker([b"w", W, b"\4", *work_of(message), b"late"])
    assert (table.to_clients, table.count("held")) == ([], 0)
    table.client([b"c", *asked()])
    assert len(table.to_workers) == 1


def test_a_client_that_is_gone_is_missed_and_what_it_had_in_work_cancelled() -> None:
    """Except requests without a deadline, whose client may return."""
    table = ServiceTable(SETUP._replace(heartbeat_interval_ms=5000))
    table.worker([b"w", *CREDIT_READY])
    left = amount(60_000)
    table.client([b"c", *asked(9000, left)], [b"c", *asked(9000, request_id=b"2")])
    timed, lasting = table.to_workers
    table.later(PROBE_MS)
    assert table.to_clients == [[b"c", C, b"\6"]]
    table.broker.on_clients_gone([b"c"], table.now_ms)
    table.later(PROBE_MS)
    assert sorted(table.to_workers) == [
        [b"w", W, b"\7", *work_of(lasting), UNTIMED],
        [b"w", W, b"\x08", *work_of(timed)],
    ]
    table.worker([b"w", W, b"\3", *work_of(lasting), b"unheard"])
    table.client([b"d", *asked(9000, request_id=b"2")])
    table.worker([b"w", W, b"\4", *work_of(lasting), b"end"])
    (end,) = table.to_clients
    assert (end[0], end[2], end[5][4:]) == (b"d", b"\5", b"\0\0\0\1"), "a part is missing"


def test_an_answer_ends_with_an_error_when_a_part_of_it_was_dropped(table: ServiceTable) -> None:
    table.worker([b"w", *CREDIT_READY])
    table.client([b"c", *REQUEST, b"1", b"x"], [b"m", b"MDPC02", b"\1", b"echo", b"x"])
    one, two = map(work_of, table.to_workers)
    table.worker([b"w", W, b"\3", *one, b"1"], [b"w", W, b"\3", *two, b"1"])
    heads = [message[:6] for message in table.to_clients]
    table.dropped([*heads, *heads])
    assert table.to_workers == [[b"w", W, b"\x08", *one], [b"w", W, b"\x08", *two]]
    (error,) = table.to_clients
    assert error[:5] == [b"c", C, b"\3", b"echo", b"1"]
    assert failure(error)[0] == 507
    for work in (one, two):
        table.worker([b"w", W, b"\3", *work, b"2"], [b"w", W, b"\4", *work, b"end"])
    assert not table.to_clients, "MDP has no word for it"
    table.dropped([error[:HEAD_FRAMES]])
    assert not table.to_clients, "it is sent again later"
    table.later(RETRY_MS)
    assert table.to_clients == [error]
    # The end that was behind the part, or is a small answer of another request.
    table.dropped([[b"c", C, b"\2", b"echo", b"1", b"2"], final := [*error[:5], b"end"]])
    assert table.to_clients == [error]
    table.dropped([final])
    assert table.to_clients == [error]


def test_an_error_that_was_dropped_behind_a_large_answer_ends_its_request(
    table: ServiceTable,
) -> None:
    table.worker([b"w", *READY, b"\0\2"])
    table.client([b"c", *REQUEST, b"1", b"x"], [b"c", *REQUEST, b"2", b"x"])
    one, two = map(work_of, table.to_workers)
    refusal = codec.encode_failure(codec.Failure(500, "no"))
    table.worker([b"w", W, b"\4", *one, b"large"], [b"w", W, b"\4", *two, *refusal])
    table.dropped([message[:HEAD_FRAMES] for message in table.to_clients])
    errors = table.to_clients
    assert [error[4] for error in errors] == [b"1", b"2"]
    assert {failure(error)[0] for error in errors} == {507}


def test_an_error_is_sent_until_its_client_has_room_or_is_gone(table: ServiceTable) -> None:
    table.worker([b"w", *READY])
    for client in (b"c", b"d"):
        table.client([client, *REQUEST, b"1", b"x"])
        table.worker([b"w", W, b"\4", *work_of(table.to_workers[0]), b"large"])
    table.dropped(table.to_clients)
    errors = table.to_clients
    for _ in range(3):
        table.dropped(errors)
        assert table.broker.deadline_ms == table.now_ms + RETRY_MS
        table.later(RETRY_MS - 1)
        assert not table.to_clients
        table.later(1)
        assert table.to_clients == errors
    table.dropped(errors)
    table.broker.on_clients_gone([b"c"], table.now_ms)
    table.later(RETRY_MS)
    assert table.to_clients == errors[1:]
    table.later(RETRY_MS)
    assert not table.to_clients, "it was sent"


def test_ready_with_credit_may_be_followed_by_the_one_for_older_brokers(
    table: ServiceTable,
) -> None:
    table.worker([b"w", *CREDIT_READY], [b"w", *READY, b"\0\5", b"D"])
    assert not table.to_workers
    assert (table.count("workers"), table.count("workers_ready")) == (1, 1)
    table.worker([b"w", *READY, b"\0\5", b"D"])
    assert table.to_workers == [[b"w", W, b"\6"]], "but once"
    table.worker([b"v", *CREDIT_READY], [b"v", *READY])
    assert table.to_workers == [[b"v", W, b"\6"]], "and not another one"
    older = [*READY, b"\0\5", b"D"]
    table.worker([b"u", *CREDIT_READY, b"B"], [b"u", *CREDIT_READY], [b"u", *older])
    assert not table.to_workers, "two follow the one with bundles"
    table.worker([b"u", *CREDIT_READY])
    assert table.to_workers == [[b"u", W, b"\6"]]


# ---- its own services, both endpoints in one ----


def test_mmi_reports_services_with_workers(table: ServiceTable) -> None:
    table.worker([b"w", *READY])
    ask = [C, b"\1", b"mmi.service", b"id"]
    table.client([b"c", *ask, b"echo"], [b"c", *ask, b"other"])
    table.client([b"c", b"", b"MDPC01", b"mmi.service", b"echo"])
    table.client([b"c", C, b"\1", b"mmi.else", b"id", b"x"])
    table.client([b"c", C, b"\1", b"klk.features", b"id", b""])
    *mmi, own = table.to_clients
    assert [message[-1] for message in mmi] == [b"200", b"404", b"200", b"501"]
    assert own[-2:] == [b"named", b"bundles"]


def rows(table: ServiceTable, service: bytes, behind: bytes = b"") -> list[dict[str, object]]:
    table.client([b"c", C, b"\1", service, b"rows", behind])
    (answer,) = table.to_clients
    return [msgpack.unpackb(frame) for frame in answer[5:] if frame]


def test_the_broker_lists_its_services_and_workers(
    table: ServiceTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rows(table, b"klk.services") == []
    table.worker([b"w", *READY, b"\0\2"], [b"v", b"MDPW02", b"\1", b"sum"])
    table.client(*([b"d", *REQUEST, b"%d" % i, b"x"] for i in range(3)))
    table.later(70)
    echo, other = rows(table, b"klk.services")
    assert echo.pop("waiting_bytes")
    assert echo == {
        "name": "echo", "workers": 1, "waiting": 1, "working": 2, "done": 0, "oldest_ms": 70,
    }  # fmt: skip
    assert (other["name"], other["oldest_ms"]) == ("sum", None)
    assert rows(table, b"klk.services", b"echo") == [other]
    w, v = rows(table, b"klk.workers")
    assert w == {
        "number": 1, "service": "echo", "framing": "TEXT", "window": 2, "working": 2,
        "done": 0, "silent_ms": 70,
    }  # fmt: skip
    assert v["framing"] == "MDP02"
    monkeypatch.setattr(values, "OWN_ROWS_MAX", 1)
    assert rows(table, b"klk.workers") == [w]
    assert rows(table, b"klk.workers", number(1)) == [v]


def test_clients_and_workers_at_one_endpoint(table: ServiceTable) -> None:
    messages = [
        [b"w", *READY],
        [b"c", *REQUEST, b"1", b"x"],
        [b"c", b"junk"],
        [b"c", C, b"\1", b"mmi.service", b"id", b"echo"],
        [b"w", W, b"PING"],
        [b"v", b"", b"MDPW01", b"\1", b"echo"],
        [b"d", b"", b"MDPC01", b"echo", b"y"],
        [b"v", b"more junk"],
    ]
    table.broker.on_requests(Arena.from_messages(messages), 0, with_workers=True)
    table.broker.ready(0)
    assert [message[0] for message in table.to_clients] == [b"c"]
    work = [b"w", W, b"\2", number(1), b"", b"1", b"x"]
    assert table.to_workers == [[b"w", W, b"PONG"], work]
    assert (table.count("invalid_commands"), table.count("held")) == (2, 2)


def test_a_broker_disconnects_its_workers_when_it_stops(table: ServiceTable) -> None:
    table.worker([b"w", *READY], [b"v", b"MDPW02", b"\1", b"echo"])
    table.broker.disconnect_all(0)
    assert sorted(table.to_workers) == [[b"v", b"MDPW02", b"\6"], [b"w", W, b"\6"]]


# ---- random schedules ----


class Schedule:
    """Clients and workers of all framings; workers die at any point.

    A worker's answers say which attempt they belong to and their place in it, so that the clients
    see whether anything is lost, repeated or out of order.
    """

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.table = ServiceTable(SETUP._replace(inflight_max=100))
        self.names = iter(range(1000))
        self.attempts = iter(range(1000))
        self.workers: dict[bytes, list[list[bytes]]] = {}  # What each has to do: [address, id].
        self.doing: dict[tuple[bytes, bytes, bytes], list[int]] = {}  # [attempt, PARTIALs sent]
        self.answers: dict[tuple[bytes, bytes], list[tuple[bool, int, int]]] = {}

    def act(self) -> None:
        match self.dice.randrange(10):
            case 0 | 1 | 2:
                self.ask()
            case 3 | 4 | 5 | 6 if self.workers:
                self.work(self.dice.choice(list(self.workers)))
            case 7:
                name = b"w%d" % next(self.names)
                self.workers[name] = []
                self.table.worker([name, *READY, self.dice.randint(1, 4).to_bytes(2, "big")])
            case 8 if self.workers and self.dice.random() < 0.5:
                self.kill(self.dice.choice(list(self.workers)))
            case _:
                self.table.later(self.dice.randint(0, 50))
                for name in self.workers:
                    self.table.worker([name, W, b"PING"])
        self.deliver()

    def ask(self) -> None:
        key = (b"c%d" % self.dice.randint(1, 3), b"%d" % next(self.names))
        self.answers[key] = []
        ask = [key[0], *REQUEST, key[1], b"x"]
        self.table.client(*[ask] * self.dice.choice((1, 1, 2)))

    def work(self, name: bytes) -> None:
        if not self.workers[name]:
            return
        client, request_id = one = self.dice.choice(self.workers[name])
        state = self.doing.setdefault((name, client, request_id), [next(self.attempts), 0])
        is_final = self.dice.random() < 0.5
        command = b"\4" if is_final else b"\3"
        body = b"%d %d" % (state[0], state[1])
        state[1] += 1
        if is_final:
            self.workers[name].remove(one)
        self.table.worker([name, W, command, client, b"", request_id, body])

    def kill(self, name: bytes) -> None:
        """It disconnects, sends junk, or falls silent."""
        del self.workers[name]
        match self.dice.randrange(3):
            case 0:
                self.table.worker([name, W, b"\6"])
            case 1:
                self.table.worker([name, W, b"nonsense"])
            case 2:
                self.table.broker.on_workers_gone([name], self.table.now_ms)
                self.table.later(0)

    def deliver(self) -> None:
        for name, _, command, *rest in self.table.to_workers:
            if command == b"\2" and name in self.workers:
                self.workers[name].append([rest[0], rest[2]])
        for client, _, command, _, request_id, body in self.table.to_clients:
            attempt, place = map(int, body.split())
            self.answers[client, request_id].append((command == b"\3", attempt, place))

    def finish(self) -> None:
        """A live worker answers everything that is left."""
        name = b"last"
        self.workers[name] = []
        self.table.worker([name, *READY, b"\xff\xff"])
        for other in list(self.workers)[:-1]:
            self.kill(other)
        self.deliver()
        while self.workers[name]:
            self.work(name)
            self.deliver()

    def check(self) -> None:
        for key, seen in self.answers.items():
            finals = [is_final for is_final, _, _ in seen]
            assert finals == [False] * (len(seen) - 1) + [True], f"{key}: one FINAL, at the end"
            attempts = [attempt for _, attempt, _ in seen]
            assert attempts == sorted(attempts), f"{key}: no answer of a worker held dead"
            for attempt in set(attempts):
                places = [place for _, of, place in seen if of == attempt]
                assert places == list(range(len(places))), f"{key}: PARTIALs in order, none lost"
        assert self.table.count("held") == 0


@pytest.mark.parametrize("block", range(10))
def test_one_final_and_partials_in_order_despite_kills(block: int) -> None:
    resent = 0
    for seed in range(1000 * block, 1000 * block + 1000):
        schedule = Schedule(seed)
        for _ in range(schedule.dice.randint(5, 40)):
            schedule.act()
        schedule.finish()
        schedule.check()
        resent += schedule.table.count("resent")
    assert resent > 1000, "workers must die with requests"
