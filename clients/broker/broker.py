"""kelek.Broker: calls of services, without a thread of its own.

All work happens inside its methods. Use a Broker in one thread at a time.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from typing import Self

from ...protocols.majordomo.client import Call
from ..errors import BrokerError, BrokerTimeout
from ..io.driver import BlockingDriver
from ..io.links import Links
from .body import Body, Content
from .operations import (
    BROKER_LINKS,
    TIMEOUT_MS,
    BrokerOperations,
    BrokerTuning,
    CallOptions,
    make_client,
)


class Broker(BlockingDriver):
    """Calls services at a broker.

        with kelek.Broker("tcp://127.0.0.1:7300") as broker:
            answer = broker.call("flights.delay", b"LH400")
            futures = [broker.submit("flights.delay", it) for it in flights]
            delays = [future.result() for future in futures]
            for part in broker.stream("flights.all", b"FRA"): ...

    urls         the brokers' front ends, a list or comma-separated. One is used; when it is lost or
                 silent, all unanswered requests go to the next one
    timeout_ms   the default of calls
    identity     1 to 255 octets, the first not 0: the client's name at the brokers, also after a
                 restart. One program at a time may use it. It is a secret: a program that knows it
                 can receive its answers. Default: random
    request_id   of a call, 1 to 255 octets. A repeat under the same identity, also by a later run
                 of the program, joins the request while the broker has it in work; a durable
                 service returns the stored answer. The request continues after timeout_ms, so that
                 its answer can be fetched later. Default: a new one

    A lost worker or broker may cause a second execution; the answer comes once. A body is bytes, a
    str (as UTF-8) or a list of bytes (frames). Raises BrokerError or a subclass.
    """

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
        self._operations = BrokerOperations(self._client)
        self._own(partial(Links, self._client, BROKER_LINKS))

    def call(
        self,
        service: str | bytes,
        body: Content = b"",
        *,
        timeout_ms: int | None = None,
        request_id: str | bytes | None = None,
    ) -> Body:
        """Calls a service, and returns its FINAL; parts before it are dropped.

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
        """Sends a request without waiting, unless 65,536 calls are unanswered."""
        return Future(
            self,
            self._start(
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
        """Calls a service for an answer in parts; see Stream.

        The service produces parts as far as you read them. A part that is lost with a connection
        ends the stream with an error.
        """
        return Stream(
            self,
            self._start(
                service, body, CallOptions(timeout_ms or self.timeout_ms, True, request_id)
            ),
        )

    def _start(self, service: str | bytes, body: Content, options: CallOptions) -> Call:
        if self._links is None:
            raise self._closed_error()
        if not self._client.has_room:
            self._run(self._operations.wait_for_room())
        call = self._operations.start(service, body, options)
        self._run_once(0, _sent)
        return call

    def _run_once(self, until_ms: int, is_done: Callable[[], bool] = lambda: False) -> None:
        super()._run_once(until_ms, is_done)
        self._client.pop_updated()  # A waiting method checks its own call.

    def _cancel(self, call: Call) -> None:
        self._client.cancel(call)
        if self._links is not None:
            self._run_once(0, _sent)  # To send the cancellation at once.

    # ---- closing ----

    @property
    def url(self) -> str:
        """The url of the broker in use; empty while it searches for one."""
        return self._client.broker

    @property
    def counters(self) -> dict[str, int]:
        """Counts: brokers, lost, silent, busy, timeouts, gaps, strays, junk, overrun."""
        return dict(self._client.counters)

    def close(self) -> None:
        """Closes it; unanswered calls get no answer."""
        self._client.cancel_all()
        super().close()

    def _closed_error(self) -> BrokerError:
        return BrokerError("this Broker is closed")

    def _timeout_error(self) -> BrokerTimeout:
        return BrokerTimeout(
            f"{self._client.outstanding} calls are unanswered: no room for another"
        )


def _sent() -> bool:
    """The condition of a driver that only sends what is due."""
    return True


class Future:
    """A pending answer. It arrives while any method of its Broker waits."""

    def __init__(self, broker: Broker, call: Call) -> None:
        self._broker = broker
        self._call = call

    def done(self) -> bool:
        """Whether result() returns or raises at once."""
        if not self._call.done and self._broker._links is not None:
            self._broker._run_once(0)
        return self._call.done

    def result(self) -> Body:
        """Waits for the answer. Raises BrokerTimeout, BrokerUnavailable, ServiceRefused."""
        return self._broker._run(self._broker._operations.result(self._call))

    def cancel(self) -> None:
        """Withdraws the request; the service may still execute it."""
        self._broker._cancel(self._call)


class Stream(Iterator[Body]):
    """The parts of an answer, in order.

    When the service's worker is lost, another one starts anew, so parts may be repeated.
    """

    def __init__(self, broker: Broker, call: Call) -> None:
        self._broker = broker
        self._call = call
        self._parts = self._items()

    def _items(self) -> Generator[Body, None, None]:
        for parts in self._broker._batches(self._broker._operations.parts(self._call)):
            yield from parts
        self._broker._operations.answer(self._call)

    def __next__(self) -> Body:
        return next(self._parts)

    def __iter__(self) -> Self:
        return self

    @property
    def resent(self) -> int:
        """How often the request was sent again by another connection to a broker. Parts may then be
        repeated, or missing."""
        return self._call.resent

    def result(self) -> Body:
        """The FINAL; skips unread parts."""
        for _ in self:
            pass
        return self._broker._operations.answer(self._call)

    def close(self) -> None:
        """Withdraws the request."""
        self._parts.close()
        self._broker._cancel(self._call)
