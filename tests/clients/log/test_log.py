"""kelek.Log over real sockets, against peers in memory."""

import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pyarrow
import pytest
import zmq

import kelek
from kelek.clients.errors import (
    LogError,
    LogExpired,
    LogNoLeader,
    LogTimeout,
    LogTooLarge,
    TransferRefused,
)
from kelek.clients.io.reqids import new_reqids
from kelek.clients.log.operations import LogTuning, make_client
from kelek.net.clock import monotonic_ms
from kelek.protocols.record import Record
from kelek.protocols.zmqraft.client.client import LogClientSetup
from kelek.protocols.zmqraft.server.denials import ANSWERED
from kelek.protocols.zmqraft.wire.client_codec import STATE_BROADCAST, StateBroadcast
from kelek.protocols.zmqraft.wire.values import REQUEST_CONFIG
from kelek.tests.clients.log.log_peers import LogPeers
from kelek.tests.protocols.zmqraft.wire_strategies import encode_entry

DENIED = ANSWERED - {REQUEST_CONFIG}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LogPeers]:
    cluster = LogPeers(tmp_path)
    yield cluster
    cluster.close()


@pytest.mark.parametrize("form", ["auto", "node"])
def test_appends_and_entries(cluster: LogPeers, form: str) -> None:
    with kelek.Log(cluster.urls, form=form, timeout_ms=60_000) as log:
        assert log.append(b"first") == 1
        seen: list[int] = []
        assert log.append_many((b"%d" % n for n in range(3000)), seen.append) == 3000
        assert seen[-1] == 3000
        assert list(log.append_each([b"x", bytearray(b"y")])) == [3002, 3003]
        entries = list(log.entries(after=1, count=5))
        assert [(entry.index, entry.data) for entry in entries] == [
            (index, b"%d" % (index - 2)) for index in range(2, 7)
        ]
        assert entries[0].reqid is not None
        assert sum(1 for _ in log.entries()) == 3003
        columns = pyarrow.Table.from_batches(log.to_arrow(after=1, count=2000))
        assert columns["index"].to_pylist() == list(range(2, 2002))
        assert columns["data"].to_pylist() == [b"%d" % number for number in range(2000)]
        assert columns["reqid"].to_pylist()[:5] == [entry.reqid for entry in entries]
        assert log.info().last_index == 3003
        assert log.info(cluster.urls[2]).leading is False
        assert log.config().leader == "n1"
        assert log.broadcast_url() == "tcp://pub"


def test_a_lagging_peer_omits_no_entry_that_was_read(cluster: LogPeers) -> None:
    with kelek.Log(cluster.urls, "demo") as writer, kelek.Log(cluster.urls, "demo") as log:
        writer.append_many(b"%d" % number for number in range(20))
        cluster.model.peers[1].lags = 5
        lagging = cluster.urls[1]
        assert len(list(log.entries(url=lagging))) == 15
        assert len(list(log.entries())) == 20
        assert len(list(log.entries(url=lagging))) == 20
        assert len(list(log.entries(count=3, url=lagging))) == 3


def test_appends_with_known_request_ids_are_not_repeated(cluster: LogPeers) -> None:
    ids = new_reqids(3000)
    updates = [b"%d" % number for number in range(3000)]
    for _ in range(2):
        with kelek.Log(cluster.urls, timeout_ms=60_000) as log:
            assert log.append_many(updates, reqids=iter(ids)) == 3000
    assert [data for _, data in cluster.model.log.records] == updates
    with kelek.Log(cluster.urls) as log:
        for wrong in (ids[:2], [b"short"] * 3):
            with pytest.raises(ValueError, match="12 bytes for each"):
                log.append_many(updates[:3], reqids=wrong)


def test_read_index_waits_for_the_leader(cluster: LogPeers) -> None:
    with kelek.Log(cluster.urls, timeout_ms=60_000) as log:
        assert log.read_index() == 1
        log.append_many([b"a", b"b"])
        assert log.read_index(applied=False) == 3
        cluster.kill(cluster.urls[0])
        cluster.elect("n2")
        assert log.read_index() == 3


def test_transfer_changes_the_leader(cluster: LogPeers) -> None:
    with kelek.Log(cluster.urls, timeout_ms=60_000) as log:
        assert log.transfer("n2") == "n2"
        assert log.config().leader == "n2"
        assert log.transfer() == "n3"
        assert log.append(b"later") == 1
        with pytest.raises(TransferRefused, match="n9 is no member"):
            log.transfer("n9")


def test_read_index_fails_without_the_feature_of_the_leader(cluster: LogPeers) -> None:
    """The client refuses it at once, without waiting for a message."""
    cluster.model.peers[0].features = ("pack", "append")
    with kelek.Log(cluster.urls, timeout_ms=60_000) as log:
        until_ms = monotonic_ms() + log.timeout_ms
        with pytest.raises(LogError, match="serves no linearizable reads"):
            log.read_index()
        with pytest.raises(TransferRefused, match="knows no leadership transfer"):
            log.transfer("n2")
        assert monotonic_ms() < until_ms
        assert log.append(b"later") == 1
    with kelek.Log(cluster.urls, form="text") as log, pytest.raises(LogError, match="form='auto'"):
        log.read_index()


def test_a_failover_during_an_append_loses_nothing(cluster: LogPeers) -> None:
    with kelek.Log(",".join(cluster.urls), timeout_ms=60_000) as log:

        def source() -> Iterator[bytes]:
            for number in range(20_000):
                if number == 9_000:
                    cluster.kill(cluster.urls[0])
                    cluster.elect("n2")
                yield b"%d" % number

        assert list(log.append_each(source())) == list(range(1, 20_001))
        assert [data for _, data in cluster.model.log.records] == [
            b"%d" % number for number in range(20_000)
        ]


def test_watch_waits_for_new_entries(cluster: LogPeers) -> None:
    with kelek.Log(cluster.urls) as log, kelek.Log(cluster.urls) as reader:
        log.append(b"a")
        entries = reader.watch()
        assert next(entries).data == b"a"
        log.append_many([b"b", b"c"])
        assert [entry.data for entry in islice(entries, 2)] == [b"b", b"c"]
        entries.close()


def test_watch_returns_entries_of_broadcasts(cluster: LogPeers, tmp_path: Path) -> None:
    """No peer returns the second entry: it is in the broadcasts only."""
    url = f"ipc://{tmp_path}/broadcasts"
    entries = (encode_entry(1, Record(0, new_reqids(1)[0], b"broadcast")),)
    frames = STATE_BROADCAST.encode(StateBroadcast(1, 2, entries), cluster=b"demo")
    received = threading.Event()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def publish() -> None:
        with context.socket(zmq.PUB) as publisher:
            publisher.linger = 0
            publisher.bind(url)
            while not received.wait(0.01):
                publisher.send_multipart(frames)

    for peer in cluster.model.peers:
        peer.pub = url
    thread = threading.Thread(target=publish)
    thread.start()
    try:
        with kelek.Log(cluster.urls, timeout_ms=60_000) as log:
            log.append(b"first")
            assert [entry.data for entry in islice(log.watch(), 2)] == [b"first", b"broadcast"]
    finally:
        received.set()
        thread.join()
        context.term()


@pytest.mark.parametrize("size", [0, (10 << 20) + 1])
def test_values_of_a_wrong_size_are_never_sent(cluster: LogPeers, size: int) -> None:
    with kelek.Log(cluster.urls) as log, pytest.raises(LogTooLarge):
        log.append(bytes(size))
    assert not cluster.model.log.records


def test_the_largest_value_has_its_own_message(cluster: LogPeers) -> None:
    with kelek.Log(cluster.urls) as log:
        assert log.append_many([b"a", bytes(10 << 20), b"b"]) == 3


def test_a_str_is_utf_8(cluster: LogPeers) -> None:
    with kelek.Log(cluster.urls) as log:
        log.append("é")
        assert [entry.data for entry in log.entries(after=0)][-1] == "é".encode()


@pytest.mark.parametrize("wrong", [5, None, ["a"]])
def test_values_must_be_bytes(cluster: LogPeers, wrong: object) -> None:
    with kelek.Log(cluster.urls) as log, pytest.raises(TypeError):
        log.append(wrong)  # type: ignore[arg-type]


def test_an_expired_request_id_is_reported(cluster: LogPeers) -> None:
    cluster.model.peers[0].refuse = "expired"
    with kelek.Log(cluster.urls) as log:
        with pytest.raises(LogExpired):
            log.append_many([b"a", b"b"])
        cluster.model.peers[0].refuse = None
        assert log.append(b"c") == 1


def test_calls_without_a_leader_time_out(cluster: LogPeers) -> None:
    cluster.model.peers[0].leads = False
    with kelek.Log(cluster.urls, timeout_ms=100) as log:
        with pytest.raises(LogNoLeader):
            log.append(b"a")
        with pytest.raises(TimeoutError):
            log.info()
        cluster.elect("n3")
        log.timeout_ms = 60_000
        # The first append stays queued, before the second.
        assert log.append(b"b") == 2


def test_an_append_that_is_never_committed_times_out(cluster: LogPeers) -> None:
    with kelek.Log(cluster.urls) as log:
        log.append(b"a")  # Now the client knows the leader.
        cluster.model.peers[0].commits = False
        log.timeout_ms = 200
        with pytest.raises(LogTimeout, match="no progress"):
            log.append(b"b")


def test_the_tuning_sets_the_times_of_the_search(cluster: LogPeers) -> None:
    tuning = LogTuning(response_ttl_ms=100, election_grace_ms=120)
    setup = make_client(cluster.urls, "demo", "auto", tuning).setup
    assert (setup.response_ttl_ms, setup.search_ms) == (100, 10)
    assert LogClientSetup(b"demo", ()).search_ms == LogTuning().election_grace_ms // 12


def test_closed_clients_and_invalid_arguments(cluster: LogPeers) -> None:
    log = kelek.Log(cluster.urls)
    log.close()
    log.close()
    with pytest.raises(kelek.LogError, match="closed"):
        log.append(b"a")
    with pytest.raises(ValueError, match="form"):
        kelek.Log(cluster.urls, form="guess")
    with pytest.raises(ValueError, match="url"):
        kelek.Log("")
    with pytest.raises(ValueError, match="ident"):
        kelek.Log(cluster.urls, "")
    with kelek.Log(cluster.urls) as log:
        for after, count in ((-1, None), (0, -1), (1 << 53, 1)):
            with pytest.raises(ValueError, match="is 0 to"):
                next(log.entries(after, count))
        with pytest.raises(TypeError, match="after is int"):
            next(log.entries("1"))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="not a url"):
            log.info("nonsense")


@pytest.mark.parametrize(
    "url",
    [
        *("tcp://h", "tcp://h:0", "tcp://h:99999", "tcp://*:7201", "tcp://a b:1", "tcp:// h:1"),
        *("h:1", "http://h:1", "tcp://h:1, tcp://h:2"),
        *("ipc://", "ipc://a", "ipc:///" + 107 * "x"),
    ],
)
def test_invalid_urls_are_refused(url: str) -> None:
    """libzmq would refuse them at connect; an open socket would block the end of its context."""
    with pytest.raises(ValueError, match=r"url|port|path"):
        kelek.Log(url)


def test_an_invalid_address_of_a_member_is_ignored(cluster: LogPeers) -> None:
    cluster.model.peers[2].url = "tcp://nowhere"  # As the other peers report it.
    with kelek.Log(cluster.urls[0]) as log:
        assert log.append(b"a") == 1


def test_request_ids_are_unique() -> None:
    ids = new_reqids(1000) + new_reqids(1000)
    assert len(set(ids)) == 2000
    assert {len(reqid) for reqid in ids} == {12}
    assert ids[0][:9] == ids[999][:9]


def test_old_verbs_work_and_warn(cluster: LogPeers) -> None:
    with kelek.Log(cluster.urls[0]) as log:
        with pytest.warns(DeprecationWarning, match=r"update\(\) is deprecated: use append\(\)"):
            assert log.update(b"a") == 1
        with pytest.warns(DeprecationWarning, match=r"append_many\(\)"):
            assert log.update_many([b"b"]) == 1
        with pytest.warns(DeprecationWarning, match=r"append_each\(\)"):
            assert list(log.update_each([b"c"])) == [3]
        with pytest.warns(DeprecationWarning, match=r"watch\(\)"):
            assert next(log.subscribe()).data == b"a"
        with pytest.warns(DeprecationWarning, match=r"watch\(\)"):
            assert next(log.follow(1)).data == b"b"
        with pytest.warns(DeprecationWarning, match=r"watch_lists\(\)"):
            assert next(log.subscribe_lists(2))[0].data == b"c"


def test_requests_that_the_key_does_not_allow(cluster: LogPeers) -> None:
    with kelek.Log(cluster.urls, timeout_ms=60_000) as log:
        assert log.append(b"first") == 1
        for peer in cluster.model.peers:
            peer.denies = DENIED
        with pytest.raises(kelek.LogNotAllowed, match=r"no grant `log\.append`") as denied:
            log.append_many([b"x"] * 3000)
        assert isinstance(denied.value, kelek.NotAllowed | kelek.LogRefused)
        assert denied.value.committed == 0
        calls: list[Callable[[], object]] = [
            lambda: list(log.entries()),
            lambda: list(log.entries(url=cluster.urls[1])),
            lambda: next(iter(log.watch())),
            lambda: next(iter(log.watch(None))),
            log.state, log.read_index, log.info, log.broadcast_url,
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(kelek.LogNotAllowed, match=r"^this key has no grant `log\.read`$"):
                call()
        for call in (
            lambda: log.transfer("n2"),
            lambda: log.set_members({"n1": cluster.urls[0]}),
            log.make_snapshot,
        ):
            with pytest.raises(kelek.LogNotAllowed, match="no grant `admin`"):
                call()
        assert log.config().leader == "n1"
        for peer in cluster.model.peers:
            peer.denies = ()
        assert log.append(b"second") == 2
