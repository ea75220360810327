"""The state by a farm's log: publisher, orders, contents, snapshots."""

import json
from base64 import b64encode
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.protocols.errors import LocalProtocolError, RemoteProtocolError
from kelek.protocols.garlicfarm.app.documents import encode_status
from kelek.protocols.garlicfarm.app.orders import (
    EXCLUDED_HASHES_MAX,
    EXCLUDED_SERVERS_MAX,
    ORDERS_MAX,
    SETTINGS_BYTES_MAX,
    Audit,
    FarmConfig,
    Order,
    OrderKind,
    PublishChoice,
    audit_orders,
    decode_export,
    decode_order,
    encode_order,
    export_document,
    hash_of,
)
from kelek.protocols.garlicfarm.app.state import CONTENTS_MAX, DOCUMENTS_MAX, WINDOW_MS, SharedState

NOW = 1_558_000_000_000
MEMBERS = (1, 2, 3)


def document(
    server_id: int,
    date: int = NOW,
    uptime: int = 0,
    wish: str = "auto",
    leaves: tuple[str, ...] = (),
) -> bytes:
    return encode_status(
        {
            "cluster": "farm",
            "date": date,
            "id": server_id,
            "meta": {"publishConfig": wish},
            "router": {"uptime": uptime},
            "destinations": [{"destination": each, "uptime": 5} for each in leaves],
        }
    )


def order(kind: OrderKind, **fields: object) -> bytes:
    made = Order(kind, "farm", NOW, "alice")._replace(**fields)  # type: ignore[arg-type]
    return encode_order(made)


def publish(choice: int | PublishChoice) -> bytes:
    return order(OrderKind.PUBLISH, publish=choice)


def state_of(*documents: bytes) -> SharedState:
    state = SharedState("farm")
    for index, each in enumerate(documents, 1):
        state.apply(index, each)
    return state


# ---- the publisher ----


@pytest.mark.parametrize(
    ("documents", "publisher"),
    [
        ([], None),
        ([document(1, wish="off")], None),
        ([document(2), document(1)], 1),
        ([document(1, uptime=5), document(2, uptime=6)], 2),
        ([document(1, uptime=9), document(2, wish="on")], 2),
        ([document(1, wish="on"), document(2, wish="on", uptime=1)], 2),
        ([document(1, uptime=9, wish="off"), document(2)], 2),
        ([document(1, uptime=9, date=NOW - WINDOW_MS), document(2)], 1),
        ([document(1, uptime=9, date=NOW - WINDOW_MS - 1), document(2)], 2),
        ([document(9, uptime=99), document(2)], 2),  # Not a member.
        ([document(1, wish="on"), document(1, date=NOW + 1, wish="off"), document(2)], 2),
        ([document(1, date=NOW + 1, wish="off"), document(1, wish="on"), document(2)], 1),
        ([document(9, date=2**63 - 1), document(2)], 2),
        ([document(1, date=2**63 - 1), document(2, wish="on")], 1),
        ([document(1, date=2**63 - 1), document(2, wish="on"), document(1)], 2),
    ],
)
def test_the_publisher(documents: list[bytes], publisher: int | None) -> None:
    assert state_of(*documents).publisher(MEMBERS) == publisher


def test_time_is_the_logs() -> None:
    """A silent server drops out once other documents are newer by the window, not before."""
    state = state_of(document(1, uptime=9), document(2))
    assert state.publisher([1, 2]) == 1
    state.apply(3, document(2, date=NOW + WINDOW_MS + 1))
    assert state.publisher([1, 2]) == 2
    assert state.publisher([1]) == 1, "who has left is no measure"
    export = FarmConfig("farm", settings={"window": 2 * WINDOW_MS})
    state.apply(4, order(OrderKind.IMPORT, configuration=export))
    assert state.publisher([1, 2]) == 1


def test_documents_of_another_farm() -> None:
    other = document(1).replace(b"farm", b"other")
    state = state_of(other, publish(3).replace(b"farm", b"other"), b"junk", b'{"admin":1}')
    assert (state.posted, state.config, state.index) == ({}, FarmConfig("farm"), 4)
    assert state.counters == {"foreign": 2, "other": 2}


def test_servers_that_are_kept_have_a_limit() -> None:
    """The document of the longest silent server is dropped."""
    state = state_of(*(document(number) for number in range(DOCUMENTS_MAX)), document(0))
    state.apply(1000, document(1000))
    assert 0 in state.posted
    assert 1 not in state.posted
    assert len(state.posted) == DOCUMENTS_MAX


# ---- orders ----


@pytest.mark.parametrize(
    ("choices", "publisher"),
    [
        ([3], 3),
        ([PublishChoice.NONE], None),
        ([3, PublishChoice.AUTO], 1),
        ([9], 1),  # Not a member: the rule decides.
        ([-1], 1),
    ],
)
def test_a_publisher_that_was_ordered(
    choices: list[int | PublishChoice], publisher: int | None
) -> None:
    """Its own document does not matter, and it need not have any."""
    log = [document(1), document(2), *map(publish, choices)]
    state = state_of(*log)
    assert state.publisher(MEMBERS) == publisher
    assert state.published_index == len(log)
    state.apply(len(log) + 1, document(3, wish="off"))
    assert state.publisher(MEMBERS) == publisher


def test_servers_that_are_left_out() -> None:
    state = state_of(
        document(1, leaves=("a",)), document(2, leaves=("b",)),
        order(OrderKind.EXCLUDE, servers=(1,)),
    )  # fmt: skip
    assert state.publisher(MEMBERS) == 2
    assert [leaf.hash for leaf in state.contents(MEMBERS)] == ["b"]
    state.apply(4, publish(1))
    assert state.publisher(MEMBERS) == 2, "also when it was ordered to publish"
    state.apply(5, order(OrderKind.INCLUDE, servers=(1, 7)))
    assert state.publisher(MEMBERS) == 1
    assert [leaf.hash for leaf in state.contents(MEMBERS)] == ["a", "b"]


def test_one_that_is_left_out_is_no_measure_of_time() -> None:
    state = state_of(document(1, date=2**63 - 1), document(2))
    assert state.publisher(MEMBERS) == 1
    state.apply(3, order(OrderKind.EXCLUDE, servers=(1,)))
    assert state.publisher(MEMBERS) == 2


def test_an_import_takes_the_place_of_all() -> None:
    """Also an export of another farm; its members are ignored."""
    export = FarmConfig("other", ((7, "tcp://a:1"),), 2, ("h",), (3,), {"window": 5, "more": [1]})
    state = state_of(
        order(OrderKind.EXCLUDE, hashes=("old",)), order(OrderKind.IMPORT, configuration=export)
    )
    assert state.config == export._replace(cluster="farm", servers=())
    assert (state.window_ms, state.published_index) == (5, 2)
    state.apply(3, order(OrderKind.IMPORT, configuration=FarmConfig("farm")))
    assert state.config == FarmConfig("farm")


def test_what_is_left_out_has_a_limit() -> None:
    """An order above the limit changes nothing."""
    hashes = tuple(f"h{number}" for number in range(EXCLUDED_HASHES_MAX))
    servers = tuple(range(EXCLUDED_SERVERS_MAX))
    state = state_of(order(OrderKind.EXCLUDE, hashes=hashes, servers=servers))
    before = state.config
    state.apply(2, order(OrderKind.EXCLUDE, hashes=("x",)))
    state.apply(3, order(OrderKind.EXCLUDE, servers=(1000,)))
    assert state.config == before
    assert state.counters == {"order": 1, "over a limit": 2}
    state.apply(4, order(OrderKind.EXCLUDE, hashes=("h0",), servers=(0,)))
    assert state.config == before, "what is left out already takes no room"
    state.apply(5, order(OrderKind.INCLUDE, hashes=hashes[1:], servers=servers[1:]))
    assert (state.config.hashes, state.config.excluded_servers) == (("h0",), (0,))
    assert len(SharedState.decode(state.encode(), "farm").config.hashes) == 1


ORDERS = (
    publish(5), publish(PublishChoice.NONE), publish(PublishChoice.AUTO),
    order(OrderKind.EXCLUDE, hashes=("h",)), order(OrderKind.INCLUDE, servers=(-4,)),
    order(
        OrderKind.IMPORT,
        configuration=FarmConfig("a", ((1, "tcp://b:1"),), PublishChoice.NONE),
    ),
)  # fmt: skip


@pytest.mark.parametrize("data", ORDERS)
def test_orders_come_back(data: bytes) -> None:
    assert data.startswith(b'{"admin":"')
    assert encode_order(decode_order(data)) == data


def broken(**change: object) -> bytes:
    return json.dumps({**json.loads(ORDERS[-1]), **change}, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"", b'{"admin":', b' {"admin":"publish"}', b'{"admin":{}}', broken(admin="shout"),
        broken(admin=["publish"]), broken(user=""), broken(user=3), broken(cluster=None),
        broken(date=-1), broken(date="now"), broken(admin="publish"),
        broken(admin="publish", server=True), broken(admin="publish", server="nobody"),
        broken(admin="exclude", hashes="h"), broken(admin="exclude", hashes=[""]),
        broken(admin="exclude", hashes=["x" * 129]), broken(admin="exclude", hashes=["\u00e4"]),
        broken(admin="exclude", hashes=["a\nb"]), broken(admin="exclude", servers=[2**31]),
        broken(admin="exclude", hashes=["x"] * (EXCLUDED_HASHES_MAX + 1)), broken(configuration=[]),
        broken(configuration={"version": 2}), broken(configuration={"excluded": []}),
        broken(configuration={"servers": [1]}), broken(configuration={"servers": [{"id": 1}]}),
        broken(configuration={"settings": {"window": 0}}),
        broken(configuration={"settings": {"postingInterval": 999}}),
        broken(configuration={"settings": {"postingInterval": False}}),
        broken(configuration={"settings": {"a": "x" * SETTINGS_BYTES_MAX}}),
        ORDERS[-1].replace(b'"settings":{}', b'"settings":{"a":1e999}'),
    ],
    ids=range(31),
)  # fmt: skip
def test_orders_that_are_none(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_order(data)
    state = state_of(data)
    assert state.counters == {"other": 1}
    assert (state.posted, state.config) == ({}, FarmConfig("farm"))


def test_orders_that_can_not_be_made() -> None:
    bare = Order(OrderKind.PUBLISH, "farm", NOW, "alice")
    for wrong in (
        bare._replace(publish=2**40),
        bare._replace(user=""),
        bare._replace(kind=OrderKind.IMPORT),
        bare._replace(
            kind=OrderKind.IMPORT, configuration=FarmConfig("farm", settings={"a": b"bytes"})
        ),
        bare._replace(kind=OrderKind.EXCLUDE, hashes=("",)),
    ):
        with pytest.raises(LocalProtocolError):
            encode_order(wrong)


def test_an_export_is_what_an_import_takes() -> None:
    export = FarmConfig("farm", ((1, "tcp://a:1"),), 1, ("h",), (2,), {"postingInterval": 0})
    document = json.loads(json.dumps(export_document(export)))
    assert decode_export(document) == export
    assert decode_export({}) == FarmConfig("farm"), "what is missing is as in a new farm"
    assert export_document(FarmConfig("farm", publish=PublishChoice.NONE))["publish"] is None


def test_only_administrators_may_give_orders() -> None:
    values = [b"anything", ORDERS[0], document(1)]
    assert audit_orders(values, "farm", "alice", True) == [Audit("alice", "publish 5", True)]
    assert audit_orders(values, "farm", "alice", False) == [Audit("alice", "publish 5", False)]
    assert audit_orders(values, "farm", "bob", True) == [Audit("bob", "publish 5", False)]
    assert audit_orders(values, "farm", "", True) == [Audit("", "publish 5", True)]
    assert audit_orders(values, "other", "alice", True) == [Audit("alice", "publish 5", False)]
    ((user, what, taken, _),) = audit_orders([b'{"admin":"?"}'], "farm", "alice", True)
    assert (user, what[:10], taken) == ("alice", "malformed:", False)
    whats = [audit_orders([each], "farm", "alice", True)[0].what for each in ORDERS[1:]]
    assert whats == [
        "publish none", "publish auto", "exclude h", "include server -4",
        f"import, {len(ORDERS[5])} bytes, sha256 {sha256(ORDERS[5]).hexdigest()}",
    ]  # fmt: skip
    long = order(OrderKind.EXCLUDE, hashes=("h" * 100,) * 100)
    (audit,) = audit_orders([long], "farm", "alice", True)
    what = f"exclude, {len(long)} bytes, sha256 {sha256(long).hexdigest()}"
    assert audit == Audit("alice", what, True)


def test_too_many_orders_in_one_request() -> None:
    """None is decoded: each would need an audit line."""
    (audit,) = audit_orders([publish(5), b"x"] * (ORDERS_MAX + 1), "farm", "alice", True)
    assert audit == Audit("alice", "65 orders in one request, the limit is 64", False)
    assert len(audit_orders([publish(5), b"x"] * ORDERS_MAX, "farm", "alice", True)) == ORDERS_MAX


# ---- contents ----

KEYS = bytes(range(256)) + bytes(131)  # As long as a destination.
ALTERED = (b"-~", b"+/")


def test_hashes_in_all_their_forms() -> None:
    """A destination's hash is SHA-256, and I2P's base64 has - and ~."""
    digest = sha256(KEYS).digest()
    name = b64encode(digest, altchars=b"-~").decode()
    assert hash_of(b64encode(KEYS, altchars=b"-~").decode()) == name
    assert hash_of(b64encode(KEYS, altchars=b"-~").decode().rstrip("=")) == name
    assert hash_of(name) == hash_of(name.rstrip("=")) == name
    b32 = "abcdefghijklmnopqrstuvwxyz234567"
    bits = int.from_bytes(digest, "big") << 4
    text = "".join(b32[bits >> (51 - at) * 5 & 31] for at in range(52))
    assert hash_of(f"{text}.b32.i2p") == name
    for other in ("", "abcd", "zzz.i2p", "zzz.b32.i2p", "\u00e4" * 44, "a" * 100):
        assert hash_of(other) is None


def test_what_the_metals_holds() -> None:
    """Each destination once, without the excluded ones, in any form that was posted."""
    full = b64encode(KEYS, altchars=b"-~").decode()
    name = hash_of(full)
    assert name is not None
    log = [
        document(2, leaves=("b", "", full)), document(1, leaves=("a", name)),
        document(9, leaves=("c",)),
    ]  # fmt: skip
    state = state_of(*log)
    shown = [(leaf.server_id, leaf.hash) for leaf in state.contents(MEMBERS)]
    assert shown == [(1, "a"), (1, name), (2, "b")]
    assert state.contents(MEMBERS)[2].document == {"destination": "b", "uptime": 5}
    state.apply(4, order(OrderKind.EXCLUDE, hashes=(name, "a")))
    assert [leaf.hash for leaf in state.contents(MEMBERS)] == ["b"]
    state.apply(5, document(3, date=NOW + WINDOW_MS + 1))
    assert state.contents(MEMBERS) == [], "who is gone for long has nothing in it"


def test_contents_have_a_limit() -> None:
    half = tuple(f"d{number}" for number in range(CONTENTS_MAX // 2))
    state = state_of(
        document(1, leaves=half), document(2, leaves=(*(f"{each}x" for each in half), "last"))
    )
    assert len(state.contents(MEMBERS)) == CONTENTS_MAX


# ---- snapshots ----

DOCUMENTS = st.builds(
    document,
    st.integers(1, 4),
    st.integers(NOW, NOW + 3 * WINDOW_MS),
    st.integers(0, 3),
    st.sampled_from(["off", "on", "auto"]),
    st.lists(st.sampled_from("abc"), max_size=2).map(tuple),
)
ODD = (
    b"other", b'{"admin":', b"",
    b'{"cluster":"farm","date":1558000000000,"id":1,"odd":[1e999,"\\ud800"," "]}',
    b' {"id":2,\n"cluster":"farm","date":1558000000001,"id":3}',
)  # fmt: skip
ENTRIES = DOCUMENTS | st.sampled_from((*ORDERS, *ODD, publish(2), publish(PublishChoice.NONE)))


@given(st.lists(ENTRIES, max_size=16), st.integers(0, 16))
def test_a_snapshot_changes_nothing(log: list[bytes], cut: int) -> None:
    """A server that starts from a snapshot reaches the same state, and the same snapshot byte
    for byte.
    """
    whole = state_of(*log)
    early = SharedState.decode(state_of(*log[:cut]).encode(), "farm")
    assert early.index == len(log[:cut])
    for index, value in enumerate(log[cut:], cut + 1):
        early.apply(index, value)
    assert early.encode() == whole.encode()
    assert early.publisher(MEMBERS) == whole.publisher(MEMBERS)
    assert early.contents(MEMBERS) == whole.contents(MEMBERS)


HEAD = {
    "version": 1, "cluster": "farm", "index": 1, "ordered": {}, "published": 0, "documents": [],
}  # fmt: skip
BODY = document(1)


def snapshot(body: bytes = b"", **change: object) -> bytes:
    return json.dumps({**HEAD, **change}).encode() + b"\n" + body


def test_a_snapshot_as_it_is_written() -> None:
    state = SharedState.decode(snapshot(BODY, documents=[[1, len(BODY)]]), "farm")
    assert state.posted[1].status.data == BODY
    assert SharedState.decode(state.encode(), "farm").encode() == state.encode()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", snapshot()[:-1], snapshot(b"more"), snapshot(version=2), snapshot(cluster="x"),
        snapshot(index=-1), snapshot(index=None), snapshot(published="x"), snapshot(ordered=[]),
        snapshot(documents={}), snapshot(documents=[1]), snapshot(documents=[[1]]),
        snapshot(documents=[[1, 2]]), snapshot(documents=[[1, -1]]),
        snapshot(BODY, documents=[[1, len(BODY) + 1]]), snapshot(BODY, documents=[[0, len(BODY)]]),
        snapshot(BODY.replace(b"farm", b"frm"), documents=[[1, len(BODY) - 1]]),
        snapshot(documents=[[1, 5]] * (DOCUMENTS_MAX + 1)),
    ],
    ids=range(19),
)  # fmt: skip
def test_snapshots_that_are_none(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        SharedState.decode(data, "farm")
