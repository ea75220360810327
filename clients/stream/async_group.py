"""kelek.AsyncGroup: consumers for asyncio that share the records of a stream."""

from collections.abc import AsyncGenerator

from ..io.public import public
from ..lock.async_lock import AsyncSessionDriver
from .group import Group
from .group_operations import GroupOperations
from .layout import StreamRecord


@public(like=Group)
class AsyncGroup(GroupOperations, AsyncSessionDriver):
    """A member of a consumer group for asyncio: AsyncStream.group() makes it.

    async with stream.group("billing") as billing:
        async for record in billing.records(timeout_s=1):
            print(record.value)
    """

    def __aiter__(self) -> AsyncGenerator[StreamRecord, None]:
        return self.records()
