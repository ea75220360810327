"""docs/services.md shows the example as it is; its commands are run by tests/test_docs.py."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_examples_are_shown_as_they_are() -> None:
    page = (ROOT / "docs/services.md").read_text(encoding="utf-8")
    shown = [part.partition("```\n")[0] for part in page.split("```py\n")[1:]]
    example = (ROOT / "examples/services.py").read_text(encoding="utf-8")
    of_tables = (ROOT / "examples/flight_delays.py").read_text(encoding="utf-8")
    assert shown == [
        example.partition("\n\n")[2],
        of_tables[of_tables.index("flights = ") :],  # tests/console/demo/test_demo.py runs it.
    ]
