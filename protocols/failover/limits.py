"""The time limits that the clients of all services share."""

NEVER_MS = 1 << 62  # Later than any time.
# ---- a server in use ----

RESPONSE_TTL_MS = (
    500  # SERVER_RESPONSE_TTL of ZMQ RAFT: a leader that is silent for so long is left.
)
SILENCE_MS = 1000  # After so long without an answer, a table server or a broker is probed.
BYTES_PER_MS = 4 << 10  # A busy server receives at least so much; it may be silent meanwhile.

CONNECT_TIMEOUT_MS = 5000  # Of a farm: for a connection with its handshake, and for a response.

# ---- the search for a server ----

SEARCH_MS = 25  # Between two questions to a peer that answers, while no leader is known.
SEARCH_RETRY_MS = 200  # The same for a peer that did not answer.
SERVERS_MAX = 256  # Servers of one client: the answers of servers may name ever more.
REACH_MS = 2000  # The longest wait of a command for a connection ...
SLOW_REACH_MS = 10_000  # ... and for the first answer of a server that has taken it.
NOTICE_MS = 1500  # A caller that waits so long without a server is told why, ...
GIVE_UP_MS = 1500  # ... and gets an error if the urls are of another cluster.

# ---- repeats ----

RETRY_MS = 50  # Before a request is repeated that the server could not take.
RETRY_MS_MAX = 1000  # The most after doublings.
RESEND_PAUSE_MS = 50  # Between two repeats of the log's window after gaps.
CONNECT_RETRY_MS = 100  # Before the next attempt at a server that failed; it doubles ...
WORKER_RETRY_MS_MAX = 5000  # ... up to this for a worker's broker ...
FARM_RETRY_MS_MAX = 2000  # ... and up to this for a farm's server.


def doubled(last_ms: int, first_ms: int, most_ms: int) -> int:
    """The pause after one of last_ms; 0: there was none."""
    return min(max(first_ms, 2 * last_ms), most_ms)
