"""A node of zyre with CURVE, in a process of its own: zre_words.py says how it is told.

zyre is C and in no registry. KELEK_ZYRE is the path of a libzyre.so that was built with its draft
API (cmake -DENABLE_DRAFTS=ON), with libczmq.so beside it or where the linker finds it.
"""

import argparse
import ctypes
import ctypes.util
import os
import sys
import threading
from ctypes import c_char_p, c_void_p
from pathlib import Path
from typing import Any

from kelek.tests.interop.zre.zre_words import NodeCommands

VARIABLE = "KELEK_ZYRE"
SECRET = "_secret"  # zcert_load() adds it to a file's name.
CZMQ = {
    "zcert_load": (c_void_p, [c_char_p]),
    "zactor_new": (c_void_p, [c_void_p, c_void_p]),
    "zactor_destroy": (None, [c_void_p]),
    "zstr_sendx": (ctypes.c_int, None),
    "zsock_wait": (ctypes.c_int, [c_void_p]),
    "zmsg_size": (ctypes.c_size_t, [c_void_p]),
    "zmsg_popstr": (c_void_p, [c_void_p]),
    "zhash_lookup": (c_char_p, [c_void_p, c_char_p]),
    "zhash_keys": (c_void_p, [c_void_p]),
    "zlist_first": (c_char_p, [c_void_p]),
    "zlist_next": (c_char_p, [c_void_p]),
    "zstr_free": (None, [c_void_p]),
    "zsys_handler_set": (None, [c_void_p]),
}
ZYRE = {
    "zyre_new": (c_void_p, [c_char_p]),
    "zyre_uuid": (c_char_p, [c_void_p]),
    "zyre_set_header": (None, None),
    "zyre_set_port": (None, [c_void_p, ctypes.c_int]),
    "zyre_set_interface": (None, [c_void_p, c_char_p]),
    "zyre_set_evasive_timeout": (None, [c_void_p, ctypes.c_int]),
    "zyre_set_expired_timeout": (None, [c_void_p, ctypes.c_int]),
    "zyre_set_zcert": (None, [c_void_p, c_void_p]),
    "zyre_start": (ctypes.c_int, [c_void_p]),
    "zyre_stop": (None, [c_void_p]),
    "zyre_destroy": (None, [c_void_p]),
    "zyre_join": (ctypes.c_int, [c_void_p, c_char_p]),
    "zyre_leave": (ctypes.c_int, [c_void_p, c_char_p]),
    "zyre_whispers": (ctypes.c_int, None),
    "zyre_shouts": (ctypes.c_int, None),
    "zyre_event_new": (c_void_p, [c_void_p]),
    "zyre_event_destroy": (None, [c_void_p]),
    "zyre_event_type": (c_char_p, [c_void_p]),
    "zyre_event_peer_uuid": (c_char_p, [c_void_p]),
    "zyre_event_peer_name": (c_char_p, [c_void_p]),
    "zyre_event_group": (c_char_p, [c_void_p]),
    "zyre_event_headers": (c_void_p, [c_void_p]),
    "zyre_event_msg": (c_void_p, [c_void_p]),
}


class ZyreMissing(Exception):
    """No such library here; the reason."""


class Library:
    """The functions of czmq and zyre."""

    def __init__(self) -> None:
        """Raises ZyreMissing."""
        path = os.environ.get(VARIABLE) or ctypes.util.find_library("zyre")
        if not path:
            raise ZyreMissing(f"zyre is not installed, and {VARIABLE} names no library")
        beside = Path(path).parent / "libczmq.so"
        czmq = str(beside) if beside.is_file() else ctypes.util.find_library("czmq")
        try:
            self._czmq = ctypes.CDLL(czmq, mode=ctypes.RTLD_GLOBAL)
            self._zyre = ctypes.CDLL(path)
            for library, functions in ((self._czmq, CZMQ), (self._zyre, ZYRE)):
                for name, (result, arguments) in functions.items():
                    function = getattr(library, name)
                    function.restype = result
                    if arguments is not None:
                        function.argtypes = arguments
                    setattr(self, name, function)
            self.zauth = ctypes.cast(self._czmq.zauth, c_void_p)
        except (OSError, AttributeError) as error:
            raise ZyreMissing(f"{path}: {error}; build zyre with its draft API") from error

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class ZyreNode:
    """The node's methods as NodeCommands.obey() calls them."""

    def __init__(self, library: Library, options: argparse.Namespace) -> None:
        self.library = library
        library.zsys_handler_set(None)
        self._auth = None
        if options.allow:
            self._auth = library.zactor_new(library.zauth, None)
            given = c_void_p(self._auth), b"CURVE", options.allow.encode(), None
            library.zstr_sendx(*given)
            library.zsock_wait(self._auth)
        self.node = library.zyre_new(options.name.encode() or None)
        node = c_void_p(self.node)
        for key, value in options.headers.items():
            library.zyre_set_header(node, key.encode(), b"%s", value.encode())
        library.zyre_set_port(node, options.port)
        library.zyre_set_interface(node, options.host.encode())
        library.zyre_set_evasive_timeout(node, int(options.evasive_s * 1000))
        library.zyre_set_expired_timeout(node, int(options.dead_s * 1000))
        if options.key:
            cert = library.zcert_load(options.key.removesuffix(SECRET).encode())
            assert cert, f"zyre can't read {options.key}"
            library.zyre_set_zcert(node, cert)
        assert library.zyre_start(node) == 0, f"zyre does not start at {options.host}"
        self.uuid = library.zyre_uuid(node).decode().lower()

    def close(self) -> None:
        """After its stop: czmq's own end of the process fails while an actor is there."""
        self.library.zyre_destroy(ctypes.byref(c_void_p(self.node)))
        if self._auth:
            self.library.zactor_destroy(ctypes.byref(c_void_p(self._auth)))

    def join(self, group: str) -> None:
        self.library.zyre_join(self.node, group.encode())

    def leave(self, group: str) -> None:
        self.library.zyre_leave(self.node, group.encode())

    def whisper(self, peer: str, content: bytes) -> None:
        node = c_void_p(self.node)
        self.library.zyre_whispers(node, peer.upper().encode(), b"%s", content)

    def shout(self, group: str, content: bytes) -> None:
        self.library.zyre_shouts(c_void_p(self.node), group.encode(), b"%s", content)

    def listen(self, words: NodeCommands) -> None:
        """Says all events until the node has stopped."""
        library = self.library
        while event := library.zyre_event_new(self.node):
            kind = library.zyre_event_type(event).decode()
            values: dict[str, object] = {
                "peer": library.zyre_event_peer_uuid(event).decode().lower(),
                "name": library.zyre_event_peer_name(event).decode(),
            }
            if kind == "ENTER":
                values["headers"] = self._headers(library.zyre_event_headers(event))
            if group := library.zyre_event_group(event):
                values["group"] = group.decode()
            if message := library.zyre_event_msg(event):
                values["content"] = self._content(message)
            library.zyre_event_destroy(ctypes.byref(c_void_p(event)))
            if kind == "STOP":
                return
            words.say(kind, **values)

    def _headers(self, headers: int) -> dict[str, str]:
        found, keys = {}, self.library.zhash_keys(headers)
        key = self.library.zlist_first(keys)
        while key:
            found[key.decode()] = self.library.zhash_lookup(headers, key).decode()
            key = self.library.zlist_next(keys)
        return {key: value for key, value in found.items() if key != "X-PUBLICKEY"}

    def _content(self, message: int) -> list[str]:
        found = []
        for _ in range(self.library.zmsg_size(message)):
            text = c_void_p(self.library.zmsg_popstr(message))
            found.append((ctypes.cast(text, c_char_p).value or b"").decode("latin-1"))
            self.library.zstr_free(ctypes.byref(text))
        return found


def run(options: argparse.Namespace, words: NodeCommands) -> None:
    node = ZyreNode(Library(), options)
    words.say("READY", uuid=node.uuid)
    listener = threading.Thread(target=node.listen, args=(words,))
    listener.start()
    for word in words.all():
        words.obey(node, word)
    node.library.zyre_stop(node.node)
    listener.join()
    node.close()


if __name__ == "__main__":
    given = NodeCommands()
    run(given.options(sys.argv[1:]), given)
