"""kelek.Broker: calls of services, without a thread of its own.

All work happens inside its methods. Use a Broker in one thread at a time.
"""

from collections.abc import Iterator

from ...protocols.majordomo.client import Call
from ..io.driver import BlockingDriver
from ..io.operations import Operation, Wait
from ..io.public import PublicType, public
from .body import Body, Content
from .operations import BrokerOperations, CallOptions, CallParts, answer_of


@public()
class Broker(BrokerOperations["Future", "AnswerStream"], BlockingDriver):
    """Calls services at a broker.

        with kelek.Broker("tcp://127.0.0.1:7300") as broker:
            print(broker.call("echo", b"LH400"))
            print([*broker.stream("echo", b"FRA")])

    urls         the brokers' front ends, a list or joined by commas
    timeout_ms   the default of calls
    identity     1 to 255 octets, the first not 0: this client's name at the
                 brokers, also after a restart; None: random
    tuning       limits, and times of the search for a broker
    key          path of this client's CURVE key, NAME.key_secret; None: none
    server_keys  the servers' public keys by url, or one key of all servers

    call(service, body)      calls a service; returns the answer
    submit(service, body)    sends a request; returns a future for the answer
    stream(service, body)    iterates over an answer in parts
    url, counters            the broker in use; counts of events
    close()                  closes it; unanswered calls get no answer

    One broker is used; when it is lost or silent, all unanswered requests go to
    the next one. A lost worker or broker may cause a second execution; the
    answer comes once. A body is bytes, a str (as UTF-8) or a list of bytes
    (frames). Raises BrokerError or a subclass.

    The identity is a secret: a program that knows it can receive its answers.
    One program at a time may use it.

    request_id of a call has 1 to 255 octets. A repeat under the same identity,
    also by a later run of the program, joins the request while the broker has
    it in work; a durable service returns the stored answer. The request
    continues after timeout_ms, so that its answer can be fetched later.
    Default: a new one.

    server_keys are 40 characters of Z85, None for a server without CURVE; with
    zre:// a list of the nodes' keys. A server without a key here is never used
    (docs/security.md).
    """

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
        options = CallOptions(timeout_ms, request_id)
        return self._run(self._result(self._begin(service, body, options)))

    def _begin(self, service: str | bytes, body: Content, options: CallOptions) -> Call:
        """Starts a call once there is room for it."""
        if not self._client.has_room:
            self._do(Wait(lambda: self._client.has_room))
        return super()._begin(service, body, options)

    def _future(self, call: Call) -> "Future":
        self._run_once(0, _sent)
        return Future(self, call)

    def _stream(self, call: Call) -> "AnswerStream":
        self._run_once(0, _sent)
        return AnswerStream(self, call)

    def _result(self, call: Call) -> Operation[Body]:
        yield Wait(lambda: call.done, limited=False)
        return answer_of(self._client, call)

    def _cancel(self, call: Call) -> None:
        super()._cancel(call)
        if self._links is not None:
            self._run_once(0, _sent)  # To send the cancellation at once.

    def close(self) -> None:
        """Closes it; unanswered calls get no answer."""
        self._client.cancel_all()
        super().close()


def _sent() -> bool:
    """The condition of a driver that only sends what is due."""
    return True


@public()
class Future(metaclass=PublicType):
    """A pending answer, which Broker.submit() makes.

        with kelek.Broker("tcp://127.0.0.1:7300") as broker:
            future = broker.submit("echo", b"LH400")
            print(future.result())

    result()             waits for the answer; raises BrokerError
    done()               whether result() returns or raises at once
    cancel()             withdraws the request

    It arrives while any method of its Broker waits.
    """

    def __init__(self, broker: Broker, call: Call) -> None:
        self._broker = broker
        self._call = call

    def done(self) -> bool:
        """Whether result() returns or raises at once."""
        if not self._call.done and self._broker._links is not None:
            self._broker._run_once(0)
        return self._call.done

    def result(self) -> Body:
        """Waits for the answer. Raises BrokerTimeout, BrokerUnavailable,
        ServiceRefused."""
        return self._broker._run(self._broker._result(self._call))

    def cancel(self) -> None:
        """Withdraws the request; the service may still execute it."""
        self._broker._cancel(self._call)


@public()
class AnswerStream(CallParts, Iterator[Body]):
    """The parts of an answer, in order: Broker.stream() makes it.

        with kelek.Broker("tcp://127.0.0.1:7300") as broker:
            for part in broker.stream("echo", b"FRA"):
                print(part)

    result()   the FINAL; skips unread parts
    resent     how often the request was sent again over another connection
    close()    withdraws the request

    When the service's worker is lost, another one begins anew: after `resent`
    parts may be repeated, or missing.
    """

    def __next__(self) -> Body:
        part: Body = next(self._parts)
        return part

    def result(self) -> Body:
        """The FINAL; skips unread parts."""
        for _ in self:
            pass
        return answer_of(self._broker._client, self._call)

    def close(self) -> None:
        """Withdraws the request."""
        self._parts.close()
        self._broker._cancel(self._call)
