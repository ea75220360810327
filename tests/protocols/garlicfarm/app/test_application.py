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
from kelek.protocols.garlicfarm.server.membership import (
    add_server_request,
    remove_server_request,
)
from kelek.protocols.garlicfarm.server.values import FarmSnapshot
from kelek.protocols.garlicfarm.wire.messages import (
    FarmConfiguration,
    FarmLogEntry,
    MessageType,
    Request,
    ValueType,
)
from kelek.protocols.garlicfarm.wire.values import encode_configuration
from kelek.tests.protocols.garlicfarm.app.app_world import (
    EPOCH_MS,
    INTERVAL_MS,
    AppWorld,
    make_snapshot,
    order,
    publish,
)
from kelek.tests.protocols.garlicfarm.farm_world import (
    Client,
    client_request,
    server,
)
from kelek.tests.protocols.garlicfarm.server.test_peer import grow

# ---- documents ----


def test_each_server_posts_its_document() -> None:
    """Through the leader, with its router's part; every server stores all documents."""
    world = AppWorld()
    world.settle()
    assert len(world.encoded) == 1
    (document,) = [each["document"] for each in world.view(1, "documents", id=2)["documents"]]
    assert EPOCH_MS < document.pop("date") < EPOCH_MS + world.now_ms
    assert document == {
        "cluster": "farm",
        "id": 2,
        "config": {"postingInterval": INTERVAL_MS},
        "router": {"uptime": 1},
        "meta": {"publishing": False, "lastPublishedTime": 0, "publishConfig": "auto"},
    }


def dates(world: AppWorld, number: int, since: int = 1) -> list[int]:
    """The dates of a server's documents in the log."""
    found = []
    for _, (_, data) in sorted(world.committed(world.elect()).items()):
        if data.startswith(b'{"cluster"') and json.loads(data)["id"] == number:
            found.append(json.loads(data)["date"] - EPOCH_MS)
    return found[since:]


def test_documents_come_periodically_and_not_together() -> None:
    world = AppWorld()
    world.settle()
    world.run(6 * INTERVAL_MS)
    phases = set()
    for number in (1, 2, 3):
        times = dates(world, number)
        assert len(times) >= 5
        gaps = [after - before for before, after in pairwise(times)]
        assert all(abs(gap - INTERVAL_MS) <= 2 for gap in gaps), "each has its own part"
        phases.add(times[0] % INTERVAL_MS // 1000)
    assert len(phases) == 3
    assert all(world.apps[number].posted == len(dates(world, number, 0)) for number in (1, 2, 3))


def test_documents_survive_elections_and_deaths() -> None:
    """A document that is not committed in time is posted again; every server catches up."""
    world = AppWorld(seed=5)
    world.settle()
    leader = world.elect()
    before = {number: world.apps[number].posted for number in (1, 2, 3)}
    world.kill(leader)
    others = [number for number in (1, 2, 3) if number != leader]
    world.run_until(lambda: all(world.apps[each].posted > before[each] for each in others))
    world.start(leader)
    world.run_until(lambda: world.apps[leader].posted > 0 and world.is_settled())
    world.run_until(lambda: world.apps[leader].logged_date_ms == world.apps[leader].last_date_ms)
    assert len(world.encoded) == 1


def test_without_a_leader_nothing_is_posted() -> None:
    world = AppWorld()
    world.settle()
    for number in (2, 3):
        world.kill(number)
    world.run(10_000)
    app = world.apps[1]
    posted = app.posted
    world.run(3 * INTERVAL_MS)
    assert (app.posted, app.deadline_ms) == (posted, NEVER_MS)
    for number in (2, 3):
        world.start(number)
    world.settle()
    world.run_until(lambda: app.posted > posted)


def test_retries_become_rare() -> None:
    """Retries slow down when the leader refuses or cannot commit."""
    world = AppWorld(members=(1,))
    world.settle()
    app, peer = world.apps[1], world.peers[1]
    peer.post = lambda value, now_ms: True  # type: ignore[method-assign]
    start_ms, posted = world.now_ms, app.posted
    world.run_until(lambda: app.posted == posted + 4, ms=200_000)
    assert world.now_ms - start_ms > 7 * RETRY_MS_FIRST


def test_a_server_that_posts_nothing() -> None:
    world = AppWorld(members=(1,))
    world.app_setup = world.app_setup._replace(post_interval_ms=0)
    world.kill(1)
    world.start(1)
    world.elect()
    world.run(INTERVAL_MS)
    assert (world.apps[1].posted, world.apps[1].state.posted) == (0, {})


def test_an_order_sets_the_interval_of_all() -> None:
    world = AppWorld(members=(1,))
    world.settle()
    export = FarmConfig("farm", settings={"postingInterval": 1000, "more": "kept"})
    assert world.order(order(OrderKind.IMPORT, configuration=export))
    posted = world.apps[1].posted
    world.run(10_000)
    assert 9 <= world.apps[1].posted - posted <= 11
    config = world.apps[1].state.posted[1].status.document["config"]
    assert config == {"postingInterval": 1000, "more": "kept"}
    assert world.order(
        order(OrderKind.IMPORT, configuration=FarmConfig("farm", settings={"postingInterval": 0}))
    )
    posted = world.apps[1].posted
    world.run(10_000)
    assert world.apps[1].posted == posted


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
def test_a_router_that_says_nonsense(document: Mapping[str, object], error: str) -> None:
    """The server posts its own part and reports the problem."""
    world = AppWorld(members=(1,))
    world.routers[1].said = RouterStatus(document)
    world.settle()
    assert error in world.view(1)["posting"]["error"]
    posted = world.apps[1].state.posted[1].status.document
    assert "router" not in posted
    world.routers[1].said = RouterStatus({"router": {"uptime": 7}}, "an old one")
    world.run(2 * INTERVAL_MS)
    assert world.view(1)["posting"]["error"] == "an old one"
    assert world.apps[1].state.posted[1].status.uptime_ms == 7


def test_a_clock_that_goes_back() -> None:
    """The dates of its documents still increase."""
    world = AppWorld(members=(1,))
    world.settle()
    app = world.apps[1]
    before_ms = app.logged_date_ms
    world.epoch_ms = 5
    dates: set[int] = set()

    def posted_thrice() -> bool:
        dates.add(app.logged_date_ms)
        return len(dates) == 4

    world.run_until(posted_thrice)
    assert dates == {before_ms, before_ms + 1, before_ms + 2, before_ms + 3}


# ---- publishing ----


def test_the_publishers_router_publishes() -> None:
    """One publisher at a time has contents; the other routers are stopped once."""
    world = AppWorld()
    world.routers[2].said = RouterStatus(
        {"router": {"uptime": 9}, "destinations": [{"destination": "a"}]}
    )
    world.settle()
    world.run_until(lambda: world.routers[2].told[-1] is not None)
    leaf = Leaf(2, "a", {"destination": "a"})
    assert world.routers[2].told[-1] == Publication("farm", 0, (leaf,))
    world.run(3 * INTERVAL_MS)
    told = len(world.routers[2].told)
    assert world.apps[2].state.posted[2].status.is_publishing
    assert not world.apps[1].state.posted[1].status.is_publishing
    assert world.order(publish(3))
    world.run_until(world.is_settled)
    assert world.routers[2].told[told:] == [None]
    last = world.routers[3].told[-1]
    assert last is not None
    assert last.log_index > 0
    assert world.order(publish(3)), "once more: a new index, so it is done once more"
    world.run_until(world.is_settled)
    again = world.routers[3].told[-1]
    assert again is not None
    assert again.log_index > last.log_index
    assert world.order(order(OrderKind.EXCLUDE, hashes=("a",)))
    assert world.order(publish(PublishChoice.AUTO))
    world.run_until(world.is_settled)
    assert [each.told[-1] for each in world.routers.values()][2] is None
    shown = world.routers[2].told[-1]
    assert shown is not None
    assert shown.contents == ()


def test_a_restarted_publisher_publishes_again() -> None:
    """A former publisher's router is stopped: it may have been publishing."""
    world = AppWorld(members=(1, 2))
    world.settle()
    for number, is_publisher in ((1, True), (2, False)):
        world.routers[number].told.clear()
        world.kill(number)
        world.start(number)
        world.settle()
        (first, *_) = world.routers[number].told
        assert (first is not None) is is_publisher


def test_off_excludes_a_publisher() -> None:
    world = AppWorld(members=(1,))
    world.app_setup = world.app_setup._replace(publish_config=PublishConfig.OFF)
    world.kill(1)
    world.start(1)
    world.settle()
    assert (world.apps[1].publisher, world.routers[1].told[-1]) == (None, None)
    assert world.view(1)["posting"]["publishConfig"] == "off"


# ---- orders on the wire ----


def test_only_administrators_give_orders() -> None:
    world = AppWorld()
    world.settle()
    before = world.peers[world.elect()].core.log.last_index
    user = PeerSession("admin", is_admin=False)
    assert not world.order(publish(3), user)
    assert not world.order(publish(3), PeerSession("bob")), "in another one's name"
    assert not world.order(publish(3)._replace(cluster="other"))
    values = (b"harmless", encode_order(publish(3)))
    answer = world.ask(client_request(*values), session=user)
    assert (answer.is_accepted, answer.destination) == (False, world.elect())
    assert world.peers[world.elect()].core.log.last_index == before, "all of a request, or nothing"
    assert world.order(publish(3))
    audits = list(world.peers[world.elect()].append_policy.audits)
    assert [audit.is_accepted for audit in audits] == [False, False, False, False, True]
    assert audits[-1] == Audit("admin", "publish 3", True)
    follower = next(number for number in (1, 2, 3) if number != world.elect())
    assert not world.ask(client_request(encode_order(publish(1))), follower).is_accepted
    assert not world.peers[follower].append_policy.audits, "whoever leads will be asked"


def test_changes_of_members_are_audited() -> None:
    world = AppWorld(members=(1,))
    world.settle()
    client = Client(world, 1, PeerSession("bob", is_admin=False))
    client.send(add_server_request(server(4)), remove_server_request(1))
    broken = FarmLogEntry(0, ValueType.CLUSTER_SERVER, b"?")
    client.send(Request(MessageType.ADD_SERVER, entries=(broken,)))
    world.run_until(lambda: len(client.answers) == 3)
    world.start(4)
    assert world.ask(add_server_request(server(4))).is_accepted
    assert list(world.peers[1].append_policy.audits) == [
        Audit("bob", "add server 4 'tcp://127.0.0.1:9004'", False),
        Audit("bob", "remove server 1", False),
        Audit("bob", "add: malformed", False),
        Audit("", "add server 4 'tcp://127.0.0.1:9004'", True),
    ]


def test_without_room_for_audits_requests_are_refused() -> None:
    """A request without room for its audits is refused and counted."""
    world = AppWorld(members=(1,))
    world.settle()
    peer = world.peers[1]
    client = Client(world, 1)
    one = encode_order(publish(1))
    client.send(*[client_request(*[one] * ORDERS_MAX)] * (AUDITS_MAX // ORDERS_MAX))
    client.send(client_request(one), client_request(b"x"), add_server_request(server(4)))
    world.run_until(lambda: len(client.answers) == AUDITS_MAX // ORDERS_MAX + 3)
    *taken, order, entry, change = [answer.is_accepted for answer in client.answers]
    assert all(taken)
    assert (order, entry, change) == (False, True, False)
    assert [audit.is_accepted for audit in peer.append_policy.audits] == [True] * AUDITS_MAX
    assert peer.append_policy.audits_lost == 2
    peer.append_policy.audits.clear()
    assert world.order(publish(1))


# ---- snapshots ----


@pytest.mark.parametrize("seed", range(3))
def test_states_agree_whatever_happens(seed: int) -> None:
    """Servers that have applied the same index have the same state, byte for byte, through
    kills, restarts, snapshots and elections.
    """
    world = AppWorld(seed)
    dice, known = world.random, dict[int, bytes]()
    world.settle()

    def look() -> bool:
        for app in world.apps.values():
            state = app.state.encode()
            assert known.setdefault(app.state.index, state) == state
        return False

    for turn in range(8):
        number = dice.choice((1, 2, 3))
        if number in world.apps and dice.random() < 0.5:
            make_snapshot(world, number)
        if len(world.apps) == 3:
            world.kill(number)
        else:
            (down,) = {1, 2, 3} - set(world.apps)
            world.start(down)
        assert world.order(order(OrderKind.EXCLUDE, hashes=(f"h{turn}",)))
        world.run_until(look, dice.randint(500, 5000), must=False)
    for down in {1, 2, 3} - set(world.apps):
        world.start(down)
    world.settle()
    world.run_until(lambda: look() or world.is_settled())
    assert len(world.encoded) == 1
    excluded = {each for app in world.apps.values() for each in app.state.config.hashes}
    assert excluded == {f"h{turn}" for turn in range(8)}
    assert len(known) > 8


def test_a_joining_server_gets_the_state() -> None:
    world = AppWorld()
    world.settle()
    assert world.order(publish(2))
    for _ in range(2):
        world.run_until(world.is_settled)
        for number in (1, 2, 3):
            make_snapshot(world, number)
    grow(world, 4)
    world.run_until(lambda: 4 in world.apps[4].state.posted)
    world.run_until(world.is_settled)
    assert len(world.encoded) == 1
    assert world.view(4)["publish"] == 2
    assert world.view(4, "entries")["first"] > 1
    assert world.peers[4].resets == 0


def test_a_server_starts_from_its_snapshot() -> None:
    world = AppWorld(members=(1,))
    world.settle()
    assert world.order(publish(PublishChoice.NONE))
    world.run_until(world.is_settled)
    mark = make_snapshot(world, 1)
    world.kill(1)
    world.start(1)
    assert world.apps[1].state.index == mark.last_index
    assert world.apps[1].state.config.publish is PublishChoice.NONE
    world.settle()


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_an_invited_server_drops_its_state(with_snapshot: bool) -> None:
    """It starts with an empty log and drops its old state."""
    world = AppWorld(members=(1, 2))
    world.settle()
    removed = 3 - world.elect()
    assert world.apps[removed].state.posted
    if with_snapshot:
        make_snapshot(world, removed)
    assert world.ask(remove_server_request(removed)).is_accepted
    world.run_until(lambda: not world.peers[removed].is_member)
    configuration = encode_configuration(FarmConfiguration(1, 0, (server(9),)))
    entry = FarmLogEntry(99, ValueType.CONFIGURATION, configuration)
    leader = Client(world, removed)
    leader.send(Request(MessageType.JOIN_CLUSTER, 9, removed, 99, entries=(entry,)))
    world.run_until(lambda: bool(leader.answers))
    assert leader.answers[0].is_accepted
    view = world.view(removed)
    assert view["applied"] == 0
    assert (world.apps[removed].state.posted, world.peers[removed].snapshot) == ({}, FarmSnapshot())
    assert world.apps[removed].unreadable_snapshots == 0
    assert (view["state"], view["leader"]) == ("waiting", None)


def test_a_snapshot_in_another_format() -> None:
    """A snapshot in another format is skipped; the state follows the log after it."""
    world = AppWorld(members=(1,))
    world.settle()
    world.kill(1)
    world.disks[1].mark = FarmSnapshot(2, 1, FarmConfiguration(1, 0, world.members), 7)
    world.disks[1].snapshot = b"foreign"
    world.start(1)
    assert world.view(1)["counters"]["snapshots not understood"] == 1
    assert world.apps[1].state.index == 2
    world.settle()


def test_what_can_not_be_read_is_read_later() -> None:
    """The loop does not spin meanwhile."""
    world = AppWorld(members=(1,))
    world.settle()
    app, disk = world.apps[1], world.disks[1]
    assert world.ask(client_request(b"x")).is_accepted
    disk.batches = lambda *_: []  # type: ignore[method-assign]
    for _ in range(2):
        world.now_ms += APPLY_DELAY_MS
        app.wake(world.now_ms, EPOCH_MS)
    assert app.is_behind
    assert app.deadline_ms == world.now_ms + READ_RETRY_MS
    del disk.batches
    world.run_until(world.is_settled)


def test_what_comes_together_is_applied_together() -> None:
    """A view still includes entries that were committed a moment ago."""
    world = AppWorld(members=(1,))
    world.settle()
    client, indexes = Client(world, 1), set()
    for _ in range(3 * APPLY_DELAY_MS):
        client.send(client_request(b"x"))
        world.run(1)
        indexes.add(world.apps[1].state.index)
    assert len(client.answers) > 2 * APPLY_DELAY_MS
    assert 2 <= len(indexes) <= 4
    assert world.apps[1].is_behind
    assert world.view(1)["applied"] == world.peers[1].core.commit_index


def test_other_entries_are_skipped() -> None:
    """Batches of other entries are skipped at once; documents among them are found, also with
    escapes.
    """
    world = AppWorld(members=(1,))
    world.settle()
    before = world.apps[1].state.counters.copy()
    escaped = b'{"\\u0063luster":"farm","date":1,"id":7}'
    plain = b'{"cluster":"farm","date":1,"id":8}'
    some = (b"x",) * 50
    for values in (some, (b"y", escaped, *some), (*some, plain), some):
        assert world.ask(client_request(*values)).is_accepted
    world.run_until(world.is_settled)
    assert {7, 8} <= world.apps[1].state.posted.keys()
    assert world.apps[1].state.counters - before == {"other": 201, "status": 2}
    assert world.apps[1].state.index == world.peers[1].core.commit_index
