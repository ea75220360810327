"""A client's questions about the cluster: its configuration, its log, its broadcast's url.

They change nothing. Each is answered with what is known here, by whoever is asked: at once, but a
leader's log info only when it can't be older than anything that was acknowledged.
"""

from collections import deque
from typing import NamedTuple

from ...errors import RemoteProtocolError
from ...raft.core import Raft, Role
from ...raft.messages import ReadIndex
from ..membership.directory import MemberDirectory
from ..wire.client_codec import (
    ClientRequest,
    ConfigAnswer,
    Form,
    LogInfo,
    ReplyAddress,
    RequestBroadcastStateUrl,
    RequestConfig,
    RequestLogInfo,
    encode_config_answer,
    encode_log_info_answer,
    encode_state_url_answer,
)
from .append_queue import PruneMarks
from .read_queue import ReadQueue
from .snapshots import SnapshotManager
from .values import PeerSetup

WAITING_MAX = 4096
WAITING_BYTES_MAX = 16 << 20


class RequestQueue:
    """Requests at `url` that are no updates, until a wake has time for them."""

    def __init__(self) -> None:
        self._waiting: deque[list[bytes]] = deque()
        self._bytes = 0
        self.dropped = 0  # While it was full: their clients ask again.

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= WAITING_MAX or self._bytes >= WAITING_BYTES_MAX

    def push(self, frames: list[bytes]) -> None:
        self._waiting.append(frames)
        self._bytes += sum(map(len, frames))

    def pop(self) -> list[bytes]:
        """The oldest one."""
        frames = self._waiting.popleft()
        self._bytes -= sum(map(len, frames))
        return frames


class PeerStatus(NamedTuple):
    """What of the peer's own answers depend on."""

    accepts_updates: bool
    applied_index: int
    unix_s: int


class _LogInfoRequest(NamedTuple):
    """A RequestLogInfo that waits."""

    client: ReplyAddress
    form: Form
    message: RequestLogInfo


class ClusterInfo:
    """Answers from what the parts of a peer know."""

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
        """When serve() has something to do."""
        return self._log_info_requests.deadline_ms

    @property
    def awaited_index(self) -> int:
        """What somebody waits to be applied: 0 when nobody does."""
        return self._log_info_requests.awaited_index

    def on_request(
        self,
        client: ReplyAddress,
        form: Form,
        message: ClientRequest,
        status: PeerStatus,
        now_ms: int,
    ) -> None:
        """Answers a question, or keeps it until serve() does. Raises RemoteProtocolError: none."""
        if isinstance(message, RequestLogInfo) and self._core.role is Role.LEADER:
            if len(self._log_info_requests) < WAITING_MAX:
                self._log_info_requests.push(_LogInfoRequest(client, form, message), now_ms)
        else:
            client.out.add([client.routing_id, *self._answer(form, message, status)])

    def on_ready(self, read_index: ReadIndex | None) -> None:
        """Takes in that a round of reads is confirmed."""
        if read_index is not None:
            self._log_info_requests.confirm(read_index)

    def answer_ready(self, status: PeerStatus, now_ms: int) -> None:
        """Answers those who asked us as the leader, once all is applied that was acknowledged when
        they asked. Later it is said how far we are, and that we lead only if that is confirmed."""
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
            client.out.add([client.routing_id, *encode_log_info_answer(message.reqid, info)])

    def _answer(self, form: Form, message: ClientRequest, status: PeerStatus) -> list[bytes]:
        core = self._core
        match message:
            case RequestConfig():
                config = ConfigAnswer(status.accepts_updates, core.leader, self._directory.members)
                return encode_config_answer(message.reqid, config)
            case RequestLogInfo():
                return encode_log_info_answer(message.reqid, self._log_info(form, status))
            case RequestBroadcastStateUrl():
                # Node's clients ask each peer for its own; the text's want the leader's alone.
                says = form is Form.NODE or core.role is Role.LEADER
                url = self._setup.broadcast_url if says else ""
                return encode_state_url_answer(message.reqid, url or None)
        raise RemoteProtocolError("an update that the intake did not take")

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
        """The highest index up to which every reqid has expired."""
        expired_s = unix_s - self._setup.update_ttl_s
        return min(self._marks.index_before(expired_s), self._core.commit_index)
