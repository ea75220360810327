"""Receives and sends batches of whole messages, in C on sockets of pyzmq."""

import errno
import os
import sys
import weakref
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..._native import ffi, lib
from ..errors import fork_count, os_error
from .connections import Connections
from .guard import AllowedKeys, MessageGuard
from .messages import BYTES_MAX, FRAMES_MAX, Arena, Frames, doubled_size

if TYPE_CHECKING:
    import zmq

_RECEIVES_BEFORE_SHRINK = 256
_DENIED_BYTES, _DENIED_FRAMES = 1 << 16, 1 << 10  # Of one receive(); more are not answered.
_ROUTER, _PULL = 6, 7  # zmq.ROUTER, zmq.PULL
_KEEP, _DROP, _BUNDLED = lib.KLK_KEEP, lib.KLK_DROP, lib.KLK_BUNDLED
_MORE, _ESPACE = lib.KLK_MORE, lib.KLK_ESPACE


class _OpenSocket:
    """A pyzmq socket; check() refuses a closed one and one from before a fork."""

    __slots__ = ("_forks", "pointer", "socket")

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        # An asyncio socket relies on an edge of its descriptor, which our receive would consume.
        if hasattr(socket, "_shadow_sock"):
            raise TypeError("an asyncio socket can't be drained: give its plain zmq.Socket")
        bind_libzmq()
        self.socket = socket
        self.pointer = ffi.cast("void *", socket.underlying)
        self._forks = fork_count()

    def check(self) -> None:
        if self.socket.closed or self._forks != fork_count():
            self.refuse(self._forks)

    @staticmethod
    def refuse(made: int) -> None:
        if made != fork_count():
            raise OSError(errno.ENOTSOCK, "this socket belongs to the process before the fork")
        raise OSError(errno.ENOTSOCK, "this socket is closed")


def libzmq_paths() -> Iterator[str]:
    """Where libzmq of this process's pyzmq may be: its extension, the memory map, its package.

    The extension has the symbols of the library that it is linked to, static or not.
    """
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None) or ""
        if name.startswith("zmq.backend.") and not path.endswith((".py", ".pyc")):
            yield path
    maps = Path("/proc/self/maps")
    if maps.exists():
        for line in maps.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            if "libzmq" in line:
                yield line.split(maxsplit=5)[-1]
    package = Path(getattr(sys.modules["zmq"], "__file__", None) or "").parent
    for folder in (package / ".dylibs", package.parent / "pyzmq.libs"):
        yield from map(str, sorted(folder.glob("libzmq*")))


@cache
def bind_libzmq() -> None:
    """Finds libzmq's functions for C; the first socket needs them.

    Raises ImportError if no libzmq in this process is pyzmq's own.
    """
    major, minor, patch = sys.modules["zmq"].zmq_version_info()
    version = ffi.new("int *")
    for path in libzmq_paths():
        bound = lib.klk_sockets_bind(os.fsencode(path), version) == lib.KLK_OK
        if bound and version[0] == major * 10000 + minor * 100 + patch:
            return
    raise ImportError(
        f"pyzmq {sys.modules['zmq'].__version__}: its libzmq {major}.{minor}.{patch} was not found "
        "in this process, and kelek reads and writes sockets by it; install pyzmq's own wheel: "
        "pip install --force-reinstall --only-binary pyzmq pyzmq"
    )


class Drain:
    """Receives everything that waits on a socket, whole messages only.

    Messages over message_bytes_max (all frames together) or message_frames_max are dropped and
    counted in `dropped`. `more`: receive() ended early, call it again before polling. With
    `addressed` each message has the address of its connection as second frame, empty if libzmq
    knows none. With `keys` the arena has the slot of each sender's key, and messages of keys that
    are no longer allowed are dropped. With `guard` messages that a key may not send are in `denied`
    until the next receive(): their first frames alone, for the answer. With `audit` the arena has
    the addresses of administrative commands (Arena.address), and `denied` those of all messages.
    `connections` counts what it receives of each connection. With `opens_bundles` it opens bundles
    (docs/protocols/majordomo.md): the arena has their messages, and except on a PULL tells which
    these are.
    """

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        *,
        message_bytes_max: int,
        message_frames_max: int = 1 << 16,
        arena_bytes: int = 1 << 22,
        frames: int = 1 << 14,
        addressed: bool = False,
        keys: AllowedKeys | None = None,
        guard: MessageGuard | None = None,
        audit: MessageGuard | None = None,
        connections: Connections | None = None,
        opens_bundles: bool = False,
    ) -> None:
        if not (0 < message_bytes_max <= BYTES_MAX and 0 < message_frames_max <= FRAMES_MAX):
            raise ValueError(f"messages of {message_bytes_max} bytes, {message_frames_max} frames")
        self.more = False
        self._open = _OpenSocket(socket)
        self._arena_bytes, self._frames = arena_bytes, frames
        self._quiet, self._large = 0, False
        has_bundles = opens_bundles and socket.type != _PULL
        self._arena = Arena(arena_bytes, frames, keys is not None, has_bundles)
        self._access = keys, guard, audit, connections  # C refers to their memory.
        self.denied = Arena(_DENIED_BYTES, _DENIED_FRAMES, has_slots=True)
        self._drain = ffi.new("struct klk_drain *")
        self._drain.message_bytes_max = message_bytes_max
        self._drain.message_frames_max = message_frames_max
        self._drain.arena = self._arena._struct
        self._drain.addressed = addressed
        if opens_bundles:
            self._drain.bundles = 1 + (socket.type == _ROUTER)  # A bundle follows the routing id.
        if keys is not None:
            self._drain.keys = self._arena._struct.keys = keys.state
        self.is_guarded = guard is not None
        if guard is not None:
            self._drain.guard, self._drain.denied = guard.state, self.denied._struct
        if audit is not None:
            self._drain.audit = audit.state
            self._arena.keep_senders()
            self.denied.keep_senders()
        counted = None if connections is None else connections.frame_bytes(socket)
        if connections is not None and counted is not None:
            self._drain.connections = connections.state
            self._drain.frame_bytes, self._drain.routed = counted, socket.type == _ROUTER
        if lib.klk_drain_open(self._drain) != lib.KLK_OK:
            raise os_error("zmq_msg_init")
        self._drain = ffi.gc(self._drain, lib.klk_drain_close)

    @property
    def dropped(self) -> int:
        """Messages over a limit that were dropped."""
        return int(self._drain.dropped)

    @property
    def bundles(self) -> int:
        """Bundles that were opened."""
        return int(self._drain.bundles_opened)

    @property
    def arena(self) -> Arena:
        """The arena that receive() returns."""
        return self._arena

    @property
    def is_grown(self) -> bool:
        """Whether the arena is larger than configured, after a large message."""
        arena = self._arena._struct
        return bool(arena.bytes_max > self._arena_bytes or arena.frames_max > self._frames)

    def clear_denied(self) -> None:
        """Empties `denied` before the next receive()."""
        self.denied._clear()

    def receive(self) -> Arena:
        """Receives what waits, up to the size of the arena, without blocking.

        Returns the drain's arena, which may hold no message. Raises OSError with libzmq's
        errno; ENOTSOCK on a closed socket and in a process forked from the socket's own.
        """
        self._open.check()
        if self._large:
            self._shrink()
        result = lib.klk_drain_receive(self._drain, self._open.pointer, 1)
        if result:
            self._on_received(result)
        else:
            self.more = False
        return self._arena

    def _on_received(self, result: int) -> None:
        """Continues after the result of the first call in C."""
        while result == _ESPACE:
            self._grow(self._drain.bytes_need, self._drain.frames_need)
            result = lib.klk_drain_receive(self._drain, self._open.pointer, 0)
        if result < 0:
            raise os_error("zmq_msg_recv")
        self.more = result == _MORE

    def _grow(self, bytes_need: int, frames_need: int) -> None:
        """Enlarges the arena for one message."""
        arena, drain = self._arena._struct, self._drain
        self._arena._grow(
            doubled_size(arena.bytes_max, bytes_need, drain.message_bytes_max),
            doubled_size(arena.frames_max, frames_need, drain.message_frames_max),
        )
        self._quiet, self._large = 0, self.is_grown

    def _shrink(self) -> None:
        """Returns the memory of a large message after a while without another one."""
        arena = self._arena._struct
        self._quiet += 1
        growing = arena.frames - self._arena._firsts[arena.messages]
        if self._quiet > _RECEIVES_BEFORE_SHRINK and not growing:
            self._arena._clear()
            self._arena._allocate(self._arena_bytes, self._frames)
            self._arena._offsets[0] = self._arena._firsts[0] = 0
            self._large = False


class DrainedSocket(NamedTuple):
    """A socket in a poller, and its drain."""

    socket: "zmq.Socket[bytes]"
    drain: Drain


_opened: "weakref.WeakKeyDictionary[zmq.Socket[bytes], tuple[Any, int]]"
_opened = weakref.WeakKeyDictionary()  # libzmq's own socket, and the fork count at that time.


def native_socket(socket: "zmq.Socket[bytes]") -> Any:
    """libzmq's own socket, for C. Raises OSError: closed, or made before a fork."""
    found = _opened.get(socket)
    if found is None:
        made = _OpenSocket(socket)
        found = _opened[socket] = made.pointer, fork_count()
    if found[1] != fork_count() or socket.closed:
        _OpenSocket.refuse(found[1])
    return found[0]


def send_batch(
    socket: "zmq.Socket[bytes]",
    frames: Frames,
    mode: Literal["drop", "keep"] = "drop",
    bundled: bool = False,
) -> int:
    """Sends the unsent messages of frames, whole and without blocking; returns how many it sent.

    A message to an unknown peer (EHOSTUNREACH) is dropped and counted. A message that would block
    (EAGAIN) is dropped and counted with "drop", for a ROUTER. With "keep", for a pipe, sending
    stops: len(frames) is the rest, and the next call continues there. frames is cleared when all
    are sent. With `bundled` small messages in a row share a bundle; not for a ROUTER.

    Raises OSError with libzmq's errno; ENOTSOCK on a closed socket and in a forked process.
    """
    if not frames:
        return 0
    pointer = native_socket(socket)
    first, position, dropped = frames.sent, frames._position, frames._lost
    position[0], dropped[0] = first, 0
    how = (_KEEP if mode == "keep" else _DROP) | bundled * _BUNDLED
    result = lib.klk_send(pointer, frames._struct, frames.skip, how, position, dropped)
    error = None if result >= 0 else os_error("zmq_send")
    end, lost = int(position[0]), int(dropped[0])
    frames._on_sent(end, lost)
    if error:
        raise error
    return end - first - lost
