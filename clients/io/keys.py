"""The arguments `key` and `server_keys` of clients."""

import os
from collections.abc import Iterable

from ...net.client_keys import ClientKeys, ServerKeys, UnpinnedServer, load_client_keys
from ...net.errors import OperatorError
from ..errors import KeyUnusable

KeyPath = str | os.PathLike[str]


def checked_keys(
    key: KeyPath | None, server_keys: ServerKeys | None, urls: Iterable[str]
) -> ClientKeys | None:
    """The keys of a client that gets these urls; None: without CURVE. Raises KeyUnusable."""
    if key is None and server_keys is None:
        return None
    if key is None or server_keys is None:
        given, missing = ("server_keys", "key") if key is None else ("key", "server_keys")
        raise KeyUnusable(f"{given} is given without {missing}; give both, or neither")
    try:
        keys = load_client_keys(key, server_keys)
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
