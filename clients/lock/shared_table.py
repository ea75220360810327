"""A Table that an object shares with a thread of its own."""

import threading
from typing import Any, TypeVar

from ..io.operations import Blocking, Operation, Step
from ..table.table import Table

T = TypeVar("T")


class SharedTable(Blocking):
    """Runs the steps over a Table, which this object and the thread of its keeper share."""

    _table: Any  # A Table; subclasses say so.

    def _open(self, *arguments: Any, **settings: Any) -> Table:
        self._mutex = threading.RLock()
        return Table(*arguments, **settings)

    def _do(self, step: Step) -> None:
        with self._mutex:
            self._table._do(step)

    def _run(self, operation: Operation[T]) -> T:
        with self._mutex:
            return super()._run(operation)
