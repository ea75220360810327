"""Requests that each worker answers in part: the parts become one answer."""

from collections.abc import Sequence
from itertools import count
from typing import Any

from ...errors import RemoteProtocolError
from ..wire import answers, requests
from ..wire.requests import RequestError
from ..wire.worker_pipe import Message

KEY_PREFIX = b"\0all"  # Of the routing ids of parts; ROUTER gives none like it to a client.


class _Parts:
    """The parts of one answer."""

    def __init__(self, prefix: Message, request: requests.TableInfo, workers: int) -> None:
        self.prefix = prefix
        self.request = request
        self.waiting = set(range(workers))
        self.found: dict[int, dict[str, Any]] = {}


class ScatterGather:
    """Requests that wait for parts. Only the info of all tables is such a request."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self.requests: dict[bytes, _Parts] = {}
        self._numbers = count(1)

    def __len__(self) -> int:
        return len(self.requests)

    def start(self, prefix: Message, request: requests.TableInfo) -> bytes:
        """Starts a request; returns the routing id for the workers."""
        key = KEY_PREFIX + next(self._numbers).to_bytes(8, "big")
        self.requests[key] = _Parts(prefix, request, self._workers)
        return key

    def cancel(self, key: bytes) -> Message | None:
        """A part is missing. Returns the prefix for an error; None: it was answered already."""
        parts = self.requests.pop(key, None)
        return None if parts is None else parts.prefix

    def add_part(self, key: bytes, worker: int, frames: Sequence[bytes]) -> Message | None:
        """Adds a worker's part. Returns the whole answer after the last part."""
        parts = self.requests.get(key)
        if parts is None or worker not in parts.waiting:
            return None
        request = parts.request
        try:
            part = answers.decode_answer(frames)
            if part.failed:
                raise RemoteProtocolError(part.text)
            parts.found.update(answers.decode_table_info(part))
        except RemoteProtocolError as error:
            del self.requests[key]
            code = frames[0][3] if len(frames[0]) > 3 else 0
            refusal = RequestError(
                requests.type_of(request), code or 1, str(error), request.extension
            )
            return [*parts.prefix, *answers.encode_refusal(refusal)]
        parts.waiting.remove(worker)
        if parts.waiting:
            return None
        del self.requests[key]
        return [*parts.prefix, *answers.encode_table_info(request, parts.found)]
