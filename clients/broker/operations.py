"""What kelek.Broker and kelek.AsyncBroker have in common: calls and their answers."""

import os
from abc import abstractmethod
from collections.abc import Iterable
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from ...net.client_keys import ServerKeys
from ...net.clock import monotonic_ms
from ...net.links import LinkLimits
from ...protocols.majordomo import values
from ...protocols.majordomo.client import (
    FEATURES_ID,
    PROBE_ID,
    BrokerClientMachine,
    BrokerClientSetup,
    Call,
)
from ...protocols.majordomo.codec import Request
from ...protocols.zre import services
from ..errors import (
    BrokerError,
    BrokerTimeout,
    BrokerUnavailable,
    ServiceNotAllowed,
    ServiceRefused,
)
from ..io.driver import ClientBase
from ..io.keys import KeyArguments, KeyPath
from ..io.links import Links, LinkSettings
from ..io.operations import Batches, Sleep, Wait
from ..io.public import PublicType
from ..io.reqids import new_reqid
from ..io.urls import check_url, resolve_urls
from .body import Body, Content, frames_of

TIMEOUT_MS = 30_000
TIMEOUT_MS_MAX = 86_400_000
NAME_BYTES = 16
LIST_BYTES = 1 << 20  # Of parts in one list.

IDLE_MS = 100  # After a pause of this length read the connections before sending.
BROKER_LIMITS = LinkLimits(128 << 20, 1 << 14)
BROKER_LINKS = LinkSettings(BROKER_LIMITS, secret_ids=True, idle_ms=IDLE_MS, has_bundles=True)


class BrokerTuning(NamedTuple):
    """Limits, times and headers of a client (BrokerClientSetup).

    reach_ms   a call fails after so long, instead of its timeout, while no url was ever reachable;
               None: such a call waits
    """

    requests_max: int = 1000
    bytes_max: int = 32 << 20
    partial_bytes_max: int = 64 << 20
    silence_ms: int = 1000
    headers: values.Headers = values.HEADERS
    deadlines: bool = True  # Whether to send each call's remaining time; an extension of kelek.
    reach_ms: int | None = None


def checked_urls(
    urls: str | Iterable[str], keys: KeyArguments | None = None, service: str = services.BROKER
) -> tuple[str, ...]:
    """The distinct urls of a list or of a comma-separated string; service is looked up for a zre://
    url. Raises ValueError, TypeError, NodeError, KeyUnusable."""
    known = tuple(dict.fromkeys(resolve_urls(urls, service, keys)))
    if not known:
        raise ValueError("give the url of a broker")
    for url in known:
        check_url(url)
    return known


def checked_service(name: str | bytes) -> bytes:
    """Raises ValueError, TypeError."""
    if not isinstance(name, str | bytes):
        raise TypeError(f"a service is str, not {type(name).__name__}")
    service = name.encode("utf-8", "surrogatepass") if isinstance(name, str) else name
    if not values.is_service(service):
        raise ValueError(
            f"{name!r} is not a service name, which has 1 to {values.SERVICE_BYTES_MAX} printable"
            " ASCII characters"
        )
    return service


def make_client(
    urls: str | Iterable[str],
    tuning: BrokerTuning | None,
    identity: str | bytes | None = None,
    keys: KeyArguments | None = None,
) -> BrokerClientMachine:
    """The state machine of a Broker. Without an identity its name is random and secret. Raises
    ValueError, TypeError, KeyUnusable."""
    tuning = tuning or BrokerTuning()
    values.check_headers(tuning.headers)
    name = b"k" + os.urandom(NAME_BYTES - 1)  # A name does not begin with 0.
    if identity is not None:
        name = checked_identity(identity)
    setup = BrokerClientSetup(checked_urls(urls, keys), notice=True)._replace(**tuning._asdict())
    return BrokerClientMachine(setup._replace(name=name if tuning.deadlines else b""))


def checked_identity(identity: str | bytes) -> bytes:
    """Raises ValueError, TypeError."""
    octets = _to_bytes("an identity", identity)
    if not values.is_name(octets):
        raise ValueError(
            f"an identity has 1 to {values.NAME_BYTES_MAX} octets, the first one not 0: {octets!r}"
        )
    return octets


def checked_request_id(request_id: str | bytes) -> bytes:
    """Raises ValueError, TypeError."""
    octets = _to_bytes("a request id", request_id)
    if not 0 < len(octets) <= values.REQUEST_ID_BYTES_MAX:
        raise ValueError(
            f"a request id has 1 to {values.REQUEST_ID_BYTES_MAX} octets, not {len(octets)}"
        )
    if octets in (PROBE_ID, FEATURES_ID):
        raise ValueError(f"{octets!r} is reserved: choose another one")
    return octets


def _to_bytes(what: str, given: str | bytes) -> bytes:
    if not isinstance(given, str | bytes):
        raise TypeError(f"{what} is bytes or str, not {type(given).__name__}")
    return given.encode() if isinstance(given, str) else given


class CallOptions(NamedTuple):
    """The options of a call.

    timeout_ms  None: the client's
    request_id  None: a new one
    """

    timeout_ms: int | None = None
    request_id: str | bytes | None = None
    wants_parts: bool = False


FutureT = TypeVar("FutureT")
StreamT = TypeVar("StreamT")


class BrokerOperations(ClientBase, Generic[FutureT, StreamT]):
    """The calls of one Broker, and what it returns for them."""

    def __init__(
        self,
        urls: str | Iterable[str],
        *,
        timeout_ms: int = TIMEOUT_MS,
        identity: str | bytes | None = None,
        tuning: BrokerTuning | None = None,
        key: KeyPath | None = None,
        server_keys: ServerKeys | None = None,
    ) -> None:
        self.timeout_ms = timeout_ms
        arguments = KeyArguments(key, server_keys)
        self._client = make_client(urls, tuning, identity, arguments)
        keys = arguments.load(self._client.setup.urls)
        links = partial(Links, self._client, BROKER_LINKS._replace(keys=keys))
        self._own(links, partial(self._resolve, self._client))

    @staticmethod
    def _resolve(client: BrokerClientMachine) -> None:
        """Reports answers that have arrived; a waiting operation checks its own call."""
        client.pop_updated()

    def submit(
        self,
        service: str | bytes,
        body: Content = b"",
        *,
        timeout_ms: int | None = None,
        request_id: str | bytes | None = None,
    ) -> FutureT:
        """Sends a request, and returns a future for its answer. Cancel it to
        withdraw the request.

        While 65,536 calls are unanswered, kelek.Broker waits and
        kelek.AsyncBroker raises BrokerError.
        """
        return self._future(self._begin(service, body, CallOptions(timeout_ms, request_id)))

    def stream(
        self,
        service: str | bytes,
        body: Content = b"",
        *,
        timeout_ms: int | None = None,
        request_id: str | bytes | None = None,
    ) -> StreamT:
        """Calls a service for an answer in parts; see AnswerStream and
        AsyncAnswerStream.

        The service produces parts as far as you read them. A part that is lost
        with a connection ends the stream with an error.
        """
        return self._stream(self._begin(service, body, CallOptions(timeout_ms, request_id, True)))

    @abstractmethod
    def _future(self, call: Call) -> FutureT:
        """Sends a request; returns its future."""

    @abstractmethod
    def _stream(self, call: Call) -> StreamT:
        """Sends a request; returns the iterator over its answer."""

    @property
    def url(self) -> str:
        """The url of the broker in use; empty while it searches for one."""
        return self._client.broker

    @property
    def counters(self) -> dict[str, int]:
        """Counts: brokers, lost, silent, busy, timeouts, gaps, strays, junk,
        overrun."""
        return dict(self._client.counters)

    def _begin(self, service: str | bytes, body: Content, options: CallOptions) -> Call:
        """Starts a call. Raises ValueError, TypeError."""
        self._connected()
        timeout_ms = options.timeout_ms or self.timeout_ms
        return begin_call(self._client, service, body, options._replace(timeout_ms=timeout_ms))

    def _cancel(self, call: Call) -> None:
        """Withdraws a call."""
        self._client.cancel(call)

    def _parts(self, call: Call) -> Batches[Body]:
        """Lists of PARTIALs, until the FINAL arrives. Raises BrokerError or a subclass."""
        while True:
            yield Wait(lambda: bool(call.parts) or call.done, limited=False)
            bodies: list[list[bytes]] = []
            size = 0
            while size < LIST_BYTES and (body := self._client.pop_part(call)) is not None:
                bodies.append(body)
                size += values.part_cost(body)
            if bodies:
                yield [Body.of(body) for body in bodies]
                if self._client.on_parts_read(call, bodies):
                    yield Sleep(0)
            elif call.done:
                answer_of(self._client, call)
                return

    def _closed_error(self) -> BrokerError:
        return BrokerError(f"this {type(self).__name__} is closed")

    def _timeout_error(self) -> BrokerTimeout:
        return BrokerTimeout(
            f"{self._client.outstanding} calls are unanswered: no room for another"
        )


class CallParts(metaclass=PublicType):
    """The parts of an answer, in order.

    When the service's worker is lost, another one starts anew, so parts may be repeated.
    """

    def __init__(self, broker: Any, call: Call) -> None:
        self._broker = broker
        self._call = call
        self._parts = broker._items(broker._parts(call))

    @property
    def resent(self) -> int:
        """How often the request was sent again by another connection to a
        broker. Parts may then be repeated, or missing."""
        return self._call.resent


def begin_call(
    client: BrokerClientMachine, service: str | bytes, body: Content, options: CallOptions
) -> Call:
    """Starts a call. Raises ValueError, TypeError."""
    timeout_ms, chosen, wants_parts = options
    if timeout_ms is None or not 0 < timeout_ms <= TIMEOUT_MS_MAX:
        raise ValueError(f"a timeout is 1 to {TIMEOUT_MS_MAX} ms, not {timeout_ms}")
    request_id = new_reqid() if chosen is None else checked_request_id(chosen)
    if client.has_request(request_id):
        raise ValueError(f"the request {request_id!r} is unanswered already")
    request = Request(checked_service(service), request_id, frames_of(body))
    call = Call(request, monotonic_ms() + timeout_ms, wants_parts)
    call.outlives_owner = chosen is not None
    return client.add(call)


def answer_of(client: BrokerClientMachine, call: Call) -> Body:
    """The FINAL's body of a finished call. Raises BrokerError or a subclass."""
    if call.refusal:
        raise BrokerError(call.refusal)
    failure, service = call.failure, call.request.service
    if call.final is None and not client.broker:
        raise BrokerUnavailable(client.failover.explain())
    if call.final is None:
        reason = "" if failure is None else failure.message
        if not reason and client.unserved_service == service:
            reason = "the broker has no worker for it"
        raise _timeout_of(client, service, reason)
    if failure is None:
        return Body.of(call.final)
    if failure.code == values.EXPIRED:
        raise _timeout_of(client, service, failure.message)
    kind = ServiceNotAllowed if failure.code == values.NOT_ALLOWED else ServiceRefused
    raise kind(failure.code, failure.message)


def _timeout_of(client: BrokerClientMachine, service: bytes, reason: str) -> BrokerTimeout:
    broker = f"the broker at {client.broker}" if client.broker else "its broker"
    why = f": {reason}" if reason else ""
    return BrokerTimeout(
        f"no answer of {service.decode()} from {broker}{why}; does a worker run? kelek worker run"
    )
