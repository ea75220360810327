"""The formats of entries: one line of text, or a JSON object."""

from ...protocols.zmqraft.wire.entry import Entry
from ..render import data_json

KIND_NAMES = {0: "state", 1: "config", 2: "checkpoint", 3: "tables"}
SHOWN = (0, 3)  # Types that clients write; the others are the cluster's own.


def tables_text(data: bytes) -> str | None:
    """The table operations of an entry; None: it has none."""
    from ...protocols.zerodb.wire import ops  # Imported here: most commands print no entries.

    if not ops.is_packed(data):
        return None
    try:
        found = ops.unpack(data)
    except ValueError:
        return "malformed"
    counts = (f" x {len(op.keys)}" if isinstance(op, ops.Put | ops.Delete) else "" for op in found)
    return ", ".join(
        f"{type(op).__name__.lower()} {op.table}{count}"
        for op, count in zip(found, counts, strict=True)
    )


def entry_line(entry: Entry) -> str:
    if entry.type in SHOWN and (found := tables_text(entry.data)) is not None:
        return f"{entry.index:>8}  {entry.term:>4}  (tables) {found}"
    text = entry.data.decode("utf-8", "backslashreplace")
    kind = "" if entry.type == 0 else f"({KIND_NAMES.get(entry.type, entry.type)}) "
    if not text.isprintable():  # Escape line breaks and the like.
        text = "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in text)
    return f"{entry.index:>8}  {entry.term:>4}  {kind}{text}"


def entry_json(entry: Entry) -> dict[str, object]:
    found: dict[str, object] = {
        "index": entry.index,
        "term": entry.term,
        "kind": KIND_NAMES.get(entry.type, entry.type),
        "reqid": entry.reqid.hex() if entry.reqid else None,
    }
    tables = tables_text(entry.data)
    if tables is not None:
        found["tables"] = tables
    return found | data_json("data", entry.data)
