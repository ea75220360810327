"""The Raft algorithm of one peer, without IO: messages and time in, a Ready out.

Papers: Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm" (quoted as
"Raft"), and Ongaro's dissertation (quoted as "dissertation").
"""

from collections.abc import Collection
from enum import StrEnum
from random import Random

from ..errors import LocalProtocolError, RemoteProtocolError
from .leader import Leader
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
)
from .progress import APPEND_BYTES_MAX_PLAIN, Follower, PeerCapabilities
from .reads import ReadRounds
from .transfer import Transfer, transfer_refusal

__all__ = ["Raft", "Role", "Setup"]

TIMEOUT_DOUBLINGS_MAX = 2
NUMBER_MAX = (1 << 53) - 1  # Terms and indexes: what every wire can carry.


class Role(StrEnum):
    """What a peer is in its term; a pre-candidate only asks whether a campaign could succeed."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Raft:
    """One peer of one group.

    Use: any number of step(), propose() and on_*(), then tick(), then one ready(), whose parts are
    carried out in their order. Wake again at deadline_ms at the latest. A message that breaks the
    protocol raises RemoteProtocolError and changes nothing but, perhaps, the term.
    """

    def __init__(
        self, setup: Setup, hard_state: HardState, log: RaftLog, now_ms: int, random: Random
    ) -> None:
        assert setup.election_timeout_ms_min <= setup.election_timeout_ms_max
        assert setup.heartbeat_ms < setup.election_timeout_ms_min
        self.setup = setup
        self.log = log
        self.role = Role.FOLLOWER
        self.term, self.voted_for = hard_state
        if log.last_term > self.term:  # The vote of that term is unknown, but there was a leader.
            self.term, self.voted_for = log.last_term, None
        self.leader: str | None = None
        self.commit_index = log.base_index
        self._may_vote = True
        self._random = random
        self._now_ms = now_ms
        self._leader_heard_ms = now_ms  # When the leader was heard last.
        self._election_due_ms = now_ms + self._election_timeout_ms()
        self._vote_retry_due_ms = self._election_due_ms
        self._capabilities: dict[str, PeerCapabilities] = {}  # Of everybody we ever had to do with.
        self._peers: dict[str, PeerCapabilities] = {}  # All other voters and our learners.
        self._learners: set[str] = set()
        self._configuration = log.configurations.last
        self._failed_campaigns = 0  # Since a leader was heard, or we led.
        self._granted: set[str] = set()
        self._answered: set[str] = set()
        self._leading: Leader | None = None
        self._read_rounds = ReadRounds()
        self._transfer: Transfer | None = None
        self._campaigns_for_transfer = False  # Our campaign is one that the leader has asked for.
        self._quorum_check_ms = 0
        self._durable = DurableTracker(log.last_index)
        self._commit_due = False
        self._hard_state = hard_state  # As last handed out.
        self._messages: list[Envelope] = []
        self._messages_after: list[Envelope] = []
        self._batches: list[EntryBatch] = []
        self._configure()

    # What the shell may ask.

    @property
    def configuration(self) -> Configuration:
        """The one in force: that of the newest configuration entry, committed or not."""
        return self._configuration

    @property
    def peers(self) -> Collection[str]:
        """Whom we have to do with: all other voters, and as a leader our learners."""
        return self._peers.keys()

    @property
    def is_voter(self) -> bool:
        """Whether the configuration in force counts on us."""
        return self.setup.peer_id in self._configuration.members

    @property
    def is_joining(self) -> bool:
        """Whether the very entry by which we join is in force: of the leader's own term, and not
        yet committed. A server that has lost its disk is sent the same one again, but what it has
        forgotten was said since, and counts."""
        index, (voters, old) = self.log.configurations.last_index, self._configuration
        joins = bool(old) and self.setup.peer_id in set(voters) - set(old)
        return joins and self.commit_index < index and self.log.term_at(index) == self.term

    @property
    def may_vote(self) -> bool:
        """False: follows and acknowledges, but neither grants nor campaigns."""
        return self._may_vote

    @may_vote.setter
    def may_vote(self, may_vote: bool) -> None:
        self._may_vote = may_vote
        if not may_vote and self.role is not Role.FOLLOWER:
            self._become_follower(None)

    def mark_voted(self) -> None:
        """Counts the vote of this term as given to its leader, who has been heard."""
        if self.voted_for is None:
            self.voted_for = self.leader

    @property
    def durable_index(self) -> int:
        """Up to here our own disk has the log."""
        return self._durable.durable_index

    @property
    def read_round(self) -> int:
        """What read() would return now."""
        return self._read_rounds.next_round

    @property
    def transferring(self) -> str | None:
        """To whom we are handing the leadership over: nothing may be proposed meanwhile."""
        return self._transfer.target if self._transfer else None

    @property
    def followers(self) -> list[Follower]:
        """What a leader knows of its followers, for reports: not to be changed."""
        return list(self._leading.followers) if self._leading else []

    def leaderless_ms(self, now_ms: int) -> int:
        """For how long no leader was heard; 0 while we lead."""
        return 0 if self._leading is not None else now_ms - self._leader_heard_ms

    @property
    def deadline_ms(self) -> int:
        """When tick() must come at the latest, after ready() was called."""
        if self._leading is not None:
            deadline = self._leading.deadline_ms(self._now_ms)
            if self._transfer is not None:
                deadline = min(deadline, self._transfer.deadline_ms(self._leading, self.log))
            return min(deadline, self._quorum_check_ms) if self._checks_quorum() else deadline
        if self.role is Role.FOLLOWER:
            return self._election_due_ms
        return min(self._election_due_ms, self._vote_retry_due_ms)

    # Time.

    def tick(self, now_ms: int) -> None:
        """Does what the time asks for; also tells ready() what time it is."""
        self._now_ms = now_ms
        if self._leading is not None:
            if self._lacks_quorum(now_ms):
                self._become_follower(
                    None
                )  # Dissertation, section 6.2: a leader without a majority.
            else:
                self._leading.send_heartbeats(now_ms, self._messages)
                if self._transfer is not None and now_ms >= self._transfer.expires_ms:
                    self._transfer = None
        elif now_ms >= self._election_due_ms:
            self._on_election_timeout()
        elif self.role is not Role.FOLLOWER and now_ms >= self._vote_retry_due_ms:
            self._request_votes()

    def _election_timeout_ms(self) -> int:
        setup = self.setup
        return self._random.randint(setup.election_timeout_ms_min, setup.election_timeout_ms_max)

    def _checks_quorum(self) -> bool:
        return self.setup.check_quorum and self._configuration != ((self.setup.peer_id,), ())

    def _lacks_quorum(self, now_ms: int) -> bool:
        """Whether a majority was silent for too long; who is heard only moves that further away,
        so it is worked out anew only when the time last found has come."""
        assert self._leading is not None
        if now_ms < self._quorum_check_ms or not self._checks_quorum():
            return False
        heard_ms = self._leading.quorum_heard_ms(now_ms)
        self._quorum_check_ms = heard_ms + self.setup.election_timeout_ms_max
        return now_ms >= self._quorum_check_ms

    # Messages.

    def step(self, sender: str, message: Message, now_ms: int, context: object = None) -> None:
        """Takes in one message; `context` comes back with the answer.

        Raises RemoteProtocolError when it contradicts itself or what we know for sure. Requests are
        heard from everybody: whoever is not in our configuration may be in a newer one
        (dissertation, section 4.1). Answers of those whom we don't ask are dropped.
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
        """The rule about terms (Raft, figure 2, "All servers"): False when the message is old.

        Requests for a vote go through _may_disturb() first; a granted pre-vote names a term that
        nobody is in yet.
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
            self._election_due_ms = self._now_ms + self._election_timeout_ms()
            if self._learners:
                self._learners.clear()
                self._configure()
        self.leader = leader

    # Elections (Raft, section 5.2; dissertation, sections 4.2.3 and 9.6).

    def _on_election_timeout(self) -> None:
        self.leader = None
        self._campaigns_for_transfer = False
        self._election_due_ms = self._now_ms + self._election_timeout_ms()
        if not self._may_vote or not self._may_campaign():
            return
        self._granted = {self.setup.peer_id}
        self._answered = set()
        if not self.setup.pre_vote:
            self._campaign()
            return
        self.role = Role.PRE_CANDIDATE
        for peer, capabilities in self._peers.items():
            if not capabilities.pre_vote:  # It would not understand the question.
                self._granted.add(peer)
                self._answered.add(peer)
        self._request_votes()
        self._count_votes()

    def _may_campaign(self) -> bool:
        """Whether an election may need us as a candidate: also when we leave, and the entry that
        says so is not committed yet. It may be nowhere else but with those who leave, so that
        nobody can win without it (dissertation, section 4.2.2); our own vote does not count."""
        return self.is_voter or self.log.configurations.last_index > self.commit_index

    def _campaign(self) -> None:
        """A new term, our own vote, everybody is asked."""
        self.role = Role.CANDIDATE
        self.term += 1
        self.voted_for = self.setup.peer_id
        self._granted = {self.setup.peer_id}
        self._answered = set()
        self._election_due_ms = self._now_ms + self._candidate_timeout_ms()
        self._request_votes()
        self._count_votes()

    def _candidate_timeout_ms(self) -> int:
        """How long a campaign may take: wider with each that failed, up to fourfold, as votes wait
        for disks; a range that the votes do not fit into would never elect anybody."""
        wider = min(self._failed_campaigns, TIMEOUT_DOUBLINGS_MAX)
        self._failed_campaigns += 1
        setup = self.setup
        timeout_ms_max = setup.election_timeout_ms_max << wider
        return self._random.randint(setup.election_timeout_ms_min, timeout_ms_max)

    def _request_votes(self) -> None:
        """Asks, or asks again, everybody who has not answered."""
        self._vote_retry_due_ms = self._now_ms + self.setup.vote_timeout_ms
        pre_vote = self.role is Role.PRE_CANDIDATE
        log = self.log
        term = self.term + 1 if pre_vote else self.term
        request = RequestVote(
            term,
            self.setup.peer_id,
            log.last_index,
            log.last_term,
            pre_vote,
            self._campaigns_for_transfer,
        )
        for peer in self._peers:
            if peer not in self._answered:
                self._messages.append(Envelope(peer, request))

    def _count_votes(self) -> None:
        if not is_majority(self._configuration, self._granted):
            return
        if self.role is Role.PRE_CANDIDATE:
            self._campaign()
        elif self.role is Role.CANDIDATE:
            self._become_leader()

    def _is_sticky(self, now_ms: int) -> bool:
        """Whether we know of a living leader, so that nobody needs a vote."""
        if self._leading is not None:
            return True
        heard_for_ms = now_ms - self._leader_heard_ms
        return self.leader is not None and heard_for_ms < self.setup.election_timeout_ms_min

    def _on_request_vote(
        self, sender: str, message: RequestVote, now_ms: int, context: object
    ) -> None:
        if message.candidate != sender or message.last_term > message.term:
            raise RemoteProtocolError(f"RequestVote from {sender} contradicts itself: {message}")
        log = self.log
        if message.term > self.term and not message.transfer and self._is_sticky(now_ms):
            granted = False  # Our term stays (dissertation, section 4.2.3).
        elif message.pre_vote:
            granted = message.term > self.term and self._may_vote
        else:
            granted = self._is_newer(message.term) and self._may_vote
            granted = granted and self.voted_for in (None, sender) and self._leading is None
        # Raft, section 5.4.1: the candidate's log must be at least as up to date as ours.
        if (message.last_term, message.last_index) < (log.last_term, log.last_index):
            granted = False
        if granted and not message.pre_vote:
            self.voted_for = sender
            self._become_follower(None)
            self._election_due_ms = now_ms + self._election_timeout_ms()
        term = message.term if granted else self.term
        self._messages.append(Envelope(sender, Vote(term, granted, message.pre_vote), context))

    def _on_vote(self, sender: str, message: Vote) -> None:
        if message.pre_vote:
            if message.granted:
                is_ours = self.role is Role.PRE_CANDIDATE and message.term == self.term + 1
            else:
                self._is_newer(message.term)
                is_ours = False  # Asked again: it may only have heard of the leader lately.
        else:
            is_ours = self._is_newer(message.term) and self.role is Role.CANDIDATE
        if is_ours:
            self._answered.add(sender)
            if message.granted:
                self._granted.add(sender)
                self._count_votes()

    def _become_leader(self) -> None:
        """Won: an entry of our own at once, so that older ones can be committed with it."""
        assert self._may_vote
        self.role = Role.LEADER
        self.leader = self.setup.peer_id
        self._failed_campaigns = 0
        self._leading = Leader(self.setup, self.log, self.term)
        self._leading.configure(self._configuration, self._peers, self._now_ms)
        self._quorum_check_ms = self._now_ms + self.setup.election_timeout_ms_max
        self._append(self.setup.term_entry(self.log.last_index + 1, self.term))
        self._commit_due = True

    # Leadership transfer (dissertation, section 3.10).

    def transfer(self, to: str, now_ms: int) -> str:
        """Begins to hand the leadership over to a voter; '' for the one that is furthest.

        Returns '' or why it can't be. While `transferring` says so nothing may be proposed; it ends
        with our leadership, or after an election timeout, when the target has not taken over.
        Raises LocalProtocolError when we do not lead.
        """
        if self._leading is None:
            raise LocalProtocolError("only a leader hands the leadership over")
        if self._transfer is not None:
            return f"the leadership is on its way to {self._transfer.target}"
        if to == self.setup.peer_id:
            return f"{to} leads already"
        voters = self._configuration.voters
        heard_after_ms = now_ms - self.setup.election_timeout_ms_max
        followers = [each for each in self._leading.followers if not to or each.peer == to]
        if not followers:
            return f"{to} is no member of the cluster" if to else "there is no other member"
        reasons = {each.peer: transfer_refusal(each, voters, heard_after_ms) for each in followers}
        fit = [each for each in followers if not reasons[each.peer]]
        if not fit:
            return "; ".join(reasons.values())
        best = max(fit, key=lambda each: (each.match_index, each.heard_ms, each.peer))
        self._transfer = Transfer(self.setup, self.term, best.peer, now_ms)
        return ""

    def _on_timeout_now(self, sender: str, message: TimeoutNow) -> None:
        """The leader, and nobody else, may make us campaign while it lives."""
        if message.leader != sender:
            raise RemoteProtocolError(f"TimeoutNow from {sender} names {message.leader}")
        if not self._is_newer(message.term) or self.leader != sender:
            return
        if self._may_vote and self.is_voter:
            self.leader = None
            self._campaigns_for_transfer = True
            self._campaign()

    # Entries (Raft, section 5.3).

    def propose(self, batch: EntryBatch) -> None:
        """Appends the leader's own batch; it goes out with the next ready().

        Raises LocalProtocolError when we do not lead or the batch does not follow.
        """
        if self._leading is None:
            raise LocalProtocolError("only a leader proposes")
        if batch.term != self.term:
            raise LocalProtocolError(f"proposed in term {batch.term}, this is term {self.term}")
        self._append(batch)

    def start_read(self) -> int:
        """Somebody reads: returns the round that confirms it, or any later one does.

        Ready.read_index tells. When we cease to lead first, it never does.
        Raises LocalProtocolError when we do not lead.
        """
        if self._leading is None:
            raise LocalProtocolError("only a leader serves reads")
        self._read_rounds.request()
        return self.read_round

    def _append(self, batch: EntryBatch) -> None:
        self.log.append(batch)
        self._batches.append(batch)
        if batch.count == 1:
            configuration = self.setup.configuration(batch)
            if configuration is not None:
                self.log.configurations.append(batch.first_index, configuration)
                self._configure()

    def _on_append_entries(
        self, sender: str, message: AppendEntries, now_ms: int, context: object
    ) -> None:
        last_index = _check_append_entries(sender, message)
        if not self._is_newer(message.term):
            self._messages.append(Envelope(sender, AppendResponse(self.term, False), context))
            return
        self._on_leader(sender, now_ms)
        refusal = self._check_previous(message)
        if refusal is not None:
            self._messages.append(Envelope(sender, refusal, context))
            return
        for batch in message.batches:
            self._append_received(batch)
        if message.commit_index > self.commit_index:
            self.commit_index = max(self.commit_index, min(message.commit_index, last_index))
        durable_index = self._durable.durable_index
        if last_index <= durable_index or not message.batches:
            match_index = min(last_index, durable_index)
            answer = AppendResponse(self.term, True, match_index)
            self._messages.append(Envelope(sender, answer, context))
        else:
            answer = AppendResponse(self.term, True, last_index)
            self._messages_after.append(Envelope(sender, answer, context))

    def _on_leader(self, sender: str, now_ms: int) -> None:
        """The leader of this term has spoken: nobody else is needed for a while."""
        if self.leader != sender:
            if self.leader is not None:
                raise RemoteProtocolError(f"{sender} and {self.leader} both lead {self.term}")
            self._become_follower(sender)
        self._leader_heard_ms = now_ms
        self._failed_campaigns = 0
        self._election_due_ms = now_ms + self._election_timeout_ms()

    def _on_install_snapshot(
        self, sender: str, message: InstallSnapshot, now_ms: int, context: object
    ) -> None:
        """Raft, section 7. A piece that is needed is not answered here: see wants_snapshot()."""
        if message.leader != sender or not 0 < message.last_term <= message.term:
            raise RemoteProtocolError(f"InstallSnapshot from {sender} contradicts itself")
        if not 0 < message.last_index <= NUMBER_MAX:
            raise RemoteProtocolError(f"a snapshot up to {message.last_index} is out of range")
        if not self._is_newer(message.term):
            self._messages.append(Envelope(sender, SnapshotResponse(self.term), context))
            return
        self._on_leader(sender, now_ms)
        if self.log.term_at(message.last_index) == message.last_term:
            # What a snapshot holds is committed, and our log is equal up to there.
            self.commit_index = max(self.commit_index, message.last_index)
        if not self.wants_snapshot(message):
            answer = SnapshotResponse(self.term, message.size, done=True)
            self._messages.append(Envelope(sender, answer, context))

    def wants_snapshot(self, message: InstallSnapshot) -> bool:
        """Whether a piece that was stepped on comes from our leader and brings what we lack."""
        is_leaders = message.term == self.term and self.leader == message.leader
        return is_leaders and message.last_index > self.commit_index

    def _check_previous(self, message: AppendEntries) -> AppendResponse | None:
        """Whether our log has what the message builds on; the refusal when it has not."""
        log = self.log
        prev_index = message.prev_index
        if prev_index < log.base_index:
            return None  # Committed, so equal.
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
        """Appends what is new of a leader's batch; a conflict replaces our entries from there on.

        All its entries have one term, so the first that we lack or have otherwise is found by
        looking at runs, not at entries.
        """
        log = self.log
        last_index = batch.last_index
        if log.term_at(last_index) == batch.term:
            return  # Known already: the same index and term are the same entry.
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
        """A new leader's log differs from ours from `index` on: what we have there goes."""
        if index <= self.commit_index:
            raise RemoteProtocolError(f"the leader contradicts us at {index}, which is committed")
        self.log.truncate(index, self.setup.trim)
        self._configure()
        self._durable.truncate(index)
        self._messages_after.clear()  # These speak of entries that may be gone.
        batches = self._batches
        while batches and batches[-1].first_index >= index:
            batches.pop()
        if batches and batches[-1].last_index >= index:
            batches[-1] = self.setup.trim(batches[-1], index - 1)

    def _on_append_response(self, sender: str, message: AppendResponse, now_ms: int) -> None:
        if not self._is_newer(message.term) or self._leading is None:
            return
        if self._leading.on_response(sender, message, now_ms):
            self._commit_due = True

    # Membership (Raft, section 6; dissertation, chapter 4).

    def _configure(self) -> None:
        """The log's newest configuration is in force from now on."""
        before, self._configuration = self._configuration, self.log.configurations.last
        members = self._configuration.members
        if self._leading is not None:  # Who leaves must still be told that it may go.
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
            self._commit_due = True

    def set_initial_configuration(self, configuration: Configuration) -> None:
        """What the group began with was told: until now a guess stood in for it."""
        self.log.configurations.replace_base(configuration)
        self._configure()

    def add_learner(self, peer: str) -> None:
        """Sends it the log from now on, as long as we lead; no majority is counted with it."""
        if self._leading is not None and peer not in self._peers:
            self._learners.add(peer)
            self._configure()

    def remove_learner(self, peer: str) -> None:
        """Leaves a learner alone, or a server that has been removed; nothing happens to a voter."""
        if peer in self._learners:
            self._learners.remove(peer)
            self._configure()

    def step_down(self) -> None:
        """Leads no longer: its group goes on without it (dissertation, section 4.2.2)."""
        if self._leading is not None:
            self._become_follower(None)

    def forget_peer(self, peer: str) -> None:
        """What it has said of itself holds no longer: nobody has a connection to it."""
        if peer not in self._peers:
            self._capabilities.pop(peer, None)

    # What the shell reports.

    def on_stalled(self, ms: int) -> None:
        """The shell could not listen for so long, as it waited for its disk with a vote: that time
        counts neither against the candidate that it voted for nor against its own campaign."""
        self._election_due_ms += ms
        self._vote_retry_due_ms += ms

    def on_durable(self, index: int, term: int) -> None:
        """Our own writer has everything up to (index, term) on disk.

        To be called in the order of the batches handed out, at best once for each Ready.
        """
        self._durable.on_durable(index, term)
        self._commit_due = True

    def on_stored_read(self, to: str, first_index: int, batches: list[EntryBatch]) -> None:
        """Answers a Read: entries from first_index on, or none when they are not on disk yet."""
        if self._leading is not None and to in self._peers:
            self._leading.on_stored_read(to, first_index, batches)

    def on_snapshot_sent(self, peer: str, last_index: int) -> None:
        """Answers a wish of Ready.snapshots: one up to last_index is in the follower's place, or,
        with 0, it could not be sent, and is wished for again when it is still needed."""
        if self._leading is not None and peer in self._peers:
            self._leading.on_snapshot_sent(peer, last_index)

    def compact(self, index: int) -> None:
        """Entries up to `index` may go: a durable snapshot holds what they did.

        Raises LocalProtocolError when not all of them are committed.
        """
        if index > min(self.commit_index, self.durable_index):
            raise LocalProtocolError(
                f"compacts up to {index}: {self.commit_index} is committed, "
                f"{self.durable_index} durable"
            )
        if index > self.log.base_index:
            self.log.compact(index)

    def install_snapshot(self, index: int, term: int, configuration: Configuration) -> bool:
        """A durable snapshot that ends with entry (index, term) is in place, and in that one the
        configuration that was in force there.

        Returns whether the log begins anew behind it: everything else in it is forgotten, also by
        the writer; a log that holds that entry goes on.
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
        self._batches.clear()
        self._messages_after.clear()  # These speak of entries that are gone.
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
    ) -> None:
        """A hello was heard: what the peer can do, and where its log ended when it came up.

        counts     False for a learner: entries go to it, but no majority is counted with it
        transfer   it campaigns when a leader tells it to
        forgets    it may lose entries that it has confirmed without a hello that says so
        """
        capabilities = self._capabilities.setdefault(peer, PeerCapabilities())
        capabilities.inflight_max = max(1, min(inflight_max, self.setup.inflight_max))
        capabilities.append_bytes_max = max(self.setup.append_bytes_max, APPEND_BYTES_MAX_PLAIN)
        capabilities.pre_vote = pre_vote
        capabilities.counts_in_quorum = counts_in_quorum
        capabilities.transfer = transfer
        capabilities.may_lose_entries = may_lose_entries
        if self._leading is not None and peer in self._peers:
            self._leading.on_capabilities(peer, last_index)
            self._commit_due = True  # What it has confirmed may count from now on.

    def on_restarted(self, peer: str, last_index: int) -> None:
        """The peer runs anew, with a log up to last_index: perhaps not the one that it had."""
        if self._leading is not None and peer in self._peers:
            self._leading.on_restarted(peer, last_index)

    def on_unreachable(self, peer: str) -> None:
        """The connection to a peer is lost, with what was on it."""
        if self._leading is not None and peer in self._peers:
            self._leading.on_unreachable(peer)

    # Out.

    def ready(self) -> Ready:
        """Hands out everything that is to be done, once."""
        leading = self._leading
        reads: list[StoredRead] = []
        snapshots: list[str] = []
        read_index: ReadIndex | None = None
        if leading is not None:
            if self._commit_due:
                self.commit_index = leading.advance_commit(
                    self._durable.durable_index, self.commit_index
                )
            read_index = self._read_rounds.advance(leading, self.commit_index)
            leading.send_entries(self._now_ms, self._messages, reads, snapshots)
            leading.send_commit_notices(self._now_ms, self._messages)
            leading.send_read_round(self._now_ms, self._messages)
            if self._transfer is not None:
                self._transfer.send_timeout_now(leading, self.log, self._now_ms, self._messages)
        self._commit_due = False
        messages, self._messages = self._messages, []
        messages_after, self._messages_after = self._messages_after, []
        batches, self._batches = self._batches, []
        for batch in batches:
            self._durable.add(batch)
        commit_index = self.commit_index
        commit_term = self.log.term_at(commit_index)
        assert commit_term is not None
        hard_state = None
        if self._hard_state[0] != self.term or self._hard_state[1] != self.voted_for:
            hard_state = self._hard_state = HardState(self.term, self.voted_for)
        return Ready(
            hard_state,
            messages,
            batches,
            messages_after,
            reads,
            snapshots,
            commit_index,
            commit_term,
            read_index,
        )


def _check_append_entries(sender: str, message: AppendEntries) -> int:
    """The index of the last entry that the message speaks of.

    Raises RemoteProtocolError when it contradicts itself.
    """
    term, leader, index, entry_term, commit_index, batches, _ = message
    if leader != sender or entry_term > term or (index == 0) is not (entry_term == 0):
        raise RemoteProtocolError(f"AppendEntries from {sender} contradicts itself")
    for first_index, count, batch_term, _ in batches:
        if first_index != index + 1 or count < 1 or not entry_term <= batch_term <= term:
            raise RemoteProtocolError(
                f"batch {first_index}+{count} of term {batch_term} does not follow "
                f"index {index} of term {entry_term}"
            )
        index += count
        entry_term = batch_term
    if index > NUMBER_MAX or commit_index > NUMBER_MAX:
        raise RemoteProtocolError(f"index {max(index, commit_index)} is out of range")
    return index
