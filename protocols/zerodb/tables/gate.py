"""Whether all nodes know the operations of an entry.

Older versions take an entry with an operation that they do not know for a malformed one, which
changes nothing. So do all nodes until the log has a configuration entry that says that every member
knows it (ConfigEntry.operations): a worker stores its index in SYSTEM. An entry behind it is
applied.

1   increments, appends and reads of a range, in transactions
2   versions of keys, and compares of them
3   bulk loads
"""

import struct
from collections.abc import Sequence

from ..wire.ops import LOADS_LEVEL, SUMS_LEVEL, VERSIONS_LEVEL, Op, gate_of
from ..wire.values import LOADS_UNKNOWN, SUMS_UNKNOWN, VERSIONS_UNKNOWN
from .tables import SYSTEM, TableReader, TableState

# In SYSTEM: index of the entry from which on all members know the operations.
KNOWN = b"n"
KNOWN_FROM = {SUMS_LEVEL: KNOWN, VERSIONS_LEVEL: KNOWN + b"2", LOADS_LEVEL: KNOWN + b"3"}
_TEXTS = {
    SUMS_LEVEL: SUMS_UNKNOWN,
    VERSIONS_LEVEL: VERSIONS_UNKNOWN,
    LOADS_LEVEL: LOADS_UNKNOWN,
}
_NUMBER = struct.Struct(">Q")


def note_known(state: TableState, log_index: int, known: int) -> None:
    """The entry with this index says that every member knows the operations up to this level."""
    for level, name in KNOWN_FROM.items():
        if level <= known and state.get(SYSTEM, [name])[0] is None:
            state.put(SYSTEM, [name], [_NUMBER.pack(log_index)])


def unknown(state: TableReader, log_index: int, ops: Sequence[Op]) -> str:
    """Why an entry of the log changes nothing: a node may not know its operations. Empty: all nodes
    know them."""
    level = gate_of(ops) if log_index else 0
    if not level:
        return ""
    data = state.get(SYSTEM, [KNOWN_FROM[level]])[0]
    is_known = data is not None and log_index >= _NUMBER.unpack(data)[0]
    return "" if is_known else _TEXTS[level]
