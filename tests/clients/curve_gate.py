"""Keys for tests: a server's key, the keys that it allows, and its ZAP handler."""

from pathlib import Path

import zmq

from kelek.net.access.zap import ENDPOINT
from kelek.net.private_files import replace_file
from kelek.net.sockets import CurveServer, SocketOptions, configure
from kelek.protocols.access.certificates import (
    Certificate,
    decode_key,
    encode_key,
    format_certificate,
)
from kelek.protocols.access.grants import EVERYTHING, Right
from kelek.protocols.access.zap import CURVE, AllowedKey, Keyring, ProtectedEndpoint, ZapHandler

DOMAIN = "test"


def new_key(name: str) -> Certificate:
    public, secret = zmq.curve_keypair()
    return Certificate(decode_key(public.decode()), decode_key(secret.decode()), {"name": name})


def write_key(folder: Path, key: Certificate) -> Path:
    """The private file of a key."""
    path = folder / f"{key.name}.key_secret"
    replace_file(path, format_certificate(key))
    return path


class CurveGate:
    """The CURVE key of ROUTERs, and the keys that may connect to them."""

    def __init__(self, key: Certificate | None = None) -> None:
        """key: the server's; None: a new one"""
        self.key = key or new_key("server")
        self.public_key = encode_key(self.key.public_key)
        self._allowed: dict[bytes, AllowedKey] = {}
        self._keyring = Keyring()
        endpoints = {DOMAIN.encode(): ProtectedEndpoint(CURVE, Right.LOG_READ)}
        self._handler = ZapHandler(self._keyring, endpoints)

    def allow(self, key: Certificate) -> None:
        self._allowed[key.public_key] = AllowedKey(key.name, EVERYTHING)
        self._keyring.replace(self._allowed)

    def bind(self, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        """Makes the ZAP handler of a context: `socket`, for which answer() must be called."""
        self.socket = context.socket(zmq.ROUTER)
        self.socket.bind(ENDPOINT)

    def protect(self, router: "zmq.Socket[bytes]") -> None:
        """Gives a ROUTER the key, before it is bound."""
        curve = CurveServer(self.key.secret_key, DOMAIN)
        configure(router, zmq.ROUTER, SocketOptions(curve=curve))

    def answer(self) -> None:
        frames = self.socket.recv_multipart()
        answer, _ = self._handler.answer(frames[2:])
        self.socket.send_multipart([*frames[:2], *answer])
