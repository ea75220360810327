"""What C refuses is what the tables of rights and the grants of a key say."""

import contextlib
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kelek.protocols.zmqraft.wire
from kelek.native.net.guard import RIGHT_INTERNAL, AllowedKeys, MessageGuard
from kelek.native.net.messages import Arena
from kelek.protocols.access import rights
from kelek.protocols.access.grants import Grants, Right, parse_grants
from kelek.protocols.access.guards import (
    PEER_REQUESTS,
    broker_guard,
    log_guard,
    row_of,
    tables_guard,
)
from kelek.protocols.access.zap import NULL, AllowedKey, Keyring
from kelek.protocols.majordomo import codec, values
from kelek.protocols.majordomo.values import Framing, Headers
from kelek.protocols.wire import Constant
from kelek.protocols.zerodb.wire import ops, requests
from kelek.protocols.zerodb.wire.requests import (
    Lease,
    Transaction,
    WriteTables,
    decode_request,
    encode_request,
    type_of,
)
from kelek.protocols.zmqraft.wire import values as zmqraft
from kelek.protocols.zmqraft.wire.values import REQUEST_VOTE
from kelek.tests.protocols.layouts import encoded, layouts
from kelek.tests.protocols.zerodb.wire import messages
from kelek.tests.protocols.zmqraft.wire_strategies import STRATEGIES

KEY_NAME = b"n1"
LOG, TABLES, ONE_WAY = log_guard(), tables_guard(), tables_guard(unrouted=True)
HEADERS = Headers(b"CLIENT", b"W", b"DEADLINE", b"NAMED")  # Not the defaults.
BROKER = broker_guard(HEADERS)
LOG_LAYOUTS = layouts(kelek.protocols.zmqraft.wire)

tables = st.sampled_from(["*", "0", "7", "0-7", "5-4294967295", "1,7,9-40"])
words = st.one_of(
    st.sampled_from(["log.read", "log.append", "jobs", "observer", "admin", "peer", "internal"]),
    st.builds("tables:{}:{}".format, tables, st.sampled_from(["r", "rw"])),
)
grants_ = st.lists(words, max_size=3).map(lambda found: parse_grants(" ".join(found)))


def allows(
    guard: MessageGuard, grants: Grants, frames: list[bytes], key: bytes = b"k" * 32
) -> bool:
    keyring = Keyring()
    name = KEY_NAME.decode()
    keyring.replace({b"a" * 32: AllowedKey("other", Grants()), key: AllowedKey(name, grants)})
    keys = AllowedKeys(map(row_of, keyring.slots))
    slot = keyring.slot_of(key)
    assert slot is not None
    return guard.allows(keys, slot.number, Arena.from_messages([[b"before"], frames]), 1)


def tables_used(request: Any) -> Iterator[tuple[int | None, bool]]:
    """The tables that a request names, and whether it writes them; None: all tables."""
    writes = rights.TABLES[type_of(request)] == Right.TABLE_WRITE
    match request:
        case requests.WriteTables(parts=parts):
            yield from ((part.table, True) for part in parts)
        case requests.Transaction(compares=compares, then=then, otherwise=otherwise):
            yield from ((compare.table, False) for compare in compares)
            yield from (
                (op.table, not isinstance(op, ops.Get | ops.GetRange)) for op in (*then, *otherwise)
            )
        case requests.Lease(action=action, table=table):
            if action == requests.LEASE_OPEN:
                yield table, False
        case _:
            for field in {"table", "source", "target"} & {*request._fields}:
                yield getattr(request, field), field == "target" or writes


def expected(grants: Grants, request: Any) -> bool:
    """The twin of csrc/net/guard.c."""
    needed = rights.TABLES[type_of(request)]
    if not grants.rights & needed:
        return False
    return needed == Right.ADMIN or all(
        grants.may(Right.OBSERVE) if table is None else grants.may_use_table(table, writes)
        for table, writes in tables_used(request)
    )


@given(grants_, messages.request(), st.booleans())
def test_requests_of_tables(grants: Grants, request: Any, by_req: bool) -> None:
    frames = encode_request(request)
    envelope = [b""] if by_req else []
    assert allows(TABLES, grants, [b"id", *envelope, *frames]) == expected(grants, request)
    assert allows(ONE_WAY, grants, frames) == expected(grants, request)


SOME = parse_grants("tables:0-3:r tables:4-8:rw jobs")


def with_few_tables(request: Any) -> Any:
    """The same request of the tables 0 to 9."""
    if isinstance(request, Lease):
        return request._replace(table=request.table % 10)
    parts = {"parts", "compares", "then", "otherwise"} & {*request._fields}
    return request._replace(
        **{
            part: [op._replace(table=op.table % 10) for op in getattr(request, part)]
            for part in parts
        }
    )


@pytest.mark.parametrize("kind", [WriteTables, Transaction, Lease])
@given(data=st.data())
def test_all_tables_of_a_request_are_compared(data: st.DataObject, kind: type[Any]) -> None:
    request = with_few_tables(data.draw(messages.request(kind)))
    assert allows(TABLES, SOME, [b"id", *encode_request(request)]) == expected(SOME, request)


@given(st.data(), st.just(SOME) | grants_, st.sampled_from([WriteTables, Transaction, Lease]))
def test_a_request_that_c_did_not_understand_is_malformed(
    data: st.DataObject, grants: Grants, kind: type[Any]
) -> None:
    """What C allows and the codec decodes names no table that the key may not use."""
    frames = encode_request(with_few_tables(data.draw(messages.request(kind))))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(1, len(frames)))
        number = data.draw(st.sampled_from([0, 1, 2, 2**31, 2**32 - 1])).to_bytes(4, "little")
        ends = [
            b"",
            b"\0",
            b"\2",
            b"\x20",
            number + b"\0",
            number + b"\1",
            number + b"\2",
            2 * number,
        ]
        changed = data.draw(st.sampled_from([b"", b"\0", b"\2", *(number + end for end in ends)]))
        frames[at:at] = [changed]
        del frames[at + 1 : at + 1 + data.draw(st.integers(0, 2))]
    if allows(TABLES, grants, [b"id", *frames]):
        with contextlib.suppress(requests.RequestError):
            assert expected(grants, decode_request(frames))


@given(st.data(), grants_)
@pytest.mark.parametrize("layout", LOG_LAYOUTS, ids=lambda layout: layout.name)
def test_messages_of_the_log(layout: Any, data: st.DataObject, grants: Grants) -> None:
    _, frames = data.draw(encoded(layout, STRATEGIES))
    needed = rights.LOG.get(frames[1], Right(0)) if len(frames) > 1 else None
    result = allows(LOG, grants, [b"id", *frames])
    is_own = layout not in PEER_REQUESTS or frames[3] in (b"", KEY_NAME)
    assert result == (needed is None or (bool(grants.rights & needed) and is_own))


def test_each_request_of_a_peer_names_its_sender() -> None:
    kinds = {cast("Constant", layout.parts[1]).data for layout in PEER_REQUESTS}
    assert {kind for kind, right in rights.LOG.items() if right == Right.PEER} <= kinds


def test_a_peer_may_send_its_own_messages_alone() -> None:
    def request(candidate: bytes) -> list[bytes]:
        return [b"id", b"\x01", REQUEST_VOTE, b"demo", candidate, b"\x01", b"\x01", b""]

    peer = parse_grants("peer")
    assert allows(LOG, peer, request(KEY_NAME))
    assert not allows(LOG, peer, request(b"n2"))
    assert not allows(LOG, parse_grants("internal"), request(b"n2"))
    assert allows(LOG, peer, request(b"n2"), key=NULL)


@pytest.mark.parametrize("kind", [b"", b"z", b"\x6bz", b"zz", b"\x6b\x3dz", b"\x00", b"\x6b"])
def test_unknown_types_of_the_log_are_refused_to_all(kind: bytes) -> None:
    assert not allows(LOG, parse_grants("internal"), [b"id", b"reqid", kind, b"rest"])


def test_unknown_types_of_tables_are_refused_to_all() -> None:
    for kind in set(range(256)) - rights.TABLES.keys():
        assert not allows(TABLES, parse_grants("internal"), [b"id", bytes((0x31, 1, kind)), b"x"])


@given(grants_, st.lists(st.binary(max_size=6), min_size=1, max_size=6))
def test_any_frames_are_allowed_or_refused(grants: Grants, frames: list[bytes]) -> None:
    for guard in (LOG, TABLES, ONE_WAY, BROKER):
        allows(guard, grants, frames)


def test_a_type_outside_the_tables_of_c() -> None:
    with pytest.raises(ValueError, match="7a7a"):
        MessageGuard(1, {b"zz": 1})


# ---- brokers ----

SERVICES = (b"mail", b"mail.", b"mail.in", b"mai", b"echo", b"x" * 255, b"klk.unknown", b"mmi.x")
services = st.sampled_from([*SERVICES, *rights.BROKER_SERVICES, b"titanic.", b"klk"])
patterns = st.lists(
    st.sampled_from(["mail", "mail.*", "echo", "m*", "*", "klk.*", "x" * 254 + "*", "t*"]),
    min_size=1,
    max_size=3,
)
broker_grants = st.lists(
    st.one_of(
        st.sampled_from(["log.read", "observer", "admin", "internal"]),
        patterns.map(lambda found: "services:" + ",".join(found)),
        patterns.map(lambda found: "worker:" + ",".join(found)),
    ),
    max_size=3,
).map(lambda found: parse_grants(" ".join(found)))


def made(kind: Any, *fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Of these fields alone; builds() fills others."""
    return st.tuples(*fields).map(lambda found: kind(*found))


ids, names = st.binary(min_size=1, max_size=9), st.just(b"name")
bodies = st.lists(services | st.binary(max_size=4), min_size=1, max_size=3)
times = st.integers(0, 1 << 40)
own_commands = st.one_of(
    made(codec.Request, services, ids, bodies),
    made(codec.Request, services, ids, bodies, times),
    made(codec.Request, services, ids, bodies, times, names, times),
    made(codec.Credit, services, ids, names, times),
    made(codec.Cancel, services, ids, names),
    made(codec.WorkerReady, services, st.integers(1, 9)),
    made(codec.WorkerReady, services, st.integers(1, 9), st.just(True), st.booleans()),
    made(codec.WorkPartial, ids, ids, bodies),
    made(codec.WorkFinal, ids, ids, bodies),
    st.sampled_from([codec.Ping(), codec.Disconnect()]),
)
mdp_commands = st.one_of(
    made(codec.Request, services, st.just(b""), bodies),
    made(codec.WorkerReady, services),
    made(codec.WorkFinal, ids, st.just(b""), bodies),
    st.sampled_from([codec.Heartbeat(), codec.Disconnect()]),
)
commands = st.one_of(
    st.tuples(st.just(Framing.TEXT), own_commands),
    st.tuples(st.sampled_from([Framing.MDP01, Framing.MDP02]), mdp_commands),
)


def expected_of_broker(grants: Grants, command: Any) -> bool:
    """The twin of csrc/net/guard.c for commands, in all framings."""
    if isinstance(command, codec.WorkerReady):
        return grants.may_offer(command.service)
    if not isinstance(command, codec.Request | codec.Credit | codec.Cancel):
        return grants.may(Right.WORK)
    service = command.service
    if not service.startswith(values.RESERVED):
        return grants.may_call(service)
    if not grants.rights & rights.BROKER_SERVICES.get(service, Right(0)):
        return False
    inner = command.body[0] if isinstance(command, codec.Request) else b""
    if not inner or inner.startswith(values.RESERVED):
        return True
    if service == values.TITANIC_REQUEST:
        return grants.may_call(inner)
    if service == values.MMI_SERVICE:
        return grants.may(Right.OBSERVE) or grants.may_call(inner)
    return True


@given(broker_grants, commands)
def test_commands_to_a_broker(grants: Grants, framed: tuple[Framing, Any]) -> None:
    framing, command = framed
    frames = codec.encode(command, framing, HEADERS)
    assert allows(BROKER, grants, [b"id", *frames]) == expected_of_broker(grants, command)


@pytest.mark.parametrize(
    ("grants", "service", "inner", "may"),
    [
        ("services:mail", b"mail", b"", True),
        ("services:mail", b"mail2", b"", False),
        ("services:mail.*", b"mail", b"", False),
        ("services:*", b"klk.services", b"", False),
        ("services:*", b"klk.unknown", b"", False),
        ("services:klk.*", b"klk.services", b"", False),
        ("observer", b"klk.services", b"", True),
        ("observer", b"mail", b"", False),
        ("services:mail", b"mmi.service", b"mail", True),
        ("services:mail", b"mmi.service", b"bank", False),
        ("services:mail", b"mmi.service", b"", True),
        ("services:mail", b"mmi.service", b"titanic.request", True),
        ("observer", b"mmi.service", b"bank", True),
        ("services:mail", b"titanic.request", b"mail", True),
        ("services:mail", b"titanic.request", b"bank", False),
        ("services:mail observer", b"titanic.request", b"bank", False),
        ("worker:*", b"mail", b"", False),
        ("internal", b"mail", b"", True),
    ],
)
def test_what_a_key_may_ask_of_a_broker(
    grants: str, service: bytes, inner: bytes, may: bool
) -> None:
    request = codec.Request(service, b"7", [inner, b"more"])
    for framing in Framing:
        sent = request._replace(request_id=b"7" if framing is Framing.TEXT else b"")
        frames = codec.encode(sent, framing, HEADERS)
        assert allows(BROKER, parse_grants(grants), [b"id", *frames]) == may


@given(broker_grants, commands, st.data())
def test_cut_commands_to_a_broker(
    grants: Grants, framed: tuple[Framing, Any], data: st.DataObject
) -> None:
    """Reads no frame behind the end: the next message would allow it."""
    framing, command = framed
    frames = codec.encode(command, framing, HEADERS)
    allows(BROKER, grants, [b"id", *frames[: data.draw(st.integers(0, len(frames) - 1))]])


def test_only_the_keys_of_nodes_bring_operations_of_tables_to_peers() -> None:
    peers = log_guard(of_peers=True)
    for kind in (zmqraft.REQUEST_UPDATE, zmqraft.UPDATE_PACK):
        frames = [b"id", b"reqid", kind, b"", b"", b"data"]
        assert not allows(peers, parse_grants("peer log.append log.read admin tables:*:rw"), frames)
        assert allows(peers, parse_grants("internal"), frames)
        assert allows(LOG, parse_grants("log.append"), frames)


def test_c_knows_the_right_of_nodes() -> None:
    assert RIGHT_INTERNAL == Right.INTERNAL
