"""The state of a farm by its committed log: documents, orders, the publisher, and the MetaLS.

It uses no clock and no local setting, so every server computes the same result from the same log.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, TypeVar

from ...errors import RemoteProtocolError
from ..wire.messages import NUMBER_MAX
from .documents import (
    DOCUMENT_BYTES_MAX,
    PublishConfig,
    Status,
    decode_status,
    load_object,
    may_hold_document,
    number_of,
    object_of,
)
from .orders import (
    EXCLUDED_HASHES_MAX,
    EXCLUDED_SERVERS_MAX,
    ORDER_PREFIX,
    FarmConfig,
    Order,
    OrderKind,
    PublishChoice,
    decode_export,
    decode_order,
    export_document,
    hash_of,
)

DOCUMENTS_MAX = 256  # Servers with a stored document.
WINDOW_MS = 10 * 60 * 1000  # A document that is older than the newest by more is ignored.
CONTENTS_MAX = 4096  # Destinations in a MetaLS.
SNAPSHOT_VERSION = 1
HEAD_BYTES_MAX = 1 << 20
STATE_BYTES_MAX = DOCUMENTS_MAX * DOCUMENT_BYTES_MAX + HEAD_BYTES_MAX
T = TypeVar("T")
_RANKS = {PublishConfig.ON: 0, PublishConfig.AUTO: 1}


class PostedStatus(NamedTuple):
    """A server's last document and its index in the log."""

    log_index: int
    status: Status


class Leaf(NamedTuple):
    """A destination of the MetaLS."""

    server_id: int
    hash: str  # From hash_of(), or the posted text if that is not a destination.
    document: Mapping[str, object]


class SharedState:
    """The state: the last document of each server, in log order, and the result of all orders.

    The last document counts, not the one with the newest date: a server whose clock was wrong
    recovers with its next document.
    """

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.index = 0  # The last applied entry.
        self.changes = 0  # Grows with each document and order.
        self.posted: dict[int, PostedStatus] = {}  # In the order of their last posts.
        self.config = FarmConfig(cluster)  # Without servers; the log's Configurations have them.
        self.published_index = 0  # The index of the last order to publish.
        self.counters: Counter[str] = Counter()  # Entries since the start, by kind.

    def apply(self, index: int, value: bytes) -> Status | Order | None:
        """Applies the next committed Application entry; returns it if it is a document or order
        of this farm.
        """
        self.index = index
        if not may_hold_document(value):
            self.counters["other"] += 1
            return None
        try:
            found = decode_order(value) if value.startswith(ORDER_PREFIX) else decode_status(value)
        except RemoteProtocolError:
            self.counters["other"] += 1  # The log may hold any data.
            return None
        if found.cluster != self.cluster:
            self.counters["foreign"] += 1
            return None
        if isinstance(found, Order):
            return found if self._execute(found) else None
        self.counters["status"] += 1
        self._store(PostedStatus(index, found))
        return found

    def skip(self, last_index: int) -> None:
        """Skips Application entries up to this index, for which may_hold_document() is false."""
        self.counters["other"] += last_index - self.index
        self.index = last_index

    def _store(self, posted: PostedStatus) -> None:
        self.changes += 1
        server_id = posted.status.server_id
        self.posted.pop(server_id, None)
        self.posted[server_id] = posted
        if len(self.posted) > DOCUMENTS_MAX:
            del self.posted[next(iter(self.posted))]

    def _execute(self, order: Order) -> bool:
        """Executes an order; returns False if the result exceeds a limit."""
        before = self.config
        match order.kind:
            case OrderKind.PUBLISH:
                after = before._replace(publish=order.publish)
            case OrderKind.EXCLUDE | OrderKind.INCLUDE:
                change = _union if order.kind is OrderKind.EXCLUDE else _without
                after = before._replace(
                    hashes=change(before.hashes, order.hashes),
                    excluded_servers=change(before.excluded_servers, order.servers),
                )
            case OrderKind.IMPORT:
                after = order.configuration._replace(cluster=self.cluster, servers=())
        if (
            len(after.hashes) > EXCLUDED_HASHES_MAX
            or len(after.excluded_servers) > EXCLUDED_SERVERS_MAX
        ):
            self.counters["over a limit"] += 1
            return False
        self.counters["order"] += 1
        self.changes += 1
        self.config = after
        if order.kind in (OrderKind.PUBLISH, OrderKind.IMPORT):
            self.published_index = self.index
        return True

    # ---- derived values ----

    @property
    def window_ms(self) -> int:
        """The maximum age of a document relative to the newest one."""
        return number_of({"window": WINDOW_MS, **self.config.settings}, "window", 1, NUMBER_MAX)

    def _recent(self, members: Collection[int]) -> list[Status]:
        """Documents of members within the window, by id. The newest date of the members is the
        current time.
        """
        excluded_servers = self.config.excluded_servers
        known = [
            posted.status
            for server_id, posted in sorted(self.posted.items())
            if server_id in members and server_id not in excluded_servers
        ]
        time_ms = max((status.date_ms for status in known), default=0)
        return [status for status in known if status.date_ms >= time_ms - self.window_ms]

    def publisher(self, members: Collection[int]) -> int | None:
        """The server that publishes the MetaLS; None: no server may.

        An order may name a member that is not excluded. Otherwise the rule chooses among recent
        documents of members that are not excluded and do not say off: "on" before "auto", then the
        longest uptime, then the lowest id.
        """
        chosen = self.config.publish
        if chosen is PublishChoice.NONE:
            return None
        if chosen in members and chosen not in self.config.excluded_servers:
            return int(chosen)
        candidates = [
            (_RANKS[status.publish_config], -status.uptime_ms, status.server_id)
            for status in self._recent(members)
            if status.publish_config is not PublishConfig.OFF
        ]
        return min(candidates)[2] if candidates else None

    def contents(self, members: Collection[int]) -> list[Leaf]:
        """The contents of the MetaLS: the destinations in recent documents of members, without
        excluded and repeated ones, ordered by server and then as posted.
        """
        excluded_hashes = set(self.config.hashes)
        names: dict[str, str] = {}  # Several servers may post the same destination.
        found: dict[str, Leaf] = {}
        for status in self._recent(members):
            for document in _destinations(status):
                text = document.get("destination")
                if not isinstance(text, str) or not text:
                    continue
                name = names.get(text) or names.setdefault(text, hash_of(text) or text)
                if name not in excluded_hashes:
                    found.setdefault(name, Leaf(status.server_id, name, document))
                if len(found) == CONTENTS_MAX:
                    return list(found.values())
        return list(found.values())

    # ---- snapshots ----

    def encode(self) -> bytes:
        """The state as a snapshot: a line of JSON, then the posted documents.

        version     1
        cluster     the farm's name
        index       the last applied entry
        ordered     the result of all orders, see decode_export()
        published   index of the last order to publish
        documents   array of [index, size in bytes], in the order in which they follow
        """
        head = {
            "version": SNAPSHOT_VERSION,
            "cluster": self.cluster,
            "index": self.index,
            "ordered": export_document(self.config),
            "published": self.published_index,
            "documents": [[each.log_index, len(each.status.data)] for each in self.posted.values()],
        }
        line = json.dumps(head, allow_nan=False, separators=(",", ":")).encode()
        return b"".join((line, b"\n", *(each.status.data for each in self.posted.values())))

    @classmethod
    def decode(cls, data: bytes, cluster: str) -> "SharedState":
        """Raises RemoteProtocolError if the data is not a snapshot of this cluster, such as a
        JRaft server's.
        """
        line, newline, _ = data[: HEAD_BYTES_MAX + 1].partition(b"\n")
        head = load_object(line, HEAD_BYTES_MAX)
        number_of(head, "version", SNAPSHOT_VERSION, SNAPSHOT_VERSION)
        if head.get("cluster") != cluster or not newline:
            raise RemoteProtocolError(f"not a snapshot of {cluster}")
        found = cls(cluster)
        found.config = decode_export(object_of(head, "ordered"))
        at = len(line) + 1
        for index, size in _document_positions(head):
            posted = PostedStatus(index, decode_status(data[at : at + size]))
            if posted.status.cluster != cluster or len(posted.status.data) != size:
                raise RemoteProtocolError("a document of a snapshot does not belong to this farm")
            found._store(posted)
            at += size
        if at != len(data):
            raise RemoteProtocolError(f"a snapshot of {len(data)} bytes ends with byte {at}")
        found.index = number_of(head, "index", 0, NUMBER_MAX)
        found.published_index = number_of(head, "published", 0, NUMBER_MAX)
        return found


def _document_positions(head: Mapping[str, object]) -> Iterable[tuple[int, int]]:
    documents = head.get("documents")
    if not isinstance(documents, list) or len(documents) > DOCUMENTS_MAX:
        raise RemoteProtocolError(
            f"documents of a snapshot must be an array of at most {DOCUMENTS_MAX}"
        )
    for each in documents:
        if not isinstance(each, list) or len(each) != 2:
            raise RemoteProtocolError("each document of a snapshot must have an index and a size")
        pair = {"index": each[0], "size": each[1]}
        index = number_of(pair, "index", 1, NUMBER_MAX)
        yield index, number_of(pair, "size", 1, DOCUMENT_BYTES_MAX)


def _destinations(status: Status) -> list[Mapping[str, object]]:
    destinations = status.document.get("destinations", [])
    assert isinstance(destinations, list), "decode_status() checks it"
    return destinations


def _union(before: tuple[T, ...], more: tuple[T, ...]) -> tuple[T, ...]:
    return tuple(dict.fromkeys((*before, *more)))


def _without(before: tuple[T, ...], less: tuple[T, ...]) -> tuple[T, ...]:
    gone = set(less)
    return tuple(each for each in before if each not in gone)
