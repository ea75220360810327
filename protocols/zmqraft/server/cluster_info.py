"""Cluster info for clients: the members, the state of the log, the URL of the broadcast.

Any peer answers with its own state, at once. Only a leader's log info waits: it must not be older
than anything that was acknowledged before.
"""

from collections import deque
from typing import NamedTuple

from ...errors import RemoteProtocolError
from ...host.read_queue import ReadQueue
from ...raft.core import Raft, Role
from ...raft.messages import ReadIndex
from ..membership.directory import MemberDirectory
from ..wire.client_codec import (
    CONFIG_ANSWER,
    LOG_INFO_ANSWER,
    STATE_URL_ANSWER,
    ClientRequest,
    ConfigAnswer,
    Form,
    LogInfo,
    ReplyAddress,
    RequestBroadcastStateUrl,
    RequestConfig,
    RequestLogInfo,
    StateUrlAnswer,
)
from .snapshots import SnapshotManager
from .values import PeerSetup, PruneMarks

WAITING_MAX = 4096
WAITING_BYTES_MAX = 16 << 20


class RequestQueue:
    """Requests at `url` other than updates and reads. They wait until a wake has time for them."""

    def __init__(self) -> None:
        self._waiting: deque[list[bytes]] = deque()
        self._bytes = 0
        self.dropped = 0  # Dropped while it was full; clients repeat their requests.

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= WAITING_MAX or self._bytes >= WAITING_BYTES_MAX

    def push(self, frames: list[bytes]) -> None:
        self._waiting.append(frames)
        self._bytes += sum(map(len, frames))

    def pop(self) -> list[bytes]:
        frames = self._waiting.popleft()
        self._bytes -= sum(map(len, frames))
        return frames


class PeerStatus(NamedTuple):
    """The state of the peer that answers depend on."""

    accepts_updates: bool
    applied_index: int
    unix_s: int


class _LogInfoRequest(NamedTuple):
    """A RequestLogInfo that waits."""

    client: ReplyAddress
    form: Form
    message: RequestLogInfo


class ClusterInfo:
    """Answers requests about the cluster from the state of the peer's parts."""

    def __init__(
        self,
        setup: PeerSetup,
        core: Raft,
        directory: MemberDirectory,
        snapshots: SnapshotManager,
        marks: PruneMarks,
    ) -> None:
        self._setup = setup
        self._core = core
        self._directory = directory
        self._snapshots = snapshots
        self._marks = marks
        self._log_info_requests: ReadQueue[_LogInfoRequest] = ReadQueue(core)

    @property
    def deadline_ms(self) -> int | None:
        return self._log_info_requests.deadline_ms

    @property
    def awaited_index(self) -> int:
        """The applied index that a request waits for; 0 for none."""
        return self._log_info_requests.awaited_index

    def on_request(
        self,
        client: ReplyAddress,
        form: Form,
        message: ClientRequest,
        status: PeerStatus,
        now_ms: int,
    ) -> None:
        """Answers a request, or keeps it for answer_ready(). Raises RemoteProtocolError for an
        update."""
        if isinstance(message, RequestLogInfo) and self._core.role is Role.LEADER:
            if len(self._log_info_requests) < WAITING_MAX:
                self._log_info_requests.push(_LogInfoRequest(client, form, message), now_ms)
        else:
            client.send(self._answer(form, message, status))

    def on_read_index(self, read_index: ReadIndex) -> None:
        self._log_info_requests.confirm(read_index)

    def answer_ready(self, status: PeerStatus, now_ms: int) -> None:
        """Answers requests to the leader once everything is applied that was acknowledged before
        them.

        An expired request gets the present state. It names this peer as leader only if a round has
        confirmed that.
        """
        if not self._log_info_requests:
            return
        if self._core.role is not Role.LEADER:
            late = [(asked, False) for asked in self._log_info_requests.pop_if(lambda asked: True)]
        else:
            late = [
                (asked, True) for asked in self._log_info_requests.pop_ready(status.applied_index)
            ]
            late += self._log_info_requests.pop_expired(now_ms)
        for (client, form, message), leads in late:
            info = self._log_info(form, status)
            if not leads and info.leading:
                info = info._replace(leading=False, leader=None)
            client.send(LOG_INFO_ANSWER.encode(info, message.reqid))

    def _answer(self, form: Form, message: ClientRequest, status: PeerStatus) -> list[bytes]:
        core = self._core
        match message:
            case RequestConfig():
                config = ConfigAnswer(status.accepts_updates, core.leader, self._directory.members)
                return CONFIG_ANSWER.encode(config, message.reqid)
            case RequestLogInfo():
                return LOG_INFO_ANSWER.encode(self._log_info(form, status), message.reqid)
            case RequestBroadcastStateUrl():
                # Clients of the npm package ask each peer for its own URL. Clients in the text form
                # want the leader's only.
                says = form is Form.NODE or core.role is Role.LEADER
                url = self._setup.broadcast_url if says else ""
                return STATE_URL_ANSWER.encode(StateUrlAnswer(url or None), message.reqid)
        raise RemoteProtocolError("an update of an invalid form")

    def _log_info(self, form: Form, status: PeerStatus) -> LogInfo:
        core = self._core
        return LogInfo(
            leading=core.role is Role.LEADER,
            leader=core.leader,
            term=core.term,
            first_index=core.log.base_index + 1,
            applied_index=status.applied_index,
            commit_index=core.commit_index,
            last_index=core.log.last_index,
            snapshot_bytes=self._snapshots.newest.state_size,
            prune_index=self._prune_index(status.unix_s) if form is Form.NODE else None,
        )

    def _prune_index(self, unix_s: int) -> int:
        """Returns the highest index up to which all request ids have expired."""
        expired_s = unix_s - self._setup.updates.ttl_s
        return min(self._marks.index_before(expired_s), self._core.commit_index)
