"""The Raft algorithm of one peer, without I/O: messages and time go in, a Ready comes out.

Papers: Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm" (quoted as
"Raft"), and Ongaro's dissertation (quoted as "dissertation").
"""

from collections.abc import Collection
from enum import StrEnum
from random import Random

from ..errors import LocalProtocolError, RemoteProtocolError
from ..limits import NUMBER_MAX
from .election import Election, ReadyBuffer
from .leader import Leader
from .lease import LeaderLease
from .log import DurableTracker, RaftLog
from .membership import Configuration, is_majority
from .messages import (
    AppendEntries,
    AppendResponse,
    EntryBatch,
    Envelope,
    HardState,
    InstallSnapshot,
    Message,
    ReadIndex,
    Ready,
    RequestVote,
    Setup,
    SnapshotResponse,
    StoredRead,
    TimeoutNow,
    Vote,
    check_append_entries,
)
from .progress import APPEND_BYTES_MAX_PLAIN, Follower, PeerCapabilities
from .reads import ReadRounds
from .transfer import Transfer, choose_target

__all__ = ["Raft", "Role", "Setup"]


class Role(StrEnum):
    """The role of a peer in its term. A pre-candidate asks whether a campaign could succeed."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Raft:
    """One peer of one Raft group.

    Call step(), propose() and on_*() any number of times, then tick(), then ready() once. Carry out
    the parts of the Ready in their order. Call tick() again at deadline_ms at the latest. A message
    that breaks the protocol raises RemoteProtocolError; it may change the term and nothing else.
    """

    def __init__(
        self, setup: Setup, hard_state: HardState, log: RaftLog, now_ms: int, random: Random
    ) -> None:
        timeouts_ms = setup.tuning[:2]
        assert setup.tuning.heartbeat_ms < timeouts_ms[0] <= timeouts_ms[1]
        self.setup = setup
        self.log = log
        self.role = Role.FOLLOWER
        self.term, self.voted_for = hard_state
        if log.last_term > self.term:  # That term had a leader; our vote in it is unknown.
            self.term, self.voted_for = log.last_term, None
        self.leader: str | None = None
        self.commit_index = log.base_index
        self._may_vote = True
        self._now_ms = now_ms
        self.election = Election(setup.tuning, random, now_ms)
        # Of all peers we ever served or asked.
        self._capabilities: dict[str, PeerCapabilities] = {}
        self._peers: dict[str, PeerCapabilities] = {}  # All other voters, and our learners.
        self._learners: set[str] = set()
        self._configuration = log.configurations.last
        self._leading: Leader | None = None
        self._read_rounds = ReadRounds()
        self._transfer: Transfer | None = None
        self._durable = DurableTracker(log.last_index)
        self._out = ReadyBuffer(hard_state)
        self._configure()

    # State that the owner may read.

    @property
    def configuration(self) -> Configuration:
        """The configuration in force: the newest configuration entry's, committed or not."""
        return self._configuration

    @property
    def peers(self) -> Collection[str]:
        """All other voters and, while this peer leads, its learners."""
        return self._peers.keys()

    @property
    def is_voter(self) -> bool:
        return self.setup.peer_id in self._configuration.members

    @property
    def is_joining(self) -> bool:
        """Whether the entry by which this peer joins is in force, of the leader's own term, and
        uncommitted.

        A server that lost its disk receives the same entry again. Its later promises count,
        although it has forgotten them; so a committed entry does not make it a joining server.
        """
        index, (voters, old) = self.log.configurations.last_index, self._configuration
        joins = bool(old) and self.setup.peer_id in set(voters) - set(old)
        return joins and self.commit_index < index and self.log.term_at(index) == self.term

    @property
    def may_vote(self) -> bool:
        """Without it the peer follows and acknowledges, but neither grants votes nor campaigns."""
        return self._may_vote

    @may_vote.setter
    def may_vote(self, may_vote: bool) -> None:
        self._may_vote = may_vote
        if not may_vote and self.role is not Role.FOLLOWER:
            self._become_follower(None)

    def mark_voted(self) -> None:
        """Counts the vote of this term as given to its leader, if it was not given yet."""
        if self.voted_for is None:
            self.voted_for = self.leader

    @property
    def durable_index(self) -> int:
        """The last entry that our own disk holds."""
        return self._durable.durable_index

    @property
    def read_round(self) -> int:
        """The round that start_read() would return now."""
        return self._read_rounds.next_round

    @property
    def lease(self) -> LeaderLease:
        return self._read_rounds.lease

    @property
    def transferring(self) -> str | None:
        """The target of the leadership transfer in progress. Meanwhile nothing may be proposed."""
        return self._transfer.target if self._transfer else None

    @property
    def rare_state(self) -> tuple[object, ...]:
        """What seldom changes, and concerns every part of the owner when it does."""
        return self.role, self.term, self.leader, self._configuration, self._transfer

    @property
    def may_wait(self) -> tuple[bool, bool]:
        """Whether the end of a leader's own sync, and answers to it, would cause nothing now."""
        leading = self._leading
        if leading is None or self._transfer is not None or self._read_rounds.active:
            return False, False
        return leading.may_wait()

    @property
    def followers(self) -> list[Follower]:
        """The leader's view of its followers, for reports. Do not change it."""
        return [*self._leading.followers] if self._leading else []

    def follower(self, peer: str) -> Follower | None:
        """The leader's view of one follower. Do not change it."""
        return self._leading.follower(peer) if self._leading else None

    def leaderless_ms(self, now_ms: int) -> int:
        """Time since the last contact with a leader; 0 while this peer leads."""
        return 0 if self._leading is not None else now_ms - self.election.leader_heard_ms

    @property
    def deadline_ms(self) -> int:
        """When tick() must come at the latest. Valid after ready()."""
        if self._leading is not None:
            deadline = self._leading.deadline_ms(self._now_ms)
            if self._transfer is not None:
                deadline = min(deadline, self._transfer.deadline_ms(self._leading, self.log))
            check_ms = self.election.quorum_check_ms
            return min(deadline, check_ms) if self._checks_quorum() else deadline
        if self.role is Role.FOLLOWER:
            return self.election.due_ms
        return min(self.election.due_ms, self.election.retry_due_ms)

    # ---- time ----

    def tick(self, now_ms: int) -> None:
        """Passes in the time: steps down, sends heartbeats, starts or repeats a campaign as due."""
        self._now_ms = now_ms
        if self._leading is not None:
            if self._lacks_quorum(now_ms):
                # Dissertation, section 6.2: a leader without a majority.
                self._become_follower(None)
            else:
                self._read_rounds.tick(self._leading, now_ms)
                self._leading.send_heartbeats(now_ms, self._out.messages)
                if self._transfer is not None and now_ms >= self._transfer.expires_ms:
                    self._transfer = None
        elif now_ms >= self.election.due_ms:
            self._on_election_timeout()
        elif self.role is not Role.FOLLOWER and now_ms >= self.election.retry_due_ms:
            self._request_votes()

    def _checks_quorum(self) -> bool:
        return self.setup.tuning.check_quorum and self._configuration != ((self.setup.peer_id,), ())

    def _lacks_quorum(self, now_ms: int) -> bool:
        """Whether a majority has been silent for an election timeout.

        New responses can only postpone that time, so it is computed again only when it has come.
        """
        assert self._leading is not None
        if now_ms < self.election.quorum_check_ms or not self._checks_quorum():
            return False
        heard_ms = self._leading.quorum_heard_ms(now_ms)
        self.election.quorum_check_ms = heard_ms + self.setup.tuning.election_timeout_ms_max
        return now_ms >= self.election.quorum_check_ms

    # ---- messages ----

    def step(self, sender: str, message: Message, now_ms: int, context: object = None) -> None:
        """Processes one message; `context` comes back with its answer.

        Requests are processed from any sender: one outside our configuration may belong to a newer
        configuration (dissertation, section 4.1). Answers of peers that we do not ask are dropped.

        Raises RemoteProtocolError when the message contradicts itself or what is committed here.
        """
        self._now_ms = now_ms
        if type(message) is AppendResponse:
            if sender in self._peers:
                self._on_append_response(sender, message, now_ms)
        elif type(message) is AppendEntries:
            self._on_append_entries(sender, message, now_ms, context)
        elif type(message) is RequestVote:
            self._on_request_vote(sender, message, now_ms, context)
        elif type(message) is Vote:
            if sender in self._peers:
                self._on_vote(sender, message)
        elif type(message) is InstallSnapshot:
            self._on_install_snapshot(sender, message, now_ms, context)
        elif type(message) is TimeoutNow:
            self._on_timeout_now(sender, message)
        else:
            assert type(message) is SnapshotResponse
            if sender in self._peers and self._is_newer(message.term) and self._leading is not None:
                self._leading.on_snapshot_response(sender, now_ms)

    def _is_newer(self, term: int) -> bool:
        """Applies the rule about terms (Raft, figure 2, "All servers"). Returns False for an old
        message.

        Vote requests are checked for leader stickiness before. A granted pre-vote names a term that
        no peer has reached yet, so it does not come here.
        """
        if term > NUMBER_MAX:
            raise RemoteProtocolError(f"term {term} is out of range")
        if term > self.term:
            self.term = term
            self.voted_for = None
            self._become_follower(None)
        return term == self.term

    def _become_follower(self, leader: str | None) -> None:
        """Becomes, or stays, a follower of the current term."""
        if self.role is not Role.FOLLOWER:
            self.role = Role.FOLLOWER
            self._leading = None
            self._read_rounds.on_step_down()
            self._transfer = None
            self.election.restart(self._now_ms)
            if self._learners:
                self._learners.clear()
                self._configure()
        self.leader = leader

    # ---- elections (Raft, section 5.2; dissertation, sections 4.2.3 and 9.6) ----

    def _on_election_timeout(self) -> None:
        self.leader = None
        self.election.is_transfer = False
        if not self._may_vote or not self._may_campaign():
            self.election.wait(self._now_ms)
            return
        self.election.restart(self._now_ms)
        self.election.granted = {self.setup.peer_id}
        self.election.answered = set()
        if not self.setup.tuning.pre_vote:
            self._campaign()
            return
        self.role = Role.PRE_CANDIDATE
        for peer, capabilities in self._peers.items():
            # It does not know pre-votes, or has not said so for as long as a leader's silence.
            knows = capabilities.pre_vote
            if knows is False or (knows is None and self.election.is_silent(self._now_ms)):
                self.election.granted.add(peer)
                self.election.answered.add(peer)
        self._request_votes()
        self._count_votes()

    def _may_campaign(self) -> bool:
        """Whether this peer may be needed as a candidate.

        A peer that is being removed may be needed until its removal is committed: perhaps only
        removed peers hold that entry, and none can win without it (dissertation, section 4.2.2).
        Its own vote does not count.
        """
        return self.is_voter or self.log.configurations.last_index > self.commit_index

    def _campaign(self) -> None:
        self.role = Role.CANDIDATE
        self.term += 1
        self.voted_for = self.setup.peer_id
        self.election.granted = {self.setup.peer_id}
        self.election.answered = set()
        self.election.on_campaign(self._now_ms)
        self._request_votes()
        self._count_votes()

    def _request_votes(self) -> None:
        self.election.retry_due_ms = self._now_ms + self.setup.tuning.vote_retry_ms
        pre_vote = self.role is Role.PRE_CANDIDATE
        log, kind = self.log, (pre_vote, self.election.is_transfer)
        term = self.term + 1 if pre_vote else self.term
        request = RequestVote(term, self.setup.peer_id, log.last_index, log.last_term, *kind)
        for peer in self._peers:
            if peer not in self.election.answered:
                self._out.messages.append(Envelope(peer, request))

    def _count_votes(self) -> None:
        if not is_majority(self._configuration, self.election.granted):
            return
        if self.role is Role.PRE_CANDIDATE:
            self._campaign()
        elif self.role is Role.CANDIDATE:
            self._become_leader()

    def _is_sticky(self, now_ms: int) -> bool:
        """Whether we know of a live leader (leader stickiness): then we grant no vote."""
        if self._leading is not None or self.election.has_promised(self.term, now_ms):
            return True
        is_known = self.leader is not None and not self.election.leader_lost
        return is_known and not self.election.is_silent(now_ms)

    def _on_request_vote(
        self, sender: str, message: RequestVote, now_ms: int, context: object
    ) -> None:
        if message.candidate != sender or message.last_term > message.term:
            raise RemoteProtocolError(f"RequestVote from {sender} contradicts itself: {message}")
        log = self.log
        # Also in the request's own term: an answer of another peer may have moved ours to it.
        has_promised = self.election.has_promised(self.term, now_ms)
        if message.term > self.term and not message.transfer and self._is_sticky(now_ms):
            granted = False  # Our term stays as it is (dissertation, section 4.2.3).
        elif message.pre_vote:
            granted = message.term > self.term and self._may_vote
        else:
            granted = self._is_newer(message.term) and self._may_vote
            granted = granted and self.voted_for in (None, sender) and self._leading is None
            granted = granted and (message.transfer or not has_promised)
        # Raft, section 5.4.1: the candidate's log must be at least as up to date as ours.
        if (message.last_term, message.last_index) < (log.last_term, log.last_index):
            granted = False
        if granted and not message.pre_vote:
            self.voted_for = sender
            self._become_follower(None)
            self.election.restart(now_ms)
        term = message.term if granted else self.term
        self._out.messages.append(Envelope(sender, Vote(term, granted, message.pre_vote), context))

    def _on_vote(self, sender: str, message: Vote) -> None:
        if message.pre_vote:
            if message.granted:
                is_ours = self.role is Role.PRE_CANDIDATE and message.term == self.term + 1
            else:
                self._is_newer(message.term)
                is_ours = False  # It is asked again: its leader stickiness may end.
        else:
            is_ours = self._is_newer(message.term) and self.role is Role.CANDIDATE
        if is_ours:
            self.election.answered.add(sender)
            if message.granted:
                self.election.granted.add(sender)
                self._count_votes()

    def _become_leader(self) -> None:
        """Starts to lead with an entry of its own term, so that older entries can be committed."""
        assert self._may_vote
        self.role = Role.LEADER
        self.election.leader_lost = False
        self.election.leaders += 1
        self.leader = self.setup.peer_id
        self.election.failed = 0
        self._leading = Leader(self.setup, self.log, self.term)
        self._leading.configure(self._configuration, self._peers, self._now_ms)
        self.election.quorum_check_ms = self._now_ms + self.setup.tuning.election_timeout_ms_max
        self._append(self.setup.term_entry(self.log.last_index + 1, self.term))
        self._out.commit_due = True

    # ---- leadership transfer (dissertation, section 3.10) ----

    def transfer(self, to: str, now_ms: int) -> str:
        """Starts to hand the leadership to voter `to`; '' chooses the one with the longest log.

        Returns '' or a refusal's reason. While `transferring` is set nothing may be proposed. It
        ends with our leadership, or after an election timeout. Raises LocalProtocolError.
        """
        if self._leading is None:
            raise LocalProtocolError("only a leader can transfer the leadership")
        if self._transfer is not None:
            return f"a transfer to {self._transfer.target} is in progress"
        if to == self.setup.peer_id:
            return f"{to} is the leader already"
        heard_after_ms = now_ms - self.setup.tuning.election_timeout_ms_max
        voters = self._configuration.voters
        best, reason = choose_target(self._leading.followers, to, voters, heard_after_ms)
        if best is not None:
            self._transfer = Transfer(self.setup, self.term, best.peer, now_ms)
            # The target's campaign breaks promises, and its requests may arrive at any time.
            self._leading.gives_leases = False
        return reason

    def _on_timeout_now(self, sender: str, message: TimeoutNow) -> None:
        """Campaigns at once. Only the current leader may ask for that."""
        if message.leader != sender:
            raise RemoteProtocolError(f"TimeoutNow from {sender} names {message.leader}")
        if not self._is_newer(message.term) or self.leader != sender:
            return
        if self._may_vote and self.is_voter:
            self.leader = None
            self.election.is_transfer = True
            self._campaign()

    # ---- entries (Raft, section 5.3) ----

    def propose(self, batch: EntryBatch) -> None:
        """Appends a batch of the leader's own; the next ready() sends it.

        Raises LocalProtocolError when this peer does not lead or the batch does not follow its log.
        """
        if self._leading is None:
            raise LocalProtocolError("only a leader proposes")
        if batch.term != self.term:
            raise LocalProtocolError(f"proposed in term {batch.term}, this is term {self.term}")
        self._append(batch)

    def start_read(self) -> int:
        """Starts a linearizable read. Returns its round: Ready.read_index confirms this or a later
        one.

        A round is never confirmed once this peer has ceased to lead. Raises LocalProtocolError when
        this peer does not lead.
        """
        if self._leading is None:
            raise LocalProtocolError("only a leader serves reads")
        self._read_rounds.request()
        return self.read_round

    def _append(self, batch: EntryBatch) -> None:
        self.log.append(batch)
        self._out.batches.append(batch)
        if batch.count == 1:
            configuration = self.setup.configuration(batch)
            if configuration is not None:
                self.log.configurations.append(batch.first_index, configuration)
                self._configure()

    def _on_append_entries(
        self, sender: str, message: AppendEntries, now_ms: int, context: object
    ) -> None:
        last_index = check_append_entries(sender, message)
        if not self._is_newer(message.term):
            self._out.messages.append(Envelope(sender, AppendResponse(self.term, False), context))
            return
        self._on_leader(sender, now_ms)
        refusal = self._check_previous(message)
        if refusal is not None:
            self._out.messages.append(Envelope(sender, refusal, context))
            return
        for batch in message.batches:
            self._append_received(batch)
        if message.commit_index > self.commit_index:
            self.commit_index = max(self.commit_index, min(message.commit_index, last_index))
        durable_index = self._durable.durable_index
        if last_index <= durable_index or not message.batches:
            match_index = min(last_index, durable_index)
            answer = AppendResponse(self.term, True, match_index)
            self._out.messages.append(Envelope(sender, answer, context))
        else:
            answer = AppendResponse(self.term, True, last_index)
            self._out.messages_after.append(Envelope(sender, answer, context))

    def _on_leader(self, sender: str, now_ms: int) -> None:
        """Registers contact with this term's leader, which postpones the next election."""
        is_new = self.leader != sender
        if is_new:
            if self.leader is not None:
                raise RemoteProtocolError(f"{sender} and {self.leader} both lead {self.term}")
            self._become_follower(sender)
        self.election.on_leader(now_ms, is_new)

    def _on_install_snapshot(
        self, sender: str, message: InstallSnapshot, now_ms: int, context: object
    ) -> None:
        """Processes a chunk (Raft, section 7); the caller answers what wants_snapshot() accepts."""
        if message.leader != sender or not 0 < message.last_term <= message.term:
            raise RemoteProtocolError(f"InstallSnapshot from {sender} contradicts itself")
        if not 0 < message.last_index <= NUMBER_MAX:
            raise RemoteProtocolError(f"a snapshot up to {message.last_index} is out of range")
        if not self._is_newer(message.term):
            self._out.messages.append(Envelope(sender, SnapshotResponse(self.term), context))
            return
        self._on_leader(sender, now_ms)
        if self.log.term_at(message.last_index) == message.last_term:
            # A snapshot holds committed entries only, and our log is equal up to there.
            self.commit_index = max(self.commit_index, message.last_index)
        if not self.wants_snapshot(message):
            answer = SnapshotResponse(self.term, message.size, done=True)
            self._out.messages.append(Envelope(sender, answer, context))

    def wants_snapshot(self, message: InstallSnapshot) -> bool:
        """Whether a chunk given to step() is our leader's and exceeds our commit index."""
        is_leaders = message.term == self.term and self.leader == message.leader
        return is_leaders and message.last_index > self.commit_index

    def _check_previous(self, message: AppendEntries) -> AppendResponse | None:
        """Returns None if our log holds the entry before the message's entries; else a refusal."""
        log = self.log
        prev_index = message.prev_index
        if prev_index < log.base_index:
            return None  # Compacted entries are committed, so they are equal.
        term = log.term_at(prev_index)
        if term == message.prev_term:
            return None
        if term is None:
            return AppendResponse(self.term, False, 0, log.last_index + 1, 0)
        if prev_index <= self.commit_index:
            raise RemoteProtocolError(
                f"index {prev_index} is committed with term {term}, not {message.prev_term}"
            )
        return AppendResponse(self.term, False, 0, log.term_first(prev_index), term)

    def _append_received(self, batch: EntryBatch) -> None:
        """Appends the new entries of a leader's batch. A conflict replaces our entries from there
        on.

        A batch has one term, so runs of terms show the first missing or different entry.
        """
        log = self.log
        last_index = batch.last_index
        if log.term_at(last_index) == batch.term:
            return  # Already in the log: equal index and term mean equal entries.
        first_index = max(batch.first_index, log.base_index + 1)
        if last_index < first_index:
            return
        if first_index <= log.last_index and log.term_at(first_index) == batch.term:
            first_index = log.run_last(first_index) + 1
        if batch.term < (log.term_at(first_index - 1) or 0):
            raise RemoteProtocolError(f"a batch of term {batch.term} goes back in terms")
        if first_index <= log.last_index:
            self._truncate(first_index)
        if first_index != batch.first_index:
            batch = self.setup.cut(batch, first_index)
        self._append(batch)

    def _truncate(self, index: int) -> None:
        """Drops our entries from `index` on, because the leader's log differs there."""
        if index <= self.commit_index:
            raise RemoteProtocolError(f"the leader replaces entry {index}, which is committed")
        self.log.truncate(index, self.setup.trim)
        self._configure()
        self._durable.truncate(index)
        self._out.messages_after.clear()  # They acknowledge entries that may be gone.
        batches = self._out.batches
        while batches and batches[-1].first_index >= index:
            batches.pop()
        if batches and batches[-1].last_index >= index:
            batches[-1] = self.setup.trim(batches[-1], index - 1)

    def _on_append_response(self, sender: str, message: AppendResponse, now_ms: int) -> None:
        if not self._is_newer(message.term) or self._leading is None:
            return
        if self._leading.on_response(sender, message, now_ms):
            self._out.commit_due = True

    # ---- membership (Raft, section 6; dissertation, chapter 4) ----

    def _configure(self) -> None:
        """Puts the newest configuration of the log in force."""
        before, self._configuration = self._configuration, self.log.configurations.last
        members = self._configuration.members
        if self._leading is not None:  # Removed members must still receive their removal.
            self._learners.update(before.members)
        self._learners.difference_update(members)
        self._learners.discard(self.setup.peer_id)
        self._peers = {
            peer: self._capabilities.setdefault(peer, PeerCapabilities())
            for peer in (*members, *sorted(self._learners))
            if peer != self.setup.peer_id
        }
        if self._leading is not None:
            self._leading.configure(self._configuration, self._peers, self._now_ms)
            self._out.commit_due = True

    def set_initial_configuration(self, configuration: Configuration) -> None:
        """Replaces the assumed initial configuration by the one that a member has reported."""
        self.log.configurations.replace_base(configuration)
        self._configure()

    def add_learner(self, peer: str) -> None:
        """Replicates the log to a peer that no majority counts, as long as this peer leads."""
        if self._leading is not None and peer not in self._peers:
            self._learners.add(peer)
            self._configure()

    def remove_learner(self, peer: str) -> None:
        """Stops replication to a learner or a removed server. Does nothing for a voter."""
        if peer in self._learners:
            self._learners.remove(peer)
            self._configure()

    def step_down(self) -> None:
        """Stops leading (dissertation, section 4.2.2)."""
        if self._leading is not None:
            self._become_follower(None)

    def forget_peer(self, peer: str) -> None:
        """Forgets the capabilities of a peer that no link leads to."""
        if peer not in self._peers:
            self._capabilities.pop(peer, None)

    # ---- events that the owner reports ----

    def on_stalled(self, ms: int) -> None:
        """Postpones election and vote retry by the time for which the owner was blocked by its
        disk.

        The owner received nothing meanwhile, so that time must not count against a candidate that
        got our vote, nor against our own campaign.
        """
        self.election.due_ms += ms
        self.election.retry_due_ms += ms

    def on_durable(self, index: int, term: int) -> None:
        """The log writer has made every entry up to (index, term) durable; in their order, at best
        once for each Ready."""
        self._durable.on_durable(index, term)
        self._out.commit_due = True

    def on_stored_read(self, to: str, first_index: int, batches: list[EntryBatch]) -> None:
        """Answers a StoredRead with entries from first_index on; none when they are not on disk
        yet."""
        if self._leading is not None and to in self._peers:
            self._leading.on_stored_read(to, first_index, batches)

    def on_snapshot_sent(self, peer: str, last_index: int) -> None:
        """Answers a request of Ready.snapshots: the follower installed a snapshot up to last_index.

        With 0 the snapshot could not be sent; ready() asks again if the follower still needs one.
        """
        if self._leading is not None and peer in self._peers:
            self._leading.on_snapshot_sent(peer, last_index)

    def compact(self, index: int) -> None:
        """Forgets entries up to `index`: a durable snapshot includes them.

        Raises LocalProtocolError when not all of them are committed and durable.
        """
        if index > min(self.commit_index, self.durable_index):
            raise LocalProtocolError(
                f"compacts up to {index}: {self.commit_index} is committed, "
                f"{self.durable_index} durable"
            )
        if index > self.log.base_index:
            self.log.compact(index)

    def install_snapshot(self, index: int, term: int, configuration: Configuration) -> bool:
        """Installs a durable snapshot that ends with entry (index, term), and its configuration.

        Returns True when the log restarts behind it: core and log writer then forget all entries. A
        log that holds that entry stays as it is.
        """
        if index <= self.commit_index:
            return False
        if self.log.term_at(index) == term:
            self.commit_index = index
            return False
        assert self._leading is None, "a leader lacks nothing that is committed"
        self.log.reset(index, term, configuration)
        self._configure()
        self._durable.reset(index)
        self.commit_index = index
        self._out.batches.clear()
        self._out.messages_after.clear()  # They acknowledge entries that are gone.
        return True

    def on_capabilities(
        self,
        peer: str,
        inflight_max: int,
        pre_vote: bool,
        last_index: int | None = None,
        counts_in_quorum: bool = True,
        transfer: bool = False,
        may_lose_entries: bool = False,
        lease: bool = False,
    ) -> None:
        """Stores what a peer's hello says of its capabilities, and where its log ended at its
        start.

        counts_in_quorum   False for a learner: it receives entries, and no majority counts it
        transfer           it campaigns when a leader asks it to
        lease              it keeps the promise that leases of reads rely on (reads.py)
        may_lose_entries   it may lose entries that it has confirmed without a hello that says so
        """
        capabilities = self._capabilities.setdefault(peer, PeerCapabilities())
        tuning = self.setup.tuning
        capabilities.inflight_max = max(1, min(inflight_max, tuning.inflight_max))
        capabilities.append_bytes_max = max(tuning.append_bytes_max, APPEND_BYTES_MAX_PLAIN)
        capabilities.pre_vote = pre_vote
        capabilities.counts_in_quorum = counts_in_quorum
        capabilities.transfer = transfer
        capabilities.lease = lease
        capabilities.may_lose_entries = may_lose_entries
        if self._leading is not None and peer in self._peers:
            self._leading.on_capabilities(peer, last_index)
            self._out.commit_due = True  # Its earlier acknowledgements may count from now on.

    def on_restarted(self, peer: str, last_index: int) -> None:
        """A peer has restarted with a log up to last_index. It may differ from the log it had."""
        if self._leading is not None and peer in self._peers:
            self._leading.on_restarted(peer, last_index)

    def on_unreachable(self, peer: str, now_ms: int) -> None:
        """The connection to a peer is lost, with the messages on it.

        If it leads, its process has probably ended. A pre-vote follows at once: it succeeds if a
        majority has lost its connections, too, and fails as long as a majority hears the leader.
        """
        self._now_ms = now_ms
        if self._leading is not None:
            if peer in self._peers:
                self._leading.on_unreachable(peer)
        elif peer == self.leader and self.setup.tuning.pre_vote and self._all_know_pre_votes():
            self.election.on_leader_lost(now_ms)

    def _all_know_pre_votes(self) -> bool:
        return all(it.pre_vote for it in self._peers.values())

    # ---- output ----

    def advance(self) -> bool:
        """Advances a leader's commit index, as ready() does. False: it stays, and ready() would
        return nothing to do."""
        out, leading, before = self._out, self._leading, self.commit_index
        if leading is not None and out.commit_due:
            self.commit_index = leading.advance_commit(self._durable.durable_index, before)
            out.commit_due = False
        if self.commit_index != before or out.has_work(self.term, self.voted_for):
            return True
        if leading is None:
            return False
        return self._transfer is not None or self._read_rounds.active or leading.has_messages()

    def ready(self) -> Ready:
        """Returns everything to be done since the last call."""
        leading = self._leading
        reads: list[StoredRead] = []
        snapshots: list[str] = []
        read_index: ReadIndex | None = None
        if leading is not None:
            if self._out.commit_due:
                self.commit_index = leading.advance_commit(
                    self._durable.durable_index, self.commit_index
                )
            read_index = self._read_rounds.advance(leading, self.commit_index, self._now_ms)
            leading.send_entries(self._now_ms, self._out.messages, reads, snapshots)
            leading.send_commit_notices(self._now_ms, self._out.messages)
            leading.send_read_round(self._now_ms, self._out.messages)
            if self._transfer is not None:
                self._transfer.send_timeout_now(leading, self.log, self._now_ms, self._out.messages)
        self._out.commit_due = False
        messages, self._out.messages = self._out.messages, []
        messages_after, self._out.messages_after = self._out.messages_after, []
        batches, self._out.batches = self._out.batches, []
        for batch in batches:
            self._durable.add(batch)
        commit_index = self.commit_index
        commit_term = self.log.term_at(commit_index)
        assert commit_term is not None
        hard_state = None
        if self._out.hard_state[0] != self.term or self._out.hard_state[1] != self.voted_for:
            hard_state = self._out.hard_state = HardState(self.term, self.voted_for)
        committed = commit_index, commit_term, read_index
        return Ready(hard_state, messages, batches, messages_after, reads, snapshots, *committed)
