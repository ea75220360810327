"""Status documents: what each server of a farm posts about itself (docs/protocols/garlic-farm.md).

Whether bytes are such a document is the same everywhere, so nothing here hangs on limits of the
interpreter.
"""

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from math import isfinite
from typing import NamedTuple, NoReturn

from ...errors import LocalProtocolError, RemoteProtocolError
from ..wire.messages import ID_MAX, ID_MIN, NUMBER_MAX

DOCUMENT_BYTES_MAX = 1 << 20
DEPTH_MAX = 64  # Of arrays and objects in each other.
DESTINATIONS_MAX = 4096
_OBJECT_START = b"{ \t\r\n"  # What an object can begin with.


class PublishConfig(StrEnum):
    """Whether a server wants to publish the MetaLS."""

    OFF = "off"
    ON = "on"
    AUTO = "auto"


class Status(NamedTuple):
    """One document, as far as the choice of the publisher needs it, and the whole of it."""

    cluster: str
    date_ms: int  # Since the epoch, by the server's own clock.
    server_id: int
    publish_config: PublishConfig
    is_publishing: bool
    uptime_ms: int  # Of its router; 0 when it says nothing.
    document: Mapping[str, object]  # With all that we have no name for.
    data: bytes  # The very bytes: what is shown, and kept, is as it was posted.


def encode_status(document: Mapping[str, object]) -> bytes:
    """A document as an entry of the log; the keys are under decode_status.

    Raises LocalProtocolError when it is none.
    """
    try:
        data = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        encoded = data.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise LocalProtocolError(f"a status can't be JSON: {error}") from None
    try:
        decode_status(encoded)
    except RemoteProtocolError as error:
        raise LocalProtocolError(str(error)) from None
    return encoded


def decode_status(data: bytes) -> Status:
    """Takes a status document apart (text, "Application Data Contents").

    cluster        the farm's name
    date           ms since the epoch
    id             the server's id
    config         object, may be missing
    meta           object: destination, lastPublishedLS, lastPublishedTime, publishing (false or
                   true), publishConfig (off, on or auto; auto when it is missing)
    router         object, may be missing: lastPublishedRI, uptime in ms
    destinations   array of objects, may be missing

    Raises RemoteProtocolError on anything else than such an object in UTF-8.
    """
    document = load_object(data, DOCUMENT_BYTES_MAX)
    cluster = document.get("cluster")
    if not isinstance(cluster, str) or not cluster:
        raise RemoteProtocolError("a status names its cluster")
    meta, router = object_of(document, "meta"), object_of(document, "router")
    object_of(document, "config")
    destinations = document.get("destinations", [])
    if not isinstance(destinations, list) or len(destinations) > DESTINATIONS_MAX:
        raise RemoteProtocolError("a status has an array of destinations")
    if not all(isinstance(each, dict) for each in destinations):
        raise RemoteProtocolError("each destination of a status is an object")
    wish = meta.get("publishConfig", PublishConfig.AUTO)
    publishing = meta.get("publishing", False)
    if wish not in tuple(PublishConfig) or not isinstance(publishing, bool):
        raise RemoteProtocolError("a status says off, on or auto, and whether it publishes")
    return Status(
        cluster,
        number_of(document, "date", 0, NUMBER_MAX),
        number_of(document, "id", ID_MIN, ID_MAX),
        PublishConfig(str(wish)),
        publishing,
        number_of({"uptime": 0, **router}, "uptime", 0, NUMBER_MAX),
        document,
        data,
    )


def may_hold_document(data: bytes) -> bool:
    """Whether a status or an order may be among these bytes, an entry or many of them together:
    the key `cluster` stands there as it is, or with something escaped. It costs little to ask."""
    return b'"cluster"' in data or b"\\" in data


def load_object(data: bytes, bytes_max: int) -> dict[str, object]:
    """An object of JSON in UTF-8. Raises RemoteProtocolError on anything else.

    Most entries of a log may be none: those that can't be are told by their first byte.
    """
    if len(data) > bytes_max or data[:1] not in _OBJECT_START or not data:
        raise RemoteProtocolError(f"{len(data)} bytes that are no document")
    try:
        document = json.loads(data.decode(), parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"a document is not JSON: {error}") from None
    if not isinstance(document, dict) or not _is_shallow(data, document):
        raise RemoteProtocolError("a document is an object, not too deep")
    return document


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _finite(text: str) -> float:
    """A number that JSON can say again: 1e999 is none."""
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text} is too large")
    return number


def _is_shallow(data: bytes, document: dict[str, object]) -> bool:
    """Whether it has no more than DEPTH_MAX levels: how many JSON can be read differs between
    interpreters, and a document must not be one to some servers alone."""
    if data.count(b"[") + data.count(b"{") <= DEPTH_MAX:
        return True
    level: Iterable[object] = [document]
    for _ in range(DEPTH_MAX):
        level = [inner for each in level for inner in _children(each)]
    return not any(isinstance(each, dict | list) for each in level)


def _children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def object_of(document: Mapping[str, object], key: str) -> dict[str, object]:
    """An object that may be missing. Raises RemoteProtocolError when it is something else."""
    value = document.get(key, {})
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"{key} of a document is an object")
    return value


def number_of(document: Mapping[str, object], key: str, smallest: int, largest: int) -> int:
    """A whole number that has to be there. Raises RemoteProtocolError."""
    value = document.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not smallest <= value <= largest:
        raise RemoteProtocolError(f"{key} of a document is a whole number")
    return value
