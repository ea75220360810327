"""Changes of the members while we lead: one server at a time, as JRaft's peers know it.

A newcomer is invited, fed with SyncLog or a snapshot, and then taken in by a Configuration; one
that leaves is told, and then left out of one. A leader that is to leave lets another one win first.
"""

from collections.abc import Callable
from enum import IntEnum

from ...errors import RemoteProtocolError
from ...raft.core import Raft, Role
from ...raft.messages import EntryBatch
from ..wire.entries import configuration_batch, entries_of, peer_of
from ..wire.link import PendingRequest
from ..wire.messages import (
    SERVERS_MAX,
    ClusterServer,
    FarmLogEntry,
    MessageType,
    Request,
    Response,
    ValueType,
)
from ..wire.values import (
    LogPack,
    decode_cluster_server,
    decode_server_id,
    encode_cluster_server,
    encode_configuration,
    encode_log_pack,
    encode_server_id,
    packed_size,
)
from .directory import ServerDirectory
from .values import FarmSetup

PATIENCE_ELECTIONS = 10  # Longest election timeouts without an answer: a newcomer is given up.


class Stage(IntEnum):
    """How far a change is.

    INVITE     a newcomer has to answer JoinCluster
    FEED       it is sent the log
    FAREWELL   one that leaves has to answer LeaveCluster
    COMMIT     the Configuration is appended: it is over when that is committed
    HAND_OVER  it is ourselves who leave: another one has to lead first
    ASK        we have handed over, and ask the new leader to remove us
    """

    INVITE = 0
    FEED = 1
    FAREWELL = 2
    COMMIT = 3
    HAND_OVER = 4
    ASK = 5


class MemberChange:
    """The one in work."""

    __slots__ = (
        "again_ms",
        "base",
        "fed",
        "index",
        "next_index",
        "server",
        "sizes",
        "stage",
        "until_ms",
    )

    def __init__(self, server: ClusterServer, stage: Stage, until_ms: int) -> None:
        self.server = server
        self.stage = stage
        self.until_ms = until_ms
        self.again_ms = 0  # When to say again what was refused, or could not be sent.
        self.next_index = 0  # Of the newcomer's log.
        self.base = 0  # Its size in its own file, as LogPacks count it.
        self.sizes: list[int] = []  # Of the entries under way, likewise.
        self.fed = False  # It has had a SyncLog: without one it would keep entries of its own.
        self.index = 0  # Of the Configuration.


Send = Callable[[int, Request], bool]


class Members:
    """All changes of one server's farm. The peer owns it, and keeps links to `guest`."""

    def __init__(
        self,
        setup: FarmSetup,
        core: Raft,
        roster: ServerDirectory,
        read: Callable[[int], list[EntryBatch]],
    ) -> None:
        """read: entries of the log from an index on, as many as one SyncLog may hold."""
        self._setup = setup
        self._core = core
        self._roster = roster
        self._read = read
        self.change: MemberChange | None = None
        self.wants_snapshot: int | None = None  # A newcomer that the log no longer serves.

    # Wishes.

    def on_request(self, request: Request, now_ms: int) -> bool:
        """Whether an AddServer or a RemoveServer of an administrator is taken.

        Raises RemoteProtocolError when its entry is none.
        """
        if len(request.entries) != 1 or request.entries[0].value_type is not (
            ValueType.CLUSTER_SERVER
        ):
            raise RemoteProtocolError("a change of the members holds one ClusterServer")
        value = request.entries[0].value
        if request.type is MessageType.ADD_SERVER:
            server = decode_cluster_server(value)
            return self._may_change() and self._add(server, now_ms)
        server_id = decode_server_id(value)
        if self._is_joining(server_id):
            self._over()
            return True
        return self._may_change() and self._remove(server_id, now_ms)

    def _is_joining(self, server_id: int) -> bool:
        """Whether we are about to add this server, and no Configuration has it yet."""
        change = self.change
        is_early = change is not None and change.stage in (Stage.INVITE, Stage.FEED)
        return is_early and change is not None and change.server.id == server_id

    def _may_change(self) -> bool:
        """Raft's rule for single servers: an entry of the leader's own term is committed, and
        everything before it; and one change at a time."""
        core = self._core
        return (
            core.role is Role.LEADER
            and self.change is None
            and core.commit_index >= core.log.configurations.last_index
            and core.log.term_at(core.commit_index) == core.term
        )

    def _add(self, server: ClusterServer, now_ms: int) -> bool:
        servers = self._roster.in_force.servers
        known = any(server.id == each.id or server.endpoint == each.endpoint for each in servers)
        if known or len(servers) >= SERVERS_MAX or not server.endpoint.isascii():
            return False
        self.change = MemberChange(server, Stage.INVITE, now_ms + self._patience_ms)
        return True

    def _remove(self, server_id: int, now_ms: int) -> bool:
        server = self._roster.find(server_id)
        if server is None or len(self._roster.in_force.servers) == 1:
            return False
        if server_id == self._setup.server_id:
            stage, until_ms = Stage.HAND_OVER, now_ms + self._patience_ms
        else:
            stage, until_ms = Stage.FAREWELL, now_ms + 2 * self._setup.election_timeout_ms_max
        self.change = MemberChange(server, stage, until_ms)
        return True

    @property
    def _patience_ms(self) -> int:
        return PATIENCE_ELECTIONS * self._setup.election_timeout_ms_max

    @property
    def guest(self) -> ClusterServer | None:
        """A server that is no member, or no longer, and yet needs a link."""
        change = self.change
        return change.server if change and change.stage < Stage.HAND_OVER else None

    @property
    def is_closed(self) -> bool:
        """Whether nothing may be proposed: the leadership is on its way to another one."""
        return self.change is not None and self.change.stage is Stage.HAND_OVER

    # Time.

    def step(self, now_ms: int, send: Send) -> None:
        """Does what can be done now."""
        change = self.change
        if change is None:
            return
        if change.stage is Stage.ASK:
            self._ask(change, now_ms, send)
            return
        if self._core.role is not Role.LEADER:
            self._lost(change, now_ms)
            return
        if change.stage is Stage.COMMIT:
            if self._core.commit_index >= change.index and self._has_heard(change, now_ms):
                self._over()
        elif change.stage is Stage.HAND_OVER:
            self._hand_over(change, now_ms)
        elif now_ms >= change.until_ms:
            if change.stage is Stage.FAREWELL:
                self._leave_out(change, now_ms)
            else:
                self._over()
        elif now_ms >= change.again_ms:
            self._say(change, now_ms, send)

    def deadline_ms(self) -> int | None:
        change = self.change
        if change is None or (
            change.stage is Stage.COMMIT and self._core.commit_index < change.index
        ):
            return None
        waits = change.stage is Stage.COMMIT
        waits = waits or (change.stage is Stage.ASK and self._core.leader is None)
        says = change.again_ms and not waits
        return min(change.until_ms, change.again_ms) if says else change.until_ms

    def _say(self, change: MemberChange, now_ms: int, send: Send) -> None:
        """What the one that comes or goes is to hear next; again, when it is not answered."""
        change.again_ms = now_ms + self._setup.request_timeout_ms
        core, log = self._core, self._core.log
        header = Request(
            MessageType.LEAVE_CLUSTER,
            self._setup.server_id,
            change.server.id,
            core.term,
            0,
            log.last_index,
            core.commit_index,
        )
        if change.stage is Stage.INVITE:
            entry = FarmLogEntry(
                core.term, ValueType.CONFIGURATION, encode_configuration(self._roster.committed)
            )
            request = header._replace(type=MessageType.JOIN_CLUSTER, entries=(entry,))
        elif change.stage is Stage.FAREWELL:
            request = header
        elif change.next_index <= log.base_index:
            self.wants_snapshot = change.server.id
            return
        else:
            entries = entries_of(self._read(change.next_index))
            if not entries:
                return  # Not on disk yet.
            change.sizes = [packed_size((entry,)) for entry in entries]
            pack = encode_log_pack(LogPack(entries, change.base))
            request = header._replace(
                type=MessageType.SYNC_LOG,
                last_log_index=change.next_index - 1,
                entries=(FarmLogEntry(core.term, ValueType.LOG_PACK, pack),),
            )
        if not send(change.server.id, request):
            change.again_ms = now_ms + self._setup.heartbeat_ms

    # Answers.

    def on_answer(self, asked: PendingRequest, response: Response, now_ms: int) -> None:
        """The one that comes or goes has answered."""
        change, request = self.change, asked.request
        if change is None or request.destination != change.server.id:
            return
        kind = request.type
        if kind is MessageType.REMOVE_SERVER and change.stage is Stage.ASK:
            if response.is_accepted:
                self.change = None
            return
        if self._core.role is not Role.LEADER:
            return  # Deposed by what came just before: step() gives the change up.
        if not response.is_accepted:
            # It may have been started anew: then it has forgotten who has invited it.
            change.again_ms = now_ms + self._setup.election_timeout_ms_min
            if change.stage is Stage.FEED:
                change.stage = Stage.INVITE
        elif kind is MessageType.LEAVE_CLUSTER and change.stage is Stage.FAREWELL:
            self._leave_out(change, now_ms)
        elif kind is MessageType.JOIN_CLUSTER and change.stage is Stage.INVITE:
            # A server of JRaft keeps its own entries, and names the index behind them: those that
            # it is sent take their place, from the first one on.
            change.stage = Stage.FEED
            change.next_index, change.base, change.fed = 1, 0, False
            self._go_on(change, now_ms)
        elif kind is MessageType.SYNC_LOG and change.stage is Stage.FEED:
            self._on_synced(change, request, response, now_ms)

    def _on_synced(
        self, change: MemberChange, request: Request, response: Response, now_ms: int
    ) -> None:
        log = self._core.log
        sent_from = request.last_log_index + 1
        if sent_from != change.next_index or response.next_index <= sent_from:
            return  # A late one; or nothing was taken: it is said again.
        if response.next_index > log.last_index + 1:
            raise RemoteProtocolError("a newcomer has more than we have")
        change.base += sum(change.sizes[: response.next_index - sent_from])
        change.next_index = response.next_index
        change.fed = True
        self._go_on(change, now_ms)

    def on_piece_sent(self, server_id: int, now_ms: int) -> None:
        """A newcomer has taken a piece of a snapshot: we wait on."""
        if self.change is not None and self.change.server.id == server_id:
            self.change.until_ms = now_ms + self._patience_ms

    def on_snapshot_sent(self, server_id: int, last_index: int, now_ms: int) -> None:
        """A newcomer has a snapshot up to there; 0: it has refused it."""
        change = self.change
        if change is None or change.server.id != server_id or change.stage is not Stage.FEED:
            return
        if self._core.role is not Role.LEADER:
            return
        if last_index:
            # Its file of the log begins anew behind the snapshot.
            change.next_index, change.base = last_index + 1, 0
            change.fed = change.fed or last_index == self._core.log.last_index
            self._go_on(change, now_ms)
        else:
            change.again_ms = now_ms + self._setup.election_timeout_ms_min

    def _go_on(self, change: MemberChange, now_ms: int) -> None:
        """More of the log, or, when little is left, the Configuration."""
        core = self._core
        change.until_ms, change.again_ms = now_ms + self._patience_ms, now_ms
        if change.fed and core.log.last_index - change.next_index < self._setup.sync_gap:
            servers = self._roster.in_force.servers
            self._append(change, (*servers, change.server), now_ms)

    def _leave_out(self, change: MemberChange, now_ms: int) -> None:
        left = tuple(each for each in self._roster.in_force.servers if each.id != change.server.id)
        self._append(change, left, now_ms)

    def _has_heard(self, change: MemberChange, now_ms: int) -> bool:
        """Whether one that has left was told so, or should have been by now."""
        peer = peer_of(change.server.id)
        leaving = self._roster.find(change.server.id) is None
        told = [each.commit_sent for each in self._core.followers if leaving and each.peer == peer]
        if not told:
            return True
        if change.again_ms == 0 and told[0] >= change.index:  # It is on its way there.
            change.again_ms = now_ms
            change.until_ms = min(change.until_ms, now_ms + 2 * self._setup.heartbeat_ms)
        return now_ms >= change.until_ms

    def _append(
        self, change: MemberChange, servers: tuple[ClusterServer, ...], now_ms: int
    ) -> None:
        core = self._core
        change.until_ms = now_ms + 2 * self._setup.election_timeout_ms_max
        change.again_ms = 0
        index = core.log.last_index + 1
        configuration = self._roster.following(index, servers)
        core.propose(configuration_batch(index, core.term, configuration))
        change.stage, change.index = Stage.COMMIT, index

    # Our own leave.

    def _hand_over(self, change: MemberChange, now_ms: int) -> None:
        """Resigns once another one has all that we have, and lets it win: this wire can't tell it
        to campaign, but we can wait."""
        core = self._core
        last_index = core.log.last_index
        best = max((follower.match_index for follower in core.followers), default=0)
        if best == last_index == core.commit_index:
            core.resign()
            core.on_busy(2 * self._setup.election_timeout_ms_max)
            self._hand_to_next(change, now_ms)
        elif now_ms >= change.until_ms:
            self._over()

    def _hand_to_next(self, change: MemberChange, now_ms: int) -> None:
        change.stage, change.again_ms = Stage.ASK, now_ms
        change.until_ms = now_ms + self._patience_ms

    def _ask(self, change: MemberChange, now_ms: int, send: Send) -> None:
        """The new leader removes us, as it would anybody."""
        leader = self._core.leader
        done = self._roster.find(self._setup.server_id) is None
        if done or now_ms >= change.until_ms or leader == peer_of(self._setup.server_id):
            self.change = None
        elif leader is not None and now_ms >= change.again_ms:
            change.again_ms = now_ms + self._setup.election_timeout_ms_min
            change.server = change.server._replace(id=int(leader))
            own_id = encode_server_id(self._setup.server_id)
            entry = FarmLogEntry(0, ValueType.CLUSTER_SERVER, own_id)
            request = Request(MessageType.REMOVE_SERVER, self._setup.server_id, int(leader))
            send(int(leader), request._replace(entries=(entry,)))

    def _lost(self, change: MemberChange, now_ms: int) -> None:
        """We lead no longer: what is not in the log was never begun."""
        if change.stage is Stage.HAND_OVER:
            self._hand_to_next(change, now_ms)
        else:
            self._over()

    def _over(self) -> None:
        change, self.change = self.change, None
        self.wants_snapshot = None
        if change is not None and self._roster.find(change.server.id) is None:
            self._core.remove_learner(peer_of(change.server.id))


def add_server(server: ClusterServer) -> Request:
    """What an administrator says to a leader."""
    entry = FarmLogEntry(0, ValueType.CLUSTER_SERVER, encode_cluster_server(server))
    return Request(MessageType.ADD_SERVER, entries=(entry,))


def remove_server(server_id: int) -> Request:
    """What an administrator says to a leader."""
    entry = FarmLogEntry(0, ValueType.CLUSTER_SERVER, encode_server_id(server_id))
    return Request(MessageType.REMOVE_SERVER, entries=(entry,))


def leaves_itself(request: Request) -> bool:
    """Whether a server asks for its own removal: one that led, and has handed over. Raises
    RemoteProtocolError."""
    if request.type is not MessageType.REMOVE_SERVER or len(request.entries) != 1:
        return False
    return decode_server_id(request.entries[0].value) == request.source


def change_of(request: Request) -> str:
    """An AddServer or a RemoveServer, for people."""
    name = "add" if request.type is MessageType.ADD_SERVER else "remove"
    try:
        (entry,) = request.entries
        if request.type is MessageType.ADD_SERVER:
            server = decode_cluster_server(entry.value)
            return f"add server {server.id} {server.endpoint!a}"
        return f"remove server {decode_server_id(entry.value)}"
    except (ValueError, RemoteProtocolError):
        return f"{name}: malformed"
