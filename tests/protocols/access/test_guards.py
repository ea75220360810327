"""What C refuses is what the tables of rights and the grants of a key say."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kelek.protocols.zmqraft.wire
from kelek.native.net.guard import AllowedKeys, MessageGuard
from kelek.native.net.messages import Arena
from kelek.protocols.access import rights
from kelek.protocols.access.grants import Grants, Right, parse_grants
from kelek.protocols.access.guards import log_guard, row_of, tables_guard
from kelek.protocols.access.zap import AllowedKey, Keyring
from kelek.protocols.zerodb.wire import requests
from kelek.protocols.zerodb.wire.requests import encode_request, type_of
from kelek.tests.protocols.layouts import encoded, layouts
from kelek.tests.protocols.zerodb.wire import messages
from kelek.tests.protocols.zmqraft.wire_strategies import STRATEGIES

LOG, TABLES = log_guard(), tables_guard()
LOG_LAYOUTS = layouts(kelek.protocols.zmqraft.wire)

tables = st.sampled_from(["*", "0", "7", "0-7", "5-4294967295", "1,7,9-40"])
words = st.one_of(
    st.sampled_from(["log.read", "log.append", "jobs", "observer", "admin", "peer", "internal"]),
    st.builds("tables:{}:{}".format, tables, st.sampled_from(["r", "rw"])),
)
grants_ = st.lists(words, max_size=3).map(lambda found: parse_grants(" ".join(found)))


def allows(guard: MessageGuard, grants: Grants, frames: list[bytes]) -> bool:
    keyring = Keyring()
    keyring.replace({b"a" * 32: AllowedKey("other", Grants()), b"k" * 32: AllowedKey("k", grants)})
    keys = AllowedKeys(map(row_of, keyring.slots))
    slot = keyring.slot_of(b"k" * 32)
    assert slot is not None
    return guard.allows(keys, slot.number, Arena.from_messages([[b"before"], frames]), 1)


def expected(grants: Grants, request: Any) -> bool:
    """The twin of csrc/net/guard.c."""
    needed = rights.TABLES[type_of(request)]
    if not grants.rights & needed:
        return False
    if isinstance(request, requests.WriteTables | requests.Transaction | requests.Lease):
        return grants.may(Right.INTERNAL)
    if needed == Right.ADMIN:
        return True
    for field in ("table", "source", "target"):
        if hasattr(request, field):
            table = getattr(request, field)
            writes = field == "target" or needed == Right.TABLE_WRITE
            if table is None:
                return grants.may(Right.OBSERVE)
            if not grants.may_use_table(table, writes):
                return False
    return True


@given(grants_, messages.request(), st.booleans())
def test_requests_of_tables(grants: Grants, request: Any, by_req: bool) -> None:
    frames = [b"id", *([b""] if by_req else []), *encode_request(request)]
    assert allows(TABLES, grants, frames) == expected(grants, request)


@given(st.data(), grants_)
@pytest.mark.parametrize("layout", LOG_LAYOUTS, ids=lambda layout: layout.name)
def test_messages_of_the_log(layout: Any, data: st.DataObject, grants: Grants) -> None:
    _, frames = data.draw(encoded(layout, STRATEGIES))
    needed = rights.LOG.get(frames[1], Right(0)) if len(frames) > 1 else None
    result = allows(LOG, grants, [b"id", *frames])
    assert result == (needed is None or bool(grants.rights & needed))


@pytest.mark.parametrize("kind", [b"", b"z", b"\x6bz", b"zz", b"\x6b\x3dz", b"\x00", b"\x6b"])
def test_unknown_types_of_the_log_are_refused_to_all(kind: bytes) -> None:
    assert not allows(LOG, parse_grants("internal"), [b"id", b"reqid", kind, b"rest"])


def test_unknown_types_of_tables_are_refused_to_all() -> None:
    for kind in set(range(256)) - rights.TABLES.keys():
        assert not allows(TABLES, parse_grants("internal"), [b"id", bytes((0x31, 1, kind)), b"x"])


@given(grants_, st.lists(st.binary(max_size=6), min_size=1, max_size=6))
def test_any_frames_are_allowed_or_refused(grants: Grants, frames: list[bytes]) -> None:
    for guard in (LOG, TABLES):
        allows(guard, grants, frames)


def test_a_type_outside_the_tables_of_c() -> None:
    with pytest.raises(ValueError, match="7a7a"):
        MessageGuard(1, {b"zz": 1})
