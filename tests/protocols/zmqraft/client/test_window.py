"""Updates to a leader without packs: the limit of unanswered updates, and silences."""

from collections import deque
from functools import partial

from kelek.protocols.zmqraft.client.window import (
    DOUBLINGS_MAX,
    FAST_MS,
    SINGLES_FIRST,
    SINGLES_MIN,
    SLOW_MS,
    FlowControl,
    PendingUpdates,
)
from kelek.protocols.zmqraft.wire import client_codec as codec
from kelek.protocols.zmqraft.wire.client_codec import UpdateStatus
from kelek.tests.protocols.zmqraft.fake_cluster import IDENT, FakeCluster

TAKE_IN_MS = 0.2  # A message of the leader's inbox.


class Busy:
    """A leader of the npm package: it sends no answers while messages are queued."""

    def __init__(self, commit_ms: float) -> None:
        self.cluster = FakeCluster(known=1)
        self.peer = self.cluster.lead("n1")
        self.peer.speaks = False
        self.commit_ms = commit_ms
        self.busy_ms = 0.0  # Until then it is busy.
        self.inbox: deque[codec.RequestUpdate] = deque()
        self.most = self.updates = 0
        self.questions = self.peer.on_frames
        self.peer.on_frames = self.on_frames  # type: ignore[method-assign]

    def on_frames(self, frames: list[bytes]) -> list[list[bytes]]:
        if frames[1] != b"=":
            if self.cluster.now_ms < self.busy_ms:
                return []
            return self.questions(frames)
        _, request = codec.decode_client_request(frames, IDENT)
        assert isinstance(request, codec.RequestUpdate)
        self.inbox.append(request)
        self.updates += 1
        self.most = max(self.most, len(self.inbox))
        self.busy_ms = max(self.busy_ms, self.cluster.now_ms) + TAKE_IN_MS
        if len(self.inbox) == 1:
            self.cluster.at(1, self.turn)
        return []

    def turn(self) -> None:
        """It commits when it has taken in everything, one after the other."""
        if self.cluster.now_ms < self.busy_ms:
            self.cluster.at(1, self.turn)
            return
        request = self.inbox.popleft()
        index = self.cluster.log.add(request.reqid, request.data)
        answer = codec.UpdateAnswer(UpdateStatus.COMMITTED, index)
        frames = codec.UPDATE_ANSWER.encode(answer, request.reqid)
        self.cluster.reply(self.peer.url, self.cluster.links[self.peer.url], frames)
        self.busy_ms = self.cluster.now_ms + self.commit_ms
        if self.inbox:
            self.cluster.at(max(1, round(self.commit_ms)), self.turn)

    def append(self, count: int) -> None:
        """Appends as many updates, in pendings of a pack's size."""
        window, left = self.cluster.client.window, count
        while left:
            data = [b"%d" % number for number in range(min(left, 2000))]
            left -= len(data)
            window.add(PendingUpdates([self.cluster.new_id() for _ in data], data))
        self.cluster.run(lambda: not window.items, 120_000)


def test_a_leader_without_packs_is_not_flooded() -> None:
    """Each update is sent once, however many there are."""
    busy = Busy(commit_ms=1)
    busy.append(6000)
    assert busy.most <= SINGLES_FIRST
    assert busy.updates == 6000
    assert "silent" not in busy.cluster.client.counters
    assert len(busy.cluster.log.records) == 6000


def test_a_fast_leader_is_sent_more_and_more() -> None:
    cluster = FakeCluster(known=1)
    cluster.lead("n1").speaks = False
    window = cluster.client.window
    for _ in range(4):
        window.add(PendingUpdates([cluster.new_id() for _ in range(2000)], [b"x"] * 2000))
    took_ms = cluster.run(lambda: not window.items)
    assert window.flow.singles_allowed > 1024
    assert took_ms < 200


def test_a_silent_leader_is_sent_less_and_given_longer_each_time() -> None:
    """Until it answers anything."""
    cluster = FakeCluster(known=1)
    leader = cluster.lead("n1")
    leader.speaks = False
    client = cluster.client
    cluster.run(lambda: client.leader is not None)
    answers = leader.on_frames

    def only_questions(frames: list[bytes]) -> list[list[bytes]]:
        return [] if frames[1] == b"=" else answers(frames)

    leader.on_frames = only_questions  # type: ignore[method-assign]
    client.window.add(PendingUpdates([cluster.new_id() for _ in range(500)], [b"x"] * 500))
    gaps, sent = [], []

    def silent(count: int) -> bool:
        return client.counters["silent"] == count

    for count in range(1, 7):
        before = len(cluster.sent)
        gaps.append(cluster.run(partial(silent, count), 60_000))
        sent.append(sum(frames[1] == b"=" for *_, frames in cluster.sent[before:]))
    assert sent == [256, 128, 64, 32, SINGLES_MIN, SINGLES_MIN]
    assert [round(gap / 500) for gap in gaps] == [1, 2, 4, 8, 16, 16]
    assert client.window.flow.silences == DOUBLINGS_MAX
    leader.on_frames = answers  # type: ignore[method-assign]
    cluster.run(lambda: not client.window.items)
    assert client.window.flow.silences == 0


def test_the_pace_follows_what_is_committed() -> None:
    pace = FlowControl(1 << 15)

    def commit(count: int, took_ms: int, *, limited: bool = True) -> int:
        if limited:
            pace.on_limited(1000)
        for _ in range(count):
            pace.on_commit(1000 + took_ms)
        return pace.singles_allowed

    assert commit(10_000, SLOW_MS + 1, limited=False) == SINGLES_FIRST, "nothing waited for it"
    assert commit(SINGLES_FIRST, FAST_MS) == 2 * SINGLES_FIRST
    assert commit(2 * SINGLES_FIRST, SLOW_MS) == 2 * SINGLES_FIRST
    assert commit(2 * SINGLES_FIRST, SLOW_MS + 1) == SINGLES_FIRST
    for _ in range(20):
        commit(pace.singles_allowed, 0)
    assert pace.singles_allowed == 1 << 15
    assert FlowControl(1).singles_allowed == 1
