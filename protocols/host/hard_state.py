"""What a host must make durable before it sends anything: term, vote, and one flag of its own."""

from ..raft.messages import HardState


class SavedState:
    """The state that is durable, with the flag saved beside it: this peer is a voter, a member."""

    def __init__(self, hard_state: HardState, flag: bool) -> None:
        self.hard_state = hard_state
        self._flag = flag

    def change(self, hard_state: HardState | None, flag: bool) -> tuple[HardState, bool] | None:
        """Returns what must be made durable now; None if nothing has changed. A hard_state of None
        is as before."""
        before = self.hard_state, self._flag
        after = hard_state or self.hard_state, flag
        self.hard_state, self._flag = after
        return after if after != before else None
