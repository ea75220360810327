"""kelek.Log over real sockets, against peers of the virtual world that a thread serves."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow
import pytest

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
from kelek.protocols.zmqraft.client.client import LogClientSetup
from kelek.tests.clients.log.log_peers import LogPeers


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LogPeers]:
    cluster = LogPeers(tmp_path)
    yield cluster
    cluster.close()


@pytest.mark.parametrize("form", ["auto", "node"])
def test_updates_and_entries(cluster: LogPeers, form: str) -> None:
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


def test_what_was_read_is_not_left_out_by_a_peer_that_lags(cluster: LogPeers) -> None:
    with kelek.Log(cluster.urls, "demo") as writer, kelek.Log(cluster.urls, "demo") as log:
        writer.append_many(b"%d" % number for number in range(20))
        cluster.model.peers[1].lags = 5
        lagging = cluster.urls[1]
        assert len(list(log.entries(url=lagging))) == 15
        assert len(list(log.entries())) == 20
        assert len(list(log.entries(url=lagging))) == 20
        assert len(list(log.entries(count=3, url=lagging))) == 3


def test_updates_with_ids_of_ones_own_are_appended_once(cluster: LogPeers) -> None:
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


def test_read_index(cluster: LogPeers) -> None:
    with kelek.Log(cluster.urls, timeout_ms=60_000) as log:
        assert log.read_index() == 1
        log.append_many([b"a", b"b"])
        assert log.read_index(applied=False) == 3
        cluster.kill(cluster.urls[0])
        cluster.elect("n2")
        assert log.read_index() == 3


def test_transfer(cluster: LogPeers) -> None:
    with kelek.Log(cluster.urls, timeout_ms=60_000) as log:
        assert log.transfer("n2") == "n2"
        assert log.config().leader == "n2"
        assert log.transfer() == "n3"
        assert log.append(b"still fine") == 1
        with pytest.raises(TransferRefused, match="n9 is no member"):
            log.transfer("n9")


def test_read_index_of_a_leader_that_knows_none(cluster: LogPeers) -> None:
    """It is refused before anything is sent: that must not wait for something to arrive."""
    cluster.model.peers[0].features = ("pack", "append")
    with kelek.Log(cluster.urls, timeout_ms=60_000) as log:
        until_ms = monotonic_ms() + log.timeout_ms
        with pytest.raises(LogError, match="serves no linearizable reads"):
            log.read_index()
        with pytest.raises(TransferRefused, match="knows no leadership transfer"):
            log.transfer("n2")
        assert monotonic_ms() < until_ms
        assert log.append(b"still fine") == 1
    with kelek.Log(cluster.urls, form="text") as log, pytest.raises(LogError, match="form='auto'"):
        log.read_index()


def test_a_failover_in_the_middle(cluster: LogPeers) -> None:
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


def test_following_waits_for_more(cluster: LogPeers) -> None:
    with kelek.Log(cluster.urls) as log, kelek.Log(cluster.urls) as reader:
        log.append(b"a")
        entries = reader.watch()
        assert next(entries).data == b"a"
        log.append_many([b"b", b"c"])
        assert [entry.data for entry in islice(entries, 2)] == [b"b", b"c"]
        entries.close()


@pytest.mark.parametrize("size", [0, (10 << 20) + 1])
def test_too_large_is_an_error_before_it_is_sent(cluster: LogPeers, size: int) -> None:
    with kelek.Log(cluster.urls) as log, pytest.raises(LogTooLarge):
        log.append(bytes(size))
    assert not cluster.model.log.records


def test_the_largest_update_travels_alone(cluster: LogPeers) -> None:
    with kelek.Log(cluster.urls) as log:
        assert log.append_many([b"a", bytes(10 << 20), b"b"]) == 3


@pytest.mark.parametrize("wrong", ["text", 5, None])
def test_updates_are_bytes(cluster: LogPeers, wrong: object) -> None:
    with kelek.Log(cluster.urls) as log, pytest.raises(TypeError):
        log.append(wrong)  # type: ignore[arg-type]


def test_an_expired_update(cluster: LogPeers) -> None:
    cluster.model.peers[0].refuse = "expired"
    with kelek.Log(cluster.urls) as log:
        with pytest.raises(LogExpired):
            log.append_many([b"a", b"b"])
        cluster.model.peers[0].refuse = None
        assert log.append(b"c") == 1


def test_no_leader(cluster: LogPeers) -> None:
    cluster.model.peers[0].leads = False
    with kelek.Log(cluster.urls, timeout_ms=100) as log:
        with pytest.raises(LogNoLeader):
            log.append(b"a")
        with pytest.raises(TimeoutError):
            log.info()
        cluster.elect("n3")
        log.timeout_ms = 60_000
        # The first one stayed on its way, and keeps its place.
        assert log.append(b"b") == 2


def test_a_leader_that_never_commits(cluster: LogPeers) -> None:
    with kelek.Log(cluster.urls) as log:
        log.append(b"a")  # Now it is known.
        cluster.model.peers[0].commits = False
        log.timeout_ms = 200
        with pytest.raises(LogTimeout, match="no progress"):
            log.append(b"b")


def test_the_times_of_the_search_are_the_users(cluster: LogPeers) -> None:
    tuning = LogTuning(response_ttl_ms=100, election_grace_ms=120)
    setup = make_client(cluster.urls, "demo", "auto", tuning).setup
    assert (setup.response_ttl_ms, setup.search_ms) == (100, 10)
    assert LogClientSetup(b"demo", ()).search_ms == LogTuning().election_grace_ms // 12


def test_closed_and_wrong_arguments(cluster: LogPeers) -> None:
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
def test_what_is_no_url_is_refused_before_anything_runs(url: str) -> None:
    """libzmq refuses it when it connects, and a socket left over would hold up its context."""
    with pytest.raises(ValueError, match=r"url|port|path"):
        kelek.Log(url)


def test_a_learned_address_that_is_none_harms_nobody(cluster: LogPeers) -> None:
    cluster.model.peers[2].url = "tcp://nowhere"  # What the others now say of it.
    with kelek.Log(cluster.urls[0]) as log:
        assert log.append(b"a") == 1


def test_reqids_differ() -> None:
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
