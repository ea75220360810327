"""Applications of farm servers in virtual time: documents, orders, router, snapshots."""

import json
from collections.abc import Mapping
from itertools import pairwise

import pytest

from kelek.protocols.garlicfarm.app.application import (
    APPLY_DELAY_MS,
    NEVER_MS,
    READ_RETRY_MS,
    RETRY_MS_FIRST,
)
from kelek.protocols.garlicfarm.app.documents import PublishConfig
from kelek.protocols.garlicfarm.app.orders import (
    ORDERS_MAX,
    Audit,
    FarmConfig,
    OrderKind,
    PublishChoice,
    encode_order,
)
from kelek.protocols.garlicfarm.app.router import Publication, RouterStatus
from kelek.protocols.garlicfarm.app.state import Leaf
from kelek.protocols.garlicfarm.server.append_policy import AUDITS_MAX
from kelek.protocols.garlicfarm.server.inbound import PeerSession
from kelek.protocols.garlicfarm.server.membership import add_server_request, remove_server_request
from kelek.protocols.garlicfarm.server.values import FarmSnapshot
from kelek.protocols.garlicfarm.wire.messages import (
    FarmConfiguration,
    FarmLogEntry,
    MessageType,
    Request,
    ValueType,
)
from kelek.protocols.garlicfarm.wire.values import encode_configuration
from kelek.tests.protocols.garlicfarm.app.app_cluster import (
    EPOCH_MS,
    INTERVAL_MS,
    AppWorld,
    make_snapshot,
    order,
    publish,
    settled_farm,
)
from kelek.tests.protocols.garlicfarm.farm_cluster import FarmRequester, client_request, server
from kelek.tests.protocols.garlicfarm.server.test_peer import grow
from kelek.tests.sim.simulation import US_PER_MS

# ---- documents ----


def test_each_server_posts_its_document() -> None:
    """Through the leader, with its router's part; every server stores all documents."""
    farm = settled_farm()
    assert len(farm.encoded) == 1
    (document,) = [each["document"] for each in farm.view(1, "documents", id=2)["documents"]]
    assert EPOCH_MS < document.pop("date") < EPOCH_MS + farm.now_ms
    assert document == {
        "cluster": "farm",
        "id": 2,
        "config": {"postingInterval": INTERVAL_MS},
        "router": {"uptime": 1},
        "meta": {"publishing": False, "lastPublishedTime": 0, "publishConfig": "auto"},
    }


def dates(farm: AppWorld, number: int, since: int = 1) -> list[int]:
    """The dates of a server's documents in the log."""
    found = []
    for _, (_, data) in sorted(farm.committed(farm.elect()).items()):
        if data.startswith(b'{"cluster"') and json.loads(data)["id"] == number:
            found.append(json.loads(data)["date"] - EPOCH_MS)
    return found[since:]


def test_documents_come_periodically_and_not_together() -> None:
    farm = settled_farm()
    farm.run(6 * INTERVAL_MS)
    phases = set()
    for number in (1, 2, 3):
        times = dates(farm, number)
        assert len(times) >= 5
        gaps = [after - before for before, after in pairwise(times)]
        assert all(abs(gap - INTERVAL_MS) <= 2 for gap in gaps), "each has its own part"
        phases.add(times[0] % INTERVAL_MS // 1000)
    assert len(phases) == 3
    assert all(farm.apps[number].posted == len(dates(farm, number, 0)) for number in (1, 2, 3))


def test_documents_survive_elections_and_deaths() -> None:
    """A document that is not committed in time is posted again; every server catches up."""
    farm = settled_farm(seed=5)
    leader = farm.elect()
    before = {number: farm.apps[number].posted for number in (1, 2, 3)}
    farm.kill(leader)
    others = [number for number in (1, 2, 3) if number != leader]
    farm.run_until(lambda: all(farm.apps[each].posted > before[each] for each in others))
    farm.start(leader)
    farm.run_until(lambda: farm.apps[leader].posted > 0 and farm.is_settled())
    farm.run_until(lambda: farm.apps[leader].logged_date_ms == farm.apps[leader].last_date_ms)
    assert len(farm.encoded) == 1


def test_without_a_leader_nothing_is_posted() -> None:
    farm = settled_farm()
    for number in (2, 3):
        farm.kill(number)
    farm.run(10_000)
    app = farm.apps[1]
    posted = app.posted
    farm.run(3 * INTERVAL_MS)
    assert (app.posted, app.deadline_ms) == (posted, NEVER_MS)
    for number in (2, 3):
        farm.start(number)
    farm.settle()
    farm.run_until(lambda: app.posted > posted)


def test_retries_become_rare() -> None:
    """Retries slow down when the leader refuses or cannot commit."""
    farm = settled_farm(members=(1,))
    app, peer = farm.apps[1], farm.peers[1]
    peer.post = lambda value, now_ms: True  # type: ignore[method-assign]
    start_ms, posted = farm.now_ms, app.posted
    farm.run_until(lambda: app.posted == posted + 4, ms=200_000)
    assert farm.now_ms - start_ms > 7 * RETRY_MS_FIRST


def test_a_server_that_posts_nothing() -> None:
    farm = AppWorld(members=(1,))
    farm.app_setup = farm.app_setup._replace(post_interval_ms=0)
    farm.kill(1)
    farm.start(1)
    farm.elect()
    farm.run(INTERVAL_MS)
    assert (farm.apps[1].posted, farm.apps[1].state.posted) == (0, {})


def test_an_order_sets_the_interval_of_all() -> None:
    farm = settled_farm(members=(1,))
    export = FarmConfig("farm", settings={"postingInterval": 1000, "more": "kept"})
    assert farm.order(order(OrderKind.IMPORT, configuration=export))
    posted = farm.apps[1].posted
    farm.run(10_000)
    assert 9 <= farm.apps[1].posted - posted <= 11
    config = farm.apps[1].state.posted[1].status.document["config"]
    assert config == {"postingInterval": 1000, "more": "kept"}
    assert farm.order(
        order(OrderKind.IMPORT, configuration=FarmConfig("farm", settings={"postingInterval": 0}))
    )
    posted = farm.apps[1].posted
    farm.run(10_000)
    assert farm.apps[1].posted == posted


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ({"meta": 5}, "meta of a document must be an object"),
        ({"meta": {"publishing": "?"}}, "publishing a boolean"),
        ({"router": {"uptime": -1}}, "uptime"),
        ({"destinations": [{"destination": float("nan")}]}, "JSON"),
        ({"destinations": [{"destination": "x" * (1 << 20)}]}, "not a document"),
    ],
)
def test_a_router_with_invalid_output(document: Mapping[str, object], error: str) -> None:
    """The server posts its own part and reports the problem."""
    farm = AppWorld(members=(1,))
    farm.routers[1].said = RouterStatus(document)
    farm.settle()
    assert error in farm.view(1)["posting"]["error"]
    posted = farm.apps[1].state.posted[1].status.document
    assert "router" not in posted
    farm.routers[1].said = RouterStatus({"router": {"uptime": 7}}, "an old one")
    farm.run(2 * INTERVAL_MS)
    assert farm.view(1)["posting"]["error"] == "an old one"
    assert farm.apps[1].state.posted[1].status.uptime_ms == 7


def test_a_clock_that_goes_back() -> None:
    """The dates of its documents still increase."""
    farm = settled_farm(members=(1,))
    app = farm.apps[1]
    before_ms = app.logged_date_ms
    farm.epoch_ms = 5
    dates: set[int] = set()

    def posted_thrice() -> bool:
        dates.add(app.logged_date_ms)
        return len(dates) == 4

    farm.run_until(posted_thrice)
    assert dates == {before_ms, before_ms + 1, before_ms + 2, before_ms + 3}


# ---- publishing ----


def test_the_publishers_router_publishes() -> None:
    """One publisher at a time has contents; the other routers are stopped once."""
    farm = AppWorld()
    farm.routers[2].said = RouterStatus(
        {"router": {"uptime": 9}, "destinations": [{"destination": "a"}]}
    )
    farm.settle()
    farm.run_until(lambda: farm.routers[2].told[-1] is not None)
    leaf = Leaf(2, "a", {"destination": "a"})
    assert farm.routers[2].told[-1] == Publication(0, (leaf,))
    farm.run(3 * INTERVAL_MS)
    told = len(farm.routers[2].told)
    assert farm.apps[2].state.posted[2].status.is_publishing
    assert not farm.apps[1].state.posted[1].status.is_publishing
    assert farm.order(publish(3))
    farm.run_until(farm.is_settled)
    assert farm.routers[2].told[told:] == [None]
    last = farm.routers[3].told[-1]
    assert last is not None
    assert last.log_index > 0
    assert farm.order(publish(3)), "once more: a new index, so it is done once more"
    farm.run_until(farm.is_settled)
    again = farm.routers[3].told[-1]
    assert again is not None
    assert again.log_index > last.log_index
    assert farm.order(order(OrderKind.EXCLUDE, hashes=("a",)))
    assert farm.order(publish(PublishChoice.AUTO))
    farm.run_until(farm.is_settled)
    assert [each.told[-1] for each in farm.routers.values()][2] is None
    shown = farm.routers[2].told[-1]
    assert shown is not None
    assert shown.contents == ()


def test_a_restarted_publisher_publishes_again() -> None:
    """A former publisher's router is stopped: it may have been publishing."""
    farm = settled_farm(members=(1, 2))
    for number, is_publisher in ((1, True), (2, False)):
        farm.routers[number].told.clear()
        farm.kill(number)
        farm.start(number)
        farm.settle()
        (first, *_) = farm.routers[number].told
        assert (first is not None) is is_publisher


def test_off_excludes_a_publisher() -> None:
    farm = AppWorld(members=(1,))
    farm.app_setup = farm.app_setup._replace(publish_config=PublishConfig.OFF)
    farm.kill(1)
    farm.start(1)
    farm.settle()
    assert (farm.apps[1].publisher, farm.routers[1].told[-1]) == (None, None)
    assert farm.view(1)["posting"]["publishConfig"] == "off"


# ---- orders on the wire ----


def test_only_administrators_give_orders() -> None:
    farm = settled_farm()
    before = farm.peers[farm.elect()].core.log.last_index
    user = PeerSession("admin", is_admin=False)
    assert not farm.order(publish(3), user)
    assert not farm.order(publish(3), PeerSession("bob")), "in another one's name"
    assert not farm.order(publish(3)._replace(cluster="other"))
    values = (b"harmless", encode_order(publish(3)))
    answer = farm.ask(client_request(*values), session=user)
    assert (answer.is_accepted, answer.destination) == (False, farm.elect())
    assert farm.peers[farm.elect()].core.log.last_index == before, "all of a request, or nothing"
    assert farm.order(publish(3))
    audits = list(farm.peers[farm.elect()].append_policy.audits)
    assert [audit.is_accepted for audit in audits] == [False, False, False, False, True]
    assert audits[-1] == Audit("admin", "publish 3", True)
    follower = next(number for number in (1, 2, 3) if number != farm.elect())
    assert not farm.ask(client_request(encode_order(publish(1))), follower).is_accepted
    assert not farm.peers[follower].append_policy.audits, "whoever leads will be asked"


def test_changes_of_members_are_audited() -> None:
    farm = settled_farm(members=(1,))
    client = FarmRequester(farm, 1, PeerSession("bob", is_admin=False))
    client.send(add_server_request(server(4)), remove_server_request(1))
    broken = FarmLogEntry(0, ValueType.CLUSTER_SERVER, b"?")
    client.send(Request(MessageType.ADD_SERVER, entries=(broken,)))
    farm.run_until(lambda: len(client.answers) == 3)
    farm.start(4)
    assert farm.ask(add_server_request(server(4))).is_accepted
    assert list(farm.peers[1].append_policy.audits) == [
        Audit("bob", "add server 4 'tcp://127.0.0.1:9004'", False),
        Audit("bob", "remove server 1", False),
        Audit("bob", "add: malformed", False),
        Audit("", "add server 4 'tcp://127.0.0.1:9004'", True),
    ]


def test_without_room_for_audits_requests_are_refused() -> None:
    """A request without room for its audits is refused and counted."""
    farm = settled_farm(members=(1,))
    peer = farm.peers[1]
    client = FarmRequester(farm, 1)
    one = encode_order(publish(1))
    client.send(*[client_request(*[one] * ORDERS_MAX)] * (AUDITS_MAX // ORDERS_MAX))
    client.send(client_request(one), client_request(b"x"), add_server_request(server(4)))
    farm.run_until(lambda: len(client.answers) == AUDITS_MAX // ORDERS_MAX + 3)
    *taken, order, entry, change = [answer.is_accepted for answer in client.answers]
    assert all(taken)
    assert (order, entry, change) == (False, True, False)
    assert [audit.is_accepted for audit in peer.append_policy.audits] == [True] * AUDITS_MAX
    assert peer.append_policy.audits_lost == 2
    peer.append_policy.audits.clear()
    assert farm.order(publish(1))


# ---- snapshots ----


@pytest.mark.parametrize("seed", range(3))
def test_states_agree_whatever_happens(seed: int) -> None:
    """Servers that have applied the same index have the same state, byte for byte, through
    kills, restarts, snapshots and elections.
    """
    farm = AppWorld(seed)
    dice, known = farm.random, dict[int, bytes]()
    farm.settle()

    def look() -> bool:
        for app in farm.apps.values():
            state = app.state.encode()
            assert known.setdefault(app.state.index, state) == state
        return False

    for turn in range(8):
        number = dice.choice((1, 2, 3))
        if number in farm.apps and dice.random() < 0.5:
            make_snapshot(farm, number)
        if len(farm.apps) == 3:
            farm.kill(number)
        else:
            (down,) = {1, 2, 3} - set(farm.apps)
            farm.start(down)
        assert farm.order(order(OrderKind.EXCLUDE, hashes=(f"h{turn}",)))
        farm.run_until(look, dice.randint(500, 5000), must=False)
    for down in {1, 2, 3} - set(farm.apps):
        farm.start(down)
    farm.settle()
    farm.run_until(lambda: look() or farm.is_settled())
    assert len(farm.encoded) == 1
    excluded = {each for app in farm.apps.values() for each in app.state.config.hashes}
    assert excluded == {f"h{turn}" for turn in range(8)}
    assert len(known) > 8


def test_a_joining_server_gets_the_state() -> None:
    farm = settled_farm()
    assert farm.order(publish(2))
    for _ in range(2):
        farm.run_until(farm.is_settled)
        for number in (1, 2, 3):
            make_snapshot(farm, number)
    grow(farm, 4)
    farm.run_until(lambda: 4 in farm.apps[4].state.posted)
    farm.run_until(farm.is_settled)
    assert len(farm.encoded) == 1
    assert farm.view(4)["publish"] == 2
    assert farm.view(4, "entries")["first"] > 1
    assert farm.peers[4].own_membership.resets == 0


def test_a_server_starts_from_its_snapshot() -> None:
    farm = settled_farm(members=(1,))
    assert farm.order(publish(PublishChoice.NONE))
    farm.run_until(farm.is_settled)
    mark = make_snapshot(farm, 1)
    farm.kill(1)
    farm.start(1)
    assert farm.apps[1].state.index == mark.last_index
    assert farm.apps[1].state.config.publish is PublishChoice.NONE
    farm.settle()


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_an_invited_server_drops_its_state(with_snapshot: bool) -> None:
    """It starts with an empty log and drops its old state."""
    farm = settled_farm(members=(1, 2))
    removed = 3 - farm.elect()
    assert farm.apps[removed].state.posted
    if with_snapshot:
        make_snapshot(farm, removed)
    assert farm.ask(remove_server_request(removed)).is_accepted
    farm.run_until(lambda: not farm.peers[removed].is_member)
    configuration = encode_configuration(FarmConfiguration(1, 0, (server(9),)))
    entry = FarmLogEntry(99, ValueType.CONFIGURATION, configuration)
    leader = FarmRequester(farm, removed)
    leader.send(Request(MessageType.JOIN_CLUSTER, 9, removed, 99, entries=(entry,)))
    farm.run_until(lambda: bool(leader.answers))
    assert leader.answers[0].is_accepted
    view = farm.view(removed)
    assert view["applied"] == 0
    assert (farm.apps[removed].state.posted, farm.peers[removed].snapshot) == ({}, FarmSnapshot())
    assert farm.apps[removed].unreadable_snapshots == 0
    assert (view["state"], view["leader"]) == ("waiting", None)


def test_a_snapshot_in_another_format() -> None:
    """A snapshot in another format is skipped; the state follows the log after it."""
    farm = settled_farm(members=(1,))
    farm.kill(1)
    farm.disks[1].mark = FarmSnapshot(2, 1, FarmConfiguration(1, 0, farm.members), 7)
    farm.disks[1].snapshot = b"foreign"
    farm.start(1)
    assert farm.view(1)["counters"]["snapshots not understood"] == 1
    assert farm.apps[1].state.index == 2
    farm.settle()


def test_what_can_not_be_read_is_read_later() -> None:
    """The loop does not spin meanwhile."""
    farm = settled_farm(members=(1,))
    app, disk = farm.apps[1], farm.disks[1]
    assert farm.ask(client_request(b"x")).is_accepted
    disk.batches = lambda *_: []  # type: ignore[method-assign]
    for _ in range(2):
        farm.simulation.now_us += APPLY_DELAY_MS * US_PER_MS
        app.wake(farm.now_ms, EPOCH_MS)
    assert app.is_behind
    assert app.deadline_ms == farm.now_ms + READ_RETRY_MS
    del disk.batches
    farm.run_until(farm.is_settled)


def test_what_comes_together_is_applied_together() -> None:
    """A view still includes entries that were committed a moment ago."""
    farm = settled_farm(members=(1,))
    client, indexes = FarmRequester(farm, 1), set()
    for _ in range(3 * APPLY_DELAY_MS):
        client.send(client_request(b"x"))
        farm.run(1)
        indexes.add(farm.apps[1].state.index)
    assert len(client.answers) > 2 * APPLY_DELAY_MS
    assert 2 <= len(indexes) <= 4
    assert farm.apps[1].is_behind
    assert farm.view(1)["applied"] == farm.peers[1].core.commit_index


def test_other_entries_are_skipped() -> None:
    """Batches of other entries are skipped at once; documents among them are found, also with
    escapes.
    """
    farm = settled_farm(members=(1,))
    before = farm.apps[1].state.counters.copy()
    escaped = b'{"\\u0063luster":"farm","date":1,"id":7}'
    plain = b'{"cluster":"farm","date":1,"id":8}'
    some = (b"x",) * 50
    for values in (some, (b"y", escaped, *some), (*some, plain), some):
        assert farm.ask(client_request(*values)).is_accepted
    farm.run_until(farm.is_settled)
    assert {7, 8} <= farm.apps[1].state.posted.keys()
    assert farm.apps[1].state.counters - before == {"other": 201, "status": 2}
    assert farm.apps[1].state.index == farm.peers[1].core.commit_index
