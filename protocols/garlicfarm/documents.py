"""The application on top of the log: status documents of the servers, and who publishes the MetaLS.

Everything here is a function of the committed log: no clock is read, so every server, and whoever
reads the log later, comes to the same answer.
"""

import json
from collections import Counter
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import NamedTuple, NoReturn

from ..errors import LocalProtocolError, RemoteProtocolError
from .messages import ID_MAX, ID_MIN, NUMBER_MAX

DOCUMENT_BYTES_MAX = 1 << 20
STATE_BYTES_MAX = 256 << 20
SERVERS_KEPT = 256  # Whose newest documents are kept.
WINDOW_MS = 10 * 60 * 1000  # Whose document is older than the newest by more counts as gone.
DESTINATIONS_MAX = 4096


class PublishConfig(StrEnum):
    """Whether a server wants to publish the MetaLS."""

    OFF = "off"
    ON = "on"
    AUTO = "auto"


_RANKS = {PublishConfig.ON: 0, PublishConfig.AUTO: 1}


class Status(NamedTuple):
    """One document, as far as the choice of the publisher needs it, and the whole of it."""

    cluster: str
    date_ms: int  # Since the epoch, by the server's own clock.
    server_id: int
    publish_config: PublishConfig
    is_publishing: bool
    uptime_ms: int  # Of its router; 0 when it says nothing.
    document: Mapping[str, object]  # With all that we have no name for.


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
    document = _load(data, DOCUMENT_BYTES_MAX)
    if not isinstance(document, dict):
        raise RemoteProtocolError("a status is an object")
    cluster = document.get("cluster")
    if not isinstance(cluster, str) or not cluster:
        raise RemoteProtocolError("a status names its cluster")
    meta, router = _object(document, "meta"), _object(document, "router")
    _object(document, "config")
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
        _number(document, "date", 0, NUMBER_MAX),
        _number(document, "id", ID_MIN, ID_MAX),
        PublishConfig(str(wish)),
        publishing,
        _number({"uptime": 0, **router}, "uptime", 0, NUMBER_MAX),
        document,
    )


def _load(data: bytes, bytes_max: int) -> object:
    if len(data) > bytes_max:
        raise RemoteProtocolError(f"a document of {len(data)} bytes")
    try:
        return json.loads(data.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"a document is not JSON: {error}") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _object(document: Mapping[str, object], key: str) -> dict[str, object]:
    value = document.get(key, {})
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"{key} of a status is an object")
    return value


def _number(document: Mapping[str, object], key: str, smallest: int, largest: int) -> int:
    value = document.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not smallest <= value <= largest:
        raise RemoteProtocolError(f"{key} of a status is a whole number")
    return value


class SharedState:
    """What the committed log says: of each server its last document, in the order of the log.

    The last one and not that of the newest date: a server whose clock was wrong is believed again
    as soon as it is right.
    """

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.statuses: dict[int, Status] = {}  # Who has not posted for longest comes first.
        self.counters: Counter[str] = Counter()  # Of entries, by what they were.

    def apply(self, value: bytes) -> Status | None:
        """Takes in the next committed Application entry; its status, if it is one of ours."""
        try:
            status = decode_status(value)
        except RemoteProtocolError:
            self.counters["other"] += 1  # The log carries what it is given.
            return None
        if status.cluster != self.cluster:
            self.counters["foreign"] += 1
            return None
        self.counters["status"] += 1
        self.statuses.pop(status.server_id, None)
        self.statuses[status.server_id] = status
        if len(self.statuses) > SERVERS_KEPT:
            del self.statuses[next(iter(self.statuses))]
        return status

    def publisher(self, members: Collection[int], window_ms: int = WINDOW_MS) -> int | None:
        """Which server publishes the MetaLS; None: nobody may.

        Of the members whose document is no more than window_ms older than the newest one of a
        member, and does not say off: who says on comes before who says auto, then the longest
        uptime counts, then the lowest id.
        """
        known = [each for each in self.statuses.values() if each.server_id in members]
        time_ms = max((status.date_ms for status in known), default=0)
        candidates = [
            (_RANKS[status.publish_config], -status.uptime_ms, status.server_id)
            for status in known
            if status.publish_config is not PublishConfig.OFF
            and status.date_ms >= time_ms - window_ms
        ]
        return min(candidates)[2] if candidates else None

    def encode(self) -> bytes:
        """The state as a snapshot: JSON, in UTF-8."""
        documents = [status.document for status in self.statuses.values()]
        state = {"cluster": self.cluster, "documents": documents}
        return json.dumps(state, ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes, cluster: str) -> "SharedState":
        """Raises RemoteProtocolError on what is no snapshot of this cluster."""
        state = _load(data, STATE_BYTES_MAX)
        if not isinstance(state, dict) or state.get("cluster") != cluster:
            raise RemoteProtocolError(f"no snapshot of {cluster}")
        documents = state.get("documents")
        if not isinstance(documents, list) or len(documents) > SERVERS_KEPT:
            raise RemoteProtocolError("a snapshot has an array of documents")
        found = cls(cluster)
        for document in documents:
            if found.apply(json.dumps(document, ensure_ascii=False).encode()) is None:
                raise RemoteProtocolError("a document of a snapshot is none")
        found.counters.clear()
        return found
