"""Each administrative command to a peer has one record, when it is answered."""

import pytest

from kelek.protocols.access import audit
from kelek.protocols.access.audit import AuditRecord
from kelek.protocols.access.log_audit import PENDING_MAX
from kelek.protocols.raft.messages import AppendEntries
from kelek.protocols.reqids import make_reqids
from kelek.protocols.zmqraft.wire import config_codec, snapshot_codec, transfer_codec
from kelek.protocols.zmqraft.wire import values as v
from kelek.tests.protocols.zmqraft.server.test_peer import CLUSTER, Alone
from kelek.tests.protocols.zmqraft.server.test_transfer import leader

REQID = make_reqids(1_800_000_000, b"abc", 1, [1])[0]
MEMBERS = [["n1", "tcp://127.0.0.1:1"]]
REQUESTS = {
    v.CONFIG_UPDATE: config_codec.CONFIG_UPDATE_REQUEST.encode(
        config_codec.ConfigUpdate(REQID, v.encode_json(MEMBERS)), cluster=CLUSTER
    ),
    v.TRANSFER: transfer_codec.TRANSFER_REQUEST.encode(
        transfer_codec.RequestTransfer(REQID, "n2"), cluster=CLUSTER
    ),
    v.MAKE_SNAPSHOT: snapshot_codec.MAKE_SNAPSHOT_REQUEST.encode(
        snapshot_codec.MakeSnapshot(REQID), cluster=CLUSTER
    ),
}


def records(alone: Alone) -> list[AuditRecord]:
    alone.wake()
    return alone.peer.audit_trail.pop()


def test_these_are_all_commands() -> None:
    assert REQUESTS.keys() == audit.LOG.keys()


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize("socket", ["clients", "peers"])
def test_a_malformed_command(kind: bytes, socket: str) -> None:
    alone, frames = leader(), list(REQUESTS[kind])
    frames[2] = b"another"  # The cluster.
    assert not alone.ask(*frames, socket=socket)
    (record,) = records(alone)
    assert (record.command, record.result) == (audit.LOG[kind], "malformed")


def test_a_change_of_members_that_is_refused() -> None:
    alone = leader()
    assert alone.ask(*REQUESTS[v.CONFIG_UPDATE], socket="clients")
    (record,) = records(alone)
    assert record.result.startswith("Unversed: ")
    assert record.arguments == {"members": MEMBERS}
    assert record.request == REQID


def test_repeats_of_a_transfer_are_one_command() -> None:
    alone = leader()
    for _ in range(3):
        assert not alone.ask(*REQUESTS[v.TRANSFER], socket="clients")
    assert not records(alone), "it is not answered"
    term = alone.peer.core.term + 1
    alone.append(AppendEntries(term, "n2", 1, term - 1, 1))
    (record,) = records(alone)
    assert (record.result, record.arguments) == (audit.OK, {"to": "n2"})


def test_a_transfer_that_is_refused() -> None:
    alone = leader()
    request = transfer_codec.RequestTransfer(REQID, "n9")
    alone.ask(*transfer_codec.TRANSFER_REQUEST.encode(request, cluster=CLUSTER), socket="clients")
    (record,) = records(alone)
    assert record.result == "n9 is no member of the cluster"


def test_a_peer_that_does_not_lead_decides_nothing() -> None:
    alone = Alone()
    for kind in (v.CONFIG_UPDATE, v.TRANSFER):
        assert alone.ask(*REQUESTS[kind], socket="clients")
    assert not records(alone)


def test_commands_without_answers_are_bounded() -> None:
    """None is lost: the oldest has a record."""
    alone, count = leader(), PENDING_MAX + 2
    requests = [snapshot_codec.MakeSnapshot(b"%d" % number) for number in range(count)]
    encode = snapshot_codec.MAKE_SNAPSHOT_REQUEST.encode
    messages = [[b"route", *encode(request, cluster=CLUSTER)] for request in requests]
    alone.ask_all(messages, "clients")
    found = records(alone)
    assert {each.request for each in found} >= {b"0", b"1"}
    assert [each.result for each in found[:2]] == [audit.UNANSWERED] * 2
    assert len({each.request for each in found}) == len(found)
