"""docs/services.md shows the example as it is; its commands are run by tests/test_docs.py."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_example_is_shown_as_it_is() -> None:
    page = (ROOT / "docs/services.md").read_text(encoding="utf-8")
    example = (ROOT / "examples/services.py").read_text(encoding="utf-8")
    shown = page.partition("```py\n")[2].partition("```\n")[0]
    assert shown == example.partition("\n\n")[2]
