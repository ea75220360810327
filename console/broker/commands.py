"""The command `kelek call`."""

import sys
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import click

from ...clients.broker.body import Body
from ...clients.broker.broker import Broker
from ...clients.broker.operations import (
    BrokerTuning,
    checked_identity,
    checked_request_id,
)
from ...clients.errors import BrokerTimeout, BrokerUnavailable
from ...protocols.failover.limits import SLOW_REACH_MS
from ...protocols.majordomo import values
from ..cli_errors import FAILED, CliError
from ..options import DATA, OUTPUT, argument, command, option, timeout_option
from ..render import data_json, show_json
from ..targets import reach
from .target import (
    CLIENTS,
    CLIENTS_URL,
    TOPOLOGY,
    BrokerTarget,
    read_body,
    report_broker_errors,
    resolve_brokers,
)


class CallRequest(NamedTuple):
    topology: str | None = TOPOLOGY
    urls: tuple[str, ...] = CLIENTS
    timeout_ms: int = timeout_option("Timeout of the call.")
    identity: bytes | None = option("--identity", type=DATA, metavar="NAME",
                                    help="Name of this client: octets, as BODY.")  # fmt: skip
    request_id: bytes | None = option("--id", type=DATA, metavar="ID",
                                      help="Request id: a repeat joins the first "
                                           "request.")  # fmt: skip
    partials: bool = option("--partials", is_flag=True,
                            help="Print parts of the answer as they arrive.")  # fmt: skip
    output: str = OUTPUT
    service: str = argument()
    bodies: tuple[bytes, ...] = argument(metavar="[BODY]...", type=DATA, nargs=-1)


@command
def call(request: CallRequest) -> None:
    """Calls SERVICE, and prints its answer.

    BODY is UTF-8, or hexadecimal after 0x; `-` reads all of standard input. Each BODY is a frame.
    """
    name, timeout_ms = request.service, request.timeout_ms
    frames = read_body(name, request.bodies)
    identity, request_id = checked_ids(request)
    target = resolve_brokers(request.topology, request.urls, CLIENTS_URL)
    tuning = BrokerTuning(headers=target.headers)
    with (
        Broker(
            target.urls, timeout_ms=timeout_ms, identity=identity, tuning=tuning, **target.keys
        ) as broker,
        report_broker_errors(target, name),
    ):
        # Fail early when no broker is reachable.
        found = ask_broker(broker, target, name, timeout_ms)
        if found == values.MMI_NOT_FOUND and not name.encode().startswith(values.RESERVED):
            waits = f"no worker offers it now; waiting up to {timeout_ms / 1000:g} s for one"
            sys.stderr.write(f"kelek: {name}: {waits} (kelek broker services lists them)\n")
        left_out = 0
        with closing(broker.stream(name, frames, request_id=request_id)) as parts:
            for part in parts:
                if request.partials:
                    show_body(part, False, request.output)
                    sys.stdout.flush()
                else:
                    left_out += 1
            show_body(parts.result(), True, request.output)
    if left_out:
        sys.stderr.write(f"kelek: {name}: {left_out} parts are left out; show them: --partials\n")


def ask_broker(broker: Broker, target: BrokerTarget, service: str, timeout_ms: int) -> bytes:
    """The code of the broker's answer whether a service has workers. Raises CliError."""
    ask = partial(broker.call, "mmi.service", service)
    try:
        return reach(lambda within_ms: ask(timeout_ms=within_ms), timeout_ms).frames[0]
    except BrokerUnavailable:
        raise
    except BrokerTimeout as error:
        waited_ms = min(SLOW_REACH_MS, timeout_ms)
        raise CliError(
            f"{target.source}: no answer within {waited_ms / 1000:g} s; is it a broker's "
            "`clients_url`?",
            FAILED,
        ) from error


def checked_ids(request: CallRequest) -> tuple[bytes | None, bytes | None]:
    """The --identity and the --id. Raises CliError."""
    identity, request_id = request.identity, request.request_id
    if request_id is not None and identity is None:
        raise CliError("--id: it counts within an --identity; give one, too")
    try:
        return (
            None if identity is None else checked_identity(identity),
            None if request_id is None else checked_request_id(request_id),
        )
    except ValueError as error:
        raise CliError(str(error)) from error


def show_body(body: Body, final: bool, output: str) -> None:
    """Prints an answer, or a part of it."""
    if output == "json":
        found: dict[str, Any] = {"final": final}
        if len(body.frames) == 1:
            found |= data_json("body", body)
        else:
            found["frames"] = [data_json("body", frame) for frame in body.frames]
        show_json(found)
        return
    for frame in body.frames:
        if frame or not final:  # After parts the FINAL is often empty.
            click.echo(frame, nl=not frame.endswith(b"\n"))
