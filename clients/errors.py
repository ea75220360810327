"""What can go wrong for a user of the clients."""


class LogError(Exception):
    """Something about the log could not be done."""


class LogTimeout(LogError, TimeoutError):
    """No progress for the time given.

    Updates on their way stay so: the next call sends them first, and they may commit meanwhile.
    """


class NoLeader(LogTimeout):
    """For the time given no peer said that it leads."""


class NoPeer(NoLeader):
    """For the time given none of the peers has answered: nothing was sent that may still commit."""

    def __init__(self, urls: tuple[str, ...], timeout_ms: int, hint: str = "") -> None:
        super().__init__(f"no answer from {', '.join(urls)} within {timeout_ms / 1000:g} s{hint}")


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


class NotKelek(SnapshotNotMade):
    """The peer is of another make: it makes snapshots when it likes."""


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


class TableError(Exception):
    """Something about a table could not be done."""


class TableTimeout(TableError, TimeoutError):
    """No answer for the time given. A write may still happen: nothing says that it won't."""

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason  # What the server said last, if it could not do it just then.


class NoServer(TableTimeout):
    """For the time given no server answered at all."""


class TableTooLarge(TableError, ValueError):
    """A key is empty or over 64 KiB, or a value over 64 MiB: nothing was sent."""


class TableRefused(TableError):
    """The server answered with an error; the text is its own."""

    def __init__(self, code: int, text: str, written: int = 0) -> None:
        super().__init__(text or f"the server answered with code {code:#04x} and no words")
        self.code = code  # Of the request's answer: docs/protocols/zerodb.md.
        self.text = text
        self.written = written  # Of this call: how many pairs before it were written.


class SessionEnded(TableRefused):
    """A write named a session that has ended, or was never opened: nothing was written."""


class TableUnsupported(TableError):
    """The server is of another kind, or a version, that does not know this request."""


class JobLost(TableError):
    """The server that hands out a range job was lost, or the job has ended before its end: what was
    not handed out yet never will be."""


class ChangesGone(TableError):
    """A watch asked for changes that are no longer kept.

    Read the table once, and watch on from index.
    """

    def __init__(self, index: int) -> None:
        super().__init__(
            f"some changes before index {index} are no longer kept; read the table, and watch on "
            f"from index {index}"
        )
        self.index = index


class BrokerError(Exception):
    """Something about a service could not be done."""


class BrokerTimeout(BrokerError, TimeoutError):
    """No answer in the time given. The service may have been asked, and may still do its work."""


class NoBroker(BrokerTimeout):
    """In the time given no broker was to be had."""


class ServiceFailed(BrokerError):
    """The service, or the broker in its stead, has answered that it can't be done.

    A function that serves may raise it: whoever has called it gets the same.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} (code {code})")
        self.code = (
            code  # 429: nobody has room for it; 500: its program failed; any other: its own.
        )
        self.text = text


class NodeError(Exception):
    """Something about a node of ZRE could not be done."""


class FarmError(Exception):
    """Something about a farm could not be done."""


class FarmTimeout(FarmError, TimeoutError):
    """Not done in the time given. What was to be appended may still be."""


class NoFarm(FarmTimeout):
    """In the time given none of the servers was to be had: nothing was sent."""


class NoFarmLeader(FarmTimeout):
    """For the time given no server has led: nothing was appended."""


class FarmDenied(FarmError):
    """The servers don't let us in, or don't do it for this user."""


class FarmUntrusted(FarmError):
    """It is not to be shown that these are the servers: their certificate, or no TLS at all."""


class FarmRefused(FarmError):
    """The servers will not do this; the text says why."""


class FarmTooLarge(FarmError, ValueError):
    """A value is over the limit of what an entry may hold: nothing was sent."""


class FarmCompacted(FarmError):
    """The entries asked for are no longer kept: a snapshot has taken the place of those before
    first_index. Their outcome is in documents(); go on with first_index."""

    def __init__(self, first_index: int) -> None:
        super().__init__(
            f"the entries before {first_index} are no longer kept, a snapshot has their outcome; "
            f"read that with documents(), and go on with index {first_index}"
        )
        self.first_index = first_index
