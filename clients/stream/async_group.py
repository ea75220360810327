"""kelek.AsyncGroup: consumers for asyncio that share the records of a stream."""

from collections.abc import AsyncGenerator

from ..lock.async_lock import AsyncSessionDriver
from .group_operations import GroupOperations
from .layout import StreamRecord


class AsyncGroup(GroupOperations, AsyncSessionDriver):
    """A member of a consumer group for asyncio: kelek.AsyncStream.group() makes it. The arguments
    are those of kelek.Stream's Group; on_lost is called in the loop.

        async with orders.group("billing") as billing:
            async for record in billing:
                await send_invoice(record.value)
    """

    def __aiter__(self) -> AsyncGenerator[StreamRecord, None]:
        return self.records()
