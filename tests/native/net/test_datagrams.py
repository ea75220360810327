"""Beacons by the batch, over real sockets on loopback, held to a plain Python twin."""

import select
import socket
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from kelek.bench.ports import free_udp_port
from kelek.native.net import interfaces as interface_module
from kelek.native.net.datagrams import Datagrams, ReceivedBeacon
from kelek.native.net.interfaces import (
    LOOPBACK,
    LOOPBACK_BROADCAST,
    Interface,
    chosen,
    interfaces,
    interfaces_v6,
)
from kelek.protocols.zre.beacon import Beacon, decode_beacon, encode_beacon
from kelek.protocols.zre.values import Malformed

DEADLINE_S = 60
LOOP = Interface("lo", LOOPBACK, LOOPBACK_BROADCAST)
LOOPBACK_2 = "127.0.0.2"
UUID = bytes(range(1, 17))


@pytest.fixture
def pair() -> Iterator[tuple[Datagrams, Datagrams]]:
    """Two that share a port, as two processes of a machine do."""
    port = free_udp_port()
    sockets = Datagrams(LOOP, port), Datagrams(LOOP, port)
    yield sockets
    for one in sockets:
        one.close()


def receive_beacons(one: Datagrams, now_ms: int) -> list[ReceivedBeacon]:
    """What comes, once something has."""
    assert select.select([one], [], [], DEADLINE_S)[0], "nothing came"
    found = one.receive(now_ms)
    while one.more:
        found += one.receive(now_ms)
    return found


def test_all_subscribers_get_a_broadcast(pair: tuple[Datagrams, Datagrams]) -> None:
    beacon = Beacon(UUID, 61_000)
    pair[0].send(encode_beacon(beacon))
    for one in pair:
        assert receive_beacons(one, 0) == [ReceivedBeacon(UUID, 61_000, LOOPBACK)]
        assert one.receive(0) == []
        assert not one.more
    assert pair[0].unsent == 0


def twin_receive(data: list[bytes], tokens: float) -> tuple[list[Beacon], int, int]:
    """(beacons, malformed, flooded) of datagrams, with so many allowed."""
    found, malformed = [], 0
    for one in data:
        try:
            found.append(decode_beacon(one))
        except Malformed:
            malformed += 1
    return found[: int(tokens)], malformed, max(0, len(found) - int(tokens))


@pytest.mark.parametrize("seed", range(20))
def test_messages_are_received_as_the_twin_does(
    seed: int, pair: tuple[Datagrams, Datagrams]
) -> None:
    rng = Random(seed)
    one, other = pair
    other.close()  # Which of two gets what is not broadcast the kernel chooses.
    one.set_rates(40, 1000, 40, 1000)
    one.state.all.left_micros = 0
    received: list[Beacon] = []
    malformed = flooded = 0
    tokens, now_ms = 0.0, 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(10):
            passed_ms = rng.choice([0, 1, 7, 30, 10_000])
            now_ms += passed_ms
            tokens = min(tokens + passed_ms, 40)
            data = []
            for _ in range(rng.randint(0, 40)):
                key = rng.choice([b"", rng.randbytes(32)])
                valid = encode_beacon(Beacon(rng.randbytes(16), rng.randrange(65_536), key))
                junk = valid[: rng.randrange(22)], valid + b"x", b"ZRE\2" + valid[4:]
                other_version = b"ZRE\3" + valid[4:], b"ZRE\1" + valid[4:], valid[:22] + bytes(32)
                noise = rng.randbytes(22), b"", rng.randbytes(rng.randrange(3000))
                data.append(rng.choice([valid, valid, *junk, *other_version, *noise]))
            expected = twin_receive(data, tokens)
            for piece in data:
                sender.sendto(piece, (LOOPBACK, one.port))
            found = one.receive(now_ms)
            while one.more:
                found += one.receive(now_ms)
            received = [Beacon(it.uuid, it.port, it.key) for it in found]
            tokens -= len(received)
            malformed, flooded = malformed + expected[1], flooded + expected[2]
            assert received == expected[0]
            assert (one.malformed, one.flooded) == (malformed, flooded)


def test_one_that_floods_leaves_room_for_others(pair: tuple[Datagrams, Datagrams]) -> None:
    one, other = pair
    other.close()
    one.state.seed = 1  # These two sources have buckets of their own.
    one.set_rates(100, 0, 60, 0)
    beacon = encode_beacon(Beacon(UUID, 61_000))
    for source, count, received, flooded in ((LOOPBACK_2, 80, 60, 20), (LOOPBACK, 70, 40, 50)):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.bind((source, 0))
            for _ in range(count):
                sender.sendto(beacon, (LOOPBACK, one.port))
        assert receive_beacons(one, 0) == [ReceivedBeacon(UUID, 61_000, source)] * received
        assert one.flooded == flooded


def test_an_interface_is_found() -> None:
    assert interfaces()[-1] == LOOP
    assert chosen(LOOPBACK) == LOOP
    assert chosen("lo", "127.255.0.0").broadcast == "127.255.0.0"
    assert chosen("127.0.0.9").broadcast == LOOPBACK_BROADCAST
    assert chosen("192.0.2.7").broadcast == "255.255.255.255"
    with pytest.raises(OSError, match="no interface 'eth77'"):
        chosen("eth77")


def test_an_address_of_ipv6_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if_inet6 = tmp_path / "if_inet6"
    monkeypatch.setattr(interface_module, "_IF_INET6", if_inet6)
    if_inet6.write_text(
        "fe800000000000000000000000000001 02 40 20 80     eth0\n"
        "fd000000000000000000000000000009 02 40 00 40     eth0\n"  # Not known to be free yet.
        "fd000000000000000000000000000002 02 40 00 82     eth0\n"
        "00000000000000000000000000000001 01 80 10 80       lo\n"
    )
    group = "ff02::1"
    local = Interface("eth0", "fe80::1%eth0", group)
    loopback = Interface("lo", "::1", group)
    assert interfaces_v6(group) == [Interface("eth0", "fd00::2", group), local, loopback]
    assert chosen("", "FF02::1") == chosen("eth0", group) == Interface("eth0", "fd00::2", group)
    assert chosen("fe80::1%eth0", group) == local
    assert chosen("lo", group) == loopback
    assert chosen("fe80::7%eth1", group) == Interface("eth1", "fe80::7%eth1", group)
    if_inet6.unlink()
    assert chosen("", group) == loopback
    for name, reached, problem in (
        ("eth77", group, "no interface 'eth77'"),
        ("10.0.0.1", group, "no interface '10.0.0.1'"),
        ("", "fd00::1", "not a multicast group"),
        ("", "everybody", "not an address"),
    ):
        with pytest.raises(OSError, match=problem):
            chosen(name, reached)


def test_an_address_that_is_not_here() -> None:
    with pytest.raises(OSError, match="assign"):
        Datagrams(Interface("", "192.0.2.7", "255.255.255.255"), free_udp_port())
