"""A program that leaves its requests with titanic and fetches the answers (RFC 9)."""

from dataclasses import dataclass

from kelek.protocols.majordomo import values
from kelek.protocols.majordomo.client import Call
from kelek.protocols.majordomo.codec import Request
from kelek.protocols.majordomo.records import Message
from kelek.tests.sim.broker.client import Asked, CallingProgram
from kelek.tests.sim.broker.node import DURABLE

REPLY_ID = b"reply "  # Begins the ids of other calls than titanic.request.


@dataclass(slots=True, eq=False)
class Left(Asked):
    """A request that is left with titanic."""

    uuid: bytes = b""
    is_closed: bool = False
    may_be_closed: bool = False


class TitanicProgram(CallingProgram):
    """Each request is left, asked for until it has an answer, and closed now and then."""

    def _new(self) -> Asked:
        service, request_id = self.random.choice(DURABLE), self._new_id()
        label = b"%s/%s" % (self.name.encode(), request_id)
        return Left(service, request_id, label, is_patient=True)

    def _begin(self, asked: Asked) -> None:
        self._call(asked, self._request(asked))

    def _request(self, asked: Asked) -> Request:
        assert isinstance(asked, Left)
        if not asked.uuid or self.random.random() < 0.1:
            body = [asked.service, asked.label, b"x" * 20]
            return Request(values.TITANIC_REQUEST, asked.request_id, body)
        wanted = values.TITANIC_REPLY
        if asked.final is not None and not self.stopped and self.random.random() < 0.1:
            wanted, asked.may_be_closed = values.TITANIC_CLOSE, True
        return Request(wanted, REPLY_ID + self._new_id(), [asked.uuid])

    def _on_done(self, call: Call, asked: Asked) -> None:
        assert isinstance(asked, Left)
        self.simulation.counters["titanic"] += 1
        if call.timed_out or call.refusal or call.final is None or call.failure is not None:
            self.simulation.counters["no answer"] += 1
            return
        code, *frames = call.final
        if code == values.TITANIC_FAILED:  # Try later.
            return
        match call.request.service:
            case values.TITANIC_REQUEST:
                self.checker.expect(code == values.TITANIC_OK, self.name, "not left:", call.final)
                same = asked.uuid in (b"", frames[0])
                self.checker.expect(same, self.name, "two uuids:", asked.uuid, frames)
                is_stored = asked.label in self.checker.names
                self.checker.expect(is_stored, self.name, "accepted before the log has it")
                asked.uuid = frames[0]
            case values.TITANIC_CLOSE:
                self.checker.expect(code == values.TITANIC_OK, self.name, "not closed", call.final)
                asked.is_closed = True
            case _ if code == values.TITANIC_OK:
                self._on_frames(asked, frames)
            case _:
                self._on_no_frames(asked, code)

    def _on_frames(self, asked: Left, frames: Message) -> None:
        ends = self.checker.ends_of(asked.label)
        found = [[frame for _, body in end for frame in body] for end in ends]
        self.checker.expect(frames in found, self.name, "an answer that the log has not:", frames)
        is_open = not (asked.is_closed and self.repeats)
        self.checker.expect(is_open, self.name, "an answer after its close:", asked.label)
        self._on_answer(asked, frames)

    def _on_no_frames(self, asked: Left, code: bytes) -> None:
        """An answer is not there yet, or no more; brokers see a request and its close in time."""
        if code == values.TITANIC_UNKNOWN:
            self.simulation.counters["titanic unknown"] += 1
            is_gone = asked.may_be_closed or not self.checker.keeps_ends
            if is_gone and asked.final is None:
                asked.final = [code]  # It was closed or expired before it was fetched.
            self.checker.expect(
                is_gone or self.checker.names.get(asked.label) not in self.checker.live_ends,
                self.name, "an answer that is not known:", asked.label,
            )  # fmt: skip

    def may_repeat(self, asked: Asked) -> bool:
        return asked.final is not None
