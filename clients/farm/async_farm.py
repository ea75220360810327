"""kelek.AsyncFarm: the asyncio client of a farm."""

from ..io.async_driver import AsyncDriver
from ..io.public import public
from .farm import Farm
from .operations import FarmOperations


@public(like=Farm)
class AsyncFarm(FarmOperations, AsyncDriver):
    """kelek.Farm for the tasks of one asyncio loop.

    url = "tls://127.0.0.1:7401"
    files = {"secret_file": "farm/demo.secret", "ca_file": "farm/ca.pem"}
    async with kelek.AsyncFarm(url, user="demo", **files) as farm:
        print(await farm.append(b"one"))
    """
