"""Requests that all workers answer a part of: the parts make one answer."""

from collections.abc import Sequence
from itertools import count
from typing import Any

from ...errors import RemoteProtocolError
from ..wire import answers, requests
from ..wire.requests import RequestError
from ..wire.worker_pipe import Message

PREFIX = b"\0all"  # Of the routing ids by which parts are known: no client has such a one.


class _Parts:
    """The parts of one answer."""

    def __init__(self, prefix: Message, request: requests.TableInfo, workers: int) -> None:
        self.prefix = prefix
        self.request = request
        self.waiting = set(range(workers))
        self.found: dict[int, dict[str, Any]] = {}


class ScatterGather:
    """All that wait for parts. There is one such request: the info of all tables."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._gathered: dict[bytes, _Parts] = {}
        self._numbers = count(1)

    def __len__(self) -> int:
        return len(self._gathered)

    def begin(self, prefix: Message, request: requests.TableInfo) -> bytes:
        """The routing id with which each worker is to be asked."""
        key = PREFIX + next(self._numbers).to_bytes(8, "big")
        self._gathered[key] = _Parts(prefix, request, self._workers)
        return key

    def fail(self, key: bytes) -> Message | None:
        """One part will not come: the prefix of whoever is to be told; None: has been already."""
        gathered = self._gathered.pop(key, None)
        return None if gathered is None else gathered.prefix

    def take(self, key: bytes, worker: int, frames: Sequence[bytes]) -> Message | None:
        """A worker's part has come; returns the whole answer when it is the last."""
        gathered = self._gathered.get(key)
        if gathered is None or worker not in gathered.waiting:
            return None
        request = gathered.request
        try:
            part = answers.decode_answer(frames)
            if part.failed:
                raise RemoteProtocolError(part.text)
            gathered.found.update(answers.decode_table_info(part))
        except RemoteProtocolError as error:
            del self._gathered[key]
            code = frames[0][3] if len(frames[0]) > 3 else 0
            refusal = RequestError(
                requests.type_of(request), code or 1, str(error), request.extension
            )
            return [*gathered.prefix, *answers.encode_refusal(refusal)]
        gathered.waiting.remove(worker)
        if gathered.waiting:
            return None
        del self._gathered[key]
        return [*gathered.prefix, *answers.encode_table_info(request, gathered.found)]
