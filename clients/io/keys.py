"""The arguments `key` and `server_keys` of clients."""

import os
from collections.abc import Iterable, Mapping

from ...net.client_keys import ClientKeys, ServerKeys, UnpinnedServer, load_client_keys
from ...net.errors import OperatorError
from ..errors import KeyUnusable

KeyPath = str | os.PathLike[str]


class KeyArguments:
    """`key` and `server_keys` as the caller gave them, and the servers that discovery found."""

    def __init__(self, key: KeyPath | None, server_keys: ServerKeys | None) -> None:
        """Raises KeyUnusable: one without the other."""
        if (key is None) != (server_keys is None):
            given, missing = ("server_keys", "key") if key is None else ("key", "server_keys")
            raise KeyUnusable(f"{given} is given without {missing}; give both, or neither")
        self.key, self.server_keys = key, server_keys

    @property
    def pinned(self) -> frozenset[str]:
        """The public keys that servers may have, in Z85."""
        given = self.server_keys or ()
        if isinstance(given, str):
            return frozenset([given])
        return frozenset(filter(None, given.values() if isinstance(given, Mapping) else given))

    def add_found(self, keys: Mapping[str, str]) -> None:
        """Urls of nodes that discovery found, each with the pinned key that its node has proven.

        The caller's own keys of these urls stay.
        """
        given = self.server_keys
        if given is not None and not isinstance(given, str):
            self.server_keys = {**keys, **(given if isinstance(given, Mapping) else {})}

    def load(self, urls: Iterable[str]) -> ClientKeys | None:
        """The keys of a client that gets these urls; None: without CURVE. Raises KeyUnusable."""
        if self.key is None or self.server_keys is None:
            return None
        try:
            keys = load_client_keys(self.key, self.server_keys)
        except OperatorError as error:
            raise KeyUnusable(str(error)) from error
        problems = []
        for url in urls:
            try:
                keys.curve(url)
            except UnpinnedServer as error:
                problems.append(str(error))
            else:
                return keys
        raise KeyUnusable(problems[0])
