"""A client that knows only the text, against a running cluster; sections are the text's."""

import os
import shutil
import signal
from itertools import pairwise

import pytest

import kelek
from kelek.tests.interop.conftest import InteropCluster, new_folder
from kelek.tests.interop.zmqraft.plain import (
    Dealer,
    PlainEntry,
    PlainLogClient,
    entry,
    json,
    number,
    reqid,
    truth,
    uint,
)
from kelek.tests.waiting import wait_until

IDENT = b"interop"
FORMS = pytest.mark.parametrize("ident", [None, IDENT], ids=["text", "node"])
QUIET_S = 0.3
EXPIRED_S = 9 * 3600
AHEAD_S = -20 * 60


@FORMS
def test_request_config(cluster: InteropCluster, ident: bytes | None) -> None:
    with cluster.client(ident) as client:
        client.find_leader()
        leading = 0
        for name in client.peers:
            is_leader, leader, members = client.config(name)
            assert json(leader) == client.leader
            assert truth(is_leader) is (name == client.leader)
            assert json(members) == [[peer, url] for peer, url in cluster.urls.items()]
            leading += truth(is_leader)
        assert leading == 1


@FORMS
def test_request_update_reports_its_progress(cluster: InteropCluster, ident: bytes | None) -> None:
    with cluster.client(ident) as client:
        updates = [(reqid(), os.urandom(10)) for _ in range(20)]
        indexes = [client.update(data, request) for request, data in updates]
        assert all(before < after for before, after in pairwise(indexes))
        client.wait_applied(indexes[-1])
        found = dict(client.entries(indexes[0] - 1))
        for (request, data), index in zip(updates, indexes, strict=True):
            assert (found[index].reqid, found[index].kind) == (request, 0)
            assert found[index].data == data


@FORMS
def test_an_acknowledged_update_is_in_the_next_entries(
    cluster: InteropCluster, ident: bytes | None
) -> None:
    """At once, not when it is applied."""
    with cluster.client(ident) as client:
        for count in range(40):
            index = client.update(b"%d" % count)
            found = [(at, it.data) for at, it in client.entries(index - 1, 1)]
            assert found == [(index, b"%d" % count)]


def test_the_ident_alone_is_refused_as_data(cluster: InteropCluster) -> None:
    """So sends a client in node form that drops an empty frame."""
    with cluster.client() as client:
        leader, before = client.find_leader(), client.update(b"before")
        assert leader.ask(reqid(), b"=", IDENT) == [b""]
        index = client.update(b"behind")
        client.wait_applied(index)
        found = [each.data for _, each in client.entries(before)]
        assert b"behind" in found
        assert IDENT not in found


def test_a_repeated_reqid_gets_its_first_index(cluster: InteropCluster) -> None:
    """From the same connection, from another one, in the other form."""
    request = reqid()
    with cluster.client() as client:
        index = client.update(b"once", request)
        assert client.update(b"once", request) == index
        with cluster.client(IDENT) as other:
            assert other.update(b"once", request) == index
        client.wait_applied(client.update(b"behind it"))
        found = [at for at, it in client.entries(index - 1) if it.reqid == request]
        assert found == [index]


def test_an_update_that_waits_is_accepted_first(cluster: InteropCluster) -> None:
    """ "Accepted but not committed": while both followers are stopped nothing can commit."""
    request = reqid()
    with cluster.client() as client:
        leader = client.find_leader()
        pids = [cluster.pid(name) for name in client.followers]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            leader.send(request, b"=", b"waits")
            answer = leader.receive()
            assert answer == [request, b"\x01"]
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        index = client.update(b"waits", request)
        assert client.update(b"waits", request) == index
        client.wait_applied(client.update(b"behind it"))
        assert [at for at, it in client.entries(index - 1) if it.reqid == request] == [index]


@pytest.mark.parametrize("age_s", [EXPIRED_S, AHEAD_S], ids=["expired", "of the future"])
@FORMS
def test_an_update_out_of_its_time_is_refused_for_good(
    cluster: InteropCluster, ident: bytes | None, age_s: int
) -> None:
    """ "false and the 3rd frame is missing": it has expired."""
    with cluster.client(ident) as client:
        leader = client.find_leader()
        answer = leader.ask(reqid(age_s), b"=", *client.ident, b"late")
        assert [truth(frame) for frame in answer] == [False]


def test_updates_that_no_log_can_hold_are_refused_for_good(cluster: InteropCluster) -> None:
    with cluster.client() as client:
        leader = client.find_leader()
        assert leader.ask(reqid(), b"=", b"") == [b""]
        assert leader.ask(reqid(), b"=", bytes((10 << 20) + 1)) == [b""]
        assert client.update(bytes(10 << 20)) > 0


@FORMS
def test_a_follower_names_the_leader(cluster: InteropCluster, ident: bytes | None) -> None:
    with cluster.client(ident) as client:
        client.find_leader()
        for name in client.followers:
            peer = client.peers[name]
            taken, leader = peer.ask(reqid(), b"=", *client.ident, b"no")
            assert (truth(taken), json(leader)) == (False, client.leader)
            status, leader, *_ = peer.ask(reqid(), b"<", *client.ident, b"\0")
            assert (number(status), json(leader)) == (0, client.leader)


def fill(client: PlainLogClient, count: int, size: int) -> int:
    """Many updates at once; returns the index before the first of them."""
    leader = client.find_leader()
    before = client.update(b"before")
    for _ in range(count):
        leader.send(reqid(), b"=", *client.ident, os.urandom(size))
    left = count
    while left:
        answer = leader.receive()
        assert truth(answer[1])
        left -= len(answer) == 3
    return before


@FORMS
def test_entries_come_in_pipelines_of_five(cluster: InteropCluster, ident: bytes | None) -> None:
    """ "up to REQUEST_ENTRIES_PIPELINES (default: 5) response messages prior to" a follow-up."""
    with cluster.client(ident) as client:
        prev = fill(client, 400, 2000)
        leader, request = client.find_leader(), reqid()
        client.wait_applied(prev + 400)
        leader.send(request, b"<", *client.ident, uint(prev))
        lasts, found = [], 0
        for _ in range(5):
            answer = leader.receive()
            assert (answer[0], number(answer[1])) == (request, 2)
            lasts.append(number(answer[3]))
            found += len(answer[4:])
            assert sum(map(len, answer)) < (64 << 10) + 4000
        assert leader.receive_within(QUIET_S) is None
        assert lasts[-1] == prev + found
        # A follow-up with the first one's LOG INDEX sets one more free, not all.
        leader.send(request, b"<", *client.ident, uint(lasts[0]))
        answer = leader.receive()
        found += len(answer[4:])
        assert number(answer[3]) == prev + found
        assert leader.receive_within(QUIET_S) is None
        # Count 0 stops it, without an answer.
        leader.send(request, b"<", *client.ident, uint(lasts[1]), b"\0")
        assert leader.receive_within(QUIET_S) is None
        # Any other index begins it there.
        leader.send(request, b"<", *client.ident, uint(prev + 3), b"\x02")
        answer = leader.receive()
        assert (number(answer[1]), number(answer[3]), len(answer)) == (1, prev + 5, 6)


@FORMS
def test_entries_with_follow_ups_are_complete(cluster: InteropCluster, ident: bytes | None) -> None:
    with cluster.client(ident) as client:
        prev = fill(client, 300, 3000)
        client.wait_applied(prev + 300)
        indexes = [index for index, _ in client.entries(prev, 290)]
        assert indexes == list(range(prev + 1, prev + 291))
        everything = client.entries(0)
        assert [index for index, _ in everything] == list(range(1, len(everything) + 1))
        assert everything[0][1] == PlainEntry(bytes(12), 2, everything[0][1].term, b"\xc0")
        terms = [it.term for _, it in everything]
        assert terms == sorted(terms)


@FORMS
def test_entries_at_the_end_and_beyond(cluster: InteropCluster, ident: bytes | None) -> None:
    with cluster.client(ident) as client:
        index = client.update(b"the last one")
        client.wait_applied(index)
        leader = client.find_leader()
        for prev in (index, index + 1000):
            status, _, last = leader.ask(reqid(), b"<", *client.ident, uint(prev))
            assert (number(status), number(last)) == (1, prev), "never below what is asked for"
        # Count 0 as a first request: nothing to stop, no answer.
        leader.send(reqid(), b"<", *client.ident, b"\0", b"\0")
        assert leader.receive_within(QUIET_S) is None


@FORMS
def test_request_log_info(cluster: InteropCluster, ident: bytes | None) -> None:
    with cluster.client(ident) as client:
        index = client.update(b"info")
        for name in client.peers:
            info = client.peers[name].ask(reqid(), b"%", *client.ident)
            assert len(info) == (8 if ident is None else 9)
            assert truth(info[0]) is (name == client.leader)
            assert json(info[1]) == client.leader
            _, first, applied, commit, last, snapshot = map(number, info[2:8])
            assert (first, snapshot) == (1, 0)
            assert applied <= commit <= last
            if name == client.leader:
                assert last >= commit >= index


def test_the_rest_of_a_state_is_sent_to_the_connection_that_had_the_first_part() -> None:
    """Under a new id, as a client of the npm package asks that paused; to others it begins anew."""
    folder = new_folder()
    cluster = InteropCluster(
        folder, {"n1": "kelek"}, log="snapshot_entries: 0, snapshot_trailing_entries: 0"
    )
    try:
        with cluster.client(IDENT) as client, cluster.client(IDENT) as other:
            client.wait_applied(client.update(b"in the state"))
            leader = client.find_leader()
            with kelek.Log([leader.url], "interop") as log:
                index = log.make_snapshot(leader.url).last_index
            wait_until(
                lambda: number(leader.ask(reqid(), b"%", IDENT)[3]) > index,
                "the log is not compacted",
            )

            def ask(dealer: Dealer, offset: int) -> tuple[list[int], bytes]:
                answer = dealer.ask(reqid(), b"<", IDENT, uint(0), b"", uint(offset))
                assert number(answer[0]) == 3
                found = json(answer[1])
                assert isinstance(found, list)
                return found[:2], answer[3]

            (_, size), state = ask(leader, 0)
            assert len(state) == size
            assert ask(leader, 7) == ([7, size], state[7:])
            assert ask(other.find_leader(), 7) == ([0, size], state)
    finally:
        cluster.stop()
        shutil.rmtree(folder)


@FORMS
def test_request_broadcast_state_url(cluster: InteropCluster, ident: bytes | None) -> None:
    """Only the leader names a url in the text's form; in node's every peer does, its own."""
    with cluster.client(ident) as client:
        leader = client.find_leader()
        for name, peer in client.peers.items():
            answer = peer.ask(reqid(), b"*", *client.ident)
            says = peer is leader or ident is not None
            assert answer == ([cluster.broadcast_urls[name].encode()] if says else []), name


@pytest.mark.parametrize("size", [1, 3, 11])
def test_short_ids_of_reading_messages(cluster: InteropCluster, size: int) -> None:
    """As node's clients make them: 1 to 12 bytes, echoed."""
    with cluster.client(b"interop") as client:
        index = client.update(b"short")
        client.wait_applied(index)
        leader, request = client.find_leader(), b"i" * size
        for kind in (b"^", b"%", b"*"):
            assert leader.ask(request, kind, b"interop")
        status, _, last, frame = leader.ask(request, b"<", b"interop", uint(index - 1), b"\x01")
        assert (number(status), number(last), entry(frame).data) == (1, index, b"short")
        # A count that is null: an empty frame. All from there on.
        status, _, last, *frames = leader.ask(request, b"<", b"interop", uint(index - 1), b"")
        assert number(last) == index - 1 + len(frames)


def test_entries_are_the_bytes_of_the_text(cluster: InteropCluster) -> None:
    request = reqid()
    with cluster.client() as client:
        index = client.update(b"foo", request)
        client.wait_applied(index)
        answer = client.find_leader().ask(reqid(), b"<", uint(index - 1), b"\x01")
        term = number(client.peers[client.leader].ask(reqid(), b"%")[2])
        assert answer[3] == request + b"\0" + term.to_bytes(7, "little") + b"foo"
        assert entry(answer[3]).data == b"foo"
