"""Conversion between wire entries and log batches.

The log stores two kinds: Application as state, Configuration as config.
"""

from collections.abc import Iterable, Sequence

from ....native.net.farm import BLOCK_COUNT_MAX, BLOCK_VALUES_MAX
from ...errors import RemoteProtocolError, TooLarge
from ...limits import NUMBER_MAX
from ...raft.membership import Configuration
from ...raft.messages import KIND_CONFIG, KIND_STATE, EntryBatch
from ...record import LONE_BYTES_MAX, Record, decode_block, encode_block
from .messages import ClusterServer, FarmConfiguration, FarmLogEntry, ValueType
from .packed import PackedEntries, unpack_batches
from .values import decode_configuration, encode_configuration

# Values of one batch; a single larger value forms its own batch.
BATCH_BYTES_MAX = BLOCK_VALUES_MAX
BATCH_COUNT_MAX = BLOCK_COUNT_MAX
_KINDS = {ValueType.APPLICATION: KIND_STATE, ValueType.CONFIGURATION: KIND_CONFIG}
_VALUE_TYPES = {kind: value_type for value_type, kind in _KINDS.items()}


def peer_of(server_id: int) -> str:
    """A server's id in the Raft core."""
    return str(server_id)


def voters_of(servers: Iterable[ClusterServer]) -> Configuration:
    """The voters of a Configuration, for the Raft core."""
    return Configuration(tuple(peer_of(server.id) for server in servers))


def check_entry(entry: FarmLogEntry) -> None:
    """Raises RemoteProtocolError if the log cannot hold this entry."""
    if not 0 < entry.term <= NUMBER_MAX:
        raise RemoteProtocolError(f"an entry of term {entry.term}")
    if entry.value_type not in _KINDS:
        raise RemoteProtocolError(f"{entry.value_type.name} is not a log entry")
    if len(entry.value) > LONE_BYTES_MAX:
        raise TooLarge(f"an entry of {len(entry.value)} bytes")
    if entry.value_type is ValueType.CONFIGURATION:
        decode_configuration(entry.value)


def batches_of(
    first_index: int, entries: Sequence[FarmLogEntry], term: int = 0
) -> list[EntryBatch]:
    """Encodes entries as batches of one term each; a Configuration forms its own batch.

    term   replaces the entries' own terms, unless 0

    Raises RemoteProtocolError if the log cannot hold an entry.
    """
    if isinstance(entries, PackedEntries):
        unpacked = unpack_batches(first_index, entries, term)
        if unpacked is not None:
            return unpacked
    if term:
        entries = [entry._replace(term=term) for entry in entries]
    batches: list[EntryBatch] = []
    run: list[Record] = []
    run_bytes = 0
    for at, entry in enumerate(entries):
        check_entry(entry)
        run.append(Record(_KINDS[entry.value_type], None, entry.value))
        run_bytes += len(entry.value)
        following = entries[at + 1] if at + 1 < len(entries) else None
        ends = (
            following is None
            or following.term != entry.term
            or ValueType.CONFIGURATION in (entry.value_type, following.value_type)
            or len(run) == BATCH_COUNT_MAX
            or run_bytes + len(following.value) > BATCH_BYTES_MAX
        )
        if ends:
            batches.append(encode_block(first_index, entry.term, run))
            first_index += len(run)
            run, run_bytes = [], 0
    return batches


def entries_of(batches: Iterable[EntryBatch]) -> tuple[FarmLogEntry, ...]:
    """Decodes log batches to wire entries."""
    return tuple(
        FarmLogEntry(batch.term, _VALUE_TYPES[record.kind], record.data)
        for batch in batches
        for record in decode_block(batch.block)[1]
    )


def configuration_batch(index: int, term: int, configuration: FarmConfiguration) -> EntryBatch:
    record = Record(KIND_CONFIG, None, encode_configuration(configuration))
    return encode_block(index, term, [record])


def configuration_of(batch: EntryBatch) -> FarmConfiguration | None:
    """The Configuration in a batch of one entry, or None. Raises RemoteProtocolError."""
    (record,) = decode_block(batch.block)[1]
    return decode_configuration(record.data) if record.kind == KIND_CONFIG else None
