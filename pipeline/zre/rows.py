"""Presence reports as columns: numpy cuts them from Arrow's buffers, without work per row.

Other entries of the log are left out. protocols/zre/log.py and presence.py have the layouts.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy
import pyarrow as pa
import pyarrow.compute as pc

from ...protocols.zerodb.wire.ops import PUT, Put, is_packed, unpack
from ...protocols.zre import presence
from ...protocols.zre.log import FRAME_BYTES_MAX
from ...protocols.zre.values import LOG_COMMAND, LOG_SIGNATURE, UUID_BYTES, Level, LogEvent
from ..formats import TIME_MS_MAX, Column, decode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[Any]

TEXTS = pa.map_(pa.string(), pa.string())
SCHEMA = pa.schema(
    [
        ("index", pa.int64()),
        ("time", pa.timestamp("us", "UTC")),
        ("level", pa.string()),
        ("event", pa.string()),
        ("node", pa.string()),
        ("node_name", pa.string()),
        ("peer", pa.string()),
        ("peer_name", pa.string()),
        ("endpoint", pa.string()),
        ("version", pa.int8()),
        ("group", pa.string()),
        ("headers", TEXTS),
        ("node_hash", pa.int32()),
        ("peer_hash", pa.int32()),
        ("text", pa.string()),
    ]
)
REPORT_BYTES = FRAME_BYTES_MAX - 255  # Of a report with an empty text.
LEVELS = pa.array([None, *(one.name for one in Level)])
EVENTS = pa.array([None, *(one.name for one in presence.PresenceEvent)])
HEXADECIMAL = numpy.frombuffer(bytes(range(256)).hex().encode(), "u2")  # Two digits for each octet.
# Offsets of the first operation, and of its table, in an entry of packed operations.
_PUT_HEAD = 4, 5


class _Frames(NamedTuple):
    """Possible reports: their offsets in a buffer, and their sizes."""

    octets: "Numbers"
    starts: "Numbers"
    sizes: "Numbers"

    def take(self, places: "Numbers") -> "_Frames":
        return _Frames(self.octets, self.starts[places], self.sizes[places])

    def octet(self, offset: "Numbers | int") -> "Numbers":
        """The octet at an offset of each frame; of the last one beyond the end."""
        at = numpy.minimum(self.starts + offset, len(self.octets) - 1)
        return self.octets[at].astype("i8")

    def number(self, offset: "Numbers | int", size: int) -> "Numbers":
        """A big-endian number of at most 8 octets at an offset of each frame."""
        found = numpy.zeros(len(self.starts), "u8")
        for place in range(size):
            found = (found << numpy.uint64(8)) | self.octet(offset + place).astype("u8")
        return found


class _Part(NamedTuple):
    """The position of a string in each frame; None: no frame has it."""

    offsets: "Numbers"
    sizes: "Numbers"
    there: "Numbers"


def rows_of(data: pa.Array, indexes: pa.Array | None) -> pa.RecordBatch:
    """The reports among entries of the log or values of a table, with the columns of SCHEMA.

    data      binary, without nulls
    indexes   of the entries; None: the data are values of a table
    """
    frames, places = _candidates(data)
    is_presence = frames.octet(2) == presence.COMMAND
    parts, ends = _strings(frames)
    good = numpy.where(is_presence, ends == frames.sizes, _is_report(frames))
    good &= _is_known(frames, is_presence)
    chosen = numpy.flatnonzero(good)
    frames, is_presence, places = frames.take(chosen), is_presence[chosen], places[chosen]
    parts = [_Part(*(one[chosen] for one in part)) for part in parts]
    found: dict[str, pa.Array] = {
        "index": _index(indexes, places),
        "time": _time(frames.number(9, 8)),
        "level": LEVELS.take(pa.array(frames.octet(3))),
        "event": EVENTS.take(pa.array(frames.octet(4))),
        "node_hash": pa.array(frames.number(5, 2).astype("i4")),
        "peer_hash": pa.array(frames.number(7, 2).astype("i4")),
        "node": _uuid(frames, 17, is_presence),
        "peer": _uuid(frames, 33, is_presence),
        "version": pa.array(frames.octet(49).astype("i1"), mask=~is_presence),
        "headers": _headers(_text(frames, parts.pop())),
        "text": _text(frames, _Part(_all(frames, 18), frames.octet(17), ~is_presence)),
    }
    for name, part in zip(("node_name", "peer_name", "endpoint", "group"), parts, strict=True):
        found[name] = _text(frames, part)
    return pa.RecordBatch.from_arrays([found[name] for name in SCHEMA.names], schema=SCHEMA)


def values_of(data: pa.Array, table: int) -> tuple[pa.Array, "Numbers"]:
    """The values that entries of the log put into a table, and the position of each one's entry.

    Only entries that begin with a put are read, as a log service writes no others.
    """
    octets, starts, sizes = _buffers(data)
    frames = _Frames(octets, starts, sizes)
    found: list[bytes] = []
    places: list[int] = []
    if len(octets):
        operation, number = _PUT_HEAD
        wanted = (sizes > number + 4) & (frames.octet(operation) == PUT)
        wanted &= frames.number(number, 4) == int.from_bytes(table.to_bytes(4, "little"), "big")
        for place in numpy.flatnonzero(wanted):
            values = _put_values(data[int(place)].as_py(), table)
            found += values
            places += [int(place)] * len(values)
    return pa.array(found, pa.binary()), numpy.array(places, "i8")


def _put_values(entry: bytes, table: int) -> list[bytes]:
    if not is_packed(entry):
        return []
    try:
        operations = unpack(entry)
    except ValueError:  # The tables ignore such an entry, too.
        return []
    return [
        bytes(value)
        for one in operations
        if isinstance(one, Put) and one.table == table
        for value in one.values
    ]


# ---- selection of reports ----


def _buffers(data: pa.Array) -> tuple["Numbers", "Numbers", "Numbers"]:
    """Octets, and the offset and size of each item."""
    _, offsets, octets = data.buffers()
    if not len(data) or octets is None:
        return (numpy.zeros(0, "u1"), *(numpy.zeros(len(data), "i8"),) * 2)
    bounds = numpy.frombuffer(offsets, "i4")[data.offset : data.offset + len(data) + 1]
    bounds = bounds.astype("i8")
    return numpy.frombuffer(octets, "u1"), bounds[:-1], numpy.diff(bounds)


def _candidates(data: pa.Array) -> tuple[_Frames, "Numbers"]:
    """Frames with the header of a report and a sufficient size, and their positions."""
    octets, starts, sizes = _buffers(data)
    long_enough = numpy.flatnonzero(sizes >= REPORT_BYTES)
    frames = _Frames(octets, starts, sizes).take(long_enough)
    if not len(long_enough):
        return frames, long_enough
    begun = (frames.octet(0) == LOG_SIGNATURE[0]) & (frames.octet(1) == LOG_SIGNATURE[1])
    chosen = numpy.flatnonzero(begun)
    return frames.take(chosen), long_enough[chosen]


def _is_report(frames: _Frames) -> "Numbers":
    sizes = REPORT_BYTES + frames.octet(17)
    found: Numbers = (frames.octet(2) == LOG_COMMAND) & (frames.sizes == sizes)
    return found


def _is_known(frames: _Frames, is_presence: "Numbers") -> "Numbers":
    """Whether level, event and version are valid."""
    level, event, version = frames.octet(3), frames.octet(4), frames.octet(49)
    events_max = numpy.where(is_presence, len(presence.PresenceEvent), len(LogEvent))
    own = numpy.where(event >= presence.PresenceEvent.EVASIVE, Level.WARNING, Level.INFO)
    level_good = numpy.where(is_presence, level == own, (level >= 1) & (level <= len(Level)))
    event_good = (event >= 1) & (event <= events_max)
    version_good = ~is_presence | (version == 1) | (version == 2)
    good: Numbers = level_good & event_good & version_good
    return good


def _strings(frames: _Frames) -> tuple[list[_Part], "Numbers"]:
    """The positions of a presence report's strings, headers last; and its end, -1 for other
    frames."""
    is_presence = frames.octet(2) == presence.COMMAND
    found, place = [], _all(frames, presence.HEAD.size)
    for _ in range(presence.STRINGS):
        sizes = frames.octet(place)
        found.append(_Part(place + 1, sizes, is_presence))
        place = place + 1 + sizes
    sizes = frames.number(place, presence.SIZE_BYTES).astype("i8")
    place = place + presence.SIZE_BYTES
    # The last strings may be empty, for example the group.
    group = found[-1]
    found[-1] = group._replace(there=is_presence & (group.sizes > 0))
    found.append(_Part(place, sizes, is_presence & (sizes > 0)))
    return found, numpy.where(sizes <= presence.HEADERS_BYTES_MAX, place + sizes, -1)


def _all(frames: _Frames, offset: int) -> "Numbers":
    return numpy.full(len(frames.starts), offset, "i8")


# ---- columns ----


def _index(indexes: pa.Array | None, places: "Numbers") -> pa.Array:
    if indexes is None:
        return pa.nulls(len(places), pa.int64())
    return indexes.take(pa.array(places))


def _time(time_ms: "Numbers") -> pa.Array:
    """Times that the calendar lacks, for example in a forged report, become null."""
    wrong = time_ms > TIME_MS_MAX
    found = numpy.where(wrong, 0, time_ms).astype("i8") * 1000
    return pa.array(found, pa.int64(), mask=wrong).cast(SCHEMA.field("time").type)


def _uuid(frames: _Frames, offset: int, there: "Numbers") -> pa.Array:
    """As 32 hexadecimal digits."""
    chosen = frames.take(numpy.flatnonzero(there))
    at = chosen.starts[:, None] + numpy.arange(offset, offset + UUID_BYTES)
    digits = HEXADECIMAL[chosen.octets[at]] if len(at) else numpy.zeros(0, "u2")
    sizes = numpy.where(there, 2 * UUID_BYTES, 0)
    return _array(sizes, digits.tobytes(), there, pa.string())


def _text(frames: _Frames, part: _Part) -> pa.Array:
    """Invalid UTF-8 becomes null."""
    sizes = numpy.where(part.there, part.sizes, 0)
    ends = numpy.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    firsts = frames.starts + part.offsets - (ends - sizes)
    octets = frames.octets[numpy.repeat(firsts, sizes) + numpy.arange(total)]
    texts = decode(Column("utf8", pa.string()), _array(sizes, octets, None, pa.binary())).items
    return pc.if_else(pa.array(part.there), texts, pa.scalar(None, pa.string()))


def _array(
    sizes: "Numbers", octets: "Numbers | bytes", there: "Numbers | None", wanted: pa.DataType
) -> pa.Array:
    offsets = numpy.concatenate([[0], numpy.cumsum(sizes)]).astype("i4")
    valid = None if there is None else pa.array(there).buffers()[1]
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(octets)]
    return pa.Array.from_buffers(wanted, len(sizes), buffers)


def _headers(texts: pa.Array) -> pa.Array:
    """Peers repeat their headers, so each distinct text is parsed once."""
    known = texts.dictionary_encode()
    read = decode(Column("json", TEXTS), known.dictionary.cast(pa.binary())).items
    return read.take(known.indices)
