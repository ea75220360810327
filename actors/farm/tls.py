"""A farm_server's certificate, key and CA, read anew when a file changes.

Connections that are open stay as they are; those that are made from then on have the new files.
"""

import ssl
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import OperatorError
from .stream import TlsFiles, client_context, server_context
from .users import LOOK_MS, mark_of


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
