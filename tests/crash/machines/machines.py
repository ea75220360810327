"""Three nodes on machines of their own, one for the operator, and others, such as an attacker's.

A machine is a network namespace with a folder, a secret key and a supervisor of its own.
docs/security.md says how to set the nodes up; Machines does what that page says.
"""

import doctest
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kelek.tests.conftest import Shell
from kelek.tests.hosts import Hosts
from kelek.tests.test_docs import ROOT, THREE_MACHINES, Block, commands, section

NETWORK = "10.0.0"  # Of that page.
NODES = ("n1", "n2", "n3")
ADMIN, ATTACKER = "admin", "attacker"
SHOWN = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Program:
    """A Python module on a machine, by its name or that of one in this folder. It reads and
    writes lines."""

    def __init__(self, within: Sequence[str], shell: Shell, module: str, *words: object) -> None:
        name = module if "." in module else f"{__package__}.{module}"
        self.process = subprocess.Popen(
            [*within, str(shell.folder / "bin/python"), "-m", name, *map(str, words)],
            cwd=shell.folder, env=shell.environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def receive(self) -> str:
        """The next line; an error if the program has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the program ended: {self.process.wait()}"
        return line.rstrip("\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self.process:
            self.process.kill()


class Machines:
    """The machines; set_up() starts the nodes. close() ends and removes all that was made.

    shells   by the name of a machine
    """

    def __init__(
        self,
        more: str = "",
        flags: str = "",
        change: Callable[[str], str] = str,
        ipv6: bool = False,
        others: Sequence[str] = (ATTACKER,),
    ) -> None:
        """Raises HostsMissing.

        more     further sections of the topology
        flags    of `supervisor start`
        change   what the test changes in the page's topology
        ipv6     whether the nodes have IPv6 addresses, not those of the page
        others   the machines besides the nodes' and the operator's
        """
        self.names = (*NODES, ADMIN, *others)
        self._more, self._flags, self._change, self._ipv6 = more, flags, change, ipv6
        with ExitStack() as stack:
            self.hosts = stack.enter_context(Hosts(len(self.names), NETWORK))
            if ipv6:
                self.hosts.add_v6()
            self.folder = Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self.shells = {}
            for number, name in enumerate(self.names):
                folder, run_dir = self.folder / name, self.folder / f"{name}.run"
                folder.mkdir()
                run_dir.mkdir()
                self.shells[name] = Shell(folder, run_dir, {}, self.hosts.within(number))
            stack.callback(self._kill_all)
            self._stack = stack.pop_all()

    # ---- the page ----

    def set_up(self) -> None:
        """Runs all commands of the page, each on the machine that the line before it names."""
        lines = (ROOT / THREE_MACHINES[0]).read_text(encoding="utf-8").splitlines()
        for block in section(*THREE_MACHINES):
            before = next(line for line in lines[block.line - 3 :: -1] if line)
            if block.kind == "yaml":
                text = self._change(self._with_addresses(block.text)) + self._more
                (self.shells[ADMIN].folder / "topology.yaml").write_text(text)
                self.copy_public_files()
            else:
                self._run(block, re.findall(r"`(n\d|admin)`", before))

    def _run(self, block: Block, names: Sequence[str]) -> None:
        assert names, f"line {block.line}: on which machine?"
        for command, shown in commands(block):
            done = self.run_on(*((name, self._for(command, names[0], name)) for name in names))
            for name, found in zip(names, done, strict=True):
                expected = self._for(shown, names[0], name)
                same = doctest.OutputChecker().check_output(expected, found, SHOWN)
                assert same or not shown.strip(), f"{name}$ {command}\n{found}"

    def _for(self, text: str, first: str, name: str) -> str:
        """The page shows the first machine's text."""
        text = text.replace("supervisor start", f"supervisor start {self._flags}")
        return self._with_addresses(re.sub(rf"\b{first}\b", name, text))

    def _with_addresses(self, text: str) -> str:
        return re.sub(r"10\.0\.0\.(\d)", r"[fd66::\1]", text) if self._ipv6 else text

    def copy_public_files(self) -> None:
        """The topology, the nodes' public keys and the allowed keys, to all machines but one."""
        admin = self.shells[ADMIN].folder
        for node in NODES:
            shutil.copy(self.shells[node].folder / "keys" / f"{node}.key", admin / "keys")
        for node in NODES:
            folder = self.shells[node].folder
            for public in (admin / "keys").glob("n?.key"):
                shutil.copy(public, folder / "keys")
            shutil.copy(admin / "topology.yaml", folder)
            self.copy_allowed(node)

    def copy_allowed(self, node: str) -> None:
        """As `rsync --delete` does."""
        mine, own = (self.shells[name].folder / "keys/allowed" for name in (ADMIN, node))
        own.mkdir(exist_ok=True)
        for path in mine.iterdir():
            shutil.copy(path, own / f"{path.name}.new")
            (own / f"{path.name}.new").replace(own / path.name)
        for path in own.iterdir():
            if not (mine / path.name).exists():
                path.unlink()

    # ---- programs and failures ----

    def run_on(self, *commands: tuple[str, str]) -> list[str]:
        """Runs commands that must succeed, each on a machine, at once; returns what they print."""
        with ThreadPoolExecutor(len(commands)) as pool:
            return [*pool.map(lambda found: self.shells[found[0]].ok(found[1]), commands)]

    def program(self, name: str, module: str, *words: object) -> Program:
        return Program(self.shells[name].within, self.shells[name], module, *words)

    def capture(self, file: Path) -> Program:
        """Writes all frames of the network to a file. It says `up` when it begins."""
        return Program(self.hosts.on_bridge(), self.shells[ADMIN], "capture", file)

    def kill(self, name: str, command: str = "") -> int:
        """SIGKILL to all processes of a machine, or those whose command line has these words;
        returns their number."""
        return self.hosts.kill(self.names.index(name), command.encode())

    def kill_process(self, node: str, role: str) -> None:
        """SIGKILL to one process, which its supervisor starts again."""
        os.kill(self.status(node, role)["pid"], signal.SIGKILL)

    def cut(self, name: str) -> None:
        self.hosts.cut(self.names.index(name))

    def heal(self, name: str) -> None:
        self.hosts.heal(self.names.index(name))

    def start(self, *nodes: str) -> None:
        self.run_on(*((it, f"supervisor start {self._flags} --node {it} --detach") for it in nodes))

    def status(self, node: str, role: str) -> dict[str, Any]:
        """The row of `supervisor status` on the machine of a node."""
        return next(row for row in self.shells[node].status() if row["role"] == role)

    def leader(self) -> str:
        """The node that a majority takes for the leader; '': none."""
        known = [self.status(node, "raft_peer").get("leader") or "" for node in NODES]
        best = max(known, key=known.count)
        return best if 2 * known.count(best) > len(NODES) else ""

    def log(self) -> str:
        """The ends of the nodes' logs."""
        files = sorted(self.folder.glob("n?/var/*/logs/*.log"))
        return "\n".join(f"{path.relative_to(self.folder)}: {path.read_text()[-2000:]}"
                         for path in files)  # fmt: skip

    def _kill_all(self) -> None:
        for name in self.names:
            self.kill(name)

    def close(self) -> None:
        self._stack.close()
