"""The rules of durable requests, by the log and by what brokers send and clients get.

The log has each request before a worker gets it, one end of each, and the end before its client
gets it. Only the owner that the log names gives requests to workers, and a request again only when
its worker or broker is gone.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from kelek.protocols.majordomo import records, values
from kelek.protocols.majordomo.codec import decode_failure
from kelek.protocols.majordomo.durable import OWNER
from kelek.protocols.majordomo.records import DurableRequest, Message, Name
from kelek.protocols.zerodb.wire.values import BROKER_TABLE
from kelek.tests.sim.checker import AppliedEntry
from kelek.tests.sim.simulation import Simulation
from kelek.tests.sim.tables.checker import TableChecker

Answers = list[tuple[bool, Message]]
NOT_STORED = values.BUSY, values.LOST, values.TOO_LARGE  # Codes of errors that are no end.
UNNAMED = b"?"  # Begins the bodies of a client that can't repeat: they come under several names.


class Dispatcher(Protocol):
    """A broker's process."""

    name: str
    alive: bool

    def has_worker(self, routing_id: bytes) -> bool: ...

    @property
    def owner_value(self) -> bytes: ...


class Dispatch(NamedTuple):
    """A request that a worker got."""

    broker: Dispatcher
    routing_id: bytes
    owners: int  # BrokerChecker.owners then.


class BrokerChecker(TableChecker):
    """A request is known by its label, the first frame of its body, and by its name in the log."""

    def __init__(
        self, simulation: Simulation, names: Iterable[str], workers: int, keeps_ends: bool
    ) -> None:
        """keeps_ends: no end becomes too old within the run"""
        super().__init__(simulation, names, workers)
        self.keeps_ends = keeps_ends
        self.owner: bytes | None = None
        self.owners = 0  # How often that has changed.
        self.names: dict[bytes, Name] = {}  # By label.
        self.labels: dict[Name, bytes] = {}
        self.open: dict[Name, int] = {}  # Requests in the log without an end, and their index.
        self.requests: dict[Name, dict[bytes, None]] = {}  # The segments that have a request.
        self.live_ends: dict[Name, bytes] = {}  # Segments that have ends now.
        self.ends: dict[Name, list[Answers]] = {}  # All that the log ever had.
        self.segments: dict[bytes, tuple[int, list[DurableRequest]]] = {}  # Those in the log.
        self.executed: dict[bytes, int] = {}  # By label, how often.
        self._dispatches: dict[bytes, list[Dispatch]] = {}  # By label, of requests without an end.

    # ---- the log ----

    def on_applied(self, name: str, index: int, entry: AppliedEntry) -> None:
        is_new = index > len(self.applied)
        super().on_applied(name, index, entry)
        if is_new:
            for table, key, value in self.replay_of(BROKER_TABLE).changes[index]:
                if table == BROKER_TABLE:
                    self._on_change(index, key, value)

    def _on_change(self, index: int, key: bytes, value: bytes | None) -> None:
        if key == OWNER:
            self.owners += value != self.owner
            self.owner = value
        elif key[:1] in (records.REQUESTS, records.ENDS):
            if value is None:
                self._on_segment_deleted(key)
            else:
                self._on_segment(index, key, value)

    def _on_segment(self, index: int, key: bytes, value: bytes) -> None:
        service, rows = records.unpack(value)
        found = [records.decode_record(key, service, row) for row in rows]
        self.expect(key not in self.segments, "a segment is written twice:", key.hex())
        self.segments[key] = index, found
        for record in found:
            if key.startswith(records.ENDS):
                self._on_end(key, record)
                continue
            self.requests.setdefault(record.name, {})[key] = None
            self.names[record.body[0]] = record.name
            self.labels[record.name] = record.body[0]
            if record.name not in self.live_ends:
                self.open[record.name] = index

    def _on_end(self, key: bytes, record: DurableRequest) -> None:
        name, known = record.name, self.ends.setdefault(record.name, [])
        self.expect(self.open.pop(name, None) is not None, "an end of no open request:", name)
        again = self.keeps_ends and any(it != [records.NEVER_DISPATCHED] for it in known)
        self.expect(not again, "two ends:", name, known, record.answers)
        label = self.labels[name]
        if record.never_dispatched:
            self.expect(label not in self._dispatches, "ended as if no worker had it:", label)
        known.append(record.answers)
        self.live_ends[name] = key
        self._dispatches.pop(label, None)

    def _on_segment_deleted(self, key: bytes) -> None:
        if key not in self.segments:
            return
        index, found = self.segments.pop(key)
        for record in found:
            name = record.name
            if key.startswith(records.REQUESTS):
                self.requests[name].pop(key)
                if not self.requests[name]:
                    del self.requests[name]
                    self.expect(name not in self.open, "deleted before its end:", name)
                continue
            self.live_ends.pop(name, None)
            older = [it for it in self.requests.get(name, {}) if self.segments[it][0] < index]
            self.expect(not older, "an end is deleted before its request:", name)

    # ---- brokers and workers ----

    def on_dispatch(self, broker: Dispatcher, routing_id: bytes, label: bytes) -> None:
        """A broker sends a durable request to a worker."""
        self.simulation.counters["dispatched"] += 1
        self.expect(
            self.owner == broker.owner_value, broker.name, "dispatches and is not the owner"
        )
        if label.startswith(UNNAMED):
            return
        name = self.names.get(label)
        self.expect(name is not None, broker.name, "dispatches what the log has not:", label)
        assert name is not None
        self.expect(name in self.open, broker.name, "dispatches what has ended:", label)
        earlier = self._dispatches.setdefault(label, [])
        for one in earlier:
            who = broker.name, one.broker.name
            self.expect(self._is_void(one), "a request is given to two workers:", label, *who)
        self.simulation.counters["dispatched again"] += bool(earlier)
        earlier.append(Dispatch(broker, routing_id, self.owners))

    def _is_void(self, one: Dispatch) -> bool:
        """Whether its worker or its broker is gone, so that another worker may get the request."""
        is_owner = one.broker.alive and one.owners == self.owners
        return not is_owner or not one.broker.has_worker(one.routing_id)

    def on_executed(self, label: bytes) -> int:
        """A worker has executed a request; returns how often that was."""
        self.executed[label] = self.executed.get(label, 0) + 1
        return self.executed[label]

    # ---- clients ----

    def on_final(self, label: bytes, body: Message, parts: Sequence[Message] | None) -> bool:
        """A client got the end of its request. False: an error that is no end.

        parts   that it got before; None: it wanted none
        """
        failure = decode_failure(body)
        if failure is not None and failure.code in NOT_STORED:
            self.simulation.counters[f"error {failure.code}"] += 1
            return False
        if label.startswith(UNNAMED):
            self.expect(failure is not None or body[0] == label, "another answer:", label, body)
            return True
        ends = self.ends_of(label)
        found = [end for end in ends if end[-1][1] == body]
        self.expect(bool(found), "an answer that the log has not:", label, body, ends)
        if parts is not None and failure is None:
            wanted = [part for _, part in found[-1][:-1]]
            last = list(parts[len(parts) - len(wanted) :])
            self.expect(last == wanted, "other parts:", label, parts, wanted)
        return True

    @property
    def has_ends(self) -> bool:
        """Whether there are ends that expire soon: those of titanic.close do not."""
        return any(
            key.startswith(records.ENDS) and found[0].service != records.CLOSE
            for key, (_, found) in self.segments.items()
        )

    def ends_of(self, label: bytes) -> list[Answers]:
        name = self.names.get(label)
        return [] if name is None else self.ends.get(name, [])
