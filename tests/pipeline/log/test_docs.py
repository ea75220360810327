"""The log in docs/guides/spark: its Python runs as one story, and prints what it says."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from kelek.tests.conftest import ROOT
from kelek.tests.pipeline.conftest import running

PAGE = ROOT / "docs" / "guides" / "spark" / "streams-and-log.md"
TEXT = PAGE.read_text(encoding="utf-8").partition("\n## The log\n")[2]
TOPOLOGY = """\
cluster: demo
data: var
nodes:
  n1: {url: "tcp://127.0.0.1:7201", peer_url: "tcp://127.0.0.1:7221"}
"""


@pytest.mark.usefixtures("spark")
def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", TEXT, re.M | re.S)
    assert blocks
    names: dict[str, Any] = {}
    with running(tmp_path, TOPOLOGY) as nodes:
        for block in blocks:
            said = re.findall(r"^print\(.*\)  # (.+)$", block, re.M)
            code = nodes.translate(block).replace("/srv/", f"{tmp_path}/srv/")
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(code, str(PAGE), "exec"), names)
            assert printed.getvalue().splitlines() == said
