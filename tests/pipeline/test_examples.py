"""examples/pipeline: each program runs, and prints what docs/guides/spark shows."""

import contextlib
import doctest
import importlib.util
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kelek
from kelek.protocols.zre.log import Report, encode_report
from kelek.protocols.zre.presence import Presence, PresenceEvent, encode_presence
from kelek.protocols.zre.values import Level, LogEvent, Version
from kelek.tests.actors.farm.farm_servers import FarmServers
from kelek.tests.conftest import ROOT, Shell
from kelek.tests.pipeline.conftest import NODE, running

FOLDER = ROOT / "examples" / "pipeline"
PAGES = [*(ROOT / "docs" / "guides" / "spark").glob("*.md")]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.M | re.S)
SHOWN = dict(  # What each of them prints.
    re.findall(r"^\$ python examples/pipeline/(\w+)\.py.*\n((?:(?!\$ |```).*\n)*)", TEXT, re.M)
)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
PICTURES = ["log_to_parquet", "present", "publishers"]
NEEDS = {"server_side_map": "wasmtime"} | dict.fromkeys([*PICTURES, "delays"], "matplotlib")
TOPOLOGY = f"""\
cluster: demo
{NODE}    zre: {{interface: lo, log_service: log}}
zerodb: {{mapper: wasm}}
zre: {{port: 5670}}
"""


REPORT = Report(Level.INFO, LogEvent.ENTER, 1, 2, 3, "come")
SAID = Presence(
    PresenceEvent.ENTER, 3, bytes(16), "hall", bytes(16), "lamp", "tcp://10.0.0.1:61000", Version.V2
)
LATER = "1970-01-01T00:00:00.002Z"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """One node, with all that the examples ask of the demo's topology."""
    with running(tmp_path_factory.mktemp("examples"), TOPOLOGY) as shell:
        yield shell


@pytest.fixture(scope="module")
def farm(nodes: Shell) -> Iterator[FarmServers]:
    """One server, which posts nothing by itself; the addresses of the nodes have its own."""
    with FarmServers((1,), node="post_interval_ms: 0") as farm:
        farm.start()
        nodes.addresses["127.0.0.1:7401"] = f"127.0.0.1:{farm.ports[1]}"
        nodes.addresses["farm/"] = f"{farm.folder}/"
        yield farm


def run(nodes: Shell, name: str, *arguments: str) -> str:
    """What an example prints; it runs in this process, with the session that there is."""
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    path = FOLDER / f"{name}.py"
    code = compile(translated(nodes, path.read_text(encoding="utf-8")), str(path), "exec")
    names = {"__name__": "__main__", "__file__": str(path)}
    before, sys.argv = sys.argv, [str(path), *arguments]
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, names)
    finally:
        sys.argv = before
    return printed.getvalue()


def translated(nodes: Shell, text: str) -> str:
    """With the addresses, and the folder of a farm's files, that there are."""
    folder = nodes.addresses.get("farm/", "farm/")
    return re.sub(r'"(/srv/)?farm/', f'"{folder}', nodes.translate(text))


def same(shown: str, found: str) -> bool:
    return doctest.OutputChecker().check_output(shown, found, FLAGS)


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("name", sorted(SHOWN.keys() - {"delays", *PICTURES}))
def test_prints_what_is_shown(nodes: Shell, name: str) -> None:
    found = run(nodes, name)
    assert same(SHOWN[name], found), found


@pytest.mark.usefixtures("spark", "farm")
@pytest.mark.parametrize("name", PICTURES)
def test_a_picture(nodes: Shell, tmp_path: Path, name: str) -> None:
    picture = tmp_path / "it.png"
    found = run(nodes, name, "--picture", str(picture))
    shown = re.sub(r"(?<=drawn: ).*", str(picture), SHOWN[name])
    assert same(shown, found), found
    assert picture.read_bytes().startswith(b"\x89PNG")


def program_of(nodes: Shell, title: str) -> str:
    """What the program of a section of the page prints."""
    text = TEXT.partition(f"\n## {title}\n")[2]
    text = text[text.index("```python\n") + len("```python\n") : text.index("```\n\n|")]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(translated(nodes, text), title, "exec"), {})
    return printed.getvalue()


@pytest.mark.usefixtures("spark")
def test_documents(nodes: Shell, farm: FarmServers) -> None:
    """The page's section on farms, with what the example has posted or, alone, without."""
    farm.append(
        b'{"cluster":"farm","date":1,"id":7,"meta":{},"router":{"uptime":1234567}}', user="servers"
    )
    assert re.search(r"\|\s*7\|\s*1234567\|", program_of(nodes, "A farm's documents"))


@pytest.mark.usefixtures("spark")
def test_presence(nodes: Shell) -> None:
    """The page's section: its program, and a table's reports, for which no JVM is asked."""
    from kelek.pipeline.options import parse_options
    from kelek.pipeline.zre.kind import ZreTableReader
    from kelek.pipeline.zre.options import ZreTableOptions

    with kelek.Log(nodes.translate("tcp://127.0.0.1:7201")) as log:
        log.append(encode_presence(SAID))
    assert re.search(r"\|\s*hall\|\s*lamp\|", program_of(nodes, "Presence"))
    url = nodes.translate("tcp://127.0.0.1:7100")
    said = [encode_report(REPORT), b"else", encode_report(REPORT._replace(event=LogEvent.EXIT))]
    with kelek.Table(url, 31) as table:
        table.put_many((time.to_bytes(8) + b"k", one) for time, one in enumerate(said))
    for given, wanted in (({}, ["ENTER", "EXIT"]), ({"after": LATER}, ["EXIT"])):
        options = parse_options(ZreTableOptions, {"urls": url, "table": "31", **given})
        reader: Any = ZreTableReader(options.of_table(), "")
        rows = [one for part in reader.partitions() for one in reader.read(part)]
        assert [event for one in rows for event in one["event"].to_pylist()] == wanted


def test_nodes_are_found_by_zre(spark: Any, nodes: Shell) -> None:
    hall = f"zre://demo?interface=lo&port={nodes.addresses['5670']}&timeout_ms=60000"
    with kelek.Table(nodes.translate("tcp://127.0.0.1:7100"), 32) as table:
        table.put(b"k", b"v")
    frame = spark.read.format("kelek").options(kind="table", urls=hall, table=32).load()
    assert [tuple(row) for row in frame.collect()] == [(b"k", b"v")]


WEATHER = """\
origin,precip,visib,time_hour
EWR,0,10,2013-01-01T10:00:00Z
EWR,0,10,2013-01-01T10:00:00Z
EWR,0.1,10,2013-01-01T11:00:00Z
EWR,NA,2,2013-01-01T12:00:00Z
"""
PLANES = """\
tailnum,year,model
N1,2011,EMB-145XR
N2,1998,EMB-145XR
"""
FLIGHT = "2013,1,1,517,515,{},830,819,11,UA,1545,{},{},IAH,227,1400,{},15,2013-01-01T{}:00:00Z"
FLIGHTS = (
    ("2", "N1", "EWR", "5", "10"),
    ("-4", "N2", "EWR", "5", "10"),
    ("30", "N9", "EWR", "6", "11"),
    ("21", "N1", "EWR", "7", "12"),
    ("5", "N1", "LGA", "7", "12"),
    ("NA", "N1", "LGA", "7", "12"),
)


@pytest.mark.usefixtures("spark")
def test_delays(nodes: Shell, tmp_path: Path) -> None:
    """Of six flights, one of which was cancelled; one hour's weather is there twice."""
    (tmp_path / "weather.csv").write_text(WEATHER)
    (tmp_path / "planes.csv").write_text(PLANES)
    url = nodes.translate("tcp://127.0.0.1:7100")
    with kelek.Table(url, 1) as table:
        table.put_many((b"%d" % n, FLIGHT.format(*one).encode()) for n, one in enumerate(FLIGHTS))
    picture = tmp_path / "delays.png"
    found = run(nodes, "delays", "--data", str(tmp_path), "--picture", str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")
    with kelek.Table(url, 2) as table:
        counted = {key.decode(): value for key, value in table.scan()}
    assert counted == {
        "05/UA/EWR/fair/0-4 years": b'{"flights":1,"minutes":2}',
        "05/UA/EWR/fair/15 and more": b'{"flights":1,"minutes":-4}',
        "06/UA/EWR/rain, snow/unknown": b'{"flights":1,"minutes":30}',
        "07/UA/EWR/fog/0-4 years": b'{"flights":1,"minutes":21}',
        "07/UA/LGA/unknown/0-4 years": b'{"flights":1,"minutes":5}',
    }
    lines = " ".join(found.split())
    for shown in ("5 flights in 5 rows", "05 -1.0 UA 10.8", "07 13.0 █", "rain, snow 30.0 █"):
        assert shown in lines, found


def test_every_example_is_shown() -> None:
    """A program of the page that is a file is that file, or a part of it."""
    files = {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.py")}
    assert files.keys() == SHOWN.keys()
    for name, text in files.items():
        assert any(program in text for program in PROGRAMS), f"the pages lack {name}.py"


def test_pictures_are_those_of_the_pages() -> None:
    pictures = {path.name for path in (ROOT / "docs" / "pictures").iterdir()}
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")]
    used = {
        name for page in pages for name in re.findall(r"pictures/([\w.-]+)\)", page.read_text())
    }
    assert used == pictures
