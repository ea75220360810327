"""The load generator against peers played by hand: what it sends, and what it does if one dies."""

import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq

from kelek.bench.load import loadgen
from kelek.bench.load.loadgen import Generator, Load
from kelek.bench.log.reads import ReadsFloor
from kelek.bench.machine import BenchError
from kelek.bench.peers import Etcd

POLL_MS = 20
JOIN_S = 60


class LoadedPeer(threading.Thread):
    """A peer that commits every update at once, as long as it leads; dies after `updates_max`."""

    def __init__(
        self, updates_max: int = 1 << 30, leads: bool = True, secret_key: bytes = b""
    ) -> None:
        super().__init__(daemon=True)
        self.updates_max = updates_max
        self.leads = threading.Event()
        if leads:
            self.leads.set()
        self.stopped = threading.Event()
        self.successor: LoadedPeer | None = None
        self.requests: list[list[bytes]] = []
        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        if secret_key:
            self.socket.setsockopt(zmq.CURVE_SERVER, 1)
            self.socket.setsockopt(zmq.CURVE_SECRETKEY, secret_key)
        self.url = f"tcp://127.0.0.1:{self.socket.bind_to_random_port('tcp://127.0.0.1')}"

    def run(self) -> None:
        while not self.stopped.is_set() and len(self.requests) < self.updates_max:
            if self.socket.poll(POLL_MS):
                for frames in self.answers(self.socket.recv_multipart()):
                    self.socket.send_multipart(frames)
        self.socket.close()
        if self.successor is not None and not self.stopped.is_set():
            self.successor.leads.set()

    def answers(self, frames: list[bytes]) -> Iterator[list[bytes]]:
        client, request_id, kind, *rest = frames
        if request_id == b"KLKC01":
            yield [client, request_id, b"\3", *rest]
            return
        if kind == b"^":
            leads = b"\1" if self.leads.is_set() else b"\0"
            yield [client, request_id, leads, msgpack.packb("n1"), msgpack.packb([])]
            return
        self.requests.append([request_id, kind, *rest])
        if len(self.requests) == self.updates_max:
            return  # Taken in, never answered.
        index = len(self.requests)
        if kind == b"=":
            yield [client, request_id, b"\1", msgpack.packb(index)]
        else:
            count = rest[2].count(request_id[:9])
            run = count.to_bytes(4, "little") + index.to_bytes(8, "little")
            yield [client, request_id, kind, b"\1", run]

    def stop(self) -> None:
        self.stopped.set()
        self.join(JOIN_S)


@pytest.fixture
def peers() -> Iterator[list[LoadedPeer]]:
    started: list[LoadedPeer] = []
    yield started
    for peer in started:
        peer.stop()


def drive(generator: Generator, peers: list[LoadedPeer], load: Load, *more: str) -> dict[str, Any]:
    for peer in peers:
        peer.start()
    urls = ",".join(peer.url for peer in peers)
    return generator.run(["--libzmq", loadgen.libzmq(), "--urls", urls, *more], load)


def test_compiles_without_a_warning(tmp_path: Path) -> None:
    command = ["cc", *loadgen.FLAGS, "-Werror", "-o", str(tmp_path / "x")]
    subprocess.run([*command, *map(str, loadgen.SOURCES), "-ldl"], check=True)


def test_text_form(generator: Generator, peers: list[LoadedPeer]) -> None:
    peers.append(LoadedPeer())
    result = drive(generator, peers, Load(2, 4, size=10, updates=30))
    assert (result["done"], result["sent"], result["rejected"], result["stray"]) == (30, 30, 0, 0)
    assert [frames[1:] for frames in peers[0].requests] == [[b"=", b"v" * 10]] * 30
    assert len({frames[0] for frames in peers[0].requests}) == 30
    assert {len(frames[0]) for frames in peers[0].requests} == {12}


def test_node_form(generator: Generator, peers: list[LoadedPeer]) -> None:
    peers.append(LoadedPeer())
    result = drive(generator, peers, Load(1, 4, size=3, updates=5), "--ident", "demo")
    assert result["done"] == 5
    assert [frames[1:] for frames in peers[0].requests] == [[b"=", b"demo", b"vvv"]] * 5


def test_packs_are_chained_and_their_records_framed(
    generator: Generator, peers: list[LoadedPeer]
) -> None:
    peers.append(LoadedPeer())
    result = drive(generator, peers, Load(1, 8, size=5, updates=16, pack=4), "--ident", "demo")
    assert result["done"] == 16
    last = b""
    for number, (request_id, kind, ident, previous, records) in enumerate(peers[0].requests):
        assert (kind, ident) == (b"k=", b"demo")
        # Two packs fill the window: the second one has one before it. Of later ones that may be
        # answered already.
        assert previous == last or (number > 1 and not previous)
        assert len(records) == 4 * 19
        for i in range(0, len(records), 19):
            assert records[i : i + 2] == bytes([18, 0x80])
            assert records[i + 14 : i + 19] == b"vvvvv"
        assert records[2:14] == request_id
        last = records[-17:-5]


def test_what_a_dead_leader_left_is_sent_to_the_next(
    generator: Generator, peers: list[LoadedPeer]
) -> None:
    peers += [LoadedPeer(updates_max=20), LoadedPeer(leads=False)]
    peers[0].successor = peers[1]
    result = drive(generator, peers, Load(1, 8, updates=50))
    assert (result["done"], result["sent"], result["searches"]) == (50, 50, 2)
    assert result["repeated"] >= 1
    reqids = {frames[0] for peer in peers for frames in peer.requests}
    assert len(reqids) == 50
    assert peers[0].requests[-1][0] in {frames[0] for frames in peers[1].requests}


class PausingPeer(LoadedPeer):
    """It answers nothing for a while, once."""

    PAUSE_S = 0.4

    def answers(self, frames: list[bytes]) -> Iterator[list[bytes]]:
        if len(self.requests) == 100:
            self.stopped.wait(self.PAUSE_S)
        yield from super().answers(frames)


def test_an_open_loop_goes_on_while_the_server_pauses(
    generator: Generator, peers: list[LoadedPeer]
) -> None:
    """A closed loop would send nothing meanwhile, and have one long update."""
    peers.append(PausingPeer())
    load = Load(2, 1000, secs=1.0, warmup_s=0.2, rate=300)
    result = drive(generator, peers, load)
    assert result["sent"] == result["done"] == len(peers[0].requests)
    assert 300 <= result["sent"] <= 365, "those that are due, however long answers take"
    assert result["p90_us"] > 1e6 * PausingPeer.PAUSE_S / 4, "two of five were due in the pause"


def key_files(directory: Path, server: bytes, client: tuple[bytes, bytes]) -> list[str]:
    """Writes the files of a server's public key and a client's key; returns the arguments."""
    own, pinned = directory / "own.key_secret", directory / "server.key"
    texts = ([f'public-key = "{client[0].decode()}"', f'secret-key = "{client[1].decode()}"'],
             [f'public-key = "{server.decode()}"'])  # fmt: skip
    for path, lines in zip((own, pinned), texts, strict=True):
        path.write_text("\n    ".join(["metadata", 'name = "one"', "curve", *lines]))
    return ["--own-key", str(own), "--server-keys", str(pinned)]


@pytest.mark.parametrize("size", [1, 222, 223, 224, 70_000])
@pytest.mark.parametrize("protocol", ["zmqraft", "broker"])
def test_keys(
    generator: Generator, peers: list[LoadedPeer], tmp_path: Path, protocol: str, size: int
) -> None:
    """By libzmq, and by the generator's own CURVE; the sizes have short and long frames."""
    public, secret = zmq.curve_keypair()
    peers.append(LoadedPeer(secret_key=secret))
    keys = key_files(tmp_path, public, zmq.curve_keypair())
    load = Load(2, 4, size=size, updates=30)
    result = drive(generator, peers, load, "--protocol", protocol, *keys)
    names = ("done", "sent", "rejected", "malformed", "stray")
    assert [result[name] for name in names] == [30, 30, 0, 0, 0]


def test_another_server_key_is_refused(
    generator: Generator, peers: list[LoadedPeer], tmp_path: Path
) -> None:
    peers.append(LoadedPeer(secret_key=zmq.curve_keypair()[1]))
    keys = key_files(tmp_path, zmq.curve_keypair()[0], zmq.curve_keypair())
    with pytest.raises(BenchError, match="ended the handshake of CURVE"):
        drive(generator, peers, Load(1, 1, updates=1), "--protocol", "broker", *keys)


@pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd-server is not installed")
def test_etcd_commits_what_the_lean_client_puts(generator: Generator, tmp_path: Path) -> None:
    etcd = Etcd(tmp_path / "etcd")
    etcd.start_fresh()
    try:
        result = generator.run(etcd.target, Load(3, 8, updates=100))
    finally:
        etcd.stop()
    assert (result["done"], result["sent"], result["refused"]) == (100, 100, 0)


def test_reads_against_the_floor(generator: Generator) -> None:
    floor = ReadsFloor()
    try:
        result = generator.run(floor.target, Load(clients=2, window=8, updates=3000, reads=True))
    finally:
        floor.stop()
    assert result["done"] == result["sent"] == 3000
    assert result["malformed"] == result["stray"] == 0
    assert floor.process.returncode == 0
