"""Changes of the members: one ConfigUpdate at a time, through a joint configuration.

Raft, section 6, and dissertation, chapter 4. It sends answers to clients only. The peer keeps links
to the servers in `joining`, and the core replicates to its learners.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import IntEnum
from random import Random

from ....native.log.updates import REMIND_MS, Reqids
from ...errors import RemoteProtocolError
from ...raft.core import Raft, Role
from ...raft.membership import Configuration, quorum_value
from ...raft.messages import KIND_CONFIG
from ...record import Record, encode_block
from ..wire.client_codec import LogInfo, ReplyAddress
from ..wire.config_codec import (
    CONFIG_UPDATE_ANSWER,
    ConfigEntry,
    ConfigStatus,
    ConfigUpdate,
    ConfigUpdateAnswer,
    Members,
    encode_config_entry,
    member_ids,
)
from ..wire.values import Feature, check_members, decode_json, is_url, reqid_seconds
from .directory import MemberDirectory

MEMBERS_MAX = 64
CONNECT_MS = 2000  # A new server without an answer by then counts as unreachable.
SILENT_MS = 2000  # After this silence a new server counts as unreachable.
DISMISS_MS = 200  # From the last commit to the end of a removed server's link.
VOTER_WAIT_MS = 2000  # The longest wait until the new servers are voters, too.
POLL_MS = 5  # How often progress is checked.
CAUGHT_UP_ENTRIES = 1000
REPLIES_MAX = 16  # Connections of the requesting client; the newest are answered.
# What a peer must know for each ConfigEntry.operations from 0 on.
OPERATIONS = (Feature.TABLES, Feature.SUMS, Feature.VERSIONS, Feature.LOADS)
REQID_AHEAD_S_MAX = 15 * 60  # A request id from further ahead is refused.


class ChangeStage(IntEnum):
    """The stages of a change.

    CONNECT    every new server has to answer
    CATCH_UP   the new servers copy the log: kelek servers as learners, others by themselves
    JOINT      the joint configuration is in force, and not committed yet
    FINAL      the new one is; the change ends when it is committed and the new servers vote
    """

    CONNECT = 0
    CATCH_UP = 1
    JOINT = 2
    FINAL = 3


@dataclass(slots=True)
class JoiningServer:
    """A server that is to become a member."""

    url: str
    heard_ms: int
    is_kelek: bool | None = None  # None: no answer yet.
    info: LogInfo | None = None


@dataclass(slots=True)
class ConfigChange:
    """The change in progress."""

    reqid: bytes | None  # None: another leader started it.
    new: Members
    stage: ChangeStage
    stage_started_ms: int
    joint_index: int = 0  # The index of the joint entry.
    caught_up_ms: int | None = None
    remind_due_ms: int = field(init=False)
    # New servers that are kelek.
    new_kelek_servers: list[str] = field(default_factory=list)
    clients: deque[ReplyAddress] = field(default_factory=lambda: deque(maxlen=REPLIES_MAX))

    def __post_init__(self) -> None:
        self.remind_due_ms = self.stage_started_ms + REMIND_MS


class Refusal(Exception):
    """The reason why a change is refused: a word for programs, and a sentence for people."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(name, message)
        self.answer = ConfigUpdateAnswer(ConfigStatus.ERROR, name=name, message=message)


class MemberChanges:
    """Changes of the members while this peer leads. The next leader finishes a joint
    configuration."""

    def __init__(
        self, core: Raft, directory: MemberDirectory, reqids: Reqids, random: Random, ttl_s: int
    ) -> None:
        self._core = core
        self._directory = directory
        self._reqids = reqids
        self._random = random
        self._ttl_s = ttl_s
        self._unix_s = 0
        self._change: ConfigChange | None = None
        self._dismiss_due_ms: dict[str, int] = {}  # When the links to removed servers end.
        self._transfer_started = False  # This leader is removed and has started a transfer.
        # Kelek peers of versions without member changes.
        self._without_members_feature: set[str] = set()
        self._knows: dict[Feature, set[str]] = {feature: set() for feature in OPERATIONS}  # Peers.
        self.holds_tables = False  # Whether the cluster is known to have table servers.
        self.joining: dict[str, JoiningServer] = {}  # The peer keeps links to them.

    # ---- events ----

    def on_request(
        self, request: ConfigUpdate, client: ReplyAddress, now_ms: int, unix_s: int
    ) -> None:
        self._unix_s = unix_s
        try:
            answer = self._accept(request, client, now_ms)
        except Refusal as refusal:
            answer = refusal.answer
        if answer is not None:
            _send(client, request.reqid, answer)

    def _accept(
        self, request: ConfigUpdate, client: ReplyAddress, now_ms: int
    ) -> ConfigUpdateAnswer | None:
        core, reqid = self._core, request.reqid
        if core.role is not Role.LEADER:
            return ConfigUpdateAnswer(ConfigStatus.NOT_LEADER, leader=core.leader)
        change = self._current_change(now_ms)
        known = self._reqids.find(reqid)
        if change is not None and (change.reqid == reqid or known == change.joint_index):
            change.reqid = reqid
            if client not in change.clients:
                change.clients.append(client)
            return ConfigUpdateAnswer(ConfigStatus.ACCEPTED)
        if known is not None:
            last_index = self._directory.history.last_index
            done = last_index <= core.commit_index and not core.configuration.old
            return ConfigUpdateAnswer(ConfigStatus.ACCEPTED, log_index=known if done else None)
        age_s = self._unix_s - reqid_seconds(reqid)
        oldest_s = max(self._unix_s - self._ttl_s, self._reqids.forgotten_s)
        if reqid_seconds(reqid) <= oldest_s or age_s < -REQID_AHEAD_S_MAX:
            return ConfigUpdateAnswer(ConfigStatus.EXPIRED)
        if change is not None:
            return ConfigUpdateAnswer(ConfigStatus.BUSY)
        if not self._is_stable():
            return None  # The client repeats its request.
        new = self._check(request.payload)
        self._check_members_feature(member_ids(new))
        self._check_quorum(new, now_ms)
        self._change = change = ConfigChange(reqid, new, ChangeStage.CONNECT, now_ms)
        change.clients.append(client)
        members = core.configuration.members
        self.joining = {
            peer: JoiningServer(url, now_ms) for peer, url in new if peer not in members
        }
        return ConfigUpdateAnswer(ConfigStatus.ACCEPTED)

    def _is_stable(self) -> bool:
        """Whether the members are committed in our term, and no transfer or removal ends our
        leadership."""
        core = self._core
        return (
            core.is_voter
            and core.transferring is None
            and core.commit_index >= self._directory.history.last_index
            and core.log.term_at(core.commit_index) == core.term
        )

    def _check(self, payload: bytes) -> Members:
        try:
            new = check_members(decode_json(payload))
        except RemoteProtocolError as error:
            raise Refusal("Malformed", str(error)) from None
        if not new:
            raise Refusal("Empty", "a cluster needs one member or more")
        if len(new) > MEMBERS_MAX:
            raise Refusal("TooMany", f"{len(new)} members, the limit is {MEMBERS_MAX}")
        for values, what in ((member_ids(new), "PEER ID"), ([url for _, url in new], "url")):
            doubled = sorted({value for value in values if values.count(value) > 1})
            if doubled:
                raise Refusal("Doubled", f"{what} {doubled[0]!r} is named twice")
        strange = [url for _, url in new if not is_url(url)]
        if strange:
            raise Refusal("Malformed", f"{strange[0]!r} is no tcp://HOST:PORT or ipc://PATH")
        if dict(new) in (dict(self._directory.latest.new), dict(self._directory.members)):
            raise Refusal("Unchanged", "these are the members already")
        return new

    def _check_members_feature(self, new: tuple[str, ...]) -> None:
        """Raises Refusal when an old version would go on counting by its own list of members.

        It may be the only server of a change, and be removed: any majority with it and any majority
        without it have a member in common.
        """
        members = set(self._core.configuration.members)
        unversed = self._without_members_feature & {*members, *new}
        leaves_alone = unversed == members ^ {*new} <= members and len(unversed) == 1
        if unversed and not leaves_alone:
            names = ", ".join(sorted(unversed))
            raise Refusal("Unversed", f"the kelek of {names} can't follow the change: upgrade it")

    def _check_tables_feature(self) -> None:
        """Raises Refusal when a new server does not know the entries of tables.

        A server of an old version or another implementation could neither apply them nor lead.
        """
        latest = self._directory.latest
        known = self._knows[OPERATIONS[min(latest.operations, len(OPERATIONS) - 1)]]
        strange = sorted(self.joining.keys() - known)
        if latest.tables_from and strange:
            raise Refusal(
                "Unversed",
                f"{', '.join(strange)} can't follow tables' entries: not this version's kelek",
            )

    def _check_quorum(self, new: Members, now_ms: int) -> None:
        """Raises Refusal when the new members could not commit anything."""
        members = self._core.configuration.members
        silent = [
            peer for peer in member_ids(new) if peer in members and not self._counts(peer, now_ms)
        ]
        if not quorum_value(Configuration(member_ids(new)), lambda peer: peer not in silent):
            raise Refusal(
                "QuorumLost",
                f"of {len(new)} members {len(silent)} can't be counted on now: {', '.join(silent)}",
            )

    def _counts(self, peer: str, now_ms: int) -> bool:
        """Whether its acknowledgements count at the moment."""
        setup, follower = self._core.setup, self._core.follower(peer)
        if follower is None:
            return peer == setup.peer_id
        return now_ms - follower.counted("heard_ms") < setup.tuning.election_timeout_ms_max

    def on_features(self, peer: str, features: Collection[str]) -> None:
        if Feature.MEMBERS in features:
            self._without_members_feature.discard(peer)
        else:
            self._without_members_feature.add(peer)
        for feature, known in self._knows.items():
            if feature in features:
                known.add(peer)
            else:
                known.discard(peer)

    def on_joining_answer(self, peer: str, now_ms: int, info: LogInfo | None = None) -> None:
        """A joining server has answered: with a hello, or with its log info."""
        server = self.joining.get(peer)
        if server is None:
            return
        server.heard_ms = now_ms
        if info is None:
            server.is_kelek = True
        else:
            server.info = info

    # ---- a wake ----

    def step(self, now_ms: int) -> None:
        """Advances the change in progress as far as possible now."""
        core = self._core
        if core.role is not Role.LEADER:
            if self._change is not None or self._dismiss_due_ms or self._transfer_started:
                self._drop_change()
            return
        change = self._current_change(now_ms)
        if change is not None:
            try:
                self._advance(change, now_ms)
            except Refusal as refusal:
                self._finish(change, refusal.answer)
        elif self.holds_tables and self._directory.latest.operations < len(OPERATIONS) - 1:
            self._append_tables_from()
        if self._leads_after_removal() and not self._transfer_started:
            self._dismiss_due_ms.setdefault(core.setup.peer_id, now_ms + DISMISS_MS)
        if self._dismiss_due_ms or self._transfer_started:
            self._dismiss_removed(now_ms)

    def _append_tables_from(self) -> None:
        """Appends the entry from which on tables accept only entries of their own kind, and with
        the operations that all members know.

        It does so once every member knows that kind. The entry is a configuration with the same
        members: so it is in snapshots, and every node obeys it from the same index on.
        """
        latest = self._directory.latest
        others = {*self._core.configuration.members} - {self._core.setup.peer_id}
        unknown = (n for n, feature in enumerate(OPERATIONS) if not others <= self._knows[feature])
        operations = next(unknown, len(OPERATIONS)) - 1  # -1: not even their entries.
        tables_from = latest.tables_from or self._core.log.last_index + 1
        is_news = operations > latest.operations or (operations == 0 and not latest.tables_from)
        if is_news and self._is_stable():
            entry = latest._replace(tables_from=tables_from, operations=operations)
            self._append(None, entry)

    def _leads_after_removal(self) -> bool:
        """Whether this leader's own removal is committed.

        It may have been elected during its removal, because only it had the entry, and not know the
        change.
        """
        core = self._core
        committed = core.commit_index >= self._directory.history.last_index
        return committed and core.setup.peer_id not in core.configuration.members

    def _current_change(self, now_ms: int) -> ConfigChange | None:
        """Returns the change in progress; also a joint one of an earlier leader, which we
        finish."""
        if self._change is None and self._core.configuration.old:
            new, index = self._directory.latest.new, self._directory.history.last_index
            self._change = ConfigChange(None, new, ChangeStage.JOINT, now_ms, index)
        return self._change

    def _advance(self, change: ConfigChange, now_ms: int) -> None:
        core = self._core
        if core.transferring is not None:
            return  # The next leader finishes it, or we continue.
        if change.stage is ChangeStage.CONNECT:
            self._connect(change, now_ms)
        if change.stage is ChangeStage.CATCH_UP:
            self._catch_up(change, now_ms)
        elif change.stage is ChangeStage.JOINT and core.commit_index >= change.joint_index:
            entry = self._directory.latest._replace(new=change.new, old=())
            self._append(self._new_reqid(), entry)
            change.stage, change.stage_started_ms = ChangeStage.FINAL, now_ms
        elif change.stage is ChangeStage.FINAL and self._is_complete(change, now_ms):
            answer = ConfigUpdateAnswer(ConfigStatus.ACCEPTED, log_index=change.joint_index)
            members = (core.setup.peer_id, *core.peers)
            leaving = [peer for peer in members if peer not in core.configuration.voters]
            self._dismiss_due_ms = dict.fromkeys(leaving, now_ms + DISMISS_MS)
            self._finish(change, answer)
            return
        if now_ms >= change.remind_due_ms:
            change.remind_due_ms = now_ms + REMIND_MS
            self._answer(change, ConfigUpdateAnswer(ConfigStatus.ACCEPTED))

    def _connect(self, change: ConfigChange, now_ms: int) -> None:
        """Waits until every new server has answered; kelek servers then become learners."""
        self._check_members_feature(member_ids(change.new))
        missing = []
        for peer, server in self.joining.items():
            if server.is_kelek:
                self._core.add_learner(peer)
            elif server.info is None:
                missing.append(f"{peer} at {server.url}")
        if not missing:
            change.stage, change.stage_started_ms = ChangeStage.CATCH_UP, now_ms
        elif now_ms - change.stage_started_ms >= CONNECT_MS:
            raise Refusal("Unreachable", f"no answer from {', '.join(missing)}")

    def _catch_up(self, change: ConfigChange, now_ms: int) -> None:
        """Waits until the new servers hold the committed entries, and a majority of the members
        counts."""
        if not all(self._has_caught_up(peer, now_ms) for peer in self.joining):
            return
        if change.caught_up_ms is None:
            change.caught_up_ms = now_ms
        new = Configuration(member_ids(change.new))
        # A new foreign server counts as soon as it is a member.
        foreign = {peer for peer, server in self.joining.items() if not server.is_kelek}
        if not quorum_value(new, lambda peer: peer in foreign or self._counts(peer, now_ms)):
            if now_ms - change.caught_up_ms >= SILENT_MS:
                self._check_quorum(change.new, now_ms)
                raise Refusal("QuorumLost", "the new members do not become voters")
            return
        self._check_tables_feature()
        assert change.reqid is not None
        entry = self._directory.latest
        entry = entry._replace(new=change.new, old=entry.new)
        change.joint_index = self._append(change.reqid, entry)
        change.stage = ChangeStage.JOINT
        change.new_kelek_servers = [
            peer for peer, server in self.joining.items() if server.is_kelek
        ]
        self.joining = {}

    def _has_caught_up(self, peer: str, now_ms: int) -> bool:
        server, follower = self.joining[peer], self._core.follower(peer)
        heard_ms = max(server.heard_ms, follower.heard_ms if follower else 0)
        if now_ms - heard_ms >= SILENT_MS:
            raise Refusal("Unreachable", f"{peer} at {server.url} is silent")
        if server.is_kelek:
            index = follower.match_index if follower else 0
        else:
            index = server.info.last_index if server.info else 0
        return index + CAUGHT_UP_ENTRIES >= self._core.commit_index and (
            index > 0 or not server.is_kelek
        )

    def _is_complete(self, change: ConfigChange, now_ms: int) -> bool:
        """Whether the new members are committed, and the new kelek servers vote.

        A later removal of another server must be able to rely on them.
        """
        if self._core.commit_index < self._directory.history.last_index:
            return False
        if now_ms - change.stage_started_ms >= VOTER_WAIT_MS:
            return True
        return all(self._counts(peer, now_ms) for peer in change.new_kelek_servers)

    def _append(self, reqid: bytes | None, entry: ConfigEntry) -> int:
        core = self._core
        index = core.log.last_index + 1
        record = Record(KIND_CONFIG, reqid, encode_config_entry(entry))
        core.propose(encode_block(index, core.term, [record]))
        return index

    def _new_reqid(self) -> bytes:
        seconds = max(self._unix_s, self._reqids.newest_s)
        return seconds.to_bytes(4, "big") + self._random.randbytes(8)

    # ---- the end of a change ----

    def _dismiss_removed(self, now_ms: int) -> None:
        """Ends the links to removed servers once they know the last commit.

        A removed leader lets the others know the commit, and then hands over or steps down
        (dissertation, section 4.2.2).
        """
        core = self._core
        for peer in [peer for peer, at_ms in self._dismiss_due_ms.items() if now_ms >= at_ms]:
            del self._dismiss_due_ms[peer]
            core.remove_learner(peer)
        own, members = core.setup.peer_id, core.configuration.members
        if not self._leads_after_removal():
            return
        staying = [follower for follower in core.followers if follower.peer in members]
        all_know = all(follower.sent_commit_index >= core.commit_index for follower in staying)
        if not all_know and own in self._dismiss_due_ms:
            return
        if not self._transfer_started:
            self._transfer_started = True
            if not core.transfer("", now_ms):
                return
        if core.transferring is None:
            core.step_down()

    def _drop_change(self) -> None:
        """This peer no longer leads: the next leader finishes the change, or it never existed."""
        if self._change is not None:
            leader = self._core.leader
            self._finish(self._change, ConfigUpdateAnswer(ConfigStatus.NOT_LEADER, leader=leader))
        self._dismiss_due_ms = {}
        self._transfer_started = False

    def _finish(self, change: ConfigChange, answer: ConfigUpdateAnswer) -> None:
        self._answer(change, answer)
        self._change = None
        for peer in self.joining:
            self._core.remove_learner(peer)
        self.joining = {}

    def _answer(self, change: ConfigChange, answer: ConfigUpdateAnswer) -> None:
        for client in change.clients:
            assert change.reqid is not None
            _send(client, change.reqid, answer)

    # ---- for the peer ----

    def deadline_ms(self, now_ms: int) -> int | None:
        """When step() has something to do, if nothing arrives before."""
        core, change = self._core, self._change
        if core.role is not Role.LEADER:
            return None
        if change is None:
            if core.configuration.old:
                return now_ms
            return now_ms + POLL_MS if self._dismiss_due_ms or self._transfer_started else None
        joint_committed = (
            change.stage is ChangeStage.JOINT and core.commit_index >= change.joint_index
        )
        if joint_committed and core.transferring is None:
            return now_ms
        return now_ms + POLL_MS

    @property
    def status(self) -> str | None:
        change = self._change
        if change is None:
            return None
        return f"{change.stage.name.lower().replace('_', ' ')}: {' '.join(member_ids(change.new))}"


def _send(client: ReplyAddress, reqid: bytes, answer: ConfigUpdateAnswer) -> None:
    client.send(CONFIG_UPDATE_ANSWER.encode(answer, reqid))
