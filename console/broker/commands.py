"""The command `kelek call`."""

import sys
from contextlib import closing
from typing import Any

import click

from ...clients.broker.body import Body, frames_of
from ...clients.broker.broker import Broker
from ...clients.broker.operations import (
    BrokerTuning,
    checked_identity,
    checked_request_id,
    checked_service,
)
from ..cli_errors import CliError
from ..output import data_json, show_json, stdin
from .cli import CallRequest
from .target import CLIENTS_URL, report_broker_errors, resolve_brokers

REACH_MS = 2000


def call(request: CallRequest) -> None:
    """Calls a service and prints its answer."""
    name, timeout_ms = request.service, request.timeout_ms
    try:
        checked_service(name)
        frames = frames_of([stdin().read() if body == b"-" else body for body in request.bodies])
    except ValueError as error:
        raise CliError(f"SERVICE: {error}" if "service" in str(error) else str(error)) from error
    identity, request_id = checked_ids(request)
    target = resolve_brokers(request.topology, request.urls, CLIENTS_URL)
    tuning = BrokerTuning(headers=target.headers)
    with (
        Broker(target.urls, timeout_ms=timeout_ms, identity=identity, tuning=tuning) as broker,
        report_broker_errors(target, name),
    ):
        # Fail early when no broker is reachable.
        broker.call("mmi.service", name, timeout_ms=min(REACH_MS, timeout_ms))
        left_out = 0
        with closing(broker.stream(name, frames, request_id=request_id)) as parts:
            for part in parts:
                if request.partials:
                    show(part, False, request.output)
                    sys.stdout.flush()
                else:
                    left_out += 1
            show(parts.result(), True, request.output)
    if left_out:
        sys.stderr.write(f"kelek: {name}: {left_out} parts are left out; show them: --partials\n")


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


def show(body: Body, final: bool, output: str) -> None:
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
