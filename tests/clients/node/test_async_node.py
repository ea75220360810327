"""kelek.AsyncNode beside a kelek.Node."""

import asyncio

import kelek
from kelek.tests.clients.node.nodes import DEADLINE_MS, Kind, Make, tuned


def test_an_async_node_sends_and_receives(port: int, make: Make) -> None:
    make("plain").join("g")

    async def main() -> None:
        async with kelek.AsyncNode("async", tuning=tuned(port)) as node:
            node.join("g")
            async for event in node.events(DEADLINE_MS):
                if event.kind is Kind.JOIN:
                    break
            assert await node.shout("g", "hello") == 1
            assert await node.shout_many("g", ["1", "2"]) == 1
            assert await node.whisper(node.peers[0], "you")
            assert await node.whisper_many(node.peers[0], ["3"])
            waiting = asyncio.create_task(node.receive())
        assert all(event.kind is not Kind.EXIT for event in await waiting), "it ends"

    asyncio.run(main())
