"""docs/guides/services.md contains the source of the examples; test_docs.py runs its commands."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_contains_the_examples() -> None:
    page = (ROOT / "docs/guides/services.md").read_text(encoding="utf-8")
    blocks = [part.partition("```\n")[0] for part in page.split("```py\n")[1:]]
    example = (ROOT / "examples/services.py").read_text(encoding="utf-8")
    table_example = (ROOT / "examples/flight_delays.py").read_text(encoding="utf-8")
    assert blocks == [
        example.partition("\n\n")[2],
        table_example[table_example.index("flights = ") :],
    ]
