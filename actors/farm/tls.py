"""A farm_server's certificate, key and CA, read anew when a file changes.

Connections that are open stay as they are; those that are made from then on have the new files.
"""

import ssl
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..errors import OperatorError
from .users import LOOK_MS, mark_of


class TlsFiles(NamedTuple):
    """Where certificates are, and which versions are spoken."""

    certificate: str
    key: str
    ca: str
    version: str  # The lowest: "1.3" or "1.2".


def _least(context: ssl.SSLContext, version: str) -> ssl.SSLContext:
    names = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
    context.minimum_version = names[version]
    return context


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Raises OSError (ssl.SSLError is one) when a file can't be used."""
    context = _least(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), files.version)
    # An encrypted key is refused: OpenSSL would ask at a terminal, and hold up the loop.
    context.load_cert_chain(files.certificate, files.key, password=lambda: b"")
    context.num_tickets = 0  # Nobody resumes: servers stay connected.
    return context


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """Verifies whom we connect to, by name or address. Raises OSError."""
    context = _least(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), files.version)
    context.load_verify_locations(files.ca)
    return context


class FarmTls:
    """TLS as a server and as a client; Nones where it is plain."""

    def __init__(self, settings: Mapping[str, Any], place: Callable[[str], str]) -> None:
        """settings: a node's `farm:`; place: where one of its keys stands. Raises OperatorError."""
        self.server: ssl.SSLContext | None = None
        self.client: ssl.SSLContext | None = None
        self._place = place
        self._files: TlsFiles | None = None
        self._look_ms = 0
        self._marks: tuple[tuple[int, ...], ...] = ()
        if not (settings["i2p"] or settings["insecure_jraft"]):
            self._files = TlsFiles(
                settings["certificate"], settings["key"], settings["ca"], settings["tls"]
            )
            self._marks = self._look(self._files)
            self._load(self._files)

    @staticmethod
    def _look(files: TlsFiles) -> tuple[tuple[int, ...], ...]:
        return tuple(map(mark_of, (files.certificate, files.key, files.ca)))

    def _load(self, files: TlsFiles) -> None:
        key = "certificate"
        try:
            server = server_context(files)
            key = "ca"
            self.server, self.client = server, client_context(files)
        except OSError as error:
            problem = f"can't be used: {error.strerror or error}"
            raise OperatorError(self._place(key), problem, "give it files in PEM") from error

    def changed(self, now_ms: int) -> bool:
        """Whether there are others now. Files that can't be used, as when a certificate is there
        before its key, leave them as they were, and are complained of once. Raises OperatorError.
        """
        if self._files is None or now_ms < self._look_ms:
            return False
        self._look_ms = now_ms + LOOK_MS
        marks = self._look(self._files)
        if marks == self._marks:
            return False
        self._marks = marks
        self._load(self._files)
        return True
