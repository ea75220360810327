"""The errors that kelek's clients raise.

Every error is a kelek.Error. Six kinds say what happened, whatever the service: Unavailable,
Timeout, Compacted, Refused, TooLarge and Conflict. Each service has a class of its own below them,
so `except kelek.Timeout` catches the timeouts of all services and `except kelek.LogTimeout` those
of the log. Arguments of a wrong type or value raise TypeError or ValueError instead.
"""


class Error(Exception):
    """The root of all errors that kelek raises for its users."""


class Unavailable(Error):
    """No server can serve the request now: none answers, none leads, or the one needed is lost."""

    _is_silent = False  # No answer, but the connection is not refused: a server may be slow.


class Timeout(Error, TimeoutError):
    """The request did not complete in time. A write that was sent may still take effect."""


class Compacted(Error):
    """What was asked for is no longer stored: newer state has replaced it."""


class Refused(Error):
    """The service answered that it does not do this."""


class TooLarge(Error, ValueError):
    """An argument exceeds a limit of the protocol. Nothing was sent."""


class Conflict(Error):
    """Another operation prevents this one now. Retry it later."""


class NotAllowed(Refused):
    """The grants of this client's key do not allow the request, which did nothing.

    An operator grants rights with `kelek keys allow` (docs/security.md).
    """


class KeyUnusable(Error, ValueError):
    """A key file or a server key can't be used. Nothing was connected."""


# ---- log ----


class LogError(Error):
    """An operation on the log failed."""


class LogTimeout(LogError, Timeout):
    """The cluster made no progress within the timeout.

    Appends that were sent stay in the window: the next call sends them first, and they may commit
    meanwhile.
    """


class LogNoLeader(LogTimeout, Unavailable):
    """No peer led within the timeout."""


class LogUnavailable(LogNoLeader):
    """No peer answered within the timeout, or within LogTuning.reach_ms if none was ever reachable;
    or the urls belong to another cluster. Nothing was sent that may still commit."""


class TransferRefused(LogError, Refused):
    """The leader did not hand over, or another member than the one named now leads."""


class LogCompacted(LogError, Compacted):
    """A snapshot has replaced the entries up to last_index.

    Read the snapshot's state with state(), then the entries after last_index.
    """

    def __init__(self, last_index: int) -> None:
        super().__init__(
            f"the entries up to {last_index} are no longer stored, a snapshot has their state; "
            f"read that with state(), then the entries after {last_index}"
        )
        self.last_index = last_index


class SnapshotRefused(LogError, Refused):
    """The peer made no snapshot. The message gives the reason."""


class SnapshotUnsupported(SnapshotRefused):
    """The peer is not kelek and decides itself when it makes snapshots."""


class LogTooLarge(LogError, TooLarge):
    """The data is empty or exceeds 10 MiB. It was not sent."""


class LogRefused(LogError, Refused):
    """The cluster will never append this data, nor what the same call sent after it.

    reason      the cluster's reason
    committed   how many items of this call were committed before it
    """

    def __init__(self, reason: str, committed: int) -> None:
        super().__init__(f"an append was refused for good: {reason}; {committed} before committed")
        self.reason = reason
        self.committed = committed


class LogExpired(LogRefused):
    """The request id is older than the cluster remembers, or this machine's clock is wrong."""


class LogNotAllowed(LogRefused, NotAllowed):
    """The key of this client has no grant for the request, which did nothing.

    An append that an earlier leader had received before it was lost may still be committed.

    reason   the missing grant
    """

    def __init__(self, reason: str, committed: int = 0) -> None:
        Error.__init__(self, reason + (f"; {committed} before committed" if committed else ""))
        self.reason = reason
        self.committed = committed


class MembersRefused(LogError, Refused):
    """The cluster does not accept these members.

    name      Empty, Unchanged, Doubled, Malformed, Unreachable, QuorumLost, ...
    message   the leader's reason
    """

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"the members stay as they are: {message}")
        self.name = name
        self.message = message


class MembersConflict(LogError, Conflict):
    """Another change of the members is in progress."""


# ---- tables ----


class TableError(Error):
    """An operation on a table failed."""


class TableTimeout(TableError, Timeout):
    """No answer within the timeout. A write may still take effect.

    reason   why the server could not do it, if it said so
    """

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason


class TableUnavailable(TableTimeout, Unavailable):
    """No server answered: within the timeout, or within TableTuning.reach_ms if no url was ever
    reachable."""


class TableTooLarge(TableError, TooLarge):
    """A key is empty or exceeds 64 KiB, or a value exceeds 64 MiB. Nothing was sent."""


class TableRefused(TableError, Refused):
    """The server answered with an error.

    code      of the answer (docs/protocols/zerodb.md)
    text      the server's message
    written   how many pairs of this call were written before it
    """

    def __init__(self, code: int, text: str, written: int = 0) -> None:
        super().__init__(text or f"the server answered with code {code:#04x} and no message")
        self.code = code
        self.text = text
        self.written = written


class SessionEnded(TableRefused):
    """A write named a session that has ended or never existed. Nothing was written."""


class LockLost(TableError, Unavailable):
    """A lock, semaphore or election is not held any more: its session has ended."""


class JobFailed(TableError, Refused):
    """A job of a queue failed for good, or was cancelled.

    A worker's function may raise it: the job becomes a dead letter without further tries.

    state   "dead" or "cancelled"
    """

    def __init__(self, text: str, state: str = "dead") -> None:
        super().__init__(text)
        self.state = state


class JobGone(TableError, Compacted):
    """There is no such job, or it has ended and its result is no longer kept."""


class ClaimLost(TableError, Unavailable):
    """The worker does not hold the job any more: it was cancelled, or the worker paused for so long
    that another one may have it. What the function has put into tables is not stored."""


class TableNotAllowed(TableRefused, NotAllowed):
    """The key of this client has no grant for the request, which did nothing."""


class TableUnsupported(TableError, Refused):
    """The server is another product or version and does not know this request."""


class TableNameConflict(TableError, Conflict):
    """The name that a table should get is taken, or no table has the name that should change."""


class TableSchemaError(TableError, ValueError):
    """Columns or values do not fit the schema of a table, or it has none."""


class TableJobLost(TableError, Unavailable):
    """The server of a range job was lost, or the job ended early. Its remaining chunks are lost."""


class TableCompacted(TableError, Compacted):
    """The server no longer keeps some changes that a watch asked for.

    Read the table once, then watch(after=after).

    after   LOG INDEX: read the table as of it or later, and watch the changes after it
    """

    def __init__(self, index: int) -> None:
        super().__init__(
            f"some changes up to index {index - 1} are no longer kept; read the table, then watch "
            f"the changes after {index - 1}"
        )
        self.index = index  # The first index from which a watch misses nothing.

    @property
    def after(self) -> int:
        return self.index - 1


# ---- streams ----


class SnapshotNotKept(TableError, Compacted):
    """No kept snapshot of the table has this index or name, or is so old. The text names those that
    are kept."""


class StreamTrimmed(TableError, Compacted):
    """Retention has removed records of a stream that a reader wanted.

    offset   of the first record that is lost to the reader
    first    of the first record that is kept: read on from there
    """

    def __init__(self, name: str, offset: int, first: int) -> None:
        super().__init__(
            f"stream {name}: the records {offset} to {first - 1} are no longer kept; read on with "
            f"start={first}, or from the first one kept with start='first'"
        )
        self.offset = offset
        self.first = first


class StreamConflict(TableError, Conflict):
    """Another producer was opened with the same id, or the number of a record was used before for
    another one. Nothing was appended."""


# ---- services ----


class BrokerError(Error):
    """A request to a service failed."""


class BrokerTimeout(BrokerError, Timeout):
    """No answer within the timeout. The service may have the request and may still process it."""


class BrokerUnavailable(BrokerTimeout, Unavailable):
    """No broker was reachable: within the timeout, or within BrokerTuning.reach_ms if none ever
    was."""


class ServiceRefused(BrokerError, Refused):
    """The service, or the broker in its place, answered with an error.

    A service's function may raise it; its caller then gets the same error.

    code   429: all workers and queues are full; 500: the service's program failed; others: the
           service's own
    text   the message
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} (code {code})")
        self.code = code
        self.text = text


class ServiceNotAllowed(ServiceRefused, NotAllowed):
    """The key of this client has no grant for the service (code 403)."""


# ---- discovery ----


class NodeError(Error):
    """An operation on a ZRE node failed."""


# ---- farms ----


class FarmError(Error):
    """An operation on a farm failed."""


class FarmTimeout(FarmError, Timeout):
    """The operation did not complete within the timeout. An append may still be committed."""


class FarmUnavailable(FarmTimeout, Unavailable):
    """No server was reachable within the timeout. Nothing was sent."""


class FarmNoLeader(FarmTimeout, Unavailable):
    """No server led within the timeout. Nothing was appended."""


class FarmDenied(FarmError, Refused):
    """The servers reject this user's password, or the user lacks the permission."""


class FarmUntrusted(FarmError):
    """The servers could not be authenticated: an untrusted certificate, or no TLS."""


class FarmRefused(FarmError, Refused):
    """The servers refused the operation. The message gives the reason."""


class FarmTooLarge(FarmError, TooLarge):
    """A value exceeds the size limit of an entry. Nothing was sent."""


class FarmCompacted(FarmError, Compacted):
    """A snapshot has replaced the entries before first_index.

    Their outcome is in documents(). Read on with entries(after=first_index - 1).
    """

    def __init__(self, first_index: int) -> None:
        super().__init__(
            f"the entries before {first_index} are no longer kept, a snapshot has their outcome; "
            f"read that with documents(), then the entries after {first_index - 1}"
        )
        self.first_index = first_index
