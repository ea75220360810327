"""Strategies for every request of ZeroDB."""

from hypothesis import strategies as st

from kelek.protocols.zerodb.wire import ops, requests, values
from kelek.protocols.zerodb.wire.codec import encode_request
from kelek.protocols.zerodb.wire.values import NO_EXTENSION, Extension, TableOptions

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
KEY = st.binary(min_size=1, max_size=12)
VALUE = st.binary(max_size=12)
BOUND = st.binary(max_size=8)
KEYS = st.lists(KEY, max_size=4)
PAIRS = st.lists(st.tuples(KEY, VALUE), max_size=4)
WRITE_FLAGS = st.integers(0, 3)
REQID = st.binary(min_size=12, max_size=12)
OWNER = st.just(b"") | st.just(b"a token, and a 0\0"[-16:])
EXTENSION = st.one_of(
    st.just(NO_EXTENSION),
    st.builds(Extension, st.integers(0, 31), U32, REQID, st.just(0), st.just(0), st.just(0), OWNER),
    st.builds(
        Extension,
        st.integers(0, 31),
        U32,
        REQID,
        U32,
        st.integers(0, values.TTL_MS_MAX),
        U64,
        OWNER,
    ),
).filter(lambda extension: extension == NO_EXTENSION or extension != Extension(reqid=bytes(12)))


def _split(pairs: list[tuple[bytes, bytes]]) -> tuple[list[bytes], list[bytes]]:
    return [key for key, _ in pairs], [value for _, value in pairs]


def put(
    table: int, pairs: list[tuple[bytes, bytes]], flags: int, extension: Extension
) -> requests.Put:
    return requests.Put(table, *_split(pairs), flags, extension)


def options(cache: int, block: int, write_buffer: int, bloom: int, plain: bool) -> TableOptions:
    return TableOptions(cache, block, write_buffer, bloom, not plain)


PUT = st.builds(put, U32, PAIRS, WRITE_FLAGS, EXTENSION)
OPTIONS = st.builds(
    options,
    *(st.integers(smallest, largest) for _, smallest, largest in values.OPTION_LIMITS),
    st.booleans(),
)
PART = st.one_of(
    st.builds(lambda table, pairs: ops.Put(table, *_split(pairs)), U32, PAIRS),
    st.builds(ops.Delete, U32, KEYS),
)
COMPARE = st.one_of(
    st.builds(ops.Compare, U32, KEY, st.integers(0, 5), VALUE),
    st.builds(ops.Compare, U32, st.binary(min_size=8, max_size=8), st.just(ops.ALIVE), VALUE),
)
STEP = st.one_of(
    st.builds(lambda table, key, value: ops.Put(table, [key], [value]), U32, KEY, VALUE),
    st.builds(lambda table, key: ops.Delete(table, [key]), U32, KEY),
    st.builds(lambda table, key: ops.Get(table, [key]), U32, KEY),
    st.builds(ops.DeleteRange, U32, BOUND, BOUND),
)
STEPS = st.lists(STEP, max_size=3)
_USUAL_WRITE = st.one_of(
    PUT,
    st.builds(requests.Delete, U32, KEYS, WRITE_FLAGS, EXTENSION),
    st.builds(requests.DeleteRange, U32, BOUND, BOUND, WRITE_FLAGS, EXTENSION),
    st.builds(requests.DeleteLimited, U32, BOUND, U64, WRITE_FLAGS, EXTENSION),
)
TABLE_READ = st.one_of(
    st.builds(requests.Read, U32, KEYS, EXTENSION),
    st.builds(requests.Count, U32, BOUND, BOUND, EXTENSION),
    st.builds(requests.Exists, U32, KEYS, EXTENSION),
    st.builds(requests.Scan, U32, st.none() | U64, BOUND, BOUND, EXTENSION),
    st.builds(
        requests.SplitPoints, U32, st.integers(1, values.SPLIT_POINTS_MAX), BOUND, BOUND, EXTENSION
    ),
    st.builds(requests.TableInfo, st.none() | U32, st.booleans(), EXTENSION),
    st.builds(requests.Watch, U32, BOUND, BOUND, U64, EXTENSION),
)
_REQUEST: st.SearchStrategy[requests.Request] = st.one_of(
    _USUAL_WRITE,
    TABLE_READ,
    st.builds(requests.ServerInfo, EXTENSION),
    st.builds(
        lambda table, options, extension: requests.open_table(table, options)._replace(
            extension=extension
        ),
        U32,
        OPTIONS,
        EXTENSION,
    ),
    st.builds(requests.CloseTable, U32, EXTENSION),
    st.builds(requests.CompactTable, U32, BOUND, BOUND, EXTENSION),
    st.builds(requests.TruncateTable, U32, EXTENSION),
    st.builds(requests.WriteTables, st.lists(PART, max_size=3), WRITE_FLAGS, EXTENSION),
    st.builds(requests.ForwardRange, U32, BOUND, BOUND, U64, EXTENSION),
    st.builds(
        requests.MapTable,
        U32,
        U32,
        st.integers(1, values.THREADS_MAX),
        st.lists(st.tuples(KEY, VALUE), max_size=3),
        st.binary(min_size=1, max_size=20),
        EXTENSION,
    ),
    st.builds(
        requests.RangeJob,
        U32,
        st.none() | st.integers(1, values.CHUNK_PAIRS_MAX),
        BOUND,
        BOUND,
        EXTENSION,
    ),
    st.builds(requests.JobStatus, U64, EXTENSION),
    st.builds(requests.ClientData, U64, EXTENSION),
    st.builds(
        requests.Transaction, st.lists(COMPARE, max_size=3), STEPS, STEPS, WRITE_FLAGS, EXTENSION
    ),
    st.builds(
        requests.Session,
        st.integers(0, 2),
        U64,
        st.integers(1, values.TTL_MS_MAX),
        WRITE_FLAGS,
        EXTENSION,
    ),
    st.builds(requests.Lease, U64, st.integers(0, 1), st.just(0), EXTENSION),
    st.builds(requests.Lease, U64, st.just(requests.LEASE_OPEN), U32, EXTENSION),
    st.builds(requests.CopyTable, U32, U32, BOUND, BOUND, EXTENSION),
    st.builds(requests.ListJobs, st.booleans(), st.integers(1, values.LISTED_JOBS_MAX), EXTENSION),
    st.builds(requests.EndJob, U64, EXTENSION),
)


# Functions, because hypothesis prints the parts of strategies.
@st.composite
def request(draw: st.DrawFn) -> requests.Request:
    return draw(_REQUEST)


@st.composite
def encoded(draw: st.DrawFn) -> list[bytes]:
    """The frames of any request."""
    return encode_request(draw(_REQUEST))


@st.composite
def usually(draw: st.DrawFn) -> list[bytes]:
    """The same; half of the requests are common writes."""
    return encode_request(draw(_USUAL_WRITE if draw(st.booleans()) else _REQUEST))


@st.composite
def mutated(draw: st.DrawFn, frames: st.SearchStrategy[list[bytes]]) -> list[bytes]:
    """A message with some frames or bytes changed, or unchanged."""
    message = list(draw(frames))
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(message) - 1)) if message else 0
        change = draw(st.integers(0, 5))
        if not message or change == 0:
            message.insert(place, draw(st.sampled_from([b"", b"\0" * 8, b"\x31\x01\x20\x01"])))
        elif change == 1:
            del message[place]
        elif change == 2:
            message[place] = message[place][: draw(st.integers(0, len(message[place])))]
        elif change == 3:
            message[place] += draw(st.binary(min_size=1, max_size=3))
        elif message[place]:
            data = bytearray(message[place])
            data[draw(st.integers(0, len(data) - 1))] = draw(st.sampled_from([0, 1, 0x6B, 0xFF]))
            message[place] = bytes(data)
    return message
