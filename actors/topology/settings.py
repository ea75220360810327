"""The sections of a topology: every key with its type, range, default and description.

Each section is a frozen dataclass. Sections of farms are in farm.py, of ZRE in zre.py. An actor
gets NodeSettings in its setup.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from ...protocols.limits import TABLE_MAX
from ...protocols.zerodb.wire.values import BROKER_TABLE
from .farm import FARMS_MAX, FarmServerSettings, FarmSettings, NodeFarmSettings
from .schema import (
    ADDRESS,
    BOOLEAN,
    GIB,
    KIB,
    MIB,
    MULTICAST_URL,
    NAME_TYPE,
    URL,
    Alias,
    ChoiceType,
    DurationRangeType,
    NamedSectionsType,
    SectionType,
    TableNumbersType,
    Unfit,
    count,
    duration_ms,
    duration_s,
    key,
    size,
    text,
    texts,
)
from .section import Section
from .security import GRANTS, PUBLIC_KEY, NodeSecurity, SecuritySettings
from .yaml_values import Scalar
from .zre import NodeZreSettings, ZreSettings

NODES_MAX = 64
APPEND_BYTES_MAX = 16 * MIB
SERVICES_MAX = 1024  # That the topology names.
BROKER_SERVICES = ("mmi.", "titanic.", "klk.")


class RaftSettings(Section):
    """`raft:`"""

    election_timeout_ms: tuple[int, int] = key(
        DurationRangeType(20, 60_000, (1000, 1500)), (1000, 1500)
    )
    """a follower that receives nothing from a leader for a random time of this range becomes a
    candidate. When its connection to the leader ends, it asks the others at once"""
    heartbeat_ms: int = key(duration_ms(5, 30_000), 70)
    """a leader sends to each follower at least this often"""
    vote_retry_ms: int = key(duration_ms(5, 30_000), 50, alias="rpc_timeout_ms")
    """a candidate repeats a vote request that was not answered after this time"""
    append_timeout_ms: int = key(duration_ms(5, 30_000), 100)
    """a leader repeats entries that were not acknowledged after this time"""
    append_inflight_max: int = key(count(1, 1024), 4)
    """unacknowledged messages with entries per follower"""
    append_bytes_max: int = key(size(64 * KIB, APPEND_BYTES_MAX), MIB)
    """size of one such message"""
    broadcast_heartbeat_ms: int = key(duration_ms(10, 60_000), 500)
    """while there are subscribers, a leader broadcasts at least this often; the broadcast is empty
    if there are no entries"""
    entry_bytes_max: int = key(size(1, 10 * MIB), 10 * MIB)
    """size of the largest update"""
    inflight_max: int = key(count(1, 16_777_216), 65_536)
    """updates that wait for their commit; the leader does not answer further ones"""
    inflight_bytes_max: int = key(size(MIB, 4 * GIB), 64 * MIB)
    """the same limit in bytes"""
    reqids_max: int = key(count(1000, 1_000_000_000), 10_000_000)
    """request ids that a node stores to recognise repeated updates"""
    update_ttl_s: int = key(duration_s(60, 60_000), 8 * 3600)
    """a leader refuses updates whose request id is older"""
    pre_vote: bool = key(BOOLEAN, True)
    """a candidate first asks whether it would win the election"""
    check_quorum: bool = key(BOOLEAN, True)
    """a leader steps down if it receives nothing from a majority"""
    read: Literal["lease", "index"] = key(ChoiceType("lease", "index"), "lease")
    """how a leader confirms that it still leads before it answers a read: by what a majority has
    answered in the last 110 ms (`lease`), or by a message to a majority for each read (`index`).
    `lease` needs `check_quorum`, and clocks that differ by less than a third in their rate"""


class LogSettings(Section):
    """`log:`"""

    segment_bytes: int = key(size(64 * KIB, GIB), 16 * MIB)
    """size of a log file"""
    snapshot_entries: int = key(count(0, 1_000_000_000), 4_000_000)
    """a node makes a snapshot this many entries after the last one; 0: no limit by entries"""
    snapshot_bytes: int = key(size(0, 1024 * GIB), GIB)
    """the same limit in bytes of the log; 0: no limit by bytes"""
    snapshot_trailing_entries: int = key(
        count(0, 1_000_000_000), 1_000_000, alias="snapshot_behind"
    )
    """at most this many entries below a snapshot stay in the log, for followers that lack them"""
    writer: Literal["process", "thread", "inline"] = key(
        ChoiceType("process", "thread", "inline"), "thread"
    )
    """who writes the log: `raft_peer` with a thread that syncs (`thread`), a process of its own
    (`process`), or `raft_peer` alone (`inline`), which serves no client during a sync"""


class LimitSettings(Section):
    """`limits:`"""

    connections_max: int = key(count(8, 65_536), 4096)
    """connections to all tcp endpoints of a process; it ends further ones"""
    address_connections_max: int = key(count(1, 65_536), 1024)
    """the same, of one IPv4 address or /64 network of IPv6, which may also make a tenth of them
    each second"""
    held_bytes_max: int = key(size(256 * MIB, 1024 * GIB), 512 * MIB)
    """what libzmq holds of all connections to a process; the process ends the largest holder"""
    growth_bytes_max: int = key(size(32 * MIB, 1024 * GIB), 256 * MIB)
    """growth of a process, beside the bytes held and one largest message, while libzmq
    holds 1 MiB or more; the process ends the largest holder"""
    stall_ms: int = key(duration_ms(100, 600_000), 10_000)
    """an unfinished message of 64 KiB or more must grow by 16 KiB in this time"""
    client_streams_max: int = key(count(1, 8000), 1000)
    """entry streams of a client at a node; a client is all connections of a key, or without a key a
    connection"""
    client_watches_max: int = key(count(1, 65_536), 4096)
    """watches of a client that wait at a table worker of a node"""
    client_jobs_max: int = key(count(1, 4096), 1024)
    """data jobs of a client that run at a node"""
    client_leases_max: int = key(count(1, 256), 128)
    """snapshots that a client holds at a node, those of its jobs among them"""


class ClientSettings(Section):
    """`clients:`"""

    timeout_ms: int = key(duration_ms(10, 600_000), 500)
    """a client looks for a leader again if the leader has not answered for this time, plus 1 ms for
    each 4 KiB of the request"""
    election_grace_ms: int = key(duration_ms(0, 600_000), 300)
    """while there is no leader, a client asks each peer twelve times within this time"""


class SparkSettings(Section):
    """`zerodb.spark:`"""

    threshold_bytes: int = key(size(0, 1024 * GIB), 256 * MIB)
    """mappers over tables of at least this size, as stored, run on Spark"""
    master: str = key(text("a master URL of Spark"), "local[*,4]")
    """where tasks run; empty: as Spark's own settings say"""
    memory_bytes: int = key(size(512 * MIB, 1024 * GIB), GIB, alias="memory")
    """heap of the JVM that each node starts with its `spark_job`"""


class TableSettings(Section):
    """`zerodb:`"""

    workers: int = key(count(1, 16), 1)
    """processes of a node that hold its tables: table T belongs to worker T modulo this number;
    fixed when the first table is created"""
    local_tables: tuple[int, ...] = key(TableNumbersType(), (), alias="local")
    """tables that are not replicated: each node has its own"""
    allow_stale_reads: bool = key(
        BOOLEAN, False, alias=Alias("stale", {"refused": False, "allowed": True})
    )
    """a node answers reads from what it has applied, without asking the leader"""
    request_timeout_ms: int = key(duration_ms(50, 600_000), 5000)
    """a server answers a request with an error if there is no leader or majority for this time,
    plus 1 ms for each 4 KiB of the request and of the writes before it"""
    response_bytes_max: int = key(size(MIB, 512 * MIB), 64 * MIB)
    """size of the largest response"""
    chunk_pairs: int = key(count(1, 1_000_000), 1000)
    """pairs in a chunk of a data job that gives no number"""
    job_idle_s: int = key(duration_s(1, 86_400), 60)
    """a data job ends and frees its snapshot if no client asks for a chunk for this time"""
    cache_bytes: int = key(size(MIB, 1024 * GIB), 256 * MIB)
    """the memory for reads that all tables of a node share: three quarters for blocks of the
    database, a quarter for rows that gets have read, and later writes of their tables"""
    write_buffer_bytes: int = key(size(MIB, 1024 * GIB), 256 * MIB)
    """the memory tables of all tables of a node together"""
    open_on_the_fly: bool = key(BOOLEAN, True)
    """a write to a table that does not exist creates it; if `false`, the write is an error"""
    mapper: str = key(ChoiceType("off", "wasm"), "off")
    """`wasm`: a node runs mappers that clients send"""
    allow_native: bool = key(BOOLEAN, False)
    """a node also runs mappers in LLVM bitcode"""
    spark: SparkSettings | None = key(SectionType(SparkSettings), None)
    """mappers over large tables run on Spark
    ([mapper.md](../guides/mapper.md#large-tables-on-spark)); `{}`: with all defaults"""


class ServiceSettings(Section):
    """`broker.services.NAME:`"""

    durable: bool = key(BOOLEAN, False)
    """a request is in the log before a worker gets it, and so is its reply
    ([services.md](../guides/services.md#durable-services))"""
    reply_ttl_s: int = key(duration_s(1, 30 * 86_400), 60)
    """the broker stores a reply for this time, for clients that repeat the request id"""


class StoreSettings(Section):
    """`broker.store:`"""

    table: int = key(count(0, TABLE_MAX), BROKER_TABLE)
    """the replicated table; only brokers can write it ([reserved
    tables](../protocols/zerodb.md#reserved-tables))"""
    bytes_max: int = key(size(MIB, 1024 * GIB), 512 * MIB)
    """requests and replies in the table; the broker answers further requests with 429"""
    request_ttl_s: int = key(duration_s(1, 30 * 86_400), 86_400)
    """a durable request waits this long for a worker; then its client gets an error"""
    lease_ms: int = key(duration_ms(500, 600_000), 3000)
    """another broker takes over durable requests if the active broker is silent for this time"""


def _parse_service(word: Scalar) -> str:
    """A service's name may hold blanks."""
    name = word.text
    if not 0 < len(name) <= 255 or not name.isascii() or not name.isprintable():
        way_out = "use 1 to 255 printable characters of ASCII"
        raise Unfit(f"{name!r} is not a service name", way_out)
    if name.startswith(BROKER_SERVICES):
        problem = f"the prefix of '{name}' is reserved for the broker's own services"
        raise Unfit(problem, "choose another name")
    return name


class BrokerSettings(Section):
    """`broker:`"""

    heartbeat_interval_ms: int = key(duration_ms(10, 600_000), 2500, alias="interval_ms")
    """the broker and each worker send each other a heartbeat this often"""
    liveness: int = key(count(2, 100), 4)
    """after this many intervals without a message the broker removes a worker and gives its
    requests to other workers"""
    request_ttl_ms: int = key(duration_ms(10, 86_400_000), 60_000)
    """a request waits this long for a worker; then its client gets an error"""
    inflight_max: int = key(count(1, 1_000_000), 4096)
    """unanswered requests per client; further ones are refused"""
    message_bytes_max: int = key(size(KIB, 512 * MIB), 64 * MIB)
    """size of the largest request or part of a reply"""
    service_bytes_max: int = key(size(MIB, 1024 * GIB), 256 * MIB)
    """requests that wait for one service"""
    bytes_max: int = key(size(MIB, 1024 * GIB), GIB)
    """all requests that the broker holds"""
    client_header: str = key(NAME_TYPE, "KLKC01")
    """first frame of clients' commands; those of MDP always work"""
    worker_header: str = key(NAME_TYPE, "KLKW01")
    """first frame of workers' commands"""
    deadline_header: str = key(NAME_TYPE, "KLKD01")
    """first frame of clients' requests with a deadline"""
    named_header: str = key(NAME_TYPE, "KLKN01")
    """first frame of requests of clients that give their name and credit for reply parts"""
    services: Mapping[str, ServiceSettings] = key(
        NamedSectionsType(ServiceSettings, "services", SERVICES_MAX, parse=_parse_service), {}
    )
    """settings of single services by name; other services have the defaults"""
    store: StoreSettings = key(SectionType(StoreSettings), StoreSettings())
    """where durable requests are stored"""


class TableEndpoints(Section):
    """`nodes.NAME.zerodb:`"""

    url: str = key(URL, "")
    """a ROUTER for every request; each request is answered"""
    pull_url: str = key(URL, "")
    """a PULL for writes that are not answered"""
    sub_url: str = key(MULTICAST_URL, "")
    """a SUB that receives the same writes from any number of PUBs; `epgm://` needs a libzmq with
    PGM, which pyzmq's wheels lack"""
    events_url: str = key(URL, "", alias="log_url")
    """a PUB of the server's events; it closes a connection whose subscription exceeds 1 KiB"""
    jobs_url: str = key(URL, "")
    """a ROUTER for data jobs only"""
    foreign_url: str = key(URL, "")
    """`url` without CURVE, for foreign peers ([security](../security.md#foreign-peers))"""


class BrokerEndpoints(Section):
    """`nodes.NAME.broker:`"""

    clients_url: str = key(URL)
    """where clients of services connect"""
    workers_url: str = key(URL)
    """where workers connect; it may equal `clients_url`"""
    foreign_clients_url: str = key(URL, "")
    """`clients_url` without CURVE, for foreign clients"""
    foreign_workers_url: str = key(URL, "")
    """`workers_url` without CURVE, for foreign workers"""


class WebTopology(Section):
    """`nodes.NAME.web:`"""

    address: str = key(ADDRESS)
    """where browsers connect by HTTP; every program that reaches it sees the page, as it has no
    login"""
    key_file: str = key(text("a path"), "")
    """with `security:`, the secret key by which the page asks for tables, jobs and services, with
    grants such as `observer` and `tables:7:r`; relative to the file; empty: it shows none of
    them"""


class NodeTopology(Section):
    """`nodes.NAME:`"""

    url: str = key(URL)
    """where clients and peers of other implementations connect"""
    broadcast_url: str = key(URL, "")
    """where subscribers connect; without it the node broadcasts nothing"""
    peer_url: str = key(URL, "")
    """where the other kelek nodes connect; required if `dialect` is `kelek`"""
    dialect: str = key(ChoiceType("kelek", "text", "node"), "kelek")
    """`text`, `node`: a peer of another implementation, which kelek does not start. `text` follows
    the specification; `node` is the npm package zmq-raft ([mixed
    clusters](../protocols/zmq-raft.md#mixed-clusters))"""
    foreign_url: str = key(URL, "")
    """`url` without CURVE, for foreign peers ([security](../security.md#foreign-peers))"""
    foreign_peer_url: str = key(URL, "")
    """`peer_url` without CURVE, while a cluster gets its keys"""
    foreign_grants: str = key(GRANTS, "")
    """what programs at the endpoints for foreign peers may do"""
    server_key: str = key(PUBLIC_KEY, "")
    """the node's public key; clients and other nodes connect to no other key; empty: that of the
    file `keys/NAME.key`"""
    key_file: str = key(text("a path"), "")
    """the node's secret key, relative to the file; empty: `keys/NAME.key_secret`"""
    insecure: tuple[str, ...] = key(texts("endpoints of the node, `[url, zerodb.url, zre]`"), ())
    """endpoints without CURVE, which each program that reaches them may use; only these may have
    addresses that other machines reach, unless the file has `security:`"""
    metrics: str = key(ADDRESS, "")
    """where Prometheus and load balancers ask by HTTP for `/metrics`, `/livez` and `/readyz`
    ([monitoring](../operations/monitoring.md)); needs `kelek[metrics]`"""
    web: WebTopology | None = key(SectionType(WebTopology), None)
    """a live page of the cluster ([page](../operations/page.md)); needs `kelek[web]`"""
    zerodb: TableEndpoints | None = key(SectionType(TableEndpoints), None)
    """addresses of this node's tables; without it the node has no tables"""
    broker: BrokerEndpoints | None = key(SectionType(BrokerEndpoints), None)
    """addresses of this node's broker; without it the node has no broker"""
    zre: NodeZreSettings | None = key(SectionType(NodeZreSettings), None)
    """other nodes of the network discover this node and its services ([ZRE](../protocols/zre.md));
    `{}`: with all defaults"""
    farm: NodeFarmSettings | None = key(SectionType(NodeFarmSettings), None)
    """how this node serves the farms whose `servers` name it"""

    @property
    def tables_url(self) -> str:
        """Where clients reach this node's tables; '': nowhere."""
        return self.zerodb.url if self.zerodb else ""

    @property
    def clients_url(self) -> str:
        """Where clients reach this node's broker; '': nowhere."""
        return self.broker.clients_url if self.broker else ""

    @property
    def workers_url(self) -> str:
        """Where workers reach this node's broker; '': nowhere."""
        return self.broker.workers_url if self.broker else ""


class TopologyFile(Section):
    """The whole file."""

    cluster: str = key(NAME_TYPE)
    """the cluster's ident; nodes drop messages of other clusters"""
    data: str = key(text("a directory"), "var")
    """directory of all data, relative to the file; each node has a directory in it"""
    state_machine: str = key(ChoiceType("broadcast", "digest"), "broadcast")
    """what a node computes from the entries: a count and a hash (`digest`); `broadcast` also sends
    what a leader applies to the subscribers of its `broadcast_url`"""
    nodes: Mapping[str, NodeTopology] = key(
        NamedSectionsType(NodeTopology, "nodes", NODES_MAX, "use more clusters")
    )
    """the nodes by name; a node's name is its PEER ID"""
    security: SecuritySettings | None = key(SectionType(SecuritySettings), None)
    """encrypts the connections and allows only known keys; `{}`: with all defaults
    ([security](../security.md))"""
    limits: LimitSettings = key(SectionType(LimitSettings), LimitSettings())
    """what the clients of a process may use ([limits of
    connections](../security.md#limits-of-connections))"""
    raft: RaftSettings = key(SectionType(RaftSettings), RaftSettings())
    """consensus"""
    log: LogSettings = key(SectionType(LogSettings), LogSettings())
    """the log and its snapshots"""
    clients: ClientSettings = key(SectionType(ClientSettings), ClientSettings())
    """commands of `kelek` that use this topology"""
    zerodb: TableSettings = key(SectionType(TableSettings), TableSettings())
    """tables"""
    broker: BrokerSettings = key(SectionType(BrokerSettings), BrokerSettings())
    """brokers of services"""
    zre: ZreSettings = key(SectionType(ZreSettings), ZreSettings())
    """discovery of nodes"""
    farms: Mapping[str, FarmSettings] = key(NamedSectionsType(FarmSettings, "farms", FARMS_MAX), {})
    """the farms by name ([farms](../guides/farm.md))"""


class NodeAddresses(Section):
    """A member of the cluster."""

    url: str
    broadcast_url: str = ""
    peer_url: str = ""
    foreign_url: str = ""
    dialect: str = "kelek"


class WebSettings(Section):
    """What the process `web` of a node needs of the topology. Paths are absolute.

    key_file      "": it has no key
    server_keys   the public key of the server at each url of the topology; "": without CURVE
    logs          the directory of the logs of each node
    tables        where clients reach the tables of each node that has some
    brokers       where clients reach each broker
    """

    address: str
    key_file: str
    server_keys: Mapping[str, str]
    logs: Mapping[str, str]
    tables: Mapping[str, str]
    brokers: Mapping[str, str]


class NodeSettings(Section):
    """What the topology says for the actors of one node.

    node              the node's own addresses; a role that it lacks is None
    members           all nodes by name
    reserved_tables   only processes of the nodes write these
    store_urls        where the broker reaches the tables of its durable requests
    farm              None: the node serves no farm
    web               None: the node serves no page
    security          None: no endpoint has CURVE
    """

    node: NodeTopology
    members: Mapping[str, NodeAddresses] = field(default_factory=dict)
    state_machine: str = "broadcast"
    limits: LimitSettings = field(default_factory=LimitSettings)
    raft: RaftSettings = field(default_factory=RaftSettings)
    log: LogSettings = field(default_factory=LogSettings)
    zerodb: TableSettings = field(default_factory=TableSettings)
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    zre: ZreSettings = field(default_factory=ZreSettings)
    reserved_tables: tuple[int, ...] = ()
    store_urls: tuple[str, ...] = ()
    farm: FarmServerSettings | None = None
    web: WebSettings | None = None
    security: NodeSecurity | None = None

    @property
    def table_endpoints(self) -> TableEndpoints:
        """The node's own, for actors that only nodes with tables have."""
        assert self.node.zerodb is not None
        return self.node.zerodb

    @property
    def broker_endpoints(self) -> BrokerEndpoints:
        """The node's own, for the actor that only nodes with a broker have."""
        assert self.node.broker is not None
        return self.node.broker

    @property
    def node_zre(self) -> NodeZreSettings:
        """The node's own, for actors that only nodes with ZRE have."""
        assert self.node.zre is not None
        return self.node.zre
