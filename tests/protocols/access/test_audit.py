"""Which commands are administrative; C is the twin of the table of rights."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.native.net.guard import RIGHT_ADMIN, AllowedKeys, MessageGuard
from kelek.native.net.messages import Arena
from kelek.protocols.access import audit, rights
from kelek.protocols.access.audit import AuditRecord, AuditTrail, Sender
from kelek.protocols.access.grants import Right, parse_grants
from kelek.protocols.access.guards import broker_guard, log_guard, row_of, tables_guard
from kelek.protocols.access.zap import AllowedKey, Keyring
from kelek.protocols.garlicfarm.wire.messages import MessageType
from kelek.protocols.zerodb.wire import values as zerodb

KEY = b"k" * 32
LOG, TABLES, ONE_WAY = log_guard(), tables_guard(), tables_guard(unrouted=True)


def test_each_administrative_command_of_the_log_has_a_name() -> None:
    rows = {kind for kind, right in rights.LOG.items() if audit.is_administrative(right)}
    assert rows == audit.LOG.keys()


def test_each_administrative_command_of_tables_has_a_name() -> None:
    rows = {kind for kind, right in rights.TABLES.items() if right == Right.ADMIN}
    assert rows == audit.TABLES.keys()
    mixed = {kind for kind, right in rights.TABLES.items() if audit.is_administrative(right)} - rows
    of_others = {zerodb.SESSION, zerodb.LEASE, zerodb.END_JOB}
    assert mixed == of_others, "Clients.may_use() audits these"


def test_farms_and_brokers_have_no_other_administrative_commands() -> None:
    """FarmPeer audits changes of members, and AppendPolicy the orders."""
    rows = {kind for kind, right in rights.FARM.items() if audit.is_administrative(right)}
    assert rows == {MessageType.ADD_SERVER, MessageType.REMOVE_SERVER}
    assert not any(map(audit.is_administrative, rights.BROKER_SERVICES.values()))


def audits(guard: MessageGuard, grants: str | None, frames: list[bytes]) -> bool:
    arena = Arena.from_messages([frames])
    if grants is None:
        return guard.audits(arena, 0, None, 0)
    keyring = Keyring()
    keyring.replace({KEY: AllowedKey("ann", parse_grants(grants))})
    return guard.audits(arena, 0, AllowedKeys(map(row_of, keyring.slots)), 0)


@pytest.mark.parametrize("kind", sorted(rights.LOG))
def test_c_knows_the_commands_of_the_log(kind: bytes) -> None:
    for grants in (None, "", "log.read", "admin"):
        assert audits(LOG, grants, [b"id", b"reqid", kind, b"demo"]) == (kind in audit.LOG)


@pytest.mark.parametrize("kind", sorted(rights.TABLES))
@pytest.mark.parametrize("grants", [None, "jobs", "admin", "internal"])
def test_c_knows_the_commands_of_tables(kind: int, grants: str | None) -> None:
    header = [bytes((0x31, 1, kind)), bytes(4)]
    may_all = grants is not None and Right.ADMIN in parse_grants(grants).rights
    needed = rights.TABLES[kind]
    expected = kind in audit.TABLES or (may_all and audit.is_administrative(needed))
    assert audits(TABLES, grants, [b"id", *header]) == expected
    assert audits(TABLES, grants, [b"id", b"", *header]) == expected
    assert audits(ONE_WAY, grants, header) == expected


frames_ = st.lists(
    st.one_of(st.binary(max_size=4), st.sampled_from([b"&", b"\x6b\x4c", b"1\x01\x04"])), min_size=1
)


@given(frames_, st.sampled_from([None, "", "admin"]))
def test_c_reads_any_message(frames: list[bytes], grants: str | None) -> None:
    assert audits(LOG, grants, frames) == (len(frames) > 2 and frames[2] in audit.LOG)
    for guard in (TABLES, ONE_WAY):
        audits(guard, grants, frames)
    assert not audits(broker_guard(), grants, frames)


def test_c_knows_the_right_of_administrators() -> None:
    assert RIGHT_ADMIN == Right.ADMIN


@pytest.mark.parametrize(
    ("sender", "who", "origin"),
    [
        (Sender("ann", "10.0.0.9"), "ann", "10.0.0.9"),
        (Sender("ann", "fe80::1"), "ann", "fe80::1"),
        (Sender(None, "10.0.0.9"), "-", "10.0.0.9"),
        (Sender(None, "localhost:1000:1000:4711"), "uid 1000", "pid 4711"),
        (Sender(), "-", "-"),
    ],
)
def test_who_and_from(sender: Sender, who: str, origin: str) -> None:
    assert sender.fields() == {"who": who, "from": origin}


@pytest.mark.parametrize(
    ("guard", "frames", "name"),
    [
        (LOG, [b"id", b"reqid", b"\x26"], "set-members"),
        (LOG, [b"id", b"reqid", b"="], "log 3d"),
        (LOG, [b"id"], "log "),
        (TABLES, [b"id", b"1\x01\x04"], "truncate-table"),
        (TABLES, [b"id", b"", b"1\x01\x20"], "tables 20"),
        (TABLES, [b"id"], "tables "),
        (ONE_WAY, [b"1\x01\x01", b"x"], "open-table"),
        (broker_guard(), [b"id", b"MDPC02"], "broker request"),
    ],
)
def test_names_of_denied_requests(guard: MessageGuard, frames: list[bytes], name: str) -> None:
    assert audit.denied_command(guard.kind, guard.unrouted, frames) == name


def test_a_trail_is_bounded() -> None:
    trail, record = AuditTrail(), AuditRecord("transfer", audit.OK, Sender())
    for _ in range(audit.RECORDS_MAX + 2):
        trail.add(record)
    assert len(trail.pop()) == audit.RECORDS_MAX
    assert trail.lost == 2
    assert not trail
