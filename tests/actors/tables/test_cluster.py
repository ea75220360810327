"""A cluster with keys: what no grant allows has no effect, and owners hold on all nodes."""

import contextlib
import time
from collections.abc import Iterator
from functools import partial

import pytest
import zmq

from kelek.net.sockets import CurveClient
from kelek.protocols.access.certificates import Certificate
from kelek.protocols.zerodb.wire import answers, ops, requests, values
from kelek.protocols.zerodb.wire.kept import decode_kept, kept_key
from kelek.protocols.zerodb.wire.requests import LAYOUTS, Request, encode_request, type_of
from kelek.protocols.zerodb.wire.values import FULLSYNC, NOT_ALLOWED, Extension
from kelek.tests.secure_cluster import SecureCluster, new_key

TABLE, OTHER = 7, 8
ANSWER_MS = 60_000
REVOKED_S = 3.0  # A second on a quiet machine: keys are checked twice a second.
GRANTS = {
    "ann": f"tables:{TABLE}:rw jobs observer",
    "bob": f"tables:{TABLE}-{OTHER}:rw jobs",
    "reader": f"tables:{TABLE}:r",
    "writer": f"tables:{OTHER}:rw",
    "olga": "observer",
    "watcher": f"tables:{TABLE}:r",
    "gone": f"tables:{TABLE}:rw jobs",
    "lists": f"tables:{values.SNAPSHOT_TABLE}:rw",
}
KEYS = {name: new_key(name) for name in GRANTS}
PUT = ops.Put(TABLE, [b"k"], [b"bad"])
SESSION = 1 << 40
REQUESTS: list[Request] = [
    requests.OpenTable(TABLE),
    requests.CloseTable(TABLE),
    requests.CompactTable(TABLE),
    requests.TruncateTable(TABLE),
    requests.Read(TABLE, [b"k"]),
    requests.Count(TABLE),
    requests.Exists(TABLE, [b"k"]),
    requests.Lifetimes(TABLE, [b"k"]),
    requests.Scan(TABLE),
    requests.Put(TABLE, [b"k"], [b"bad"]),
    requests.Delete(TABLE, [b"k"]),
    requests.DeleteRange(TABLE, b"", b""),
    requests.DeleteLimited(TABLE, b"", 9),
    requests.WriteTables([PUT]),
    requests.Transaction([], [PUT], []),
    requests.Session(requests.SESSION_OPEN, 0, 1000),
    requests.BulkLoad(TABLE, bytes(16), requests.LOAD_CHUNK, data=b"\0"),
    requests.BulkLoad(TABLE, bytes(16), requests.LOAD_COMMIT, replaces=True),
    requests.SplitPoints(TABLE, 2),
    requests.TableInfo(TABLE),
    requests.TableInfo(),
    requests.Watch(TABLE, b"", b"", 0),
    requests.ForwardRange(TABLE, b"", b"", 9),
    requests.MapTable(TABLE, TABLE, 1, [], b"mapper"),
    requests.RangeJob(TABLE),
    requests.CopyTable(OTHER, TABLE),
    requests.JobStatus(1),
    requests.ListJobs(False, 9),
    requests.EndJob(1),
    requests.ClientData(1),
    requests.Lease(0, requests.LEASE_OPEN, TABLE),
    requests.Lease(values.shared_lease(5), requests.SNAPSHOT_KEEP, TABLE, ttl_ms=1000),
]
# What a key may send though it may not use the table.
ALLOWED: dict[str, set[type[Request]]] = {
    "reader": {
        requests.Read, requests.Count, requests.Exists, requests.Scan, requests.SplitPoints,
        requests.Watch, requests.Lifetimes,
    },
    "writer": {requests.Session},
    "olga": {requests.JobStatus, requests.ListJobs},
}  # fmt: skip


class KeyedSocket:
    """A DEALER or PUSH with a key, at one endpoint."""

    def __init__(
        self, cluster: SecureCluster, own: Certificate, endpoint: str, kind: int = zmq.DEALER
    ) -> None:
        node = endpoint.partition(".")[0]
        curve = CurveClient(cluster.node_keys[node].public_key, own.public_key, own.secret_key)
        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDTIMEO, ANSWER_MS)
        self.socket.setsockopt(zmq.CURVE_SERVERKEY, curve.server_key)
        self.socket.setsockopt(zmq.CURVE_PUBLICKEY, curve.public_key)
        self.socket.setsockopt(zmq.CURVE_SECRETKEY, curve.secret_key)
        self.socket.connect(cluster.urls[endpoint])

    def send(self, request: Request) -> None:
        self.socket.send_multipart(encode_request(request))

    def receive(self) -> answers.Answer:
        assert self.socket.poll(ANSWER_MS)
        return answers.decode_answer(self.socket.recv_multipart())

    def ask(self, request: Request) -> answers.Answer:
        self.send(request)
        return self.receive()


class KeyedCluster(SecureCluster):
    """The cluster, with sockets for its keys."""

    def __init__(self) -> None:
        super().__init__("zerodb: {job_idle_s: 60}\n")
        self.sockets: dict[tuple[str, str], KeyedSocket] = {}

    def socket(self, name: str, endpoint: str, kind: int = zmq.DEALER) -> KeyedSocket:
        """The same one for each call."""
        if (name, endpoint) not in self.sockets:
            self.sockets[name, endpoint] = KeyedSocket(self, KEYS[name], endpoint, kind)
        return self.sockets[name, endpoint]

    def ask(self, name: str, request: Request, endpoint: str = "n1.zerodb.url") -> answers.Answer:
        return self.socket(name, endpoint).ask(request)

    def state(self, apid: int) -> str:
        answer = self.ask("olga", requests.JobStatus(apid))
        return str(answers.STATUS.decode(answer)["state"])

    def value(self) -> list[bytes]:
        return list(self.ask("ann", requests.Read(TABLE, [b"k"])).frames)


@pytest.fixture(scope="module")
def cluster() -> Iterator[KeyedCluster]:
    running = KeyedCluster()
    try:
        for name, grants in GRANTS.items():
            running.allow(name, grants, KEYS[name])
        running.start()
        put = requests.Put(TABLE, [b"k"], [b"good"], FULLSYNC)
        running.wait(lambda: not running.ask("ann", put).failed)
        yield running
    finally:
        for each in running.sockets.values():
            each.socket.close()
        running.stop()


def test_the_cases_are_all_requests() -> None:
    types = {type_of(request) for request in REQUESTS} | {values.SERVER_INFO}
    assert types == {layout.kind for layout in LAYOUTS}


@pytest.mark.parametrize("endpoint", ["n1.zerodb.url", "n2.zerodb.url"])
@pytest.mark.parametrize("name", ["reader", "writer", "olga"])
def test_what_no_grant_allows_is_refused(cluster: KeyedCluster, name: str, endpoint: str) -> None:
    info = cluster.ask("ann", requests.TableInfo(TABLE, True))
    content = answers.TABLE_INFO.decode(info)[TABLE]["content"]
    for request in REQUESTS:
        answer = cluster.ask(name, request, endpoint)
        named = {"olga": requests.TableInfo(), "reader": requests.TableInfo(TABLE)}.get(name)
        if type(request) in ALLOWED[name] or request == named:
            assert answer.code != NOT_ALLOWED, request
        elif isinstance(request, requests.ClientData):
            assert answer.request_type == values.PROTOCOL_ERROR
        else:
            assert (answer.request_type, answer.code) == (type_of(request), NOT_ALLOWED), request
    assert cluster.value() == [b"good"]
    info = cluster.ask("ann", requests.TableInfo(TABLE, True))
    assert answers.TABLE_INFO.decode(info)[TABLE]["content"] == content


def test_jobs_are_refused_at_their_own_endpoint(cluster: KeyedCluster) -> None:
    jobs = [request for request in REQUESTS if type_of(request) in values.JOB_TYPES]
    for request in jobs:
        answer = cluster.ask("olga", request, "n1.zerodb.jobs_url")
        if type(request) not in ALLOWED["olga"]:
            assert answer.code == NOT_ALLOWED or answer.request_type == values.PROTOCOL_ERROR
    assert cluster.ask("bob", requests.ListJobs(False, 9), "n1.zerodb.jobs_url").code == 0


def test_one_way_writes_without_a_grant_have_no_effect(cluster: KeyedCluster) -> None:
    one_way = cluster.socket("writer", "n1.zerodb.pull_url", zmq.PUSH)
    for _ in range(3):
        one_way.send(requests.Put(TABLE, [b"k"], [b"bad"]))
    one_way.send(requests.Put(OTHER, [b"by"], [b"writer"]))
    read = requests.Read(OTHER, [b"by"])
    cluster.wait(lambda: list(cluster.ask("writer", read).frames) == [b"writer"])
    assert cluster.value() == [b"good"]


def test_batches_and_transactions_need_a_grant_for_each_table(cluster: KeyedCluster) -> None:
    both: list[ops.Op] = [PUT._replace(values=[b"good"]), ops.Put(OTHER, [b"k"], [b"v"])]
    requests_: list[Request] = [
        requests.WriteTables(both, FULLSYNC),
        requests.Transaction([], both, [], FULLSYNC),
    ]
    for request in requests_:
        assert cluster.ask("bob", request).code == 0
        for name in ("ann", "writer", "reader"):
            assert cluster.ask(name, request).code == NOT_ALLOWED


def test_a_session_belongs_to_its_key_on_all_nodes(cluster: KeyedCluster) -> None:
    opening = requests.Session(requests.SESSION_OPEN, 0, 60_000)
    answer = cluster.ask("ann", opening)
    assert answer.code == 0
    session = int.from_bytes(answer.frames[0], "little")
    under_it = Extension(lease=session)
    uses: list[Request] = [
        requests.Session(requests.SESSION_KEEP, session),
        requests.Session(requests.SESSION_END, session),
        requests.Put(TABLE, [b"lock"], [b"bob"], FULLSYNC, under_it),
    ]
    for node in ("n1", "n2", "n3"):
        for use in uses:
            assert cluster.ask("bob", use, f"{node}.zerodb.url").code == NOT_ALLOWED
    assert cluster.ask("ann", uses[0], "n3.zerodb.url").frames == [session.to_bytes(8, "little")]
    assert cluster.ask("ann", uses[1], "n2.zerodb.url").code == 0


def test_a_job_belongs_to_its_key(cluster: KeyedCluster) -> None:
    apid, _ = answers.JOB.decode(cluster.ask("ann", requests.RangeJob(TABLE)))
    for endpoint in ("n1.zerodb.url", "n1.zerodb.jobs_url"):
        for request in (requests.JobStatus(apid), requests.EndJob(apid)):
            assert cluster.ask("bob", request, endpoint).code == NOT_ALLOWED
        chunk = cluster.ask("bob", requests.ClientData(apid), endpoint)
        assert chunk.request_type == values.PROTOCOL_ERROR
    assert cluster.ask("ann", requests.EndJob(apid), "n1.zerodb.jobs_url").code == 0


def test_a_lease_of_all_nodes_belongs_to_its_key(cluster: KeyedCluster) -> None:
    opened = cluster.ask("ann", requests.Lease(0, requests.LEASE_OPEN, TABLE))
    lease = answers.LEASE.decode(opened).lease
    release = requests.Lease(lease, requests.LEASE_RELEASE)
    use = requests.RangeJob(TABLE, extension=Extension(flags=values.WITH_LEASE, lease=lease))

    def is_known(node: str) -> bool:
        """Whether the node knows the snapshot and its owner."""
        endpoint = f"{node}.zerodb.url"
        refused = cluster.ask("bob", release, endpoint).code == NOT_ALLOWED
        return refused and not cluster.ask("ann", use, endpoint).failed

    for node in ("n1", "n2", "n3"):
        cluster.wait(partial(is_known, node))
        assert cluster.ask("bob", use, f"{node}.zerodb.url").code == NOT_ALLOWED
    assert cluster.ask("ann", release, "n2.zerodb.url").code == 0


def test_a_kept_snapshot_is_for_all_keys_that_may_read_its_table(cluster: KeyedCluster) -> None:
    opened = cluster.ask("ann", requests.Lease(0, requests.LEASE_OPEN, TABLE))
    lease = answers.LEASE.decode(opened).lease
    keep = requests.Lease(lease, requests.SNAPSHOT_KEEP, TABLE, ttl_ms=600_000, name="ours")
    end = keep._replace(ttl_ms=0, name="")
    use = requests.RangeJob(TABLE, extension=Extension(flags=values.WITH_LEASE, lease=lease))
    cluster.wait(lambda: cluster.ask("bob", keep).code == NOT_ALLOWED)  # Its owner is known.
    row = answers.KEPT.decode(cluster.ask("ann", keep))
    (kept,) = decode_kept([(kept_key(TABLE, lease), row)])
    assert (kept.owner, kept.name) == ("ann", "ours")

    def may_use(endpoint: str) -> bool:
        return not cluster.ask("bob", use, endpoint).failed

    for node in ("n1", "n2", "n3"):
        endpoint = f"{node}.zerodb.url"
        cluster.wait(partial(may_use, endpoint))
        other = use._replace(table=OTHER)
        for request in (other, keep, end, requests.Lease(lease, requests.LEASE_RENEW)):
            assert cluster.ask("bob", request, endpoint).code == NOT_ALLOWED, request
        rows = requests.Read(values.SNAPSHOT_TABLE, [kept_key(TABLE, lease)])
        assert cluster.ask("lists", rows, endpoint).frames == [row]
        assert cluster.ask("bob", rows, endpoint).code == NOT_ALLOWED
        write = requests.Delete(values.SNAPSHOT_TABLE, rows.keys, FULLSYNC)
        assert "is reserved" in cluster.ask("lists", write, endpoint).text
    assert cluster.ask("ann", end, "n2.zerodb.url").code == 0
    assert cluster.ask("lists", rows).frames == [b""]
    cluster.wait(lambda: cluster.ask("bob", use).code != 0)


def test_a_job_ends_without_the_grant_for_its_table(cluster: KeyedCluster) -> None:
    apid, _ = answers.JOB.decode(cluster.ask("bob", requests.RangeJob(TABLE)))
    other, _ = answers.JOB.decode(cluster.ask("bob", requests.RangeJob(OTHER)))
    cluster.allow("bob", f"tables:{OTHER}:rw jobs", KEYS["bob"])
    cluster.wait(lambda: cluster.state(apid) == "cancelled")
    assert cluster.state(other) == "running"
    read = requests.Read(TABLE, [b"k"])  # job_server and zerodb_server check the keys in turn.
    cluster.wait(lambda: cluster.ask("bob", read).code == NOT_ALLOWED)
    assert cluster.ask("bob", requests.Read(OTHER, [b"k"])).code == 0


def test_the_watch_of_a_revoked_key_ends(cluster: KeyedCluster) -> None:
    watcher = cluster.socket("watcher", "n1.zerodb.url")
    begin = watcher.ask(requests.Watch(TABLE, b"", b"", 0))
    index = answers.WATCH.decode(begin)[0]
    watch = requests.Watch(TABLE, b"", b"", index)
    watcher.send(watch)
    cluster.revoke("watcher")
    until_s = time.monotonic() + REVOKED_S
    while watcher.socket.poll(max(0, int(1000 * (until_s - time.monotonic())))):
        answer = watcher.receive()
        if answer.code == NOT_ALLOWED:
            break
        assert answers.WATCH.decode(answer)[1] == []
        watcher.send(watch)
    else:
        assert "key-revoked name=watcher" in cluster.log()  # Its connection is closed.
    put = requests.Put(TABLE, [b"secret"], [b"v"], FULLSYNC)
    assert cluster.ask("ann", put).code == 0
    with contextlib.suppress(zmq.Again):  # libzmq has no connection after a refusal.
        watcher.socket.send_multipart(encode_request(watch), zmq.DONTWAIT)
    assert not watcher.socket.poll(1500)


def test_what_a_revoked_key_has_ends_within_a_second(cluster: KeyedCluster) -> None:
    opening = requests.Session(requests.SESSION_OPEN, 0, 3_600_000)
    session = int.from_bytes(cluster.ask("gone", opening).frames[0], "little")
    held = Extension(lease=session)
    assert cluster.ask("gone", requests.Put(TABLE, [b"lock"], [b"x"], FULLSYNC, held)).code == 0
    apid, _ = answers.JOB.decode(cluster.ask("gone", requests.RangeJob(TABLE)))
    cluster.revoke("gone")
    begin_s = time.monotonic()
    lock = requests.Exists(TABLE, [b"lock"])
    cluster.wait(lambda: list(cluster.ask("ann", lock).frames) == [b"\0"])
    cluster.wait(lambda: cluster.state(apid) == "cancelled")
    assert time.monotonic() - begin_s < REVOKED_S
