"""What a client has open, and the finalizer that closes it when the program does not.

The garbage collector may run in any thread, in the middle of any call, so nothing here waits.
"""

import _thread
import atexit
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from ...native.errors import fork_count

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop  # 40 ms of a start.

    import zmq  # Not every client has ZeroMQ's sockets.

    from .zmq_context import Context


class Closable(Protocol):
    """A socket of ZeroMQ or of Python."""

    def fileno(self) -> int: ...

    def close(self) -> None: ...


class Resources:
    """The sockets of one client, and the ZeroMQ context of those that need one.

    Nothing here refers to the client: its finalizer refers to this object, and would keep it alive.

    loop   the asyncio loop that watches the sockets, if one does
    """

    def __init__(self, loop: "AbstractEventLoop | None" = None) -> None:
        self.closed = False
        self._forks = fork_count()
        self._context: Context | None = None
        self._sockets: dict[Closable, None] = {}
        self._loop = None if loop is None else weakref.ref(loop)

    @property
    def inherited(self) -> bool:
        """Whether they belong to the process before a fork: libzmq would wait for ever here."""
        return self._forks != fork_count()

    @property
    def usable(self) -> bool:
        """Whether a finalizer may still use them: not at the interpreter's exit, which takes them
        apart in any order."""
        return not (self.closed or self.inherited or _exiting)

    def socket(self, kind: int) -> "zmq.Socket[bytes]":
        """A new socket of the client's context."""
        if self._context is None:
            from .zmq_context import Context

            self._context = Context()
        made = self._context.socket(kind)
        self.add(made)
        return made

    def add(self, socket: Closable) -> None:
        self._sockets[socket] = None

    def replace(self, old: Closable, new: Closable) -> None:
        """Another object has the socket from now on."""
        self._sockets.pop(old, None)
        self.add(new)

    def close_socket(self, socket: Closable) -> None:
        self._sockets.pop(socket, None)
        socket.close()

    def close(self) -> None:
        """Closes everything, and waits until messages that may linger have left."""
        self._close_sockets()
        if self._context is not None:
            self._context.term()

    def abandon(self) -> None:
        """Closes everything without waiting, from any thread; queued messages are dropped."""
        loop = None if self._loop is None else self._loop()
        if loop is not None and loop.is_running():
            with suppress(RuntimeError):  # The loop was closed just now.
                loop.call_soon_threadsafe(self._abandon)
                return
        self._abandon()

    def _abandon(self) -> None:
        if self.closed:
            return
        if self._context is not None:
            for socket in self._sockets:
                if isinstance(socket, self._context._socket_class):
                    socket.linger = 0
        self._close_sockets()
        if self._context is not None:
            # In a thread of its own: libzmq's thread may be looking up a host's name, and the end
            # of the context waits for it. When the system has no thread left, the context stays.
            with suppress(RuntimeError):
                _thread.start_new_thread(self._context.term, ())

    def _close_sockets(self) -> None:
        self.closed = True
        loop = None if self._loop is None else self._loop()
        watched = loop is not None and not loop.is_closed()
        while self._sockets:
            socket, _ = self._sockets.popitem()
            if watched and loop is not None:
                loop.remove_reader(socket.fileno())
                loop.remove_writer(socket.fileno())
            socket.close()


class Guard:
    """Ends what an object has open when the object is dropped, and warns that it was not closed.

    owner    the object; nothing else given here may refer to it
    closing  how the program should have closed it
    end      called without waiting for anything, in any thread
    """

    def __init__(self, owner: object, closing: str, end: Callable[[], object]) -> None:
        self._message = f"unclosed kelek.{type(owner).__name__}: use {closing}"
        self._end = end
        self._forks = fork_count()
        self._finalizer = weakref.finalize(owner, self._on_dropped)
        self._finalizer.atexit = False  # Other threads may still use the object.
        _guards.add(self)

    def release(self) -> None:
        """The program has closed the object."""
        self._finalizer.detach()
        _guards.discard(self)

    def _on_dropped(self) -> None:
        _guards.discard(self)
        if self._forks == fork_count():  # Else the process before the fork goes on with it.
            self._end()
            self.warn()

    def warn(self) -> None:
        if self._forks == fork_count():
            warnings.warn(self._message, ResourceWarning, stacklevel=2, source=self)


WITH = "`with`, or call close()"
ASYNC_WITH = "`async with`, or await aclose()"

_guards: set[Guard] = set()
_exiting = False


@atexit.register
def _warn_at_exit() -> None:
    """Names the objects that are still open. Their sockets end with the process."""
    global _exiting
    _exiting = True
    for guard in list(_guards):
        guard.warn()
