"""help() of each public class: the first screen says all that a user needs to begin."""

import inspect
import pydoc
import re
import textwrap
from contextlib import closing
from typing import Any

import pytest

import kelek
from kelek.clients.io.public import PublicType, ShortSignature
from kelek.tests.test_docs import blocks, commands

SCREEN_LINES, SCREEN_COLUMNS = 40, 80
TITLE_LINES = 2  # "Help on class Lock in module ...", and an empty line.
CLASSES = sorted(name for name in dir(kelek) if isinstance(getattr(kelek, name), PublicType))
SMALL = ("Lock", "Semaphore", "Election", "Map")
NOISE = (
    r"kelek\.clients\.", r"collections\.abc", r"typing\.", "NoneType", " at 0x", "__dict__",
    "__abstractmethods__", "_internal", r"bytes \| bytearray", r"Generator\[",
)  # fmt: skip
MADE_BY_KELEK = {  # No user calls these classes.
    "AnswerStream", "AsyncAnswerStream", "Future", "Job", "AsyncJob", "Producer", "AsyncProducer",
    "Service", "Branch", "TableView", "AsyncTableView", "Group", "AsyncGroup",
}  # fmt: skip
# What an example needs that its own lines do not make.
FIRST = {
    "Job": 'queue = kelek.Queue(URLS, "thumbnails")\n',
    "AsyncJob": 'queue = kelek.AsyncQueue(URLS, "thumbnails")\n',
    "AsyncGroup": 'stream = kelek.AsyncStream(URLS, "orders")\n',
    "Batch": 'table = kelek.Table(URLS, "accounts")\n',
    "Branch": 'table = kelek.Table(URLS, "accounts")\n',
}
LAST = {
    "Batch": "print(table.commit(batch))",
    "Branch": "print(table.commit(batch))",
    "AsyncJob": "await queue.put({'name': 'a'}); await queue.run(idle_s=0.1)",
    "Job": "queue.put({'name': 'a'}); queue.run(idle_s=0.1)",
}

PRINTED = {
    "Lock": "the lock is ours, with fencing token",
    "Election": "a leads, with fencing token",
    "Queue": "waiting",
    "Stream": "['new']",
    "Table": "[('user/1', {'name': 'Ann'})]",
    "AsyncTable": "[(b'key', b'value')]",
    "Log": "[b'one']",
    "Broker": "b'LH400'\n[b'FRA']",
    "Batch": "BatchResult(succeeded=False",
}
PROGRAM = """
import asyncio
import functools
import threading

import kelek

URLS = "tcp://127.0.0.1:7100"
kelek.Node, kelek.AsyncNode = (
    functools.partial(
        kind, tuning=kelek.NodeTuning(port=5670, broadcast_address="127.255.255.255")
    )
    for kind in (kelek.Node, kelek.AsyncNode)
)

@kelek.service("echo")
def echo(body):
    yield body
    return body

echo = kelek.Worker(echo, "tcp://127.0.0.1:7301")
thread = threading.Thread(target=echo.run)
thread.start()
"""


def help_of(name: str) -> list[str]:
    text = pydoc.plain(pydoc.render_doc(getattr(kelek, name), "Help on %s:"))
    return text.splitlines()


def screen(name: str) -> str:
    """The first screen, without the margin."""
    return "\n".join(line[4:] for line in help_of(name)[TITLE_LINES:SCREEN_LINES])


def example(name: str) -> str:
    """The first block of code in a class's docstring."""
    doc = inspect.getdoc(getattr(kelek, name)) or ""
    found = re.search(r"(?m)(?:^    .*\n)+", doc)
    assert found is not None
    return textwrap.dedent(found[0])


def test_every_client_is_a_public_type() -> None:
    twins = [name for name in dir(kelek) if f"Async{name}" in dir(kelek)]
    assert {*twins, *(f"Async{name}" for name in twins), "Map", "Worker", "Batch"} <= {*CLASSES}


@pytest.mark.parametrize("name", CLASSES)
def test_the_first_screen_has_arguments_methods_and_an_example(name: str) -> None:
    kind: Any = getattr(kelek, name)
    text = screen(name)
    assert max(map(len, help_of(name)[TITLE_LINES:])) <= SCREEN_COLUMNS
    if name not in MADE_BY_KELEK:
        for argument in inspect.signature(kind).parameters:
            assert re.search(rf"^{argument}\b", text, re.M), f"{argument} is not explained"
    for method in dir(kind):
        if not method.startswith("_"):
            assert re.search(rf"\b{method}\b", text), f"{method} is not on the first screen"
    assert example(name).strip() in textwrap.dedent(text.replace("\n    ", "\n")), "the example"
    assert len(example(name).splitlines()) <= 4


@pytest.mark.parametrize("name", CLASSES)
def test_it_has_no_internal_names(name: str) -> None:
    text = "\n".join(help_of(name)[TITLE_LINES:])
    bases = {each.__name__ for each in type.mro(getattr(kelek, name))}
    for base in bases - {*dir(kelek), "object", "Generic"}:
        assert not re.search(rf"\b{base}\b", text.replace("Iterator[", "")), base
    for noise in NOISE:
        assert not re.search(noise, text), noise


@pytest.mark.parametrize("name", [*SMALL, *(f"Async{name}" for name in SMALL if name != "Map")])
def test_all_of_a_small_object_is_on_two_screens(name: str) -> None:
    assert len(help_of(name)) <= 2 * SCREEN_LINES


@pytest.mark.parametrize("name", [name for name in CLASSES if f"Async{name}" in CLASSES])
def test_the_twin_for_asyncio_says_the_same(name: str) -> None:
    """Its own summary and example, then the same arguments and methods."""
    here, there = screen(name), screen(f"Async{name}")
    rows = [line for line in here.splitlines() if re.match(r"\S+(?: \S+)*  ", line)]
    assert rows
    words = " ".join(there.split())
    for row in rows:
        assert " ".join(re.sub(r"\bclose\b", "aclose", row).split()) in words


def test_a_users_class_shows_its_own_signature_and_methods() -> None:
    class DayLock(kelek.Lock):
        def __init__(self, day: int) -> None:
            super().__init__("tcp://127.0.0.1:1", f"report/{day}")

        def written(self) -> bool:
            """Whether it is written."""
            return self.held

    assert str(inspect.signature(DayLock)) == "(day: int) -> None"
    assert DayLock.__bases__ == (kelek.Lock,)
    assert DayLock.__mro__ == (DayLock, kelek.Lock, object)
    with closing(DayLock(7)) as lock:
        assert lock.name == "report/7"
        assert not lock.written()
    assert {"written", "acquire", "__enter__"} <= {*dir(DayLock)}


def test_a_signature_is_read_at_its_first_use() -> None:
    signature = inspect.signature(kelek.Table.get_many)
    assert isinstance(signature, ShortSignature)
    assert list(signature.parameters) == ["self", "keys"]
    assert "keys: Iterable[Data]" in str(signature)
    with kelek.Table("tcp://127.0.0.1:1") as table:
        assert str(inspect.signature(table.get)) == "(key: Data) -> Any"
        assert "get(key: Data) -> Any" in pydoc.plain(pydoc.render_doc(table.get))
    bound = inspect.signature(kelek.Map.update).bind(None, {"a": 1}, b=2)
    assert bound.arguments["values"] == {"b": 2}


@pytest.mark.tables
def test_the_examples_run(shell: Any) -> None:
    shell.ok("supervisor start --detach --one-process")
    run_examples(shell, [name for name in CLASSES if "Farm" not in name])


def test_the_examples_of_a_farm_run(shell: Any) -> None:
    """On the farm of its guide."""
    for command, _ in commands(next(iter(blocks("docs/guides/farm.md")))):
        shell.ok(shell.translate(command))
    run_examples(shell, ["Farm", "AsyncFarm"])


def run_examples(shell: Any, names: list[str]) -> None:
    """Runs them in one program."""
    code = [PROGRAM]
    for name in names:
        body = f"{FIRST.get(name, '')}{example(name)}{LAST.get(name, '')}"
        code.append(f"async def of_{name}():\n{textwrap.indent(body, '    ')}\n")
        code.append(f"print('{name}:')\nasyncio.run(of_{name}())\n")
    code.append("echo.drain()\nthread.join()\n")
    printed = shell.ok("python -W error -", shell.translate("\n".join(code)).encode())
    for name in names:
        assert f"{name}:\n{PRINTED.get(name, '')}" in printed, printed
