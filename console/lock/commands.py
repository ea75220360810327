"""`kelek lock` and `kelek elect`: run a command while this process holds a lock, or leads."""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NamedTuple

import click

from ...clients.errors import LockLost
from ...clients.lock.limits import LIMIT_MAX, LOCK_TABLE, NAME_BYTES_MAX, TTL_S_MIN
from ...protocols.limits import TABLE_MAX
from ..cli_errors import FAILED, CliError
from ..options import OUTPUT, Seconds, ServerOptions, argument, command, option
from ..render import show_rows

if TYPE_CHECKING:  # The help needs no client.
    from ...clients.lock.lock import Election, Lock, Semaphore
    from ...clients.lock.slots import Holder

TTL_S_MAX = 86_400.0
SHELL_MISSING = 127  # As a shell reports a command that does not exist,
SHELL_SIGNAL = 128  # and, with its number added, the signal that ended it.
Handler = Callable[[int, FrameType | None], None]
NAME = argument(metavar="NAME")
COMMAND = argument(metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
LockOptions = Annotated[ServerOptions, {"output": OUTPUT}]


class HoldRequest(NamedTuple):
    """How a command holds something."""

    ttl_s: float = option(
        "--ttl",
        type=Seconds(TTL_S_MIN, TTL_S_MAX),
        metavar="SECONDS",
        default=10.0,
        show_default=True,
        help="Free so long after this process has died.",
    )
    owner: str | None = option(
        "--owner", metavar="TEXT", help="Name of this holder (default: host:process)."
    )
    grace_s: float = option(
        "--grace",
        type=Seconds(0, TTL_S_MAX),
        metavar="SECONDS",
        default=5.0,
        show_default=True,
        help="From SIGTERM to SIGKILL of COMMAND, once it is lost.",
    )
    table: int = option(
        "--table",
        type=click.IntRange(0, TABLE_MAX),
        metavar="TABLE",
        default=LOCK_TABLE,
        show_default=True,
        help="The table that holds it.",
    )


@command
def lock(
    options: LockOptions,
    request: HoldRequest,
    limit: int | None = option(
        "--limit",
        type=click.IntRange(1, LIMIT_MAX),
        metavar="N",
        help="A semaphore: so many may hold it at once.",
    ),
    wait_s: float | None = option(
        "--wait",
        type=Seconds(0, TTL_S_MAX),
        metavar="SECONDS",
        help="Give up after so long; 0: do not wait.",
    ),
    name: str = NAME,
    words: tuple[str, ...] = COMMAND,
) -> None:
    """Runs COMMAND while this process holds the lock NAME; without COMMAND, shows who has it.

    COMMAND finds the fencing token in $KELEK_TOKEN and the session in $KELEK_SESSION. When the lock
    is lost, COMMAND is ended. The exit code is COMMAND's; 1: the lock was not free, or was lost.
    """
    from ...clients.lock.lock import Lock, Semaphore

    runner = Runner(words, request.grace_s)
    with opened(options, request, name, runner, limit, elect=False) as held:
        assert isinstance(held, Lock | Semaphore)
        if not words:
            show_holders(options.output, held.holders())
            return
        if not held.acquire(wait_s):
            holders = ", ".join(each.name for each in held.holders() if not each.waits) or "another"
            raise CliError(f"{name}: not free, {holders} holds it; COMMAND was not run", FAILED)
        code = runner.run(held.token, held.session)
        held.release()
    raise click.exceptions.Exit(code)


@command
def elect(
    options: LockOptions,
    request: HoldRequest,
    name: str = NAME,
    words: tuple[str, ...] = COMMAND,
) -> None:
    """Runs COMMAND while this process leads the election NAME; without COMMAND, shows who leads.

    It waits until it leads, then runs COMMAND as `kelek lock` does. When it leads no more, COMMAND
    is ended, and this process waits again. The exit code is COMMAND's, once that ends by itself.
    """
    from ...clients.lock.lock import Election

    runner = Runner(words, request.grace_s)
    with opened(options, request, name, runner, None, elect=True) as held:
        assert isinstance(held, Election)
        if not words:
            show_holders(options.output, held.candidates(), "leads")
            return
        while True:
            runner.reset()
            held.campaign()
            try:
                code = runner.run(held.token, held.session)
                held.resign()
            except LockLost as error:
                click.echo(f"kelek: {error}; waiting again", err=True)
                continue
            break
    raise click.exceptions.Exit(code)


@contextmanager
def opened(
    options: ServerOptions,
    request: HoldRequest,
    name: str,
    runner: "Runner",
    limit: int | None,
    elect: bool,
) -> "Iterator[Lock | Semaphore | Election]":
    """The object of a command; its errors end the command with one line."""
    from ...clients.lock.lock import Election, Lock, Semaphore
    from ..table.target import reach, report_table_errors, resolve_tables

    if not 0 < len(name.encode()) <= NAME_BYTES_MAX:
        raise CliError(f"NAME: 1 to {NAME_BYTES_MAX} bytes")
    target = resolve_tables(options)
    settings = {
        "ttl_s": request.ttl_s,
        "owner": request.owner,
        "on_lost": runner.on_lost,
        "table": request.table,
        "timeout_ms": options.timeout_ms,
        **target.keys,
    }
    urls = target.urls.values()
    with report_table_errors(target, request.table):
        held: Lock | Semaphore | Election
        if elect:
            held = Election(urls, name, **settings)
        elif limit is None:
            held = Lock(urls, name, **settings)
        else:
            held = Semaphore(urls, name, limit, **settings)
        try:
            reach(held._table, options.timeout_ms)
            yield held
        finally:
            held.close()


def show_holders(output: str, holders: "Sequence[Holder]", verb: str = "holds") -> None:
    rows = [{"name": each.name, "waits": each.waits} for each in holders]
    if output == "text":
        for row in rows:
            row["waits"] = row["waits"] or verb
    show_rows(output, rows, ["name", "waits"], ["holder", "place"])


class Runner:
    """Runs a command, and ends it when what it needs is lost.

    words     the command and its arguments
    grace_s   from SIGTERM to SIGKILL
    """

    def __init__(self, words: Sequence[str], grace_s: float) -> None:
        self._words, self._grace_s = words, grace_s
        self._child: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []  # Signals that came before the command could get them.
        self._lost = threading.Event()

    def reset(self) -> None:
        """Before it is taken again."""
        self._lost.clear()
        self._early.clear()

    def on_lost(self) -> None:
        """Called by the thread that keeps it."""
        self._lost.set()
        self._signal(signal.SIGTERM)

    def run(self, token: int, session: int) -> int:
        """The exit code of the command, as a shell gives it. Raises CliError."""
        environment = {**os.environ, "KELEK_TOKEN": str(token), "KELEK_SESSION": str(session)}
        # A terminal sends SIGINT to both processes; who sends SIGTERM means this one.
        handlers: dict[int, Handler] = {
            signal.SIGTERM: self._pass_on,
            signal.SIGINT: lambda number, frame: None,
        }
        previous = {each: signal.signal(each, handler) for each, handler in handlers.items()}
        try:
            with subprocess.Popen(self._words, env=environment) as child:
                self._child = child
                while self._early:
                    child.send_signal(self._early.pop())
                code = self._wait(child)
        except OSError as error:
            text = f"{self._words[0]}: {error.strerror or error}"
            raise CliError(text, SHELL_MISSING) from error
        finally:
            self._child = None
            for each, handler in previous.items():
                signal.signal(each, handler)
        return code if code >= 0 else SHELL_SIGNAL - code

    def _wait(self, child: subprocess.Popen[bytes]) -> int:
        while True:
            try:
                return child.wait(0.5)
            except subprocess.TimeoutExpired:
                if self._lost.is_set():
                    break
        child.terminate()  # Also when it began after on_lost().
        try:
            return child.wait(self._grace_s)
        except subprocess.TimeoutExpired:
            child.kill()
            return child.wait()

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        self._signal(number)

    def _signal(self, number: int) -> None:
        child = self._child
        if child is None:
            self._early.append(number)
        else:
            child.send_signal(number)
