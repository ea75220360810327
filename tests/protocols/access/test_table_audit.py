"""Each administrative command to tables has one record, when its answer is sent."""

from typing import Any

import pytest

from kelek.native.net.messages import Arena
from kelek.protocols.access import audit
from kelek.protocols.access.audit import AuditRecord, AuditTrail, Sender
from kelek.protocols.access.grants import parse_grants
from kelek.protocols.access.table_audit import PENDING_MAX, TableAudit, is_audited
from kelek.protocols.access.zap import AllowedKey, Keyring
from kelek.protocols.zerodb.server.clients import Clients, decode_client, encode_client
from kelek.protocols.zerodb.wire import answers, requests, values
from kelek.protocols.zerodb.wire.requests import RequestError, encode_request, type_of
from kelek.protocols.zerodb.wire.values import NO_EXTENSION, Extension

SENDER = Sender("ann", "10.0.0.9")
REQID = b"abcdefghijkl"
EXTENSION = Extension(reqid=REQID)
ID = b"\0id"


class Audited:
    def __init__(self) -> None:
        self.trail = AuditTrail()
        self.audit = TableAudit(self.trail)

    def begin(self, request: Any, prefix: tuple[bytes, ...] = (ID,)) -> None:
        frames = encode_request(request)
        assert is_audited(frames)
        self.audit.begin([*prefix], frames, SENDER)

    def answer(self, *messages: list[bytes], skip: int = 0) -> list[AuditRecord]:
        self.audit.on_answers(Arena.from_messages([*messages]), skip)
        return self.trail.pop()


def ok(request: Any) -> list[bytes]:
    return answers.encode_ok(request)


@pytest.mark.parametrize("prefix", [(ID,), (ID, b"")])
@pytest.mark.parametrize("extension", [NO_EXTENSION, EXTENSION])
def test_a_command_and_its_answer(prefix: tuple[bytes, ...], extension: Extension) -> None:
    request = requests.CompactTable(7, extension=extension)
    other = [b"\0other", *ok(request)]
    audited = Audited()
    audited.begin(request, prefix)
    assert not audited.answer(other, [*prefix, *ok(requests.TruncateTable(7))], [ID], [ID, b""])
    (record,) = audited.answer(other, [*prefix, *ok(request)], [*prefix, *ok(request)])
    assert record == AuditRecord(
        "compact-table", record.result, SENDER, {"table": 7}, extension.reqid
    )
    assert record.result in (audit.OK, audit.ACKNOWLEDGED)
    assert not len(audited.audit)


def test_an_answer_of_a_worker_has_a_tag() -> None:
    audited, request = Audited(), requests.CloseTable(7)
    audited.begin(request)
    (record,) = audited.answer([b"tag", ID, *ok(request)], skip=1)
    assert record.command == "close-table"


@pytest.mark.parametrize(
    ("code", "result"), [(values.ERROR, "no disk"), (values.NOT_ALLOWED, audit.DENIED)]
)
def test_a_command_that_fails(code: int, result: str) -> None:
    audited, request = Audited(), requests.TruncateTable(7)
    audited.begin(request)
    refusal = answers.encode_refusal(RequestError(type_of(request), code, "no disk"))
    (record,) = audited.answer([ID, *refusal])
    assert record.result == result


def test_answers_without_a_request_id_come_in_order() -> None:
    audited = Audited()
    for table in (7, 8):
        audited.begin(requests.TruncateTable(table))
    found = audited.answer(*[[ID, *ok(requests.TruncateTable(0))]] * 2)
    assert [record.arguments["table"] for record in found] == [7, 8]


def test_a_command_over_pull_has_no_answer() -> None:
    audited = Audited()
    audited.begin(requests.TruncateTable(7), ())
    assert [record.result for record in audited.trail.pop()] == [audit.UNANSWERED]


def test_commands_without_answers_are_bounded() -> None:
    audited = Audited()
    for number in range(PENDING_MAX + 1):
        audited.begin(requests.TruncateTable(number), (b"%d" % number,))
    (record,) = audited.trail.pop()
    assert (record.result, record.arguments) == (audit.UNANSWERED, {"table": 0})
    assert len(audited.audit) == PENDING_MAX


def test_no_other_request_is_a_command() -> None:
    assert not is_audited(encode_request(requests.Put(7, [b"k"], [b"v"])))
    assert not is_audited([])


@pytest.mark.parametrize(
    ("grants", "enforces", "result"),
    [
        ("admin", True, audit.OK),
        ("jobs", True, audit.DENIED),
        ("jobs", False, audit.ALLOWED),
    ],
)
@pytest.mark.parametrize("what", ["session 5", "lease 5", "data job 5"])
def test_use_of_what_belongs_to_another_key(
    grants: str, enforces: bool, result: str, what: str
) -> None:
    keyring, clients = Keyring(), Clients(enforces)
    keyring.replace({b"k" * 32: AllowedKey("ann", parse_grants(grants))})
    clients.attach(keyring)
    client = clients.of(Arena.from_messages([[b"id"]], 0, address="10.0.0.9"), 0)
    assert client == keyring.slots[0].allowed
    assert client is not None
    for each in (client, decode_client(encode_client(client))):  # Also in job_server.
        assert clients.may_use(each, "bob", what) == (result != audit.DENIED)
        assert clients.may_use(each, "ann", what)
        (record,) = clients.trail.pop()
        command = "use-" + what.removesuffix(" 5").replace(" ", "-")
        arguments = {"number": "5", "owner": "bob"}
        assert record == AuditRecord(command, result, SENDER, arguments)
