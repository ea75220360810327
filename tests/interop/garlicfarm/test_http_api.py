"""Real farm servers by curl, their routers' files, and a proxy."""

import json
import shutil
import subprocess
import time
from hashlib import sha256
from typing import Any

import pytest

from kelek.protocols.garlicfarm.app.orders import (
    FarmConfig,
    Order,
    OrderKind,
    PublishChoice,
    encode_order,
)
from kelek.protocols.garlicfarm.wire.messages import FarmLogEntry, MessageType, Request, ValueType
from kelek.tests.actors.farm.farm_servers import PASSWORD, USER, FarmServers
from kelek.tests.http_proxy import HttpProxy

DEADLINE_S = 60
ROUTER = {"router": {"uptime": 1000}, "meta": {"lastPublishedTime": 0}, "destinations": []}


class Curl:
    """A user with curl only."""

    def __init__(self, farm: FarmServers) -> None:
        program = shutil.which("curl")
        if program is None:
            pytest.skip("there is no curl here")
        self._farm = farm
        self._command = [program, "-q", "-s", "-S", "--http1.1", "-m", str(DEADLINE_S)]

    def run(self, *options: str, number: int = 1, path: str = "status") -> str:
        port = self._farm.ports[number]
        url = f"https://127.0.0.1:{port}/GarlicFarm/farm/1/{path}"
        done = subprocess.run(
            [*self._command, "--noproxy", "*", "--cacert", str(self._farm.ca), *options, url],
            check=True, capture_output=True, timeout=2 * DEADLINE_S, text=True,
        )  # fmt: skip
        return done.stdout

    def render(self, path: str, number: int = 1) -> dict[str, Any]:
        shown = json.loads(
            self.run("--digest", "-u", f"{USER}:{PASSWORD}", number=number, path=path)
        )
        assert isinstance(shown, dict)
        return shown

    def code(self, *options: str, path: str = "status") -> str:
        return self.run("-o", "/dev/null", "-w", "%{http_code}", *options, path=path)


def order(kind: OrderKind, **fields: Any) -> bytes:
    made = Order(kind, "farm", time.time_ns() // 1_000_000, USER)._replace(**fields)
    return encode_order(made)


def told(farm: FarmServers, number: int) -> Any:
    """What a server's publish_file says."""
    try:
        return json.loads((farm.folder / f"publish{number}.json").read_text())
    except FileNotFoundError:
        return None


def test_a_farm_seen_by_curl_and_by_its_routers() -> None:
    """Documents of all servers, the publisher by the rule and by order, exports, refusals."""
    files = "router_file: router{number}.json, publish_file: publish{number}.json"
    with FarmServers(node=f"{files}, post_interval_ms: 1000") as farm:
        leaf = {"destination": "a", "uptime": 5}
        for number in (1, 2):
            said = {**ROUTER, "router": {"uptime": 1000 * number}, "destinations": [leaf]}
            (farm.folder / f"router{number}.json").write_text(json.dumps(said))
        farm.start()
        curl = Curl(farm)
        shown = farm.wait(
            lambda: len((found := curl.render("documents"))["documents"]) == 3 and found
        )
        assert [each["id"] for each in shown["documents"]] == [1, 2, 3]
        assert shown["documents"][0]["document"]["router"] == {"uptime": 1000}
        assert (shown["publisher"], shown["contents"]) == (2, [{"server": 1, "hash": "a"}])
        farm.wait(lambda: "No such file" in curl.render("status", 3)["posting"]["error"])
        farm.wait(lambda: "router farm=farm problem=" in farm.log(3))

        contents = [{"server": 1, "hash": "a", "destination": leaf}]
        farm.wait(lambda: told(farm, 2) == {"farm": {"order": 0, "contents": contents}})
        farm.wait(lambda: told(farm, 1) == told(farm, 3) == {})
        farm.append(order(OrderKind.PUBLISH, publish=3))
        farm.wait(lambda: told(farm, 2) == {})
        published = farm.wait(lambda: told(farm, 3))["farm"]
        assert published["contents"] == contents
        assert published["order"] > 0
        farm.append(order(OrderKind.EXCLUDE, hashes=("a",)))
        farm.wait(lambda: told(farm, 3)["farm"]["contents"] == [])

        exported = farm.wait(
            lambda: (found := curl.render("configuration", 2))["excluded"]["hashes"] and found
        )
        assert exported["excluded"] == {"hashes": ["a"], "servers": []}
        assert exported["publish"] == 3
        export = FarmConfig(
            "elsewhere", publish=PublishChoice.NONE, settings={"postingInterval": 0}
        )
        imported = order(OrderKind.IMPORT, configuration=export)
        farm.append(imported)
        farm.wait(lambda: told(farm, 3) == {})
        assert curl.render("status", 3)["publisher"] is None
        shown = curl.render(f"entries?from={published['order']}&count=2", 3)
        assert shown["entries"][0]["document"]["server"] == 3
        logs = "".join(map(farm.log, (1, 2, 3)))
        assert 'audit farm=farm user=demo what="publish 3" taken=True' in logs
        assert (
            f'what="import, {len(imported)} bytes, sha256 {sha256(imported).hexdigest()}"' in logs
        )

        with farm.connect(farm.leader(), user="peer", password="the servers' own") as client:
            entries = (FarmLogEntry(0, ValueType.APPLICATION, order(OrderKind.PUBLISH, publish=1)),)
            answer = client.ask(Request(MessageType.CLIENT_REQUEST, entries=entries))
            assert not answer.is_accepted

        assert curl.code() == "401"
        credentials = ("--digest", "-u", f"{USER}:{PASSWORD}")
        assert curl.code(*credentials, path="entries?wait=1") == "400"
        assert curl.code(*credentials, "-I") == "200"


def test_servers_that_know_each_other_by_names_of_a_proxy() -> None:
    """As inside I2P: no TLS, no CONNECT, names that only the proxy resolves; and an order of an
    administrator who connects directly.
    """
    with HttpProxy({}) as proxy:
        node = f"proxy: '127.0.0.1:{proxy.port}', public_url: 'tcp://n{{number}}.i2p:80'"
        with FarmServers(tls=False, node=node) as farm:
            proxy.hosts.update({f"n{number}.i2p:80": port for number, port in farm.ports.items()})
            farm.start()
            index = farm.append(b"first").next_index - 1
            farm.wait(
                lambda: all(farm.status(n).get("commit_index", 0) >= index for n in (1, 2, 3)),
                "they do not agree",
            )
        assert proxy.heads
        path = "/GarlicFarm/farm/1/websocket HTTP/1.1\r\n"
        assert all(
            head.startswith("GET http://n") and path in head and "\r\nHost: n" in head
            for head in proxy.heads
        )
