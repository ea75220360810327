"""Makes docs/pictures/terminal.svg from the output of real commands.

    .ci/picture                 runs this with rich of .ci/docs.txt and the kelek of .venv

It starts the demo in a folder of its own, on other ports, and takes what a terminal of 80 columns
gets. tests/site/test_picture.py compares the picture with what the commands print.
"""

import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "pictures" / "terminal.svg"
COMMANDS = (
    "supervisor start --detach",
    'kelek log append "hello world"',
    "kelek table put 1 rate 10",
    "kelek table get 1 rate",
    "kelek status",
)
COLUMNS = 80
PORTS_UP = 10_000  # A demo may run here.


def topology() -> str:
    """The demo's, on other ports and without discovery, which other clusters here would see."""
    text = (ROOT / "topology.yaml").read_text(encoding="utf-8")
    text = re.sub(r"(?m)^    zre: .*\n", "", text)
    return re.sub(
        r"(127\.0\.0\.1:)(\d+)", lambda found: f"{found[1]}{int(found[2]) + PORTS_UP}", text
    )


def output(command: str, folder: str) -> str:
    """What a command prints to a terminal."""
    inner, outer = pty.openpty()
    environment = {
        **os.environ,
        "PATH": f"{ROOT}/.venv/bin:{os.environ['PATH']}",
        "TERM": "xterm-256color",
        "COLUMNS": str(COLUMNS),
    }
    with subprocess.Popen(
        ["bash", "-c", command], cwd=folder, env=environment, stdin=outer, stdout=outer,
        stderr=outer,
    ) as process:  # fmt: skip
        os.close(outer)
        data = b""
        try:
            while part := os.read(inner, 4096):
                data += part
        except OSError:  # The end of a terminal.
            pass
    os.close(inner)
    if process.returncode:
        sys.exit(f"{command}: exit code {process.returncode}\n{data.decode()}")
    return data.decode().replace("\r\n", "\n").rstrip("\n")


def main() -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"))  # noqa: SIM115
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "topology.yaml").write_text(topology(), encoding="utf-8")
        try:
            for command in COMMANDS:
                console.print(Text(f"$ {command}", style="bold"))
                console.print(Text.from_ansi(output(command, folder)))
        finally:
            output("supervisor stop", folder)
    svg = console.export_svg(title="kelek", unique_id="kelek")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S)  # No fonts of other servers.
    svg = "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"
    PICTURE.write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
