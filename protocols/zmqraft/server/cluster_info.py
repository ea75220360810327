"""Cluster info for clients: the members, the state of the log, the URL of the broadcast.

Any peer answers with its own state, at once. Only a leader's log info waits: it must not be older
than anything that was acknowledged before.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from itertools import chain, islice
from typing import NamedTuple

from ....native.net.messages import Arena
from ....native.net.shares import MessageShares
from ...access.log_audit import CommandAudit
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

WAITING_MAX = 4096  # Above as many, a client may have FEW (native/net/shares.py).
WAITING_ALL_MAX = 2 * WAITING_MAX
CLIENT_WAITING_MAX = 1024  # Of one client.
ANSWERS_A_WAKE = 128  # To requests that have waited for a round of reads.
WAITING_BYTES_MAX = 16 << 20


class RequestQueue:
    """Requests at `url` other than updates and reads. They wait until a wake has time for them.

    C counts them by client and drops those over a limit, so that a flood costs little, and clients
    that send one request at a time have room beside it. Clients repeat what was dropped. Each
    client in turn has one request answered.
    """

    def __init__(self, cluster: bytes) -> None:
        self.audit = CommandAudit(cluster)  # Of the administrative commands among them.
        self._waiting: OrderedDict[int, deque[tuple[ReplyAddress, list[bytes]]]] = OrderedDict()
        self._bytes = 0
        self._shares = MessageShares(CLIENT_WAITING_MAX, WAITING_MAX, WAITING_ALL_MAX)
        self._dropped = 0  # For want of room for their bytes.

    def __len__(self) -> int:
        return len(self._shares)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def dropped(self) -> int:
        return self._dropped + self._shares.refused

    def select(
        self, arena: Arena, numbers: Sequence[int], foreign_slot: int | None
    ) -> list[tuple[int, int]]:
        """Those of the messages with these numbers for which there is room, and the share that
        push() needs of each."""
        return self._shares.take(arena, numbers, foreign_slot)

    def push(self, client: ReplyAddress, frames: list[bytes], share: int) -> None:
        if self._bytes >= WAITING_BYTES_MAX:
            self._dropped += 1
            self._shares.release(share)
            return
        self._waiting.setdefault(share, deque()).append((client, frames))
        self._bytes += sum(map(len, frames))

    def pop(self) -> tuple[ReplyAddress, list[bytes]]:
        share, requests = self._waiting.popitem(last=False)
        client, frames = requests.popleft()
        if requests:
            self._waiting[share] = requests  # The last.
        self._shares.release(share)
        self._bytes -= sum(map(len, frames))
        return client, frames


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
        self._has_more = False  # A wake has left answers to the next one.

    @property
    def waiting(self) -> int:
        return len(self._log_info_requests)

    @property
    def deadline_ms(self) -> int | None:
        """When answer_ready() has something to do; 0: at once."""
        return 0 if self._has_more else self._log_info_requests.deadline_ms

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
            client.send(self._answer(client, form, message, status))

    def on_read_index(self, read_index: ReadIndex) -> None:
        self._log_info_requests.confirm(read_index)

    def answer_ready(self, status: PeerStatus, now_ms: int) -> None:
        """Answers requests to the leader once everything is applied that was acknowledged before
        them.

        An expired request gets the present state. It names this peer as leader only if a round has
        confirmed that.
        """
        self._has_more = False
        if not self._log_info_requests:
            return
        if self._core.role is not Role.LEADER:
            late = [(asked, False) for asked in self._log_info_requests.pop_if(lambda asked: True)]
        else:
            waiting = self._log_info_requests
            ready = ((asked, True) for asked in waiting.pop_ready(status.applied_index))
            late = [*islice(chain(ready, waiting.pop_expired(now_ms)), ANSWERS_A_WAKE)]
            self._has_more = len(late) == ANSWERS_A_WAKE
        for (client, form, message), leads in late:
            info = self._log_info(form, status)
            if not leads and info.leading:
                info = info._replace(leading=False, leader=None)
            client.send(LOG_INFO_ANSWER.encode(info, message.reqid))

    def _answer(
        self, client: ReplyAddress, form: Form, message: ClientRequest, status: PeerStatus
    ) -> list[bytes]:
        core = self._core
        match message:
            case RequestConfig():
                members = self._directory.members
                if client.foreign:  # It can't connect to the others.
                    urls = self._setup.foreign_urls
                    members = tuple((peer, urls.get(peer, url)) for peer, url in members)
                config = ConfigAnswer(status.accepts_updates, core.leader, members)
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
