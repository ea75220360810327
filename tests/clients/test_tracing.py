"""Spans of OpenTelemetry around clients' methods, with a tracer that remembers them."""

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pytest

import kelek
from kelek.clients import tracing

trace = pytest.importorskip("opentelemetry.trace", reason="kelek[otel] is not installed")

URL = "tcp://127.0.0.1:1"  # Nothing listens there.


class Spans:
    """A tracer."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, dict[str, Any], str]] = []

    @contextmanager
    def start_as_current_span(self, name: str, kind: Any, attributes: Any) -> Iterator[None]:
        assert kind == trace.SpanKind.CLIENT
        problem = ""
        try:
            yield
        except kelek.Error as error:
            problem = type(error).__name__
            raise
        finally:
            self.ended.append((name, attributes, problem))


@pytest.fixture
def spans() -> Iterator[Spans]:
    found = Spans()
    kelek.enable_tracing(found)
    yield found
    kelek.disable_tracing()


def methods() -> dict[str, Any]:
    return {
        f"{traced.name}.{method}": vars(
            getattr(import_module(f"kelek.clients.{traced.module}"), traced.name)
        )[method]
        for traced in tracing.TRACED
        for method in traced.methods
    }


def test_methods_are_the_original_ones_while_it_is_off() -> None:
    before = methods()
    kelek.enable_tracing(Spans())
    during = methods()
    kelek.enable_tracing(Spans())  # Again: spans are not nested.
    kelek.disable_tracing()
    assert methods() == before
    for name, method in during.items():
        assert method is not before[name]
        assert inspect.signature(method) == inspect.signature(before[name])
        assert inspect.iscoroutinefunction(method) == inspect.iscoroutinefunction(before[name])
        assert method.__doc__ == before[name].__doc__


def test_each_call_has_a_span_that_ends_with_its_error(spans: Spans) -> None:
    with kelek.Table([URL], 7, timeout_ms=1) as table:
        with pytest.raises(kelek.Error):
            table.put(b"k", b"v")
        with pytest.raises(kelek.Error):
            table.get(b"k")
    with kelek.Broker(URL, timeout_ms=1) as broker, pytest.raises(kelek.Error):
        broker.call(service="echo")
    with kelek.Log(URL, "c", timeout_ms=1) as log, pytest.raises(kelek.Error):
        log.append(b"x")
    table_of = {"db.system.name": "kelek", "db.collection.name": "7"}
    assert [(name, attributes) for name, attributes, _ in spans.ended] == [
        ("Table.put", table_of),
        ("Table.get", table_of),
        ("Broker.call", {"rpc.system": "kelek", "rpc.service": "echo"}),
        ("Log.append", {"messaging.system": "kelek"}),
    ]
    assert all(problem for _, _, problem in spans.ended)


def test_a_coroutine_is_in_its_span_until_it_ends(spans: Spans) -> None:
    async def run() -> None:
        async with kelek.AsyncTable([URL], 7, timeout_ms=50) as table:
            waiting = asyncio.ensure_future(table.put(b"k", b"v"))
            done, _ = await asyncio.wait([waiting], timeout=0)
            assert not done
            assert not spans.ended
            with pytest.raises(kelek.Error):
                await waiting

    asyncio.run(run())
    assert [name for name, _, _ in spans.ended] == ["AsyncTable.put"]


def test_the_global_provider_is_the_default() -> None:
    kelek.enable_tracing()
    try:
        with kelek.Table([URL], 7, timeout_ms=1) as table, pytest.raises(kelek.Error):
            table.get(b"k")
    finally:
        kelek.disable_tracing()


def test_a_missing_extra_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "find_spec", lambda name: None)
    with pytest.raises(kelek.Error, match=r"pip install 'kelek\[otel\]'"):
        kelek.enable_tracing()
