"""Messages about maps on Spark: encoded and decoded they are equal, and junk is refused."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.protocols.errors import RemoteProtocolError
from kelek.protocols.zerodb.server import map_orders
from kelek.protocols.zerodb.server.map_orders import (
    AnyBody,
    DriverReady,
    MapOrder,
    Mapped,
    MapProgress,
    Message,
    Setup,
    Trouble,
    body_of,
    decode,
    encode,
    stage_bounds,
    stage_key,
)

numbers = st.integers(0, (1 << 64) - 1)
BODIES = [Setup, MapOrder, DriverReady, MapProgress, Mapped, Trouble]
bodies = st.one_of(*(st.builds(kind) for kind in BODIES)).filter(
    lambda body: all(0 <= n < 1 << 64 for n in flat(body))
)


def flat(body: AnyBody) -> list[int]:
    found = [one for item in body for one in (item if isinstance(item, list) else [item])]
    return [one for one in found if isinstance(one, int)]


@given(numbers, bodies)
def test_round_trip(apid: int, body: AnyBody) -> None:
    message = decode(encode(map_orders.MAP, apid, body))
    assert (message.kind, message.apid) == (map_orders.MAP, apid)
    assert body_of(message, type(body)) == body
    assert decode(encode(map_orders.DROP, apid)) == Message(map_orders.DROP, apid, b"")


@given(st.binary(max_size=64), st.sampled_from(BODIES))
def test_junk(data: bytes, kind: type[AnyBody]) -> None:
    for junk in (data, encode(map_orders.MAP, 1) + data):
        try:
            body_of(decode(junk), kind)
        except RemoteProtocolError:
            continue


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (DriverReady, [-1]),
        (DriverReady, ["1"]),
        (DriverReady, [True]),
        (DriverReady, 1),
        (DriverReady, []),
        (DriverReady, [1, 2]),
        (Mapped, [1, [2, "3"], [4]]),
        (Mapped, [1, 2, [4]]),
        (Trouble, [b"bytes"]),
        (MapOrder, [1, 2, 3, 1, "wasm", b"", b""]),
    ],
)
def test_malformed_bodies(kind: type[AnyBody], body: object) -> None:
    message = Message(map_orders.MAP, 1, msgpack.packb(body))
    with pytest.raises(RemoteProtocolError):
        body_of(message, kind)


def test_rows_of_an_attempt_lie_together_and_in_order() -> None:
    start, end = stage_bounds(7)
    inside = [stage_key(7, place) for place in (0, 1, 255, 256, 1 << 40)]
    assert inside == sorted(inside)
    assert all(start <= key < end for key in inside)
    for other in (stage_key(6, 1 << 40), stage_key(8, 0), stage_key(263, 0)):
        assert not start <= other < end
