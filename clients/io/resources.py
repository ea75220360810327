"""The open sockets of a client, and the finalizer that closes them when the program does not.

The garbage collector may run in any thread, in the middle of any call, so it must not wait.
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

    import zmq  # Farm clients have no ZeroMQ sockets.

    from .zmq_context import Context


class Closable(Protocol):
    """A socket of ZeroMQ or of Python."""

    def fileno(self) -> int: ...

    def close(self) -> None: ...


class Resources:
    """The sockets of a client, and its ZeroMQ context.

    This object does not refer to the client: the client's finalizer refers to this object.

    loop       the asyncio loop that watches the sockets, if one does
    on_ready   the loop calls this method when a socket is ready
    """

    def __init__(
        self,
        loop: "AbstractEventLoop | None" = None,
        on_ready: Callable[[], object] | None = None,
    ) -> None:
        self.closed = False
        self._forks = fork_count()
        self._context: Context | None = None
        self.sockets: dict[Closable, None] = {}  # Open ones, in the order of their making.
        self._loop = None if loop is None else weakref.ref(loop)
        self._on_ready = None if on_ready is None else weakref.WeakMethod(on_ready)

    @property
    def inherited(self) -> bool:
        """Whether the sockets were made before a fork: libzmq would block forever on close."""
        return self._forks != fork_count()

    @property
    def usable(self) -> bool:
        """Whether a finalizer may use the sockets. At the interpreter's exit it may not: Python
        destroys objects in any order."""
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
        self.sockets[socket] = None

    def watch(self, socket: Closable, wants_write: bool = False) -> None:
        """Makes the loop report that a socket is readable, or has room to write."""
        loop = self._open_loop()
        on_ready = None if self._on_ready is None else self._on_ready()
        if loop is not None and on_ready is not None:
            loop.add_reader(socket.fileno(), on_ready)
            if wants_write:
                loop.add_writer(socket.fileno(), on_ready)
            else:
                loop.remove_writer(socket.fileno())

    def _open_loop(self) -> "AbstractEventLoop | None":
        loop = None if self._loop is None else self._loop()
        return None if loop is None or loop.is_closed() else loop

    def close_socket(self, socket: Closable) -> None:
        self.sockets.pop(socket, None)
        loop = self._open_loop()
        if loop is not None:
            loop.remove_reader(socket.fileno())
            loop.remove_writer(socket.fileno())
        socket.close()

    def close(self) -> None:
        """Closes all sockets, and waits until lingering messages were sent."""
        self._close_sockets()
        if self._context is not None:
            self._context.term()

    def abandon(self) -> None:
        """Closes all sockets without waiting, from any thread; queued messages are dropped."""
        loop = self._open_loop()
        if loop is not None and loop.is_running():
            with suppress(RuntimeError):  # The loop has just been closed.
                loop.call_soon_threadsafe(self._abandon)
                return
        self._abandon()

    def _abandon(self) -> None:
        if self.closed:
            return
        if self._context is not None:
            for socket in self.sockets:
                if isinstance(socket, self._context._socket_class):
                    socket.linger = 0
        self._close_sockets()
        if self._context is not None:
            # In a thread of its own: term() waits for libzmq's thread, which may be resolving a
            # host name. When the system has no thread left, the context stays open.
            with suppress(RuntimeError):
                _thread.start_new_thread(self._context.term, ())

    def _close_sockets(self) -> None:
        self.closed = True
        for socket in reversed(list(self.sockets)):
            self.close_socket(socket)


class Guard:
    """Closes an object's sockets when the object is garbage, and warns that it was not closed.

    owner    the object; no other argument may refer to it
    closing  how the program should have closed it, for the warning
    end      closes the sockets; must not wait, and may run in any thread
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
        if self._forks == fork_count():  # Otherwise the process before the fork still uses it.
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
