"""What the core keeps of its own campaigns, and what it collects for the next Ready."""

from dataclasses import dataclass, field

from .messages import EntryBatch, Envelope, HardState


class Election:
    """The times and the votes of a peer's campaigns. Times in milliseconds."""

    def __init__(self, now_ms: int, due_ms: int) -> None:
        self.leader_heard_ms = now_ms  # When a message of the leader last arrived.
        self.due_ms = due_ms  # The next campaign.
        self.retry_due_ms = due_ms  # The next requests to peers that did not answer.
        self.quorum_check_ms = 0  # When a leader checks that it hears a majority.
        self.failed = 0  # Campaigns since the last contact with a leader.
        self.granted: set[str] = set()
        self.answered: set[str] = set()
        self.is_transfer = False  # The leader asked for this campaign.


@dataclass(slots=True)
class ReadyBuffer:
    """What the next Ready contains, in order."""

    hard_state: HardState  # As in the last Ready.
    commit_due: bool = False
    messages: list[Envelope] = field(default_factory=list)
    # To send when the batches are durable.
    messages_after: list[Envelope] = field(default_factory=list)
    batches: list[EntryBatch] = field(default_factory=list)
