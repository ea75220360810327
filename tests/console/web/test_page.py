"""The page in headless Chromium: a click path for each view on one cluster, also with a node down
and during an election. `--pictures` makes the pictures of the documents on the way."""

import contextlib
import http.client
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kelek
from kelek.bench.ports import free_port
from kelek.console.web.app import FILES
from kelek.tests.conftest import demo_shell
from kelek.tests.console.web import chromium

pytest.importorskip("starlette", reason="kelek[web] is not installed")
pytest.importorskip("uvicorn", reason="kelek[web] is not installed")

PROGRAM = chromium.find()
needs_browser = pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed")
PICTURES = Path(__file__).parents[3] / "docs" / "pictures"
PICTURE_S = 70  # How long a cluster works before its pictures are taken.
FIRST_LOAD_BYTES_MAX = 200_000
VIEWS = ("overview", "raft", "tables", "services", "discovery", "farms", "pipeline")
MARKUP = '<img src=x onerror="document.title=1"><b>bold</b>'
SERVICES = """
import time
def echo(body):
    return bytes(body)
def slow(body):
    time.sleep(1.2)
    return b"done"
"""
FARM = ("certificate_file: farm/server.pem, key_file: farm/server.key, ca_file: farm/ca.pem, "
        "passwords_file: farm/passwords, user: servers, "
        "secret_file: farm/servers.secret")  # fmt: skip


class Site(NamedTuple):
    """A cluster whose node n1 serves the page."""

    shell: Any
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def fetch(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str, Any]:
        """(status, body, headers)"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        with contextlib.closing(connection):
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), answer.headers

    def tables(self) -> list[str]:
        addresses = (self.shell.addresses[f"127.0.0.1:{port}"] for port in (7100, 7110, 7120))
        return [f"tcp://{address}" for address in addresses]

    def row(self, node: str, role: str) -> Any:
        (found,) = (it for it in self.shell.status() if (it["node"], it["role"]) == (node, role))
        return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    port = free_port()
    with demo_shell(tmp_path_factory.mktemp("page"), tables=True) as shell:
        path = shell.folder / "topology.yaml"
        farm = shell.addresses["127.0.0.1:7401"]
        text = path.read_text().replace("cluster: demo", "cluster: shop")
        text = re.sub(r"(?m)^  (n\d):$", r"\g<0>\n    zre: {interface: lo}", text)
        page = f"    web: {{address: '127.0.0.1:{port}'}}\n"
        node = f"    farm: {{url: 'tcp://{farm}', {FARM}}}\n"
        text = text.replace("  n1:\n", f"  n1:\n{page}{node}", 1)
        text += (
            f"zre: {{port: {shell.addresses['5670']}}}\nfarms: {{farm: {{servers: {{1: n1}}}}}}\n"
        )
        path.write_text(text)
        (shell.folder / "services.py").write_text(SERVICES)
        shell.ok(
            "kelek farm cert farm && kelek farm user add farm/passwords servers demo --make farm"
        )
        shell.ok("supervisor start topology.yaml --detach")
        workers = [shell.start(f"kelek worker run services:{it} --name shop.{it}")
                   for it in ("echo", "slow")]  # fmt: skip
        made = Site(shell, port)
        with kelek.Table(made.tables(), 7, timeout_ms=60_000) as table:
            table.put_many((b"order/%04d" % i, b'{"state": "shipped"}') for i in range(120))
            table.put(b"html/" + MARKUP.encode(), MARKUP.encode())
            table.copy_into(8)
        yield made
        for worker in workers:
            worker.terminate()
            worker.communicate(timeout=60)


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Chromium]:
    if PROGRAM is None:
        pytest.skip("chromium is not installed")
    with chromium.Chromium(PROGRAM, tmp_path_factory.mktemp("profile")) as made:
        yield made


def open_view(tab: chromium.Chromium, name: str) -> None:
    """By its link in the navigation."""
    tab.click("nav a", name.capitalize())
    tab.wait(f"document.getElementById('main').dataset.view === '{name}'")


def test_only_reads_of_its_own_name_are_answered(site: Site) -> None:
    status, body, headers = site.fetch("/")
    assert status == 200
    assert "default-src 'none'" in headers["content-security-policy"]
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//|<script>|\son\w+=|style=", body)
    sizes = [len(body)]
    for path in re.findall(r"(?:src|href)=\"(static/[^\"]+)", body):
        status, text, _ = site.fetch(f"/{path}")
        assert status == 200
        sizes.append(len(text.encode()))
    version = kelek.__version__
    sizes += (len(site.fetch(f"/static/{version}/{name}")[1].encode()) for name in FILES)
    assert sum(sizes) < FIRST_LOAD_BYTES_MAX
    # DNS rebinding: a page of another site asks by its own name.
    for host in ("evil.example", f"evil.example:{site.port}", "127.0.0.1.evil.example", "[::1", ""):
        assert site.fetch("/rows?table=7", Host=host)[0] in (400, 421), host
    for host in (f"localhost:{site.port}", "[::1]:1", "127.0.0.1"):
        assert site.fetch("/", Host=host)[0] == 200, host
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
        assert site.fetch("/rows?table=7", method)[0] == 405
    assert site.fetch("/", "HEAD")[:2] == (200, "")
    for path in ("/static/../server.py", f"/static/{version}/../app.py", "/static/0/page.js", "/x"):
        assert site.fetch(path)[0] == 404, path
    for path in ("/events?view=x", "/events", "/rows", "/rows?table=-1", "/rows?table=4294967296",
                 "/rows?table=7&prefix=0xg", "/rows?table=7&start=%C3%A4"):  # fmt: skip
        assert site.fetch(path)[0] == 400, path


def test_rows_are_pages_with_limits(site: Site) -> None:
    def page(more: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(site.fetch(f"/rows?table=7&prefix=order/{more}")[1])
        return found

    seen, start = [], ""
    while True:
        found = page(f"&start={start}")
        seen.append([row["key"] for row in found["rows"]])
        start = found["next"]
        if not start:
            break
    assert [len(keys) for keys in seen] == [50, 50, 20]
    assert [key for keys in seen for key in keys] == [f"order/{i:04d}" for i in range(120)]
    with kelek.Table(site.tables(), 9) as table:
        table.put_many((b"%d" % i, b"\xff" * 300_000) for i in range(8))
    found = json.loads(site.fetch("/rows?table=9")[1])
    assert len(found["rows"]) < 8
    assert found["next"]
    assert all(len(row["value"]) < 2000 for row in found["rows"])
    assert found["rows"][0]["bytes"] == 300_000


@needs_browser
def test_a_click_path_for_each_view(site: Site, tab: chromium.Chromium, request: Any) -> None:
    tab.resize(1280, 900)
    tab.open(site.url)
    tab.wait_text("3 of 3 nodes", "#summary")
    for node in ("n1", "n2", "n3"):
        tab.wait_text(node, ".tree")
    tab.wait_text("zerodb_server", ".tree")
    tab.wait_text("leads term", "#main")
    open_view(tab, "raft")
    tab.wait("document.querySelectorAll('.timeline .role-leader').length > 0")
    tab.wait_text("leader", "section[aria-label='Peers of this supervisor']")
    open_view(tab, "tables")
    tab.wait_text("copy", "section[aria-label=Jobs]")
    tab.wait_text("100 %", "section[aria-label=Jobs]")
    tab.click("section[aria-label=Tables] button", "7")
    tab.wait_text("order/0000", "section[aria-label=Browse]")
    tab.wait_text(MARKUP, "section[aria-label=Browse]")  # As text.
    assert not tab.evaluate("document.querySelectorAll('main img, main b b').length")
    tab.click("section[aria-label=Browse] button", "Next rows")
    tab.wait_text("order/0098", "section[aria-label=Browse]")
    open_view(tab, "services")
    tab.wait_text("shop.echo", "section[aria-label='Services, the slowest first']")
    tab.wait_text("shop.slow", "section[aria-label=Workers]")
    open_view(tab, "discovery")
    tab.wait("document.querySelectorAll('.graph circle').length === 3")
    tab.wait("document.querySelectorAll('.graph line').length === 3")
    open_view(tab, "farms")
    tab.wait_text("farm", "section[aria-label=Farms]")
    open_view(tab, "pipeline")
    tab.wait_text("n3", "section[aria-label='Job servers']")
    assert not tab.complaints


@needs_browser
def test_keys_and_small_screens(site: Site, tab: chromium.Chromium) -> None:
    tab.resize(390, 844, "dark")
    tab.open(f"{site.url}#/overview")
    for number, name in enumerate(VIEWS, 1):
        tab.press(str(number))
        tab.wait(f"document.getElementById('main').dataset.view === '{name}'")
        tab.wait("document.querySelectorAll('main section').length > 0")
        assert tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, name
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 22, 28)"
    tab.open("about:blank")
    tab.open(f"{site.url}#/tables")
    tab.wait_text("replicated", "#main")
    # By keyboard alone: the first link skips to the content; the last view is a few steps away.
    words = []
    for _ in range(12):
        tab.press("Tab")
        words.append(
            tab.evaluate("document.activeElement.innerText || document.activeElement.name")
        )
    assert words[:3] == ["Skip to the content", "Overview", "Raft"]
    assert "Pipeline" in words
    tab.evaluate("document.querySelector('input[name=table]').focus()")
    tab.type("7")
    tab.press("Tab")
    tab.type("html/")
    tab.press("Enter")
    tab.wait_text("html/<img", "section[aria-label=Browse]")
    # Later pictures leave what was typed and found, and where the focus is.
    at = tab.evaluate("document.getElementById('clock').innerText")
    tab.wait(f"document.getElementById('clock').innerText !== {json.dumps(at)}")
    assert tab.evaluate("document.activeElement.value") == "html/"
    tab.wait_text("html/<img", "section[aria-label=Browse]")
    assert not tab.complaints


@needs_browser
def test_a_node_down_and_an_election(site: Site, tab: chromium.Chromium) -> None:
    tab.resize(1280, 900)
    tab.open(site.url)
    tab.wait_text("3 of 3 nodes", "#summary")
    site.shell.ok("supervisor stop topology.yaml n3")
    tab.wait_text("n3 stopped", "#summary")
    tab.wait_text("start it: supervisor start", "#problems")
    for name in VIEWS:
        open_view(tab, name)
        tab.wait("document.querySelectorAll('main section').length > 0")
    site.shell.ok("supervisor start topology.yaml n3")
    open_view(tab, "raft")
    tab.wait_text("3 of 3 nodes", "#summary")
    term = site.row("n1", "raft_peer")["term"]
    leader = site.row("n1", "raft_peer")["leader"]
    os.kill(site.row(leader, "raft_peer")["pid"], signal.SIGKILL)
    tab.wait(f"/leads term (?!{term}\\b)/.test(document.getElementById('summary').innerText)")
    tab.wait_text("candidate in term", "section[aria-label='Elections and roles']")
    tab.wait("document.querySelectorAll('.timeline .role-down').length > 0")
    tab.wait_text("all caught up", "#summary")
    assert not tab.complaints


@needs_browser
def test_the_page_says_that_its_server_is_gone(site: Site, tab: chromium.Chromium) -> None:
    tab.open(site.url)
    tab.wait_text("3 of 3 nodes", "#summary")
    site.shell.ok("supervisor restart topology.yaml n1/web")
    tab.wait("!document.body.classList.contains('stale')")
    tab.wait_text("3 of 3 nodes", "#summary")
    tab.complaints.clear()  # The browser reports the lost connection.


@needs_browser
def test_pictures(site: Site, tab: chromium.Chromium, request: Any) -> None:
    """The cluster works for a while before them."""
    if not request.config.getoption("--pictures"):
        pytest.skip("only with --pictures")
    PICTURES.mkdir(exist_ok=True)
    ended = threading.Event()
    tab.resize(1280, 800)
    tab.open(site.url)
    threads = [
        threading.Thread(target=work, args=(site, ended)) for work in (_read_and_write, _call)
    ]
    for thread in threads:
        thread.start()
    names = ("laptop", "camera-1", "camera-2", "printer")
    tuning = kelek.NodeTuning(port=int(site.shell.addresses["5670"]), interface="lo")
    try:
        with contextlib.ExitStack() as nodes:
            for name in names:
                node = nodes.enter_context(kelek.Node(name, tuning=tuning))
                node.join("office")
            ended.wait(PICTURE_S / 2)
            leader = site.row("n1", "raft_peer")["leader"]
            os.kill(site.row(leader, "raft_peer")["pid"], signal.SIGKILL)
            ended.wait(PICTURE_S / 2)
            for view, scheme in (("overview", "light"), ("raft", "light"), ("tables", "dark"),
                                 ("services", "light"), ("discovery", "light")):  # fmt: skip
                tab.resize(1280, 800, scheme)
                open_view(tab, view)
                tab.wait("document.querySelectorAll('main section').length > 0")
                if view == "tables":
                    tab.click("section[aria-label=Tables] button", "7")
                    tab.wait_text("html/", "section[aria-label=Browse]")
                    tab.evaluate("document.querySelector('input[name=prefix]').focus()")
                    tab.type("order/")
                    tab.press("Enter")
                    tab.wait_text("order/0000", "section[aria-label=Browse]")
                ended.wait(3)
                tab.picture(PICTURES / f"page-{view}.webp")
            tab.resize(390, 844, "dark")
            open_view(tab, "raft")
            ended.wait(3)
            tab.picture(PICTURES / "page-small.webp")
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert all(path.stat().st_size < 150_000 for path in PICTURES.glob("page-*.webp"))


def _read_and_write(site: Site, ended: threading.Event) -> None:
    with kelek.Table(site.tables(), 7) as table:
        number = 0
        while not ended.wait(0.01):
            number += 1
            table.put(b"order/%04d" % (number % 5000), b'{"state": "new", "sum": %d}' % number)
            table.get(b"order/%04d" % (number % 500))


def _call(site: Site, ended: threading.Event) -> None:
    address = site.shell.addresses["127.0.0.1:7300"]
    with kelek.Broker(f"tcp://{address}") as broker:
        slow: list[kelek.Future] = []
        while not ended.wait(0.02):
            broker.call("shop.echo", b"x")
            if len(slow) < 2:
                slow.append(broker.submit("shop.slow", b"x"))
            slow = [it for it in slow if not it.done()]
