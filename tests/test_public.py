"""What `import kelek` offers: its names, their types and documentation, and the old names."""

import importlib.util
import inspect
import os
import re
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import kelek
from kelek.clients import errors
from kelek.version import __version__

ROOT = Path(__file__).resolve().parent.parent
STUB = (ROOT / "__init__.pyi").read_text()
ALIASES = dict(line.split(" = ") for line in STUB.splitlines() if " = " in line)
NAMES = sorted(set(dir(kelek)) & {line.rpartition(" as ")[2] for line in STUB.splitlines()})

USER_PROGRAM = """
from collections.abc import Iterator

import kelek
from kelek import Change, Entry, LogUnavailable


def last(log: kelek.Log) -> Entry | None:
    found: Entry | None = None
    for found in log.entries(after=0):
        pass
    return found


def changes(table: kelek.Table) -> Iterator[Change]:
    job: kelek.RangeJob = table.range_job()
    server: kelek.ServerInfo = table.server()
    print(job.apid, server.url)
    yield from table.watch(prefix=b"k")


def ask(broker: kelek.Broker) -> kelek.Body:
    future: kelek.Future = broker.submit("echo", b"x")
    return future.result()


async def copied(log: kelek.AsyncLog, table: kelek.AsyncTable) -> int:
    async for entry in log.entries(after=await log.read_index(applied=False)):
        await table.put(b"last", entry.data, ttl_s=1.5)
    pages: list[list[tuple[bytes, bytes]]] = [page async for page in table.scan_pages(limit=3)]
    return len(pages) + await table.count(prefix=b"l")


def guarded(log: kelek.Log, tuning: kelek.LogTuning) -> kelek.LogInfo | None:
    try:
        return log.info()
    except LogUnavailable:
        return None
    except kelek.Timeout as error:
        raise kelek.Error(f"{kelek.__version__}: {error}, {tuning.response_ttl_ms} ms") from error
"""
WRONG_PROGRAM = """
import kelek

with kelek.Log("tcp://127.0.0.1:7201") as log:
    text: str = log.info().term
    log.make_snapshot(url=7)
    log.entries(since=1)
"""


def test_every_public_name_is_listed_and_documented() -> None:
    assert {*NAMES, "__dir__"} <= {*dir(kelek)}
    assert not {*ALIASES} & {*dir(kelek)}
    for name in NAMES:
        value = getattr(kelek, name)
        if isinstance(value, type):
            assert value.__name__ == name
            assert value.__doc__, name
            assert not value.__doc__.startswith(f"{name}("), name


def test_names_are_found_without_a_package() -> None:
    """pytest imports `__init__.py` so in a clone whose folder has no name of a package."""
    spec = importlib.util.spec_from_file_location("__init__", ROOT / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    assert spec.submodule_search_locations is None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert {*NAMES} <= {*dir(module)}
    assert not hasattr(module, "setUpModule")


def test_a_star_import_brings_all_of_them() -> None:
    names: dict[str, object] = {}
    exec("from kelek import *", names)
    assert set(NAMES) - {"__version__"} == set(names) - {"__builtins__"}


def test_every_name_is_there_without_the_extras() -> None:
    program = """
import sys
for extra in "pyarrow pandas cryptography textual starlette opentelemetry wasmtime".split():
    sys.modules[extra] = None
from kelek import *
import kelek
help(kelek)
try:
    TableSchema("day date32", key=["day"])
except TableError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert not run.stderr
    assert "class TableSchema" in run.stdout
    assert run.stdout.endswith("Arrow needs pyarrow: pip install 'kelek[arrow]'\n")


def test_every_error_is_a_kelek_error() -> None:
    classes = {name: one for name, one in vars(errors).items() if isinstance(one, type)}
    assert classes.keys() <= {*NAMES}
    assert all(issubclass(one, kelek.Error) for one in classes.values())
    assert all(issubclass(kelek.Timeout, one) for one in (kelek.Error, TimeoutError))
    assert issubclass(kelek.TooLarge, ValueError)
    for name, one in classes.items():
        for kind in ("Unavailable", "Timeout", "Compacted", "Refused", "TooLarge", "Conflict"):
            assert not name.endswith(kind) or issubclass(one, classes[kind]), name


@pytest.mark.parametrize("name", ["Log", "Table", "Queue", "Broker", "Farm", "Node"])
def test_asyncio_clients_have_the_same_methods_arguments_and_properties(name: str) -> None:
    blocking, asynchronous = getattr(kelek, name), getattr(kelek, f"Async{name}")
    names = {each for each in dir(blocking) if not each.startswith("_")} - {"close"}
    assert names == {each for each in dir(asynchronous) if not each.startswith("_")} - {"aclose"}
    for each in (*names, "__init__"):
        methods = getattr(blocking, each), getattr(asynchronous, each)
        assert all(method.__doc__ or each in ("__init__", "name", "closed") for method in methods)
        if inspect.isfunction(methods[0]):
            here, there = (list(inspect.signature(method).parameters) for method in methods)
            assert here == there, each


def test_help_shows_the_signature_of_an_operation() -> None:
    blocking, asynchronous = kelek.Log.info, kelek.AsyncLog.info
    assert blocking.__doc__ == asynchronous.__doc__
    assert inspect.iscoroutinefunction(asynchronous)
    for method in (blocking, asynchronous):
        assert inspect.signature(method).return_annotation is kelek.LogInfo
        assert method.__code__.co_name == method.__name__ == "info"
    entries = inspect.signature(kelek.AsyncLog.entries)
    assert entries.return_annotation == AsyncGenerator[kelek.Entry, None]
    assert (
        inspect.signature(kelek.Log.watch_lists).return_annotation
        == (Generator[list[kelek.Entry], None, None])
    )


@pytest.mark.parametrize("old", sorted(ALIASES))
def test_an_old_name_is_the_new_class_and_warns(old: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"kelek\.{old} is now kelek\.{ALIASES[old]}"):
        assert getattr(kelek, old) is getattr(kelek, ALIASES[old])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("open_lease", "open_snapshot"),
        ("lease_chunks", "snapshot_chunks"),
        ("lease_chunks_arrow", "snapshot_chunks_arrow"),
    ],
)
def test_an_old_method_warns_and_calls_the_new_one(old: str, new: str) -> None:
    for kind in (kelek.Table, kelek.AsyncTable):
        assert getattr(kind, old).__doc__ == f"Deprecated: use {new}()."
    arguments = () if old == "open_lease" else (7,)
    with (
        kelek.Table("tcp://127.0.0.1:1", timeout_ms=1) as table,
        pytest.warns(DeprecationWarning, match=rf"{old}\(\) is deprecated: use {new}\(\)"),
        suppress(kelek.TableUnavailable),
    ):
        getattr(table, old)(*arguments)


@pytest.mark.parametrize(
    ("tuning", "old", "new", "value"),
    [
        (kelek.NodeTuning, "broadcast", "broadcast_address", "127.255.255.255"),
        (kelek.NodeTuning, "static", "static_peers", ("tcp://10.0.0.9:61001",)),
        (kelek.NodeTuning, "dead_ms", "expired_ms", 7),
        (kelek.WorkerTuning, "interval_ms", "heartbeat_interval_ms", 7),
    ],
)
def test_an_old_setting_warns_and_sets_the_new_one(
    tuning: Any, old: str, new: str, value: object
) -> None:
    with pytest.warns(DeprecationWarning, match=f"{old}= is deprecated: use {new}="):
        made = tuning(**{old: value})
    assert made == tuning(**{new: value}) != tuning()
    with pytest.warns(DeprecationWarning, match=f"{old} is deprecated: use {new}"):
        assert getattr(made, old) == value


def test_the_page_lists_all_names() -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text()
    renamed = dict(re.findall(r"^\| `kelek\.(\w+)` \| `kelek\.(\w+)` \|$", page, re.M))
    assert renamed == ALIASES
    types = {name for name in NAMES if isinstance(getattr(kelek, name), type)}
    errors_ = {name for name in types if issubclass(getattr(kelek, name), Exception)}
    assert types - errors_ <= {*re.findall(r"`(\w+)`", page)}


def test_the_version_has_one_source() -> None:
    assert kelek.__version__ == __version__
    assert f'"{__version__}"' not in (ROOT / "pyproject.toml").read_text()
    assert re.search(rf"^## {re.escape(__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), re.M)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        kelek.Nothing  # type: ignore[attr-defined]  # noqa: B018


def test_importing_kelek_loads_nothing_else() -> None:
    """The import costs less than 100 ms; loading modules is what would take longer."""
    script = (
        "import sys; before = set(sys.modules); import kelek; "
        "print(*sorted(set(sys.modules) - before))"
    )
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    assert out == ["kelek"]


def test_mypy_checks_a_users_program(tmp_path: Path) -> None:
    (tmp_path / "kelek").symlink_to(ROOT)
    (tmp_path / "right.py").write_text(USER_PROGRAM)
    (tmp_path / "wrong.py").write_text(WRONG_PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent"]
    done = subprocess.run(
        [*command, "--config-file=", f"--cache-dir={tmp_path}/cache", "right.py", "wrong.py"],
        cwd=tmp_path, env={**os.environ, "MYPYPATH": str(tmp_path)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert "wrong.py:5: error: Incompatible types in assignment" in done.stdout
    assert 'wrong.py:6: error: Argument "url" has incompatible type "int"' in done.stdout
    assert 'wrong.py:7: error: Unexpected keyword argument "since"' in done.stdout
    assert "Found 3 errors in 1 file" in done.stdout, done.stdout
