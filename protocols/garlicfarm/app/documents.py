"""Status documents: what each farm server posts about itself (docs/protocols/garlic-farm.md).

Every server must agree whether bytes are a document, so the check depends on no limit of the Python
interpreter.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from math import isfinite
from typing import NamedTuple, NoReturn

from ...errors import LocalProtocolError, RemoteProtocolError
from ..wire.messages import ID_MAX, ID_MIN, NUMBER_MAX

DOCUMENT_BYTES_MAX = 1 << 20
DEPTH_MAX = 64  # Nested arrays and objects.
DESTINATIONS_MAX = 4096
_OBJECT_START = b"{ \t\r\n"  # First bytes of a JSON object.


class PublishConfig(StrEnum):
    """Whether a server wants to publish the MetaLS."""

    OFF = "off"
    ON = "on"
    AUTO = "auto"


class Status(NamedTuple):
    """A document: the fields that choose the publisher, and the whole of it."""

    cluster: str
    date_ms: int  # Since the epoch, by the server's clock.
    server_id: int
    publish_config: PublishConfig
    is_publishing: bool
    uptime_ms: int  # Of its router; 0 if missing.
    document: Mapping[str, object]  # Including unknown keys.
    data: bytes  # The posted bytes; they are shown and stored unchanged.


def encode_status(document: Mapping[str, object]) -> bytes:
    """Encodes a document as an entry's value; decode_status has the keys.

    Raises LocalProtocolError if it is not a status document.
    """
    return encode_checked("status", document, decode_status, ascii=False)


def encode_checked(
    name: str, document: Mapping[str, object], decode: Callable[[bytes], object], ascii: bool = True
) -> bytes:
    """Encodes an object that `decode` accepts. Raises LocalProtocolError on another one."""
    try:
        data = json.dumps(document, ensure_ascii=ascii, allow_nan=False, separators=(",", ":"))
        decode(encoded := data.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise LocalProtocolError(f"the {name} is not valid JSON: {error}") from None
    except RemoteProtocolError as error:
        raise LocalProtocolError(str(error)) from None
    return encoded


def decode_status(data: bytes) -> Status:
    """Decodes a status document (specification, "Application Data Contents").

    cluster        the farm's name
    date           ms since the epoch
    id             the server's id
    config         object, optional
    meta           object: destination, lastPublishedLS, lastPublishedTime, publishing (boolean),
                   publishConfig (off, on or auto; default auto)
    router         object, optional: lastPublishedRI, uptime in ms
    destinations   array of objects, optional

    Raises RemoteProtocolError unless the data is such an object in UTF-8.
    """
    document = load_object(data, DOCUMENT_BYTES_MAX)
    cluster = document.get("cluster")
    if not isinstance(cluster, str) or not cluster:
        raise RemoteProtocolError("cluster of a status must be a name")
    meta, router = object_of(document, "meta"), object_of(document, "router")
    object_of(document, "config")
    destinations = document.get("destinations", [])
    if not isinstance(destinations, list) or len(destinations) > DESTINATIONS_MAX:
        raise RemoteProtocolError(
            f"destinations of a status must be an array of at most {DESTINATIONS_MAX}"
        )
    if not all(isinstance(each, dict) for each in destinations):
        raise RemoteProtocolError("each destination of a status must be an object")
    publish_config = meta.get("publishConfig", PublishConfig.AUTO)
    publishing = meta.get("publishing", False)
    if publish_config not in tuple(PublishConfig) or not isinstance(publishing, bool):
        raise RemoteProtocolError(
            "publishConfig of a status must be off, on or auto, and publishing a boolean"
        )
    return Status(
        cluster,
        number_of(document, "date", 0, NUMBER_MAX),
        number_of(document, "id", ID_MIN, ID_MAX),
        PublishConfig(str(publish_config)),
        publishing,
        number_of({"uptime": 0, **router}, "uptime", 0, NUMBER_MAX),
        document,
        data,
    )


def may_hold_document(data: bytes) -> bool:
    """A cheap test whether these bytes, of one or many entries, may hold a status or an order:
    they contain the key `cluster`, or an escape.
    """
    return b'"cluster"' in data or b"\\" in data


def load_object(data: bytes, bytes_max: int) -> dict[str, object]:
    """Parses a JSON object in UTF-8. Raises RemoteProtocolError on anything else.

    Most entries of a log may be other data; their first byte excludes them cheaply.
    """
    if len(data) > bytes_max or data[:1] not in _OBJECT_START or not data:
        raise RemoteProtocolError(f"{len(data)} bytes that are not a document")
    try:
        document = json.loads(data.decode(), parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"a document is not JSON: {error}") from None
    if not isinstance(document, dict) or not _is_shallow(data, document):
        raise RemoteProtocolError(f"a document must be an object of at most {DEPTH_MAX} levels")
    return document


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _finite(text: str) -> float:
    """A number that JSON can represent; 1e999 is not."""
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text} is too large")
    return number


def _is_shallow(data: bytes, document: dict[str, object]) -> bool:
    """Whether it has at most DEPTH_MAX levels. The depth that JSON parsers accept differs
    between interpreters, and all servers must agree on a document.
    """
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
    """An optional object. Raises RemoteProtocolError if it is another type."""
    value = document.get(key, {})
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"{key} of a document must be an object")
    return value


def number_of(document: Mapping[str, object], key: str, smallest: int, largest: int) -> int:
    """A required whole number in a range. Raises RemoteProtocolError."""
    value = document.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not smallest <= value <= largest:
        raise RemoteProtocolError(
            f"{key} of a document must be a whole number from {smallest} to {largest}"
        )
    return value
