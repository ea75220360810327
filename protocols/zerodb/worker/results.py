"""The results of transactions that zerodb_server asks for (RESULT_QUERY).

The server sends a question when the transaction is committed. A result is stored with the tables;
why a transaction was refused is remembered for a while.
"""

from collections.abc import Callable, Mapping

from ...errors import StorageFailure
from ..tables.tables import Tables
from ..wire import answers, requests, values
from ..wire.requests import RequestError
from .tickets import QueuedRequest

REFUSALS_MAX = 4096  # Of transactions; the newest are remembered.

# Takes a question, the frames of its answer, and the problem that they tell, or an empty text.
Answer = Callable[[QueuedRequest, list[bytes], str], None]


class Refusals:
    """Why all nodes refused the newest transactions that have done nothing, by reqid."""

    def __init__(self) -> None:
        self.texts: dict[bytes, str] = {}

    def add(self, reqid: bytes, text: str) -> None:
        self.texts.pop(reqid, None)
        self.texts[reqid] = text
        if len(self.texts) > REFUSALS_MAX:
            del self.texts[next(iter(self.texts))]


class ResultQueries:
    """Questions that are not answered: [reqid, header of the answer]."""

    def __init__(
        self,
        refusals: Mapping[bytes, str],
        answer: Answer,
        error_text: Callable[[StorageFailure], str],
    ) -> None:
        """
        refusals     of Refusals
        error_text   notes a failure of the replicated tables, and returns its text
        """
        self._refusals = refusals
        self._answer = answer
        self._error_text = error_text
        self._waiting: list[tuple[QueuedRequest, int]] = []  # With the time until when it waits.

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, queued: QueuedRequest, due_ms: int) -> None:
        """due_ms: it fails if its entry is not applied by then"""
        self._waiting.append((queued, due_ms))

    def has_due(self, applied: int) -> bool:
        """Whether run() can answer one."""
        return any(queued.log_index <= applied for queued, _ in self._waiting)

    @property
    def dues_ms(self) -> list[int]:
        """When each of them expires."""
        return [due_ms for _, due_ms in self._waiting]

    def run(self, tables: Tables, applied: int, now_ms: int) -> None:
        """Answers those whose entries are applied, and those that have waited too long or in
        vain."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        due = []
        for queued, due_ms in waiting:
            if queued.log_index <= applied:
                due.append(queued)
            elif tables.problem or now_ms >= due_ms:
                text = f"entry {queued.log_index} is not applied here yet, only {applied}"
                self._refuse(queued, f"{text}: {tables.problem}" if tables.problem else text, True)
            else:
                self._waiting.append((queued, due_ms))
        if not due:
            return
        try:
            found = tables.results([queued.frames[0] for queued in due])
        except StorageFailure as error:
            text = self._error_text(error)
            for queued in due:
                self._refuse(queued, text, True)
            return
        for queued, result in zip(due, found, strict=True):
            self._tell(queued, result)

    def _tell(self, queued: QueuedRequest, result: bytes | None) -> None:
        reqid, header = queued.frames
        problem = self._refusals.get(reqid)
        if result is not None:
            self._answer(queued, answers.result_answer(header, result), "")
        elif problem is not None:
            self._refuse(queued, problem, False, values.DATABASE_ERROR)
        else:
            self._refuse(queued, "it is in the log, but what came of it is no longer known", False)

    def _refuse(self, queued: QueuedRequest, text: str, retry: bool, code: int = 0) -> None:
        header = queued.frames[1]
        code = code or requests.error_code(header[2])
        error = RequestError(header[2], code, text, answers.echoed(header))
        self._answer(queued, answers.encode_refusal(error, retry), text)
