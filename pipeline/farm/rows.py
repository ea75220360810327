"""Entries of a farm's log as typed rows: status documents, orders and Configurations.

Other entries, and those of other farms, are skipped. The rules of protocols/garlicfarm/, which
every server follows, decide what an entry is.
"""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from ...clients.farm.values import CONFIGURATION, FarmEntry
from ...protocols.errors import RemoteProtocolError
from ...protocols.garlicfarm.app.documents import decode_status
from ...protocols.garlicfarm.app.orders import ORDER_PREFIX, decode_order
from ...protocols.garlicfarm.wire.values import decode_configuration
from ..formats import TIME_MS_MAX

SCHEMA = pa.schema(
    [
        ("index", pa.int64()),
        ("term", pa.int64()),
        ("kind", pa.string()),
        ("server", pa.int32()),
        ("time", pa.timestamp("us", "UTC")),
        ("publish", pa.string()),
        ("publishing", pa.bool_()),
        ("uptime_ms", pa.int64()),
        ("members", pa.list_(pa.int32())),
        ("document", pa.string()),
    ]
)
STATUS, ORDER = "status", "order"


def rows_of(entries: Iterable[FarmEntry], farm: str) -> pa.RecordBatch:
    """Rows of SCHEMA for the entries that belong to this farm."""
    rows = []
    for entry in entries:
        try:
            found = _row(entry, farm)
        except RemoteProtocolError:  # The log may hold any data.
            continue
        if found is not None:
            rows.append({"index": entry.index, "term": entry.term or None, **found})
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def _row(entry: FarmEntry, farm: str) -> dict[str, Any] | None:
    """None: the entry belongs to another farm. Raises RemoteProtocolError."""
    if entry.kind == CONFIGURATION:
        servers = decode_configuration(entry.value).servers
        return {"kind": CONFIGURATION, "members": [server.id for server in servers]}
    document = {"document": entry.value.decode(errors="replace")}
    if entry.value.startswith(ORDER_PREFIX):
        order = decode_order(entry.value)
        if order.cluster != farm:
            return None
        return {"kind": ORDER, "time": time_us(order.date_ms), **document}
    status = decode_status(entry.value)
    if status.cluster != farm:
        return None
    return {
        "kind": STATUS,
        "server": status.server_id,
        "time": time_us(status.date_ms),
        "publish": status.publish_config.value,
        "publishing": status.is_publishing,
        "uptime_ms": status.uptime_ms,
        **document,
    }


def time_us(date_ms: int) -> int | None:
    """Microseconds for Arrow; None if the date is out of range."""
    return date_ms * 1000 if 0 <= date_ms <= TIME_MS_MAX else None
