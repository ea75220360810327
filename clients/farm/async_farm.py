"""kelek.AsyncFarm: the asyncio client of a farm."""

from ..io.async_driver import AsyncDriver
from .operations import FarmOperations


class AsyncFarm(FarmOperations, AsyncDriver):
    """A user of a farm, for the tasks of one asyncio loop.

        async with kelek.AsyncFarm("tls://127.0.0.1:7401", "farm", user="demo",
                                   secret_file="secret", ca_file="ca.pem") as farm:
            await farm.append(b"one")
            await farm.append_many([b"two", b"three"])
            async for entry in farm.entries(): ...

    The tasks of one loop may share an AsyncFarm; their appends share requests. The arguments are
    kelek.Farm's. Connections are made with the first call.
    """
