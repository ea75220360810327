"""What the core keeps of its own campaigns, and what it collects for the next Ready."""

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


class ReadyBuffer:
    """What the next Ready contains, in order."""

    def __init__(self, hard_state: HardState) -> None:
        self.hard_state = hard_state  # As in the last Ready.
        self.commit_due = False
        self.messages: list[Envelope] = []
        self.messages_after: list[Envelope] = []  # To send when the batches are durable.
        self.batches: list[EntryBatch] = []
