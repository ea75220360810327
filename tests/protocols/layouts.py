"""Generated values and tests of the messages that are declared as Layouts."""

import pkgutil
import re
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st

from kelek.protocols.errors import RemoteProtocolError
from kelek.protocols.wire import Frame, FrameType, Id, Layout, Part, Rest, RestType

IDENT = b"demo"
# There are many layouts: a third of the profile's examples for each.
FEWER = settings(max_examples=max(1, settings().max_examples // 3))
Strategies = Mapping[FrameType | RestType, st.SearchStrategy[Any]]


def layouts(package: ModuleType) -> list[Layout[Any]]:
    """All Layouts of a package's modules, also those in dicts."""
    found: dict[int, Layout[Any]] = {}
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        values: list[Any] = list(vars(import_module(info.name)).values())
        for value in values:
            if isinstance(value, Layout):
                found[id(value)] = value
            elif isinstance(value, dict):
                values += value.values()
    return list(found.values())


def _draw_fields(draw: st.DrawFn, parts: tuple[Part, ...], types: Strategies) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for part in parts:
        if isinstance(part, Frame) and part.optional and draw(st.booleans()):
            break
        if not isinstance(part, Frame | Rest):
            continue
        value = draw(types[part.type])
        if isinstance(part.field, str):
            fields[part.field] = value
        else:
            fields.update(zip(part.field, value, strict=True))
    return fields


@st.composite
def messages(draw: st.DrawFn, layout: Layout[Any], types: Strategies) -> Any:
    """Values that a layout can carry."""
    parts, given = layout.parts, dict(layout.given)
    if layout.cases is not None:
        case = draw(st.sampled_from(layout.cases.cases))
        parts += case.parts
        given[layout.cases.field] = case.status
    message = layout.value(**{**given, **_draw_fields(draw, parts, types)})
    assume(layout.check is None or not layout.check(message))
    return message


@st.composite
def encoded(draw: st.DrawFn, layout: Layout[Any], types: Strategies) -> tuple[Any, list[bytes]]:
    """Values that a layout can carry, and their frames."""
    message = draw(messages(layout, types))
    ids = [draw(types[part.type]) for part in layout.parts if isinstance(part, Id)]
    return message, layout.encode(message, next(iter(ids), None), IDENT)


def check_round_trip(data: st.DataObject, layout: Layout[Any], types: Strategies) -> None:
    """What was encoded is decoded."""
    message, frames = data.draw(encoded(layout, types))
    assert layout.decode(frames, IDENT) == Layout.decode(layout, frames, IDENT) == message


def check_fuzz(data: st.DataObject, layout: Layout[Any], types: Strategies) -> None:
    """Frames are decoded to a value that can be encoded, or raise RemoteProtocolError: as they are
    declared, also by a layout with fewer steps of its own for the usual message."""
    frames = data.draw(encoded(layout, types))[1]
    junk = st.sampled_from([b"", b"\0", b"\1", b"\2", b"\xc0", b"\xff" * 9, IDENT, *frames])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(frames)))
        frames[place : place + data.draw(st.integers(0, 1))] = data.draw(
            st.lists(junk | st.binary(max_size=40), max_size=2)
        )
    try:
        declared = Layout.decode(layout, frames, IDENT)
    except RemoteProtocolError as error:
        with pytest.raises(RemoteProtocolError, match=re.escape(str(error))):
            layout.decode(frames, IDENT)
        return
    message = layout.decode(frames, IDENT)
    assert message == declared
    ids = [
        part.type.decode(frame)
        for part, frame in zip(layout.parts, frames, strict=False)
        if isinstance(part, Id)
    ]
    message_id = next(iter(ids), None)
    declared_frames = Layout.encode(layout, message, message_id, IDENT)
    assert layout.encode(message, message_id, IDENT) == declared_frames
