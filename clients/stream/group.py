"""kelek.Group: consumers that share the records of a stream."""

from collections.abc import Generator
from typing import TypeVar

from ..io.operations import Batches
from ..io.public import public
from ..lock.lock import SessionDriver
from .group_operations import GroupOperations
from .layout import StreamRecord

T = TypeVar("T")


@public()
class Group(GroupOperations, SessionDriver):
    """A member of a consumer group: kelek.Stream.group() makes it.

        with kelek.Stream("tcp://127.0.0.1:7100", "orders") as orders:
            with orders.group("billing") as billing:
                print(next(billing.records(timeout_s=1), None))

    start         where a new group begins, as of kelek.Stream.read()
    commit_s      seconds between commits of what is done; None: by commit()
    skip_trimmed  go on behind records that retention has removed, instead of
                  StreamTrimmed
    ttl_s         others take over so many seconds after this one has died; it
                  is kept alive while the process lives. At least 0.5
    member        the name that others see; None: HOST:PROCESS
    on_lost       called when the membership is lost, by a pause above ttl_s:
                  in a thread, or in asyncio's loop
    others        those of the Stream

    records(timeout_s)       the records of its partitions, without end
    record_lists(timeout_s)  the same, in lists of those at hand
    commit()                 commits now all records that the caller has got
    partitions, name         the partitions that it has now; the group's name
    close()                  leaves the group and closes the connections

    The stream's partitions are divided evenly among the members. Records of one
    key come to one member, in order. A record is done when the loop asks for
    the next one. After a member has died, another gets again what was not
    committed: each record comes once at least. A member that was paused can't
    commit for partitions which another has taken; it goes on with those that it
    gets.
    """

    def __iter__(self) -> Generator[StreamRecord, None, None]:
        return self.records()

    def _batches(self, operation: Batches[T]) -> Generator[list[T], None, None]:
        """Runs the steps while the keeper's thread waits, and yields without that."""
        try:
            while True:
                with self._mutex:
                    found = self._next_list(operation)
                if found is None:
                    return
                yield found
        finally:
            with self._mutex:
                operation.close()
                self._on_iterated()

    def _next_list(self, operation: Batches[T]) -> list[T] | None:
        for step in operation:
            if isinstance(step, list):
                return step
            self._do(step)
        return None
