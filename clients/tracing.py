"""Spans of OpenTelemetry for clients' calls, puts and updates (`kelek[otel]`).

Tracing replaces methods of the client classes while it is on. While it is off, they are the
original ones: it then costs nothing.
"""

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from inspect import iscoroutinefunction
from typing import Any, NamedTuple

from .errors import Error

Attributes = Callable[[Any, tuple[Any, ...]], dict[str, str]]  # Of a client and arguments.


class Traced(NamedTuple):
    """The methods of a client class that get spans, and what their spans say besides the method."""

    module: str
    name: str
    methods: tuple[str, ...]
    attributes: Attributes


_LOG = ("append", "append_many")
_TABLE = (
    "get", "get_many", "put", "put_many", "delete", "delete_many", "delete_range", "commit",
    "compare_and_put",
)  # fmt: skip


def _of_log(client: Any, arguments: tuple[Any, ...]) -> dict[str, str]:
    return {"messaging.system": "kelek"}


def _of_table(client: Any, arguments: tuple[Any, ...]) -> dict[str, str]:
    return {"db.system.name": "kelek", "db.collection.name": client._name or str(client._number)}


def _of_call(client: Any, arguments: tuple[Any, ...]) -> dict[str, str]:
    service = arguments[0] if arguments else ""
    name = service.decode("latin-1") if isinstance(service, bytes) else str(service)
    return {"rpc.system": "kelek", "rpc.service": name}


TRACED = (
    Traced("log.log", "Log", _LOG, _of_log),
    Traced("log.async_log", "AsyncLog", _LOG, _of_log),
    Traced("table.table", "Table", _TABLE, _of_table),
    Traced("table.async_table", "AsyncTable", _TABLE, _of_table),
    Traced("broker.broker", "Broker", ("call",), _of_call),
    Traced("broker.async_broker", "AsyncBroker", ("call",), _of_call),
)
_originals: dict[tuple[type, str], Any] = {}  # Methods that are replaced.


def enable_tracing(tracer: Any = None) -> None:
    """Gives each call of a service, put, get and update a span of the kind CLIENT.

    tracer   of opentelemetry; None: that of the global provider

    A span has the name of the method ("Table.put") and ends with it; an error is recorded. It has
    no keys and no values. Call it again to use another tracer. Raises Error without kelek[otel].
    """
    if find_spec("opentelemetry") is None:
        raise Error("tracing needs opentelemetry-api: pip install 'kelek[otel]'")
    from opentelemetry import trace

    disable_tracing()
    used = tracer or trace.get_tracer("kelek")
    for module, name, methods, attributes in TRACED:
        kind = getattr(import_module(f".{module}", __package__), name)
        for method in methods:
            _originals[kind, method] = original = vars(kind)[method]
            span = f"{name}.{method}"
            setattr(kind, method, _with_span(original, used, span, attributes))


def disable_tracing() -> None:
    """Ends the effect of enable_tracing()."""
    while _originals:
        (kind, method), original = _originals.popitem()
        setattr(kind, method, original)


def _with_span(
    method: Callable[..., Any], tracer: Any, name: str, attributes: Attributes
) -> Callable[..., Any]:
    """The method in a span."""
    from opentelemetry.trace import SpanKind

    def start(client: Any, arguments: tuple[Any, ...]) -> Any:
        found = attributes(client, arguments)
        return tracer.start_as_current_span(name, kind=SpanKind.CLIENT, attributes=found)

    @wraps(method)
    def traced(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        with start(self, args or tuple(kwargs.values())):
            return method(self, *args, **kwargs)

    @wraps(method)
    async def traced_async(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        with start(self, args or tuple(kwargs.values())):
            return await method(self, *args, **kwargs)

    return traced_async if iscoroutinefunction(method) else traced
