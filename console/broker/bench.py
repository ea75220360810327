"""The command `kelek broker bench`: measures a running broker.

It sends and receives by the batch. Its workers, unless a SERVICE is given, are a process of their
own (broker/echo.py). So the broker is the bottleneck.
"""

import json
import subprocess
import sys
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import count, islice
from typing import Any, NamedTuple, Self
from uuid import uuid4

import click
import zmq

from ...clients.broker.body import BODY_BYTES_MAX, BODY_FRAMES_MAX
from ...clients.broker.broker import Broker
from ...clients.broker.operations import BrokerTuning
from ...clients.errors import BrokerTimeout
from ...native.net.messages import Frames
from ...native.net.sockets import Drain, send_batch
from ...net.sockets import add_curve
from ...protocols.majordomo import values
from ...protocols.majordomo.codec import (
    Failure,
    Request,
    decode_failure,
    encode,
)
from ..cli_errors import FAILED, CliError
from ..client_keys import curve_of
from ..options import DATA, OUTPUT, argument, command, option, timeout_option
from ..render import per_second, percentiles_ms, progress_bar, show
from ..targets import reach
from .echo import HEAD_BYTES, EchoSetup
from .lists import fetch_rows
from .target import (
    CLIENTS,
    CLIENTS_URL,
    TOPOLOGY,
    WORKERS_URL,
    BrokerTarget,
    read_body,
    report_broker_errors,
    resolve_brokers,
)

ID = b"\xff" * 8
ID_FRAME = 3  # Its index in requests and answers.
POLL_S = 0.01
LINGER_S = 10.0  # Before the workers are killed.
OUTSTANDING_BYTES_MAX = 1 << 28


class Measurement(NamedTuple):
    """The results of a number of requests."""

    seconds: float
    times_ns: Sequence[int]  # Of each answer.
    failures: Counter[Failure]

    @property
    def rate(self) -> int:
        return per_second(len(self.times_ns), self.seconds)

    def percentiles(self, prefix: str = "") -> dict[str, float]:
        return percentiles_ms(self.times_ns, prefix, 1e-6)


class BenchLoad:
    """Sends the same request again and again, with a fixed number in flight."""

    def __init__(self, target: BrokerTarget, service: str, body: list[bytes]) -> None:
        # Encoded once; only the id changes.
        request = encode(Request(service.encode(), ID, body), values.Framing.TEXT, target.headers)
        self._head, self._body = request[:ID_FRAME], request[ID_FRAME + 1 :]
        self._ids = (number.to_bytes(8) for number in count(1))
        self._sent_ns: dict[bytes, int] = {}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        for limit in (zmq.SNDHWM, zmq.RCVHWM, zmq.LINGER):
            self._socket.setsockopt(limit, 0)  # The number in flight bounds both.
        url = target.urls[0]
        if (curve := curve_of(url, target.keys)) is not None:
            add_curve(self._socket, curve)
        self._socket.connect(url)
        self._drain = Drain(
            self._socket,
            message_bytes_max=BODY_BYTES_MAX + HEAD_BYTES,
            message_frames_max=2 * BODY_FRAMES_MAX,
        )
        self._requests = Frames()

    def run(
        self,
        number: int,
        outstanding: int,
        timeout_ms: int,
        on_done: Callable[[int], object] = lambda _: None,
    ) -> Measurement:
        """Raises BrokerTimeout: no answer for timeout_ms."""
        times, failures = array("Q"), Counter[Failure]()
        left = number
        began = time.monotonic()
        left -= self._send(min(left, outstanding))
        while len(times) < number:
            if not self._drain.more and not self._socket.poll(timeout_ms):
                unanswered = f"{len(self._sent_ns):,} of {number:,} requests are unanswered"
                raise BrokerTimeout(f"{unanswered}, and no answer for {timeout_ms / 1000:g} s")
            before = len(times)
            failures.update(self._receive(times))
            done = len(times) - before
            left -= self._send(min(left, done))
            on_done(len(times))
        return Measurement(time.monotonic() - began, times, failures)

    def _send(self, number: int) -> int:
        now_ns = time.monotonic_ns()
        for request_id in islice(self._ids, number):
            self._requests.add([*self._head, request_id, *self._body])
            self._sent_ns[request_id] = now_ns
        send_batch(self._socket, self._requests, "keep")
        return number

    def _receive(self, times: "array[int]") -> Iterator[Failure]:
        """Appends the time of each answer; yields failures."""
        arena = self._drain.receive()
        now_ns = time.monotonic_ns()
        for frames in arena.messages():
            # Without the codec, to keep the load on the broker.
            if len(frames) <= ID_FRAME or frames[1] != values.CLIENT_FINAL:
                continue  # A PARTIAL.
            sent_ns = self._sent_ns.pop(frames[ID_FRAME], None)
            if sent_ns is not None:
                times.append(now_ns - sent_ns)
                if failure := decode_failure(frames[ID_FRAME + 1 :]):
                    yield failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._context.term()


# ---- the command ----


class BenchRequest(NamedTuple):
    topology: str | None = TOPOLOGY
    urls: tuple[str, ...] = CLIENTS
    workers_url: str | None = option("--workers-url", metavar="URL",
                                     help="The broker's url for workers, with --url.")  # fmt: skip
    timeout_ms: int = timeout_option("Give up after this time without an answer.")
    requests: int = option("--count", type=click.IntRange(1, 100_000_000), default=100_000,
                           show_default=True, help="Number of requests.")  # fmt: skip
    outstanding: int = option("--outstanding", type=click.IntRange(1, 65_536), default=100,
                              show_default=True, help="Requests in flight.")  # fmt: skip
    alone: int = option("--alone", type=click.IntRange(0, 1_000_000), default=200,
                        show_default=True, help="Further requests, sent one at a "
                                                "time.")  # fmt: skip
    size: int = option("--size", type=click.IntRange(0, 64_000_000), default=64,
                       show_default=True, help="Size of a request in bytes, without "
                                               "BODY.")  # fmt: skip
    workers: int = option("--workers", type=click.IntRange(1, 1000), default=4, show_default=True,
                          help="Number of the bench's own workers.")  # fmt: skip
    window: int = option("--window", type=click.IntRange(1, values.WINDOW_MAX), default=32,
                         show_default=True, help="Window of each of them.")  # fmt: skip
    output: str = OUTPUT
    service: str | None = argument(required=False)
    bodies: tuple[bytes, ...] = argument(metavar="[BODY]...", type=DATA, nargs=-1)


@command
def bench(request: BenchRequest) -> None:
    """Measures throughput and latency of a running broker.

    The requests go to workers of this command, which return the body, or to workers of SERVICE,
    which has to do that much work. `python -m kelek.bench broker`, in a clone, measures more, with
    brokers of its own.
    """
    body = make_body(request)
    service = request.service or f"bench.{uuid4().hex[:12]}"
    target = resolve_brokers(request.topology, request.urls, CLIENTS_URL)
    workers_url = None if request.service else resolve_workers_url(request)
    url = target.urls[0]
    with (
        report_broker_errors(target, service),
        Broker(url, tuning=BrokerTuning(headers=target.headers), **target.keys) as broker,
    ):
        ask = partial(broker.call, "mmi.service", service)
        status = reach(lambda within_ms: ask(timeout_ms=within_ms), request.timeout_ms)
        workers: AbstractContextManager[None] = nullcontext()
        if workers_url is not None:
            header, counts = target.headers.worker.decode(), (request.workers, request.window)
            setup = EchoSetup(
                workers_url, service, *counts, header, target.interval_ms, **target.keys
            )
            workers = running_echo_workers(broker, setup, request.timeout_ms)
        elif status != values.MMI_FOUND:
            way_out = "start one: kelek worker run; or leave SERVICE out to use the bench's workers"
            raise CliError(f"{url}: service {service}: it has no worker; {way_out}", FAILED)
        with workers:
            figures = measure(BenchLoad(target, service, body), request)
    figures = {"broker": url, "service": service, "bytes": sum(map(len, body)), **figures}
    show_figures(figures, request.output)


def make_body(request: BenchRequest) -> list[bytes]:
    """The frames of a request. Raises CliError."""
    body = read_body(request.service, request.bodies)
    if not request.bodies:
        body = [b"." * request.size]
    size = request.outstanding * sum(map(len, body))
    if size > OUTSTANDING_BYTES_MAX:
        problem = f"{size:,} bytes would be outstanding, at most {OUTSTANDING_BYTES_MAX:,} may be"
        raise CliError(f"{problem}; take fewer or smaller ones: --outstanding, --size")
    return body


def resolve_workers_url(request: BenchRequest) -> str:
    """The broker's url for the bench's workers. Raises CliError."""
    if request.workers_url:
        return resolve_brokers(None, (request.workers_url,), WORKERS_URL).urls[0]
    if request.urls:
        way_out = "give it with --workers-url, or a SERVICE whose workers run"
        raise CliError(
            f"--url: the bench's own workers need the broker's url for workers; {way_out}"
        )
    return resolve_brokers(request.topology, (), WORKERS_URL).urls[0]


@contextmanager
def running_echo_workers(broker: Broker, setup: EchoSetup, timeout_ms: int) -> Iterator[None]:
    """Runs workers, until the broker knows all. Raises CliError."""
    command = [sys.executable, "-P", "-m", f"{__package__}.echo"]
    with subprocess.Popen(
        [*command, json.dumps(setup._asdict())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        # So that a terminal's interrupt reaches only the command, which ends them.
        start_new_session=True,
    ) as workers:
        try:
            wait_for_workers(broker, setup, workers, timeout_ms)
            yield
        finally:
            assert workers.stdin is not None
            workers.stdin.close()
            try:
                workers.wait(LINGER_S)
            except subprocess.TimeoutExpired:
                workers.kill()


def wait_for_workers(
    broker: Broker, setup: EchoSetup, workers: "subprocess.Popen[bytes]", timeout_ms: int
) -> None:
    """Waits until the broker knows all workers. Raises CliError."""
    until = time.monotonic() + timeout_ms / 1000
    while True:
        rows = fetch_rows(broker, values.OWN_SERVICES, "name")
        known = sum(row["workers"] for row in rows if row["name"] == setup.service)
        if known == setup.workers:
            return
        if time.monotonic() > until or workers.poll() is not None:
            problem = f"{known} of {setup.workers} workers are known to the broker"
            raise CliError(f"{setup.url}: {problem}; is this its url for workers?", FAILED)
        time.sleep(POLL_S)


def measure(load: BenchLoad, request: BenchRequest) -> dict[str, Any]:
    """First many requests in flight, then one at a time."""
    number, outstanding, alone = request.requests, request.outstanding, request.alone
    timeout_ms = request.timeout_ms
    with load, progress_bar("measuring", number) as on_done:
        load.run(outstanding, outstanding, timeout_ms)  # All workers are awake.
        many = load.run(number, outstanding, timeout_ms, on_done)
        lone = load.run(alone, 1, timeout_ms)
    failures = many.failures + lone.failures
    figures: dict[str, Any] = {
        "requests": number,
        "outstanding": outstanding,
        "requests_per_s": many.rate,
        **many.percentiles(),
    }
    if alone:
        figures |= {"alone": alone, **lone.percentiles("alone_")}
    return {**figures, "failed": failures.total(), "failures": failures.most_common(1)}


def show_figures(figures: dict[str, Any], output: str) -> None:
    """Shows the figures. Raises CliError: requests have failed."""
    failures = figures.pop("failures")
    line = (
        "pipelined  {requests:,} x {bytes} B, {outstanding} at a time  {requests_per_s:>10,} "
        "requests/s  p50 {p50_ms} ms  p99 {p99_ms} ms"
    )
    if "alone" in figures:
        line += "\nalone      {alone:,} x {bytes} B  p50 {alone_p50_ms} ms  p99 {alone_p99_ms} ms"
    show(output, figures, line.format(**figures))
    for failure, _ in failures:
        way_out = "; take fewer --outstanding" if failure.code == values.BUSY else ""
        problem = f"{figures['failed']:,} requests have failed: {failure.code} {failure.message}"
        raise CliError(
            f"{figures['broker']}: service {figures['service']}: {problem}{way_out}", FAILED
        )
