"""What the keys of clients own: sessions, leases of all nodes; requests that they may not send."""

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.native.net.messages import Arena
from kelek.protocols.access.audit import OK
from kelek.protocols.access.grants import EVERYTHING, Grants, parse_grants
from kelek.protocols.access.zap import AllowedKey, Keyring
from kelek.protocols.zerodb.server import clients as sessions
from kelek.protocols.zerodb.server.clients import (
    Clients,
    decode_client,
    encode_client,
    may_hold,
)
from kelek.protocols.zerodb.server.session import Session
from kelek.protocols.zerodb.wire import answers, ops, requests, values
from kelek.protocols.zerodb.wire import worker_pipe as pipe
from kelek.protocols.zerodb.wire.kept import KeptRow, encode_kept, kept_key
from kelek.protocols.zerodb.wire.requests import decode_request, encode_request, type_of
from kelek.protocols.zerodb.wire.values import NOT_ALLOWED, OWNER_TABLE, PARTSYNC, Extension
from kelek.protocols.zerodb.wire.worker_pipe import (
    JOB_WRITE,
    KEY_CHANGED,
    KEYED,
    LEASE,
    OWNERS,
    PIPE_HEADER,
    OperationResult,
)
from kelek.tests.protocols.zerodb.server.served import SessionHarness, entries, led
from kelek.tests.protocols.zerodb.wire import messages

SESSION = 99
TAGGED = Extension(reqid=b"r" * 12)
UNDER_IT = Extension(reqid=b"r" * 12, lease=SESSION)
GRANTS = {"ann": "tables:7:rw jobs", "bob": "tables:7:rw jobs", "eve": "tables:7:rw admin"}
USES: list[requests.Request] = [
    requests.Session(requests.SESSION_KEEP, SESSION, extension=TAGGED),
    requests.Session(requests.SESSION_END, SESSION, extension=TAGGED),
    requests.Put(7, [b"k"], [b"v"], PARTSYNC, UNDER_IT),
    requests.Put(7, [b"k"], [b"v"], 0, UNDER_IT),
    requests.Transaction([], [ops.Put(7, [b"k"], [b"v"])], [], PARTSYNC, UNDER_IT),
    requests.Transaction(
        [ops.Compare(7, SESSION.to_bytes(8, "little"), ops.ALIVE)], [], [], PARTSYNC, TAGGED
    ),
]


def refused(session: Session) -> list[tuple[str | None, int]]:
    """Which keys were refused, or reported, for which sessions."""
    found = session.clients.trail.pop()
    assert all(each.command == "use-session" and each.result != OK for each in found)
    return [(each.sender.key, int(str(each.arguments["number"]))) for each in found]


class KeyedClients:
    """The keys of some clients, which send to a session."""

    def __init__(self, harness: SessionHarness) -> None:
        self.harness = harness
        self.keyring = Keyring()
        self.allow(GRANTS)
        harness.session.clients.attach(self.keyring)

    def allow(self, grants: dict[str, str]) -> None:
        self.keyring.replace(
            {
                name.encode() * 8: AllowedKey(name, parse_grants(text))
                for name, text in grants.items()
            }
        )

    def ask(self, name: str, request: requests.Request) -> bytes:
        """Sends a request under a key; returns the routing id."""
        slot = self.keyring.slot_of(name.encode() * 8)
        assert slot is not None
        routing_id = b"%s-%d" % (name.encode(), len(self.harness.answers))
        arena = Arena.from_messages([[routing_id, *encode_request(request)]], slot.number)
        self.harness.session.on_requests(arena, self.harness.now)
        return routing_id

    def answer(self, routing_id: bytes) -> answers.Answer:
        self.harness.run(lambda: bool(self.harness.heard(routing_id)))
        return self.harness.heard(routing_id)[0]

    def open_session(self, routing_id: bytes) -> answers.Answer:
        """Answers a client that has asked for a session: a worker reports its number."""
        harness = self.harness
        harness.applies = False
        harness.run(lambda: bool(harness.log.records) and not harness.client.window.items)
        result = OperationResult(0, SESSION.to_bytes(8, "little"))
        harness.session.writes.proposals.on_results([(1, result)])
        harness.applies = True
        return self.answer(routing_id)


@pytest.fixture
def clients() -> KeyedClients:
    return KeyedClients(led())


def test_the_owner_of_a_session_is_in_the_log_before_its_answer(clients: KeyedClients) -> None:
    opening = requests.Session(requests.SESSION_OPEN, 0, 500, 0, TAGGED)
    answer = clients.open_session(clients.ask("ann", opening))
    assert (answer.code, answer.frames) == (0, [SESSION.to_bytes(8, "little")])
    (opened,), (noted,) = entries(clients.harness)
    assert isinstance(opened, ops.SessionOpen)
    key = SESSION.to_bytes(8, "big")
    put: list[ops.Op] = [
        ops.Put(OWNER_TABLE, [key], [b"ann"]), ops.Attach(OWNER_TABLE, SESSION, [key])
    ]  # fmt: skip
    alive = ops.Compare(OWNER_TABLE, SESSION.to_bytes(8, "little"), ops.ALIVE, ops.REQUIRED)
    assert noted == ops.Transaction(OWNER_TABLE, values.NO_REQID, [alive], put, [])


def test_an_open_session_tells_its_own_index(clients: KeyedClients) -> None:
    """And not that of its owner's entry, which shares a pack with a write that asks, too."""
    harness = clients.harness
    asked = TAGGED._replace(flags=values.WITH_INDEX)
    routing_id = clients.ask("ann", requests.Session(requests.SESSION_OPEN, 0, 500, 0, asked))
    harness.applies = False
    harness.run(lambda: bool(harness.log.records) and not harness.client.window.items)
    result = OperationResult(0, SESSION.to_bytes(8, "little"))
    harness.session.writes.proposals.on_results([(1, result)])
    harness.applies = True
    put = requests.Put(7, [b"k"], [b"v"], values.PARTSYNC, asked._replace(reqid=b"p" * 12))
    harness.ask(b"p", *encode_request(put))
    assert clients.answer(routing_id).log_index == 1
    harness.run(lambda: bool(harness.heard(b"p")))
    assert harness.heard(b"p")[0].log_index == 2
    assert isinstance(entries(harness)[2][0], ops.Transaction), "the owner's"


def test_the_sessions_of_a_key_are_limited(
    clients: KeyedClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "KEY_SESSIONS_MAX", 2)
    lease = values.shared_lease(7)
    session = clients.harness.session
    session.clients.owners = {3: "ann", 4: "bob", lease: "ann"}
    opening = requests.Session(requests.SESSION_OPEN, 0, 500, 0, TAGGED)
    clients.ask("ann", opening)
    answer = clients.answer(clients.ask("ann", opening))
    assert (answer.code, answer.text[:12]) == (values.ERROR, "the key has ")
    assert session.outbox.counters["client_limit_refused"] == 1
    assert clients.open_session(clients.ask("bob", opening)).code == 0
    session.clients.owners = {3: "ann", 4: "bob", 5: "bob"}
    assert session.clients.may_open_session(AllowedKey("ann", EVERYTHING)), "one has ended"


def test_a_client_without_a_key_owns_nothing(clients: KeyedClients) -> None:
    harness = clients.harness
    harness.ask(b"c", *encode_request(requests.Session(requests.SESSION_OPEN, 0, 500)))
    assert clients.open_session(b"c").code == 0
    assert len(entries(harness)) == 1


@pytest.mark.parametrize("use", USES, ids=lambda use: type(use).__name__)
def test_no_other_key_uses_a_session(clients: KeyedClients, use: requests.Request) -> None:
    harness = clients.harness
    harness.session.clients.owners = {SESSION: "ann"}
    answer = clients.answer(clients.ask("bob", use))
    assert (answer.request_type, answer.code) == (type_of(use), NOT_ALLOWED)
    assert answer.text == f"session {SESSION} is of another key"
    assert entries(harness) == []
    assert refused(harness.session) == [("bob", SESSION)]
    for number, name in enumerate(("ann", "eve", None), 1):
        frames = encode_request(
            use._replace(extension=use.extension._replace(reqid=bytes(11) + bytes([number])))
        )
        if name is None:
            harness.ask(b"c", *frames)
        else:
            clients.ask(name, decode_request(frames))
        harness.run(lambda number=number: len(harness.log.records) == number)  # type: ignore[misc]


def test_what_is_only_reported_is_done(clients: KeyedClients) -> None:
    session = clients.harness.session
    session.clients.owners, session.clients.enforces = {SESSION: "ann"}, False
    clients.ask("bob", USES[0])
    clients.harness.run(lambda: bool(clients.harness.log.records))
    assert refused(session) == [("bob", SESSION)]


def test_the_owner_of_a_fresh_session_is_asked_of_the_leader(clients: KeyedClients) -> None:
    """Another node has opened it, and this one has not applied that."""
    harness = clients.harness
    harness.applies = False
    name = clients.ask("bob", USES[0])
    harness.at(50, lambda: None)
    harness.run(lambda: harness.now_ms >= 50)
    assert not entries(harness)
    assert not harness.heard(name)
    harness.session.clients.owners = {SESSION: "ann"}  # The report that comes with the index.
    harness.applies = True
    assert clients.answer(name).code == NOT_ALLOWED
    assert entries(harness) == []


def test_a_waiting_write_of_a_revoked_key_is_not_done(clients: KeyedClients) -> None:
    clients.harness.applies = False
    name = clients.ask("bob", USES[2])
    clients.allow({"ann": GRANTS["ann"]})
    clients.harness.applies = True
    assert clients.answer(name).code == NOT_ALLOWED
    assert entries(clients.harness) == []


def test_the_sessions_of_a_revoked_key_end(clients: KeyedClients) -> None:
    harness = clients.harness
    lease = values.shared_lease(5)
    harness.session.clients.owners = {3: "ann", 4: "bob", 5: "ann", lease: "ann"}
    harness.session.writes.end_sessions(["ann"])
    harness.run(lambda: len(harness.log.records) == 2)
    assert entries(harness) == [[ops.SessionEnd(0, 3)], [ops.SessionEnd(0, 5)]]


# ---- jobs ----


def test_job_server_learns_the_key_of_a_request(clients: KeyedClients) -> None:
    harness = clients.harness
    clients.ask("ann", requests.JobStatus(5))
    harness.ask(b"c", *encode_request(requests.JobStatus(5)))
    harness.session.jobs.on_key_changed(AllowedKey("ann", Grants()))
    harness.session.clients.owners = {7: "ann", values.shared_lease(7): "bob"}
    harness.session.jobs.send_owners()
    harness.run(lambda: len(harness.jobs) == 4)
    (keyed, *_, client), plain, changed, owners = harness.jobs
    assert PIPE_HEADER.unpack(keyed)[1] == KEYED
    assert decode_client(client) == AllowedKey("ann", parse_grants(GRANTS["ann"]))
    assert (PIPE_HEADER.unpack(plain[0])[1], len(plain)) == (0, 4)
    assert (PIPE_HEADER.unpack(changed[0])[0], changed[1]) == (
        KEY_CHANGED, encode_client(AllowedKey("ann", Grants())),
    )  # fmt: skip
    assert PIPE_HEADER.unpack(owners[0])[0] == OWNERS
    assert msgpack.unpackb(owners[1], strict_map_key=False) == {values.shared_lease(7): "bob"}
    assert len(owners) == 2, "no worker has told yet which leases are kept"


def test_job_server_learns_which_leases_are_kept(clients: KeyedClients) -> None:
    harness = clients.harness
    kept, other = values.shared_lease(7), values.shared_lease(9)
    rows = [KeptRow(7, kept, "a", 1, 2, "ann"), KeptRow(8, other)]
    report = pipe.encode_kept_rows([(kept_key(*row[:2]), encode_kept(row)) for row in rows])
    none = pipe.encode_owners([], 8)
    tables = [pipe.encode_tables({}), pipe.encode_tables({}), none, none, report]
    epoch = harness.session.channels[0].epoch
    assert epoch is not None
    head = (pipe.TABLES, 0, 0, 0, 0, epoch)
    harness.session.on_report(head, tables, 0, 0)
    harness.session.jobs.send_owners()
    harness.run(lambda: len(harness.jobs) >= 2)
    for _, owners, leases in harness.jobs:
        assert msgpack.unpackb(owners, strict_map_key=False) == {kept: "ann"}
        assert msgpack.unpackb(leases) == [kept, other]
    # The end of a lease, as of a key that was revoked, is that of its row.
    ended = [bytes(4), ops.pack([ops.LeaseEnd(0, kept)]), b"", b""]
    harness.session.on_job_request((LEASE, 0, 0, 0, 0, 78), ended, harness.now)
    harness.run(lambda: len(harness.log.records) == 2)
    assert entries(harness)[1] == [ops.Delete(values.SNAPSHOT_TABLE, [kept_key(7, kept)])]


def test_the_owner_of_a_lease_of_all_nodes_is_in_the_log(clients: KeyedClients) -> None:
    harness = clients.harness
    head, table = (LEASE, 0, 0, 0, 0, 77), (7).to_bytes(4, "little")
    opened = [table, ops.pack([ops.LeaseOpen(7, 1)]), b"r" * 12, b"ann"]
    harness.session.on_job_request(head, opened, harness.now)
    harness.run(lambda: len(harness.log.records) == 2)
    (message,) = harness.jobs
    assert PIPE_HEADER.unpack(message[0]) == (JOB_WRITE, 0, 0, 0, 1, 77)
    _, (put, expiry) = entries(harness)
    lease = values.shared_lease(1)
    assert put == ops.Put(OWNER_TABLE, [lease.to_bytes(8, "big")], [b"ann"])
    assert isinstance(expiry, ops.Expiry)

    harness.session.clients.owners = {lease: "ann"}
    ended = [bytes(4), ops.pack([ops.LeaseEnd(0, lease)]), b"", b""]
    harness.session.on_job_request((LEASE, 0, 0, 0, 0, 78), ended, harness.now)
    harness.run(lambda: len(harness.log.records) == 4)
    assert entries(harness)[3] == [ops.Delete(OWNER_TABLE, [lease.to_bytes(8, "big")])]


@pytest.mark.parametrize(
    ("grants", "expected"),
    [
        ("jobs tables:7-8:rw", True),
        ("jobs tables:7:r tables:8:rw", True),
        ("jobs tables:7-8:r", False),
        ("jobs tables:8:rw", False),
        ("tables:7-8:rw", False),
        ("", False),
    ],
)
def test_grants_for_a_job_that_reads_7_and_writes_8(grants: str, expected: bool) -> None:
    assert may_hold(AllowedKey("ann", parse_grants(grants)), 7, 8) is expected


def test_the_keys_of_a_name_are_one_client() -> None:
    keyring, clients = Keyring(), Clients()
    keyring.replace(
        {
            b"1" * 32: AllowedKey("ann", parse_grants("jobs")),
            b"2" * 32: AllowedKey("ann", parse_grants("tables:7:r")),
            b"3" * 32: AllowedKey("bob", parse_grants("admin")),
        }
    )
    clients.attach(keyring)
    assert clients.current("ann").grants == parse_grants("jobs tables:7:r")
    assert clients.current("eve").grants == Grants()


def test_workers_learn_which_tables_a_key_may_still_read() -> None:
    keyring, clients = Keyring(), Clients()
    old, new, other = b"1" * 32, b"2" * 32, b"3" * 32
    ann = AllowedKey("ann", parse_grants("tables:7-8:r"))
    keyring.replace({old: ann, new: ann, other: AllowedKey("bob", parse_grants("tables:*:rw"))})
    clients.attach(keyring)
    changes = keyring.replace(
        {
            new: AllowedKey("ann", parse_grants("tables:8:r")),
            other: AllowedKey("bob", parse_grants("jobs")),
        }
    )
    assert sorted(clients.readable(change) for change in changes) == [[], [], [(8, 8)]]
    clients.enforces = False  # A revoked key may read nothing nevertheless.
    found = {bool(each.slot.key): clients.readable(each) for each in changes}
    assert found == {False: [], True: [(0, values.TABLE_MAX)]}


# ---- denials ----


@given(messages.request(), st.booleans())
def test_denied_requests_are_answered_in_their_form(request: Any, by_req: bool) -> None:
    session = KeyedClients(led()).harness.session
    prefix = [b"id", b""] if by_req else [b"id"]
    frames = [*prefix, *encode_request(request)][:4]  # As C keeps them.
    (denial,) = session.on_denied(Arena.from_messages([frames], 0), True)
    assert denial.fields()["key"] in GRANTS
    (message,) = session.outbox.out.messages()
    assert message[: len(prefix)] == prefix
    answer = answers.decode_answer(message[len(prefix) :])
    assert answer.failed
    assert answer.reqid == request.extension.reqid
    if not isinstance(request, requests.ClientData | requests.ServerInfo):
        assert (answer.request_type, answer.code) == (type_of(request), NOT_ALLOWED)
    assert answer.text == "the key has no grant for this request"


def test_denied_one_way_requests_are_an_event() -> None:
    session = KeyedClients(led()).harness.session
    frames = encode_request(requests.Put(8, [b"k"], [b"v"]))
    (denial,) = session.on_denied(Arena.from_messages([frames], 0), False)
    assert (denial.answer, denial.request_type, denial.table) == ([], values.PUT, 8)
    assert not session.outbox.out.count
    assert session.outbox.notices == [(2, "dropped: the key has no grant for it")]
