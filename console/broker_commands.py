"""What `kelek call` and `kelek worker` do. They parse no command line."""

import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import click

from ..clients.body import Body, frames_of
from ..clients.broker import Broker
from ..clients.broker_steps import (
    BrokerTuning,
    checked_identity,
    checked_request_id,
    checked_service,
)
from ..clients.serving import Service, Worker, WorkerTuning, service
from .broker_doors import CLIENTS_URL, WORKERS_URL, find_brokers, in_one_line
from .endings import FAILED, Ending
from .output import show_json, stdin
from .places import Where
from .table_output import data_json

REACH_MS = 2000


def call(name: str, bodies: Sequence[bytes], output: str, options: Where) -> None:
    """Asks a service and prints what it answers."""
    try:
        checked_service(name)
        frames = frames_of([stdin().read() if one == b"-" else one for one in bodies])
    except ValueError as error:
        raise Ending(f"SERVICE: {error}" if "service" in str(error) else str(error)) from error
    identity, request_id = check_ids(options)
    doors = find_brokers(options, CLIENTS_URL)
    timeout_ms = int(options["timeout_s"] * 1000)
    tuning = BrokerTuning(headers=doors.headers)
    with (
        Broker(doors.urls, timeout_ms=timeout_ms, identity=identity, tuning=tuning) as broker,
        in_one_line(doors, name),
    ):
        # Nobody waits long for a broker that is not there at all.
        broker.call("mmi.service", name, timeout_ms=min(REACH_MS, timeout_ms))
        if not options["partials"]:
            show(broker.call(name, frames, request_id=request_id), True, output)
            return
        with closing(broker.stream(name, frames, request_id=request_id)) as parts:
            for part in parts:
                show(part, False, output)
                sys.stdout.flush()
            show(parts.result(), True, output)


def check_ids(options: Where) -> tuple[bytes | None, bytes | None]:
    """The identity and the id that were given. Raises Ending."""
    identity, request_id = options["identity"], options["request_id"]
    if request_id is not None and identity is None:
        raise Ending("--id: it counts within an --identity; give one, too")
    try:
        return (
            None if identity is None else checked_identity(identity),
            None if request_id is None else checked_request_id(request_id),
        )
    except ValueError as error:
        raise Ending(str(error)) from error


def show(body: Body, final: bool, output: str) -> None:
    """Prints one answer, or a part of it."""
    if output == "json":
        found: dict[str, Any] = {"final": final}
        if len(body.frames) == 1:
            found |= data_json("body", body)
        else:
            found["frames"] = [data_json("body", frame) for frame in body.frames]
        show_json(found)
        return
    for frame in body.frames:
        if frame or not final:  # Behind its parts an answer often has nothing more to say.
            click.echo(frame, nl=not frame.endswith(b"\n"))


def work(target: str, options: Where) -> None:
    """Serves until SIGTERM or an interrupt, and then to the end of what was begun."""
    offered = find_service(target, options)
    doors = find_brokers(options, WORKERS_URL)

    def begun() -> None:
        click.echo(f"serving service={offered.name} brokers={','.join(doors.urls)}")
        sys.stdout.flush()

    def failed(error: Exception) -> None:
        sys.stderr.write(f"kelek: {offered.name}: {type(error).__name__}: {error}\n")

    tuning = WorkerTuning(interval_ms=doors.interval_ms, headers=doors.headers)
    worker = Worker(offered, doors.urls, tuning=tuning, on_begun=begun, on_failure=failed)
    worker.run()
    counters = worker.counters
    answered, errors = counters.get("answered", 0), counters.get("failed", 0)
    click.echo(f"ended service={offered.name} answered={answered} failed={errors}")


def find_service(target: str, options: Where) -> Service[Any, Any]:
    """The service at MODULE:NAME, or the function there as a service of the name that is given."""
    module_name, colon, path = target.partition(":")
    if not colon or not module_name or not path:
        raise Ending(f"{target}: write MODULE:FUNCTION")
    # A module of the folder that somebody is in is meant: it is named on the command line.
    sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise Ending(f"{module_name}: {error}", FAILED) from error
    except SyntaxError as error:
        raise Ending(f"{error.filename}:{error.lineno}: {error.msg}", FAILED) from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise Ending(f"{target}: {module_name} has no {path}")
        found = getattr(found, part)
    name, concurrency, window = options["name"], options["concurrency"], options["window"]
    if isinstance(found, Service):
        name, concurrency = name or found.name, concurrency or found.concurrency
        window = window or max(found.window, concurrency)
        found = found.function
    elif not callable(found):
        raise Ending(f"{target}: it is no function")
    if not name:
        raise Ending(f"{target}: it is no @kelek.service; say with --name which one it is")
    try:
        return service(name, concurrency=concurrency or 1, window=window)(found)
    except ValueError as error:
        raise Ending(f"{target}: {error}") from error
