"""docs/guides/spark: its programs run, and its tables of options follow the declarations.

`pytest tests/pipeline/test_docs.py -k tables --rewrite` rewrites the tables.
"""

import re
from pathlib import Path
from typing import Any

import pytest

import kelek
from kelek.pipeline import errors
from kelek.pipeline.changes.options import ChangesReadOptions
from kelek.pipeline.farm.options import FarmReadOptions
from kelek.pipeline.jvm.options import CatalogueOptions
from kelek.pipeline.log.options import LogReadOptions, LogWriteOptions
from kelek.pipeline.options import options_of
from kelek.pipeline.stream.options import StreamReadOptions, StreamWriteOptions
from kelek.pipeline.table.options import TableReadOptions, TableWriteOptions
from kelek.pipeline.zre.options import ZreReadOptions, ZreTableOptions
from kelek.tests.secure_cluster import SecureCluster
from kelek.tests.test_docs import CLIENT_KEYS, section

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "guides" / "spark"
PAGES = {page: page.read_text(encoding="utf-8") for page in sorted(FOLDER.glob("*.md"))}
STORY = (
    "README.md",
    "tables.md",
    "changes.md",
    "streams-and-log.md",
)  # What one wrote the next one may read.
FILES = [path.read_text(encoding="utf-8") for path in (ROOT / "examples").glob("pipeline/*.py")]
PROGRAMS = [
    (name, program)
    for name in STORY
    # log/test_docs.py runs those of the log.
    for program in re.findall(
        r"^```python\n(.*?)^```$", PAGES[FOLDER / name].partition("\n## The log\n")[0], re.M | re.S
    )
    if program not in FILES  # test_examples.py runs those.
]
URL = "tcp://127.0.0.1:7100"
SERVER_KEY = "yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
KEY = "/etc/kelek/orders.key_secret"


FOLDERS = (
    "arrived",
    "checkpoint",
    "stock-checkpoint",
)  # Where the JVM was started, unless they are moved.


def test_programs(spark: Any, node: str, tmp_path: Path) -> None:
    for name, program in PROGRAMS:
        place = PAGES[FOLDER / name].partition(program)[0].count("\n")
        text = program.replace(URL, node)
        for folder in FOLDERS:
            text = text.replace(f'"{folder}"', f'"{tmp_path}/{folder}"')
        exec(compile("\n" * place + text, str(FOLDER / name), "exec"), {})


def test_programs_of_the_catalogue(catalogue: Any, node: str) -> None:
    page = FOLDER / "catalogue.md"
    programs = re.findall(r"^```python\n(.*?)^```$", PAGES[page], re.M | re.S)
    assert len(programs) == 5
    for program in programs:
        exec(compile(program.replace(URL, node), str(page), "exec"), {})


def test_the_page_names_the_errors() -> None:
    shown = re.findall(
        r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", PAGES[FOLDER / "README.md"], re.M))
    )
    known = [
        name
        for name, one in vars(errors).items()
        if one.__class__ is type and one.__module__ == errors.__name__
    ]
    assert sorted(shown) == sorted([*known, "DATA_SOURCE_NOT_FOUND"])


def test_the_recipe(spark: Any, node: str) -> None:
    page = (ROOT / "docs" / "recipes" / "spark.md").read_text(encoding="utf-8")
    [program] = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    exec(program.replace(URL, node), {})


def test_the_example_with_keys(spark: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """docs/security.md: the driver and the tasks connect with CURVE."""
    cluster = SecureCluster(names=("n1",))
    try:
        key = cluster.allow("orders", "tables:7:rw tables:3221225471:rw jobs")
        cluster.start()
        cluster.wait(lambda: "all-ready" in cluster.log())
        url, server_key = cluster.urls["n1.zerodb.url"], cluster.server_key("n1")
        with kelek.Table(url, 7, key=key, server_keys=server_key) as table:
            table.put_many((b"%d" % number, b"x") for number in range(1000))
        program = section(*CLIENT_KEYS)[-1].text
        for shown, real in ((URL, url), (SERVER_KEY, server_key), (KEY, key)):
            assert shown in program
            program = program.replace(shown, real)
        exec(program, {"spark": spark})
        assert "1000" in capfd.readouterr().out
    finally:
        cluster.stop()


# The classes of each table of options, by the use that has no `only` of its own.
TABLES_OF_OPTIONS: dict[str, dict[str, type]] = {
    "table, reading": {"": TableReadOptions},
    "table, writing": {"": TableWriteOptions},
    "the catalogue": {"": CatalogueOptions},
    "changes": {"": ChangesReadOptions},
    "stream": {"reads": StreamReadOptions, "writes": StreamWriteOptions},
    "log": {"reads": LogReadOptions, "writes": LogWriteOptions},
    "zre": {"": ZreReadOptions},
    "zre, a table": {"": ZreTableOptions},
    "farm": {"": FarmReadOptions},
}
MARKED = re.compile(r"<!-- options of ([^>]+) -->\n.*?<!-- end of options -->", re.DOTALL)


def table(title: str) -> str:
    """One row per option: name, default, values, meaning."""
    rows: dict[str, str] = {}
    for use, options in TABLES_OF_OPTIONS[title].items():
        for one in options_of(options):
            default = "required" if one.required else f"`{one.default}`" if one.default else ""
            default += f", of a stream `{one.in_streams}`" if one.in_streams else ""
            only = one.only or use
            in_all = all(
                one.name in {other.name for other in options_of(each)}
                for each in TABLES_OF_OPTIONS[title].values()
            )
            meaning = one.meaning if in_all and not one.only else f"{only} only: {one.meaning}"
            rows.setdefault(
                one.name,
                f"| `{one.name}` | {default or 'none'} | {one.type.values} | {meaning} |\n",
            )
    head = "| option | default | values | meaning |\n| --- | --- | --- | --- |\n"
    return head + "".join(rows.values())


def test_the_tables_of_options_are_current(request: pytest.FixtureRequest) -> None:
    for page, text in PAGES.items():
        current = MARKED.sub(
            lambda at: f"<!-- options of {at[1]} -->\n{table(at[1])}<!-- end of options -->", text
        )
        if request.config.getoption("--rewrite"):
            page.write_text(current, encoding="utf-8")
        else:
            assert current == text, "run this test with --rewrite"
    shown = [title for text in PAGES.values() for title in MARKED.findall(text)]
    assert sorted(shown) == sorted(TABLES_OF_OPTIONS), "each has a place in a page"
