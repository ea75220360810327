"""The views of the HTTP API over farms in virtual time."""

import json
from base64 import b64decode
from itertools import pairwise

from kelek.protocols.garlicfarm.app.documents import encode_status
from kelek.protocols.garlicfarm.app.orders import Audit, FarmConfig, OrderKind, encode_order
from kelek.protocols.garlicfarm.app.posters import encode_poster
from kelek.protocols.garlicfarm.server.inbound import PeerSession
from kelek.protocols.garlicfarm.server.membership import add_server_request, remove_server_request
from kelek.protocols.garlicfarm.wire.http_api import (
    DOCUMENTS_BYTES_MAX,
    ENTRIES_COUNT_DEFAULT,
    ENTRIES_VALUES_BYTES_MAX,
    ViewRequest,
)
from kelek.protocols.garlicfarm.wire.messages import MessageType
from kelek.tests.protocols.garlicfarm.app.app_cluster import (
    INTERVAL_MS,
    AppWorld,
    make_snapshot,
    order,
    publish,
    settled_farm,
)
from kelek.tests.protocols.garlicfarm.farm_cluster import client_request, server


def test_the_status_of_a_farm() -> None:
    cluster = settled_farm()
    leader = cluster.elect()
    core = cluster.peers[leader].core
    status = cluster.view(leader)
    links = {each["id"]: each["link"] for each in status["members"]}
    assert links == {number: "self" if number == leader else "up" for number in (1, 2, 3)}
    assert {each["match"] for each in status["members"]} == {core.log.last_index}
    assert {each["endpoint"] for each in status["members"]} == {
        each.endpoint for each in cluster.members
    }
    wanted = {
        "cluster": "farm", "id": leader, "state": "leader", "term": core.term, "leader": leader,
        "first": 1, "commit": core.commit_index, "last": core.log.last_index, "change": None,
        "publisher": 1, "publish": "auto", "connections": {"inbound": leader},
        "asked_by": {"user": "admin", "admin": True},
    }  # fmt: skip
    assert {key: status[key] for key in wanted} == wanted
    assert status["counters"]["status"] == 3
    follower = cluster.view(next(number for number in (1, 2, 3) if number != leader))
    assert (follower["state"], follower["leader"]) == ("follower", leader)
    assert "match" not in follower["members"][0]
    show = cluster.apps[leader].render(ViewRequest("status", {}, "bob"))
    assert json.loads(show)["asked_by"] == {"user": "bob", "admin": False}


def test_a_change_of_members_is_shown() -> None:
    cluster = settled_farm(members=(1,))
    assert cluster.ask(add_server_request(server(4))).is_accepted
    assert cluster.view(1)["change"] == {"server": 4, "stage": "invite"}
    cluster.start(4)
    assert cluster.view(4)["state"] == "waiting"
    cluster.run_until(lambda: cluster.view(4)["state"] == "follower")
    assert cluster.ask(remove_server_request(4)).is_accepted
    cluster.run_until(lambda: cluster.view(4)["state"] == "waiting")


def test_the_entries_of_a_log() -> None:
    """Documents and orders appear as JSON, other entries in base64, in order, with the next
    index.
    """
    cluster = settled_farm(members=(1,))
    assert cluster.order(publish(1))
    assert cluster.ask(client_request(b"\xff", b'{"cluster":"x","date":1,"id":1}')).is_accepted
    cluster.run_until(cluster.is_settled)
    whole = cluster.view(1, "entries")
    assert [each["index"] for each in whole["entries"]] == list(range(1, whole["next"]))
    assert (whole["first"], whole["commit"], whole["next"]) == (1, 7, 8)
    configuration, document, poster, ordered, nobody, junk, foreign = whole["entries"]
    assert (configuration["type"], configuration["servers"]) == (
        2, [{"id": 1, "endpoint": "tcp://127.0.0.1:9001"}]
    )  # fmt: skip
    assert (document["type"], document["document"]["id"], document["term"]) == (1, 1, 1)
    assert ordered["document"]["admin"] == "publish"
    assert (document["user"], ordered["user"], junk["user"]) == (None, "admin", None)
    assert (poster["poster"], nobody["poster"]) == ("admin", None)
    assert junk == {"index": 6, "term": 1, "type": 1, "user": None, "value": "/w=="}
    assert "value" in foreign
    some = cluster.view(1, "entries", from_=2, count=3)
    assert (some["entries"], some["next"]) == ([document, poster, ordered], 5)
    raw = cluster.view(1, "entries", raw=1)["entries"]
    assert all({"index", "term", "type", "value"} < set(each) for each in raw[1:])
    beyond = cluster.view(1, "entries", from_=100)
    assert (beyond["entries"], beyond["next"], beyond["commit"]) == ([], 100, 7)


def test_the_user_of_each_entry_is_kept() -> None:
    """From any index, on each server, also after a change of the leader. Values are stored as
    appended.
    """
    cluster = AppWorld()
    cluster.app_setup = cluster.app_setup._replace(post_interval_ms=0)
    for number in (1, 2, 3):
        cluster.kill(number)
        cluster.start(number, cluster.members)
    names = ["ann", "bob", "ann", "bob", "bob", 'd"\u00fc']
    told: list[tuple[bytes, str | None]] = []
    for round_ in range(2):
        leader = cluster.elect()
        for at, name in enumerate(names):
            values = [b"%d %d %d" % (round_, at, each) for each in range(700 if at == 3 else 2)]
            grant = PeerSession(name, is_admin=False)
            assert cluster.ask(client_request(*values), leader, grant).is_accepted
            told += [(value, name) for value in values]
        cluster.kill(leader)
        cluster.elect()
        cluster.start(leader, cluster.members)
    cluster.ask(client_request(b"of nobody"))
    told.append((b"of nobody", None))
    cluster.run(3000)
    for number in (1, 2, 3):
        for step in (1000, 7):
            found, index = [], 1
            while (page := cluster.view(number, "entries", from_=index, count=step))["entries"]:
                found += [each for each in page["entries"] if "value" in each]
                index = page["next"]
            entries = [each for each in found if "poster" not in each]
            assert [(b64decode(each["value"]), each["user"]) for each in entries] == told
            assert len(found) - len(entries) < 20, "not one for each"


def test_poster_entries_are_repeated() -> None:
    """A reader finds the user without a search of the whole log."""
    cluster = settled_farm(members=(1,))
    ann = PeerSession("ann", is_admin=False)
    for _ in range(5):
        assert cluster.ask(client_request(*[b"x"] * 900), 1, ann).is_accepted
    cluster.run_until(cluster.is_settled)
    entries = [
        each
        for at in range(1, 5000, 1000)
        for each in cluster.view(1, "entries", from_=at, count=1000)["entries"]
    ]
    named = [each["index"] for each in entries if "poster" in each]
    assert [b - a for a, b in pairwise(named)] == [1801, 1801]


def test_what_a_client_may_not_append() -> None:
    """Another server's status and a poster entry are refused, counted and audited. Other JSON is
    accepted.
    """
    cluster = settled_farm()
    leader = cluster.elect()
    eve, two = PeerSession("eve", is_admin=False), PeerSession("two", 2, is_admin=False)
    status = {"cluster": "farm", "date": 1, "id": 2}
    escaped = b'{"cl\\u0075ster":"farm","date":1,"id":2}'
    peer = cluster.peers[leader]
    before = peer.core.log.last_index
    for value in (encode_status(status), escaped, encode_poster("adm")):
        answer = cluster.ask(client_request(b"fine", value), leader, eve)
        assert (answer.is_accepted, answer.destination, answer.next_index) == (False, leader, 0)
    answer = cluster.ask(client_request(encode_status({**status, "id": 1})), leader, two)
    assert not answer.is_accepted
    assert peer.core.log.last_index == before
    assert peer.refused[MessageType.CLIENT_REQUEST] == 4
    assert list(peer.append_policy.audits) == [
        Audit("eve", "status of server 2", False),
        Audit("eve", "status of server 2", False),
        Audit("eve", "a poster entry, which only a leader writes", False),
        Audit("two", "status of server 1", False),
    ]
    assert cluster.ask(client_request(encode_status(status)), leader, two).is_accepted
    other = encode_status({**status, "cluster": "other"})
    assert cluster.ask(client_request(other, b'{"cluster":"farm"}'), leader, eve).is_accepted
    peer.append_policy.audits.clear()
    mixed = client_request(encode_order(publish(3)), encode_status(status))
    assert not cluster.ask(mixed, leader, PeerSession("admin")).is_accepted
    assert [audit.is_accepted for audit in peer.append_policy.audits] == [False, False]


def test_answers_about_entries_are_bounded() -> None:
    cluster = settled_farm(members=(1,))
    third = bytes(ENTRIES_VALUES_BYTES_MAX // 3)
    for values in ((third,) * 4, (bytes(ENTRIES_VALUES_BYTES_MAX + 1), b"x"), (b"y",) * 300):
        assert cluster.ask(client_request(*values)).is_accepted
    cluster.run_until(cluster.is_settled)
    index, pages = 3, []
    while True:
        page = cluster.view(1, "entries", from_=index, raw=1)
        if not page["entries"]:
            break
        pages.append([each["index"] for each in page["entries"]])
        index = page["next"]
    assert [number for page in pages for number in page] == list(range(3, page["commit"] + 1))
    assert [len(page) for page in pages[:3]] == [3, 1, 1]
    assert max(len(page) for page in pages) == ENTRIES_COUNT_DEFAULT


def test_compacted_entries() -> None:
    cluster = settled_farm(members=(1,))
    assert cluster.ask(client_request(b"a", b"b")).is_accepted
    cluster.run_until(cluster.is_settled)
    mark = make_snapshot(cluster, 1)
    assert cluster.ask(client_request(b"c")).is_accepted
    cluster.run_until(cluster.is_settled)
    page = cluster.view(1, "entries", from_=1)
    first = mark.last_index + 1
    assert (page["first"], [each["index"] for each in page["entries"]]) == (first, [first])


def test_answers_about_documents_are_bounded() -> None:
    """A document without room is shown when requested alone."""
    cluster = AppWorld(members=(1,))
    state = cluster.apps[1].state
    for number in range(1, 20):
        bare = {"cluster": "farm", "date": 1, "id": number, "config": {"x": "y" * 1_000_000}}
        state.apply(number, encode_status(bare))
    state.index = 0
    shown = cluster.view(1, "documents")["documents"]
    assert [each["id"] for each in shown] == list(range(1, 20))
    whole = [each["id"] for each in shown if each["document"] is not None]
    assert whole == list(range(1, DOCUMENTS_BYTES_MAX // 1_000_000 + 1))
    (last,) = cluster.view(1, "documents", id=19)["documents"]
    assert last["document"]["id"] == 19
    assert cluster.view(1, "documents", id=77)["documents"] == []


def test_a_configuration_is_exported() -> None:
    cluster = settled_farm(members=(1,))
    export = FarmConfig("farm", (), 1, ("h",), (7,), {"postingInterval": INTERVAL_MS})
    assert cluster.order(order(OrderKind.IMPORT, configuration=export))
    cluster.run_until(cluster.is_settled)
    assert cluster.view(1, "configuration") == {
        "version": 1,
        "cluster": "farm",
        "servers": [{"id": 1, "endpoint": "tcp://127.0.0.1:9001"}],
        "publish": 1,
        "excluded": {"hashes": ["h"], "servers": [7]},
        "settings": {"postingInterval": INTERVAL_MS},
    }
    documents = cluster.view(1, "documents")
    assert documents["excluded"] == {"hashes": ["h"], "servers": [7]}
    assert (documents["publish"], documents["publisher"]) == (1, 1)
