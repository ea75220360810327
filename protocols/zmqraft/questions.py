"""A client's questions about the cluster: its configuration, its log, its broadcast's url.

They change nothing; each is answered at once with what is known here, by whoever is asked.
"""

from collections import deque
from typing import NamedTuple

from ..errors import RemoteProtocolError
from ..raft.core import Raft, Role
from .client_codec import (
    ClientRequest,
    ConfigAnswer,
    Form,
    LogInfo,
    RequestBroadcastStateUrl,
    RequestConfig,
    RequestLogInfo,
    encode_config_answer,
    encode_log_info_answer,
    encode_state_url_answer,
)
from .peer_values import PeerSetup
from .prune import PruneMarks
from .roster import Roster
from .snapshots import SnapshotDesk

WAITING_MAX = 4096
WAITING_BYTES_MAX = 16 << 20


class QuestionQueue:
    """Requests at `url` that are no updates, until a wake has time for them."""

    def __init__(self) -> None:
        self._waiting: deque[list[bytes]] = deque()
        self._bytes = 0
        self.dropped = 0  # While it was full: their clients ask again.

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        return len(self._waiting) >= WAITING_MAX or self._bytes >= WAITING_BYTES_MAX

    def add(self, frames: list[bytes]) -> None:
        self._waiting.append(frames)
        self._bytes += sum(map(len, frames))

    def take(self) -> list[bytes]:
        """The oldest one."""
        frames = self._waiting.popleft()
        self._bytes -= sum(map(len, frames))
        return frames


class Standing(NamedTuple):
    """What of the peer's own answers depend on."""

    takes_updates: bool
    applied_index: int
    unix_s: int


class Questions:
    """Answers from what the parts of a peer know."""

    def __init__(
        self,
        setup: PeerSetup,
        core: Raft,
        roster: Roster,
        snapshots: SnapshotDesk,
        marks: PruneMarks,
    ) -> None:
        self._setup = setup
        self._core = core
        self._roster = roster
        self._snapshots = snapshots
        self._marks = marks

    def answer(self, form: Form, message: ClientRequest, standing: Standing) -> list[bytes]:
        """The answer's frames. Raises RemoteProtocolError: no question."""
        core = self._core
        match message:
            case RequestConfig():
                config = ConfigAnswer(standing.takes_updates, core.leader, self._roster.members)
                return encode_config_answer(message.reqid, config)
            case RequestLogInfo():
                info = self._log_info(standing.applied_index)
                if form is Form.NODE:
                    info = info._replace(prune_index=self._prune_index(standing.unix_s))
                return encode_log_info_answer(message.reqid, info)
            case RequestBroadcastStateUrl():
                # Node's clients ask each peer for its own; the text's want the leader's alone.
                says = form is Form.NODE or core.role is Role.LEADER
                url = self._setup.broadcast_url if says else ""
                return encode_state_url_answer(message.reqid, url or None)
        raise RemoteProtocolError("an update that the intake did not take")

    def _log_info(self, applied_index: int) -> LogInfo:
        core = self._core
        return LogInfo(
            leading=core.role is Role.LEADER,
            leader=core.leader,
            term=core.term,
            first_index=core.log.base_index + 1,
            applied_index=applied_index,
            commit_index=core.commit_index,
            last_index=core.log.last_index,
            snapshot_bytes=self._snapshots.newest.state_size,
        )

    def _prune_index(self, unix_s: int) -> int:
        """The highest index up to which every reqid has expired."""
        expired_s = unix_s - self._setup.update_ttl_s
        return min(self._marks.index_before(expired_s), self._core.commit_index)
