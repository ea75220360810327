"""Member changes of a leader: one server at a time, as JRaft's peers expect.

The leader invites a joining server, feeds it with SyncLog or a snapshot, and then appends a
Configuration with it. A leaving server gets LeaveCluster and then a Configuration without it. A
leader that leaves first lets another server win.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
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
    log_file_bytes,
    single_value,
)
from .directory import ServerDirectory
from .values import FarmSetup

# In longest election timeouts: a joining server that is silent for so long is given up.
JOIN_TIMEOUT_ELECTIONS = 10


class ChangeStage(IntEnum):
    """The progress of a change.

    INVITE     the joining server must accept JoinCluster
    FEED       the joining server receives the log
    FAREWELL   the leaving server must accept LeaveCluster
    COMMIT     the Configuration is appended; its commit ends the change
    HAND_OVER  the leader itself leaves: another server must lead first
    ASK        it has resigned, and asks the new leader to remove it
    """

    INVITE = 0
    FEED = 1
    FAREWELL = 2
    COMMIT = 3
    HAND_OVER = 4
    ASK = 5


@dataclass(slots=True)
class MemberChange:
    server: ClusterServer
    stage: ChangeStage
    deadline_ms: int
    retry_ms: int = 0  # When to repeat a request that was refused or not sent.
    next_index: int = 0  # The next index of the joining server's log.
    file_offset: int = 0  # The size of its log file, as LogPacks count it.
    entry_bytes: list[int] = field(default_factory=list)  # The sizes of the entries under way.
    # It has received a SyncLog; without one it would keep entries of its own.
    is_synced: bool = False
    index: int = 0  # The index of the Configuration.


Send = Callable[[int, Request], bool]


class MembershipChanger:
    """The member changes of one server's farm. The peer keeps a link to `extra_server`."""

    def __init__(
        self,
        setup: FarmSetup,
        core: Raft,
        directory: ServerDirectory,
        read: Callable[[int], list[EntryBatch]],
    ) -> None:
        """read: returns entries of the log from an index on, as many as one SyncLog may hold."""
        self._setup = setup
        self._core = core
        self._directory = directory
        self._read_entries = read
        self.change: MemberChange | None = None
        self.snapshot_for: int | None = None  # The joining server needs a snapshot.

    # ---- requests of administrators ----

    def on_request(self, request: Request, now_ms: int) -> bool:
        """Starts an AddServer or RemoveServer; returns whether it was accepted.

        Raises RemoteProtocolError if its entry is malformed.
        """
        value = single_value(request, ValueType.CLUSTER_SERVER)
        if request.type is MessageType.ADD_SERVER:
            server = decode_cluster_server(value)
            return self._may_change() and self._add(server, now_ms)
        server_id = decode_server_id(value)
        if self._is_being_added(server_id):
            self._finish()
            return True
        return self._may_change() and self._remove(server_id, now_ms)

    def _is_being_added(self, server_id: int) -> bool:
        """Whether this server is being added and no Configuration includes it yet."""
        change = self.change
        not_added = change is not None and change.stage in (ChangeStage.INVITE, ChangeStage.FEED)
        return not_added and change is not None and change.server.id == server_id

    def _may_change(self) -> bool:
        """Raft's rule for single-server changes: no other change is in progress, and an entry of
        the leader's own term is committed, with every entry before it.
        """
        core = self._core
        return (
            core.role is Role.LEADER
            and self.change is None
            and core.commit_index >= core.log.configurations.last_index
            and core.log.term_at(core.commit_index) == core.term
        )

    def _add(self, server: ClusterServer, now_ms: int) -> bool:
        servers = self._directory.latest.servers
        known = any(server.id == each.id or server.endpoint == each.endpoint for each in servers)
        if known or len(servers) >= SERVERS_MAX or not server.endpoint.isascii():
            return False
        self.change = MemberChange(server, ChangeStage.INVITE, now_ms + self._join_timeout_ms)
        return True

    def _remove(self, server_id: int, now_ms: int) -> bool:
        server = self._directory.find(server_id)
        if server is None or len(self._directory.latest.servers) == 1:
            return False
        stage, timeout_ms = ChangeStage.FAREWELL, 2 * self._setup.election_timeout_ms_max
        if server_id == self._setup.server_id:
            stage, timeout_ms = ChangeStage.HAND_OVER, self._join_timeout_ms
        self.change = MemberChange(server, stage, now_ms + timeout_ms)
        return True

    @property
    def _join_timeout_ms(self) -> int:
        return JOIN_TIMEOUT_ELECTIONS * self._setup.election_timeout_ms_max

    @property
    def extra_server(self) -> ClusterServer | None:
        """The server that joins or leaves: it may be no member but needs a link."""
        change = self.change
        return change.server if change and change.stage < ChangeStage.HAND_OVER else None

    @property
    def blocks_proposals(self) -> bool:
        """Whether no entry may be proposed, because the leadership is being handed over."""
        return self.change is not None and self.change.stage is ChangeStage.HAND_OVER

    # ---- time ----

    def step(self, now_ms: int, send: Send) -> None:
        """Does what is due."""
        change = self.change
        if change is None:
            self._leave_if_removed()
            return
        if change.stage is ChangeStage.ASK:
            self._request_own_removal(change, now_ms, send)
            return
        if self._core.role is not Role.LEADER:
            self._on_leadership_lost(change, now_ms)
            return
        if change.stage is ChangeStage.COMMIT:
            if self._core.commit_index >= change.index and self._leaver_is_informed(change, now_ms):
                self._finish()
        elif change.stage is ChangeStage.HAND_OVER:
            self._hand_over(change, now_ms)
        elif now_ms >= change.deadline_ms:
            if change.stage is ChangeStage.FAREWELL:
                self._append_without(change, now_ms)
            else:
                self._finish()
        elif now_ms >= change.retry_ms:
            self._send_step(change, now_ms, send)

    def deadline_ms(self) -> int | None:
        change = self.change
        if change is None or (
            change.stage is ChangeStage.COMMIT and self._core.commit_index < change.index
        ):
            return None
        is_quiet = change.stage is ChangeStage.COMMIT
        is_quiet = is_quiet or (change.stage is ChangeStage.ASK and self._core.leader is None)
        has_retry = change.retry_ms and not is_quiet
        return min(change.deadline_ms, change.retry_ms) if has_retry else change.deadline_ms

    def _send_step(self, change: MemberChange, now_ms: int, send: Send) -> None:
        """Sends the request of the current stage, and repeats it when it is not answered."""
        change.retry_ms = now_ms + self._setup.request_timeout_ms
        core, log = self._core, self._core.log
        own, to = self._setup.server_id, change.server.id
        header = Request(
            MessageType.LEAVE_CLUSTER, own, to, core.term, 0, log.last_index, core.commit_index
        )
        if change.stage is ChangeStage.INVITE:
            entry = FarmLogEntry(
                core.term, ValueType.CONFIGURATION, encode_configuration(self._directory.committed)
            )
            request = header._replace(type=MessageType.JOIN_CLUSTER, entries=(entry,))
        elif change.stage is ChangeStage.FAREWELL:
            request = header
        elif change.next_index <= log.base_index:
            self.snapshot_for = change.server.id
            return
        else:
            entries = entries_of(self._read_entries(change.next_index))
            if not entries:
                return  # The entries are not durable yet.
            change.entry_bytes = [log_file_bytes((entry,)) for entry in entries]
            pack = encode_log_pack(LogPack(entries, change.file_offset))
            request = header._replace(
                type=MessageType.SYNC_LOG,
                last_log_index=change.next_index - 1,
                entries=(FarmLogEntry(core.term, ValueType.LOG_PACK, pack),),
            )
        if not send(change.server.id, request):
            change.retry_ms = now_ms + self._setup.heartbeat_ms

    # ---- responses ----

    def on_response(self, pending: PendingRequest, response: Response, now_ms: int) -> None:
        """The joining or leaving server, or the new leader, has answered."""
        change, request = self.change, pending.request
        if change is None or request.destination != change.server.id:
            return
        kind = request.type
        if kind is MessageType.REMOVE_SERVER and change.stage is ChangeStage.ASK:
            if response.is_accepted:
                self.change = None
            return
        if self._core.role is not Role.LEADER:
            return  # Deposed by a message just before: step() ends the change.
        if not response.is_accepted:
            # After a restart the server has forgotten its invitation.
            change.retry_ms = now_ms + self._setup.election_timeout_ms_min
            if change.stage is ChangeStage.FEED:
                change.stage = ChangeStage.INVITE
        elif kind is MessageType.LEAVE_CLUSTER and change.stage is ChangeStage.FAREWELL:
            self._append_without(change, now_ms)
        elif kind is MessageType.JOIN_CLUSTER and change.stage is ChangeStage.INVITE:
            # A JRaft server keeps its entries and answers with its next index. Entries that it
            # receives replace its own, from index 1 on.
            change.stage = ChangeStage.FEED
            change.next_index, change.file_offset, change.is_synced = 1, 0, False
            self._advance(change, now_ms)
        elif kind is MessageType.SYNC_LOG and change.stage is ChangeStage.FEED:
            self._on_synced(change, request, response, now_ms)

    def _on_synced(
        self, change: MemberChange, request: Request, response: Response, now_ms: int
    ) -> None:
        log = self._core.log
        sent_from = request.last_log_index + 1
        if sent_from != change.next_index or response.next_index <= sent_from:
            return  # A late answer; or it took nothing, and the request is repeated.
        if response.next_index > log.last_index + 1:
            raise RemoteProtocolError("a joining server claims more entries than the leader has")
        change.file_offset += sum(change.entry_bytes[: response.next_index - sent_from])
        change.next_index = response.next_index
        change.is_synced = True
        self._advance(change, now_ms)

    def on_chunk_sent(self, server_id: int, now_ms: int) -> None:
        """A joining server has taken a chunk of a snapshot: extends its deadline."""
        if self.change is not None and self.change.server.id == server_id:
            self.change.deadline_ms = now_ms + self._join_timeout_ms

    def on_snapshot_sent(self, server_id: int, last_index: int, now_ms: int) -> None:
        """A joining server has the snapshot up to this index; 0: it refused."""
        change = self.change
        if change is None or change.server.id != server_id or change.stage is not ChangeStage.FEED:
            return
        if self._core.role is not Role.LEADER:
            return
        if last_index:
            # Its log file is empty after a snapshot.
            change.next_index, change.file_offset = last_index + 1, 0
            change.is_synced = change.is_synced or last_index == self._core.log.last_index
            self._advance(change, now_ms)
        else:
            change.retry_ms = now_ms + self._setup.election_timeout_ms_min

    def _advance(self, change: MemberChange, now_ms: int) -> None:
        """Sends more of the log or, when little is left, appends the Configuration."""
        core = self._core
        change.deadline_ms, change.retry_ms = now_ms + self._join_timeout_ms, now_ms
        if change.is_synced and core.log.last_index - change.next_index < self._setup.sync_gap:
            servers = self._directory.latest.servers
            self._append_configuration(change, (*servers, change.server), now_ms)

    def _append_without(self, change: MemberChange, now_ms: int) -> None:
        remaining = tuple(
            each for each in self._directory.latest.servers if each.id != change.server.id
        )
        self._append_configuration(change, remaining, now_ms)

    def _leaver_is_informed(self, change: MemberChange, now_ms: int) -> bool:
        """Whether the removed server has been sent the commit of its removal, or had time for
        it.
        """
        follower = self._core.follower(peer_of(change.server.id))
        if follower is None or self._directory.find(change.server.id) is not None:
            return True
        # The commit index is under way.
        if change.retry_ms == 0 and follower.sent_commit_index >= change.index:
            change.retry_ms = now_ms
            change.deadline_ms = min(change.deadline_ms, now_ms + 2 * self._setup.heartbeat_ms)
        return now_ms >= change.deadline_ms

    def _append_configuration(
        self, change: MemberChange, servers: tuple[ClusterServer, ...], now_ms: int
    ) -> None:
        core = self._core
        change.deadline_ms = now_ms + 2 * self._setup.election_timeout_ms_max
        change.retry_ms = 0
        index = core.log.last_index + 1
        configuration = self._directory.next_configuration(index, servers)
        core.propose(configuration_batch(index, core.term, configuration))
        change.stage, change.index = ChangeStage.COMMIT, index

    # ---- removal of this server ----

    def _hand_over(self, change: MemberChange, now_ms: int) -> None:
        """Resigns once another server has the whole log, and lets it win. This wire has no
        message to make it campaign.
        """
        core = self._core
        last_index = core.log.last_index
        best = max((follower.match_index for follower in core.followers), default=0)
        if best == last_index == core.commit_index:
            core.step_down()
            core.on_stalled(2 * self._setup.election_timeout_ms_max)
            self._start_own_removal(change, now_ms)
        elif now_ms >= change.deadline_ms:
            self._finish()

    def _leave_if_removed(self) -> None:
        """Resigns once the latest Configuration is committed and lacks this server (dissertation,
        section 4.2.2).

        An earlier leader has removed it, but it alone could win, and has committed its removal.
        """
        core = self._core
        is_committed = core.commit_index >= core.log.configurations.last_index
        is_removed = is_committed and self._directory.find(self._setup.server_id) is None
        if is_removed and core.role is Role.LEADER:
            core.step_down()
            core.on_stalled(2 * self._setup.election_timeout_ms_max)

    def _start_own_removal(self, change: MemberChange, now_ms: int) -> None:
        change.stage, change.retry_ms = ChangeStage.ASK, now_ms
        change.deadline_ms = now_ms + self._join_timeout_ms

    def _request_own_removal(self, change: MemberChange, now_ms: int, send: Send) -> None:
        """Asks the new leader to remove this server."""
        leader = self._core.leader
        done = self._directory.find(self._setup.server_id) is None
        if done or now_ms >= change.deadline_ms or leader == peer_of(self._setup.server_id):
            self.change = None
        elif leader is not None and now_ms >= change.retry_ms:
            change.retry_ms = now_ms + self._setup.election_timeout_ms_min
            change.server = change.server._replace(id=int(leader))
            own_id = encode_server_id(self._setup.server_id)
            entry = FarmLogEntry(0, ValueType.CLUSTER_SERVER, own_id)
            request = Request(MessageType.REMOVE_SERVER, self._setup.server_id, int(leader))
            send(int(leader), request._replace(entries=(entry,)))

    def _on_leadership_lost(self, change: MemberChange, now_ms: int) -> None:
        """This server leads no longer: ends a change that is not in the log."""
        if change.stage is ChangeStage.HAND_OVER:
            self._start_own_removal(change, now_ms)
        else:
            self._finish()

    def _finish(self) -> None:
        change, self.change = self.change, None
        self.snapshot_for = None
        if change is not None and self._directory.find(change.server.id) is None:
            self._core.remove_learner(peer_of(change.server.id))


def add_server_request(server: ClusterServer) -> Request:
    """An administrator's AddServer."""
    entry = FarmLogEntry(0, ValueType.CLUSTER_SERVER, encode_cluster_server(server))
    return Request(MessageType.ADD_SERVER, entries=(entry,))


def remove_server_request(server_id: int) -> Request:
    """An administrator's RemoveServer."""
    entry = FarmLogEntry(0, ValueType.CLUSTER_SERVER, encode_server_id(server_id))
    return Request(MessageType.REMOVE_SERVER, entries=(entry,))


def is_own_removal(request: Request) -> bool:
    """Whether a server asks for its own removal, as a leader does after handing over. Raises
    RemoteProtocolError.
    """
    if request.type is not MessageType.REMOVE_SERVER or len(request.entries) != 1:
        return False
    return decode_server_id(request.entries[0].value) == request.source


def describe_change(request: Request) -> str:
    """An AddServer or RemoveServer as text for the audit."""
    name = "add" if request.type is MessageType.ADD_SERVER else "remove"
    try:
        (entry,) = request.entries
        if request.type is MessageType.ADD_SERVER:
            server = decode_cluster_server(entry.value)
            return f"add server {server.id} {server.endpoint!a}"
        return f"remove server {decode_server_id(entry.value)}"
    except (ValueError, RemoteProtocolError):
        return f"{name}: malformed"
