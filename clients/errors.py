"""What can go wrong for a user of the clients."""


class LogError(Exception):
    """Something about the log could not be done."""


class LogTimeout(LogError, TimeoutError):
    """No progress for the time given.

    Updates on their way stay so: the next call sends them first, and they may commit meanwhile.
    """


class NoLeader(LogTimeout):
    """For the time given no peer said that it leads."""


class TransferRefused(LogError):
    """The leadership stays where it is, or went elsewhere."""


class LogCompacted(LogError):
    """The entries asked for are no longer stored: a snapshot has taken the place of those up to
    last_index. What follows them can be read: go on behind it."""

    def __init__(self, last_index: int) -> None:
        super().__init__(
            f"the entries up to {last_index} are no longer stored, a snapshot has their state; "
            f"fetch that with state() and read on behind {last_index}"
        )
        self.last_index = last_index


class SnapshotNotMade(LogError):
    """The peer made no snapshot; the text says why."""


class UpdateTooLarge(LogError, ValueError):
    """The data is over the limit of 10 MiB, or empty: it was not sent."""


class UpdateRefused(LogError):
    """The cluster will never take this update, nor those sent behind it."""

    def __init__(self, reason: str, committed: int) -> None:
        super().__init__(
            f"an update was refused for good: {reason}; {committed} before it were committed"
        )
        self.reason = reason
        self.committed = committed  # Of this call: how many updates before it were committed.


class MembersRefused(LogError):
    """The cluster does not take these members."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"the members stay as they are: {message}")
        self.name = name  # Empty, Unchanged, Doubled, Malformed, Unreachable, QuorumLost, ...
        self.message = message


class MembersBusy(LogError):
    """Another change of the members is in work."""


class UpdateExpired(UpdateRefused):
    """Its request id is older than the cluster remembers, or this clock is far off."""
