"""kelek.Broker: services by name, without a thread of its own.

All work is done inside the calls. One Broker belongs to one thread at a time; make one for each.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Self

from ...net.clock import monotonic_ms
from ...protocols.majordomo.client import Call
from ..errors import BrokerError, BrokerTimeout
from ..io.driver import BlockingDriver
from ..io.links import Links
from .body import Body, Content
from .operations import (
    AWAY_MS,
    BROKER_LINKS,
    TIMEOUT_MS,
    BrokerOperations,
    BrokerTuning,
    CallOptions,
    make_client,
)


class Broker(BlockingDriver):
    """Calls services that workers offer at a broker.

        with kelek.Broker("tcp://127.0.0.1:7300") as broker:
            answer = broker.call("flights.delay", b"LH400")
            futures = [broker.submit("flights.delay", it) for it in flights]
            delays = [future.result() for future in futures]
            for part in broker.stream("flights.all", b"FRA"): ...

    urls         the brokers' front ends, in a list or joined by commas: one is used; when it is
                 lost or silent the next one is sent what is unanswered
    timeout_ms   of a call that gives none of its own
    identity     1 to 255 octets, the first one not 0: the brokers' name for this client, also after
                 a restart of its program; one program at a time may use it. Whoever knows it can
                 have its answers: choose a secret. Default: a random one

    request_id   of a call, 1 to 255 octets: sent once more under the same identity, also by the
                 next run of a program, it is the same request while the broker has that in work;
                 a durable service gives the same answer again. It goes on behind timeout_ms, so
                 that somebody can come back for the answer. Default: one that is new

    A service may be asked twice when a worker or a broker is lost; the answer comes once. A body is
    bytes, a str (as UTF-8) or a list of bytes, its frames. Raises BrokerError, or one of its kinds.
    """

    _links: Links | None

    def __init__(
        self,
        urls: str | Iterable[str],
        *,
        timeout_ms: int = TIMEOUT_MS,
        identity: str | bytes | None = None,
        tuning: BrokerTuning | None = None,
    ) -> None:
        self.timeout_ms = timeout_ms
        self._client = make_client(urls, tuning, identity)
        self._steps = BrokerOperations(self._client)
        self._turned_ms = monotonic_ms()
        self._own(Links(self._client, BROKER_LINKS))

    def call(
        self,
        service: str | bytes,
        body: Content = b"",
        *,
        timeout_ms: int | None = None,
        request_id: str | bytes | None = None,
    ) -> Body:
        """Asks a service, and waits for its answer: the FINAL; parts before it are left out.

        Raises BrokerTimeout, BrokerUnavailable, ServiceRefused.
        """
        return self.submit(service, body, timeout_ms=timeout_ms, request_id=request_id).result()

    def submit(
        self,
        service: str | bytes,
        body: Content = b"",
        *,
        timeout_ms: int | None = None,
        request_id: str | bytes | None = None,
    ) -> "Future":
        """Sends a request, and does not wait. It waits only while 65,536 are unanswered."""
        return Future(
            self,
            self._begin(
                service, body, CallOptions(timeout_ms or self.timeout_ms, False, request_id)
            ),
        )

    def stream(
        self,
        service: str | bytes,
        body: Content = b"",
        *,
        timeout_ms: int | None = None,
        request_id: str | bytes | None = None,
    ) -> "Stream":
        """Asks a service for an answer in parts: an iterator of them, see Stream.

        They may be read slowly: the service is asked for more as they are read. A part that was
        lost with a connection ends the stream with an error.
        """
        return Stream(
            self,
            self._begin(
                service, body, CallOptions(timeout_ms or self.timeout_ms, True, request_id)
            ),
        )

    def _begin(self, service: str | bytes, body: Content, wish: CallOptions) -> Call:
        if self._links is None:
            raise self._closed_error()
        if not self._client.has_room:
            self._run(self._steps.room())
        call = self._steps.begin(service, body, wish)
        self._run_once(0, _sent)
        return call

    def _run_once(self, until_ms: int, is_done: Callable[[], bool] = lambda: False) -> None:
        self._connected()
        if self._links is not None and monotonic_ms() - self._turned_ms > AWAY_MS:
            self._links.receive()  # No answer is late only because nobody looked.
        super()._run_once(until_ms, is_done)
        self._turned_ms = monotonic_ms()
        self._client.pop_updated()  # Whoever waits looks at the call itself.

    def _drop(self, call: Call) -> None:
        self._client.cancel(call)
        if self._links is not None:
            self._run_once(0, _sent)  # The broker is told at once.

    # ---- the end ----

    @property
    def counters(self) -> dict[str, int]:
        """What happened: brokers, lost, silent, busy, timeouts, gaps, strays, junk, overrun."""
        return dict(self._client.counters)

    def close(self) -> None:
        """Ends it; what is unanswered never will be."""
        self._client.cancel_all()
        super().close()

    def _closed_error(self) -> BrokerError:
        return BrokerError("this Broker is closed")

    def _timeout_error(self) -> BrokerTimeout:
        return BrokerTimeout(
            f"{self._client.outstanding} calls are unanswered: no room for another"
        )


def _sent() -> bool:
    """What is due has been sent: nothing more is waited for."""
    return True


class Future:
    """An answer that is to come. It comes while any method of its Broker waits, or this one."""

    def __init__(self, broker: Broker, call: Call) -> None:
        self._broker = broker
        self._call = call

    def done(self) -> bool:
        """Whether result() would return, or raise, at once."""
        if not self._call.done and self._broker._links is not None:
            self._broker._run_once(0)
        return self._call.done

    def result(self) -> Body:
        """Waits for the answer. Raises BrokerTimeout, BrokerUnavailable, ServiceRefused."""
        return self._broker._run(self._broker._steps.result(self._call))

    def cancel(self) -> None:
        """Forgets it: the service may still be asked, nobody hears its answer."""
        self._broker._drop(self._call)


class Stream(Iterator[Body]):
    """The parts of an answer, in the order in which the service gave them.

    When the service's worker dies the next one begins anew: parts may come twice.
    """

    def __init__(self, broker: Broker, call: Call) -> None:
        self._broker = broker
        self._call = call
        self._parts = self._items()

    def _items(self) -> Generator[Body, None, None]:
        for parts in self._broker._iterate(self._broker._steps.parts(self._call)):
            yield from parts
        self._broker._steps.answer(self._call)

    def __next__(self) -> Body:
        return next(self._parts)

    def __iter__(self) -> Self:
        return self

    @property
    def resent(self) -> int:
        """How often the request went over another connection, as ours to the broker was lost: then
        parts may be missing, or come twice."""
        return self._call.resent

    def result(self) -> Body:
        """The FINAL, behind all parts; those that were not read are left out."""
        for _ in self:
            pass
        return self._broker._steps.answer(self._call)

    def close(self) -> None:
        """Forgets the rest."""
        self._parts.close()
        self._broker._drop(self._call)
