"""Options of sources and sinks: what is unknown, missing or wrong is said in one sentence."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pytest

from kelek.clients.node import discovery
from kelek.pipeline.errors import OptionError, PipelineError
from kelek.pipeline.kind import KINDS, kind_of
from kelek.pipeline.log.options import LogReadOptions
from kelek.pipeline.options import FLAG, SIZE, TEXT, Addressed, one_of, option, parse_options, whole
from kelek.protocols.zre import services
from kelek.tests.conftest import ROOT


@dataclass(frozen=True, kw_only=True)
class KnownOptions(Addressed):
    """An option of each type."""

    row_limit: int = option(whole(0, 10), "", "3")
    key_format: str = option(one_of("raw", "utf8"), "", "raw")
    batch_bytes: int | None = option(SIZE, "")
    closed: bool = option(FLAG, "", "false")
    name: str | None = option(TEXT, "")
    of_streams: str = option(TEXT, "", "one", in_streams="two", only="streams")


URLS = {"urls": "tcp://127.0.0.1:7100, ipc:///run/x"}


def test_values_have_types_and_names_any_case() -> None:
    given = {
        **URLS, "ROWLIMIT": "7", "keyformat": "UTF8", "batchBytes": "2k", "CLOSED": "True",
        "kind": "table", "checkpointLocation": "/x",
    }  # fmt: skip
    assert parse_options(KnownOptions, given) == KnownOptions(
        urls=("tcp://127.0.0.1:7100", "ipc:///run/x"),
        row_limit=7,
        key_format="utf8",
        batch_bytes=2048,
        closed=True,
    )
    assert parse_options(KnownOptions, URLS).row_limit == 3
    assert parse_options(KnownOptions, URLS, "streams").of_streams == "two"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rowlimt": "1"}, "unknown option 'rowlimt'; did you mean rowLimit?"),
        ({"ofStreams": "x"}, "option ofStreams is for streams only"),
        ({"path": "x"}, "unknown option 'path'; known: urls, rowLimit, keyFormat"),
        ({"rowLimit": "11"}, "option rowLimit is a whole number from 0 to 10, not '11'"),
        ({"rowLimit": "many"}, "option rowLimit is a whole number from 0 to 10, not 'many'"),
        ({"keyFormat": "x"}, "option keyFormat is raw or utf8, not 'x'"),
        ({"batchBytes": "0"}, "option batchBytes is a number of bytes like 65536, 64k or 1g"),
        ({"closed": "1"}, "option closed is true or false, not '1'"),
        ({"urls": "127.0.0.1"}, "option urls is the nodes' urls, joined by commas: '127.0.0.1'"),
        (
            {"urls": "zre://x?a=1"},
            "option urls is the nodes' urls, joined by commas: 'zre://x?a=1'",
        ),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_options(KnownOptions, {**URLS, **given})
    assert str(caught.value).startswith(words)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(OptionError, match="option urls is missing"):
        parse_options(KnownOptions, {})


def test_unsupported_options_of_a_kind_are_reported_with_the_way_out() -> None:
    words = "kind table can't be read as a stream; use spark.read, or another option kind: changes"
    with pytest.raises(PipelineError, match=words):
        kind_of({"kind": "table"}).stream_reader({}, None)


def test_kinds() -> None:
    pytest.importorskip("pyarrow")
    for name in KINDS:
        assert kind_of({"KIND": name.upper()}).name == name
    with pytest.raises(OptionError, match=r"unknown kind 'tabel'; did you mean table\?"):
        kind_of({"kind": "tabel"})
    with pytest.raises(OptionError, match="option kind is missing"):
        kind_of({})


# ---- zre://NAME ----

CLUSTER_URL = "zre://hall?interface=lo&port=5671"
OFFERED: dict[str, tuple[str, ...]] = {
    services.LOG: ("tcp://10.0.0.1:7201",),
    services.TABLES: ("tcp://10.0.0.1:7100",),
    services.FARM: ("tls://10.0.0.1:7401",),
}


PINNED = "yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
TABLE = {"table": "1"}
USER = {"user": "u", "secretFile": "s"}


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ports at which somebody has looked; a node of `hall` is heard there."""
    ports = []

    def look(tuning: Any, timeout_ms: int, settle_ms: Any, key: Any, allow: Any) -> Any:
        ports.append(tuning.port)
        proven = min(allow) if key else ""
        node = "hall", "n1", bytes(16), "tcp://10.0.0.1:61000", OFFERED, proven
        return [discovery.DiscoveredNode(*node)], {}

    monkeypatch.setattr(discovery, "_search", look)
    return ports


@pytest.mark.parametrize(
    ("kind", "method", "service", "more"),
    [
        ("table", "reader", services.TABLES, TABLE),
        ("table", "writer", services.TABLES, TABLE),
        ("table", "stream_writer", services.TABLES, TABLE),
        ("log", "reader", services.LOG, {}),
        ("log", "stream_reader", services.LOG, {}),
        ("log", "writer", services.LOG, {}),
        ("log", "stream_writer", services.LOG, {}),
        ("zre", "reader", services.LOG, {}),
        ("zre", "stream_reader", services.LOG, {}),
        ("zre", "reader", services.TABLES, TABLE),
        ("farm", "reader", services.FARM, USER),
        ("farm", "stream_reader", services.FARM, USER),
    ],
)
def test_a_cluster_is_looked_for_once_and_tasks_are_given_addresses(
    looks: list[int],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    method: str,
    service: str,
    more: dict[str, str],
) -> None:
    """By the driver, which pickles what it has found for them."""
    pytest.importorskip("pyspark")
    module = import_module(f"kelek.pipeline.{kind}.kind")

    def made(options: Any, *_: object) -> Any:
        return options

    for name in ("TableReader", "ZreTableReader"):
        monkeypatch.setattr(module, name, made, raising=False)
    for name in ("reads", "writes"):
        if classes := getattr(module.KIND, name):
            monkeypatch.setattr(module.KIND, name, (classes[0], made, made))
    monkeypatch.setattr(module.KIND, "check_columns", lambda schema: None)
    known = f"{'tls' if kind == 'farm' else 'tcp'}://10.0.0.9:1"
    given = {"kind": kind, "urls": f"{known}, {CLUSTER_URL}", **more}
    overwrite = [False] if "writer" in method else []
    found = getattr(kind_of(given), method)(given, None, *overwrite)
    assert found.urls == (known, *OFFERED[service])
    assert looks == [5671]
    if service == services.LOG:
        assert found.cluster == "hall"
        if "reader" in method:
            assert found.origin.cluster == "hall", "what a checkpoint holds"


@pytest.mark.parametrize("of", [list, dict])
def test_the_urls_that_are_found_have_pinned_keys(looks: list[int], of: type) -> None:
    """Tasks get each url's key, of those in serverKeys."""
    known = "tcp://10.0.0.9:1"
    given: Any = [PINNED] if of is list else {known: PINNED}
    options = parse_options(
        LogReadOptions,
        {
            "kind": "log", "urls": f"{known}, {CLUSTER_URL}", "keyFile": "/etc/own.key_secret",
            "serverKeys": json.dumps(given),
        },
    ).located()  # fmt: skip
    assert options.urls == (known, *OFFERED[services.LOG])
    found = {url: PINNED for urls in OFFERED.values() for url in urls}
    assert options.client_keys["server_keys"] == found | (given if of is dict else {})
    assert looks == [5671]


def test_a_cluster_is_not_looked_for_with_half_of_the_keys(looks: list[int]) -> None:
    given = {"kind": "log", "urls": CLUSTER_URL, "keyFile": "/etc/own.key_secret"}
    with pytest.raises(PipelineError, match=r"without server_keys.*options keyFile and serverKeys"):
        parse_options(LogReadOptions, given).located()
    assert not looks


def test_an_unknown_cluster_is_reported(looks: list[int]) -> None:
    given = {"kind": "log", "urls": "zre://attic?timeout_ms=70"}
    said = r"no node of the cluster offers X-KELEK-LOG within 70 ms; found: hall; {}option urls"
    words = said.format(r"nodes .* are found by zre://attic\?timeout_ms=70&interface=lo; ")
    with pytest.raises(PipelineError, match=words):
        parse_options(LogReadOptions, given).located()
    given["urls"] = "zre://attic?interface=lo&timeout_ms=70"
    with pytest.raises(PipelineError, match=said.format("")):
        parse_options(LogReadOptions, given).located()
    assert looks


PICKLED = """
import pickle, sys
sys.modules["zmq"] = None  # Whoever imports it fails.
from kelek.pipeline.farm.kind import FarmReadOptions
from kelek.pipeline.log.kind import LogReader, LogReadOptions, LogStreamReader
from kelek.pipeline.options import parse_options
from kelek.pipeline import source
from kelek.pipeline.zre import kind
NODES = {"urls": "ipc:///x"}
SERVERS = {"urls": "tls://[::1]:1", "user": "u", "secretFile": "s"}
pickle.dumps([
    LogReader(parse_options(LogReadOptions, NODES)),
    LogStreamReader(parse_options(LogReadOptions, NODES, "streams")),
    LogReader(parse_options(FarmReadOptions, SERVERS)),
])
"""


def test_zeromq_is_loaded_where_it_is_used_alone() -> None:
    """What the driver plans and pickles is plain values: each task makes its own sockets."""
    pytest.importorskip("pyspark")
    done = subprocess.run(
        [sys.executable, "-P", "-c", PICKLED], text=True, capture_output=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / ".build")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_time_limit_is_that_of_the_client() -> None:
    """It stands twice, as the client's module loads ZeroMQ."""
    from kelek.clients.log import operations as steps

    assert parse_options(LogReadOptions, URLS).timeout_ms == steps.TIMEOUT_MS
