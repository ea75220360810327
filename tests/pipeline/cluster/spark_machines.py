"""A Spark cluster beside a kelek cluster, each part on a machine of its own.

Machines of tests/crash/machines hold three nodes with keys. Spark's master, two workers and a
driver are on four more machines. They see no other machine's files, and the Python of tasks is an
environment as docs/guides/spark/cluster.md packs it.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from threading import Thread
from typing import IO, Any, Self
from zipfile import ZipFile

from packaging.requirements import Requirement

from kelek.actors.topology import topology
from kelek.actors.topology.topology import Topology
from kelek.tests.conftest import ROOT, Shell
from kelek.tests.crash.machines.machines import ADMIN, NODES, Machines, Program
from kelek.tests.test_docs import commands, section
from kelek.tests.waiting import wait_until

MASTER, DRIVER, WORKERS = "master", "driver", ("w1", "w2")
SPARK_NAMES = (MASTER, DRIVER, *WORKERS)
GATE_PORT = 7999
EXECUTOR = "CoarseGrainedExecutorBackend"  # Part of the command line of an executor.
RAFT = "raft: {election_timeout_ms: [600, 1000]}\n"
KEY = "flights"
GRANTS = ("jobs", "admin", "tables:*:rw", "log.read", "log.append")
JOB_S = 300.0
NEEDS = ("cffi", "click", "h11", "msgpack", "pyyaml", "pyzmq", "rocksdict", "pyarrow", "pandas")

UNUSED = shutil.ignore_patterns("tests", "include", "*.a", "*.h", "*.pyi", "__pycache__")
# Hides other machines' folders, then runs the command behind `--`.
HIDE = 'while [ "$1" != -- ]; do mount -t tmpfs none "$1" || exit 1; shift; done; shift; exec "$@"'

SETTINGS = {  # Small processes that start soon.
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "2",
    "spark.executorEnv.PYTHONPATH": "environment",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
    "spark.log.level": "WARN",
    "spark.driver.port": "7078",
    "spark.blockManager.port": "7079",
}
# The section whose commands start Spark's processes and a job.
PAGE = "docs/guides/spark/cluster.md", "## A standalone cluster"


def page_command(word: str) -> str:
    """The command of the page that has a word."""
    shown = [command for block in section(*PAGE) for command, _ in commands(block)]
    [found] = [command for command in shown if word in command]
    return found


def packages(*names: str) -> Iterator[Path]:
    """The files and folders of installed packages and of what they need."""
    known, left = set[str](), [*names]
    while left:
        name = left.pop()
        if name in known:
            continue
        known.add(name)
        found = metadata.distribution(name)
        tops = {file.parts[0] for file in found.files or () if file.parts[0] != ".."}
        yield from (Path(str(found.locate_file(top))) for top in tops - {"__pycache__"})
        for needed in map(Requirement, found.requires or ()):
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                left.append(needed.name.lower())


def make_environment(folder: Path) -> None:
    """The folder that the page makes with pip: kelek as its wheel has it, and what it needs."""
    folder.mkdir()
    for path in packages(*NEEDS):
        if path.is_dir():
            shutil.copytree(path, folder / path.name, ignore=UNUSED, copy_function=os.link)
        elif path.exists():
            os.link(path, folder / path.name)
    build: list[str | Path] = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", folder]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [core] = ROOT.glob("_native*.so")
    shutil.copy(core, folder / "kelek")
    shutil.copy(ROOT / "pipeline/jvm/kelek.jar", folder / "kelek/pipeline/jvm")
    words = ["-m", "compileall", "-qq", "-j", "0", "--invalidation-mode", "unchecked-hash"]
    subprocess.run([sys.executable, *words, folder], check=True)
    with ZipFile(folder.with_suffix(".zip"), "w") as archive:
        for path in folder.rglob("*"):
            archive.write(path, path.relative_to(folder))


class SparkMachines:
    """set_up() starts all. close() ends and removes all that was made.

    machines   those of the nodes, and Spark's
    """

    def __init__(self) -> None:
        """Raises HostsMissing."""
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.machines = Machines(RAFT, "--one-process", others=SPARK_NAMES)
        self.address = {
            name: self.machines.hosts.address(number)
            for number, name in enumerate(self.machines.names)
        }
        for name in SPARK_NAMES:
            shell = self.machines.shells[name]
            others = [other for other in self.machines.names if other != name]
            hidden = [str(path) for it in others for path in self._folders(it)]
            shell.within = [*shell.within, "unshare", "-m", "sh", "-c", HIDE, "sh", *hidden, "--"]
            shell.environment = self._environment(name)

    def _folders(self, name: str) -> list[Path]:
        return [self.machines.folder / name, self.machines.folder / f"{name}.run"]

    def _environment(self, name: str) -> dict[str, str]:
        """That of a machine on which only Spark and Java are installed."""
        import pyspark

        home, folder = Path(pyspark.__file__).parent, self.machines.folder / name
        kept = ("HOME", "JAVA_HOME", "LANG", "PATH")
        found = {key: os.environ[key] for key in kept if key in os.environ}
        return found | {
            "PATH": f"{home / 'bin'}:{found['PATH']}",
            "SPARK_HOME": str(home),
            "SPARK_CONF_DIR": str(folder),
            "SPARK_LOCAL_IP": self.address[name],
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            "SPARK_WORKER_DIR": str(folder / "work"),
            "SPARK_LOG_DIR": str(folder),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_NO_DAEMONIZE": "1",
        }

    def set_up(self) -> None:
        machines = self.machines
        driver = machines.shells[DRIVER].folder
        make_environment(driver / "environment")
        machines.set_up()
        admin = machines.shells[ADMIN]
        admin.ok(f"kelek keys new {KEY}")
        grants = " ".join(f"--grant '{it}'" for it in GRANTS)
        admin.ok(f"kelek keys allow keys/allowed keys/{KEY}.key {grants}")
        for node in NODES:
            machines.copy_allowed(node)
        shutil.copy(admin.folder / f"keys/{KEY}.key_secret", driver)
        shutil.copy(Path(__file__).parent / "job.py", driver)
        conf = "\n".join(f"{name} {value}" for name, value in self._settings().items())
        (driver / "spark-defaults.conf").write_text(conf)
        self._start(MASTER, page_command("master.Master"))
        for name in WORKERS:
            self.start_worker(name)

    # ---- Spark's processes ----

    def start_worker(self, name: str) -> None:
        command = page_command("worker.Worker")
        self._start(name, command.replace(self.address[WORKERS[0]], self.address[name]))

    def _start(self, name: str, words: str) -> None:
        shell = self.machines.shells[name]
        command = [*shell.within, *shlex.split(words)]
        with open(shell.folder / "spark.log", "ab") as log:
            self._daemons.append(subprocess.Popen(
                command, cwd=shell.folder, env=shell.environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
            ))  # fmt: skip

    def kill_executors(self, name: str) -> int:
        """SIGKILL to the executors on a worker's machine; returns their number."""
        return self.machines.kill(name, EXECUTOR)

    def worker_at(self, address: str) -> str:
        return next(name for name in WORKERS if self.address[name] == address)

    # ---- jobs ----

    @property
    def _nodes(self) -> Topology:
        return topology.load(str(self.machines.shells[ADMIN].folder / "topology.yaml"))

    def table_keys(self) -> dict[str, str | None]:
        """The public keys of the nodes, by the urls of their tables."""
        urls = [str(node.tables_url) for node in self._nodes.nodes.values()]
        return {url: self._nodes.server_keys[url] for url in urls}

    def _settings(self) -> dict[str, str]:
        options = {
            "urls": ",".join(self.table_keys()),
            "keyFile": f"{KEY}.key_secret",
            "serverKeys": json.dumps(self._nodes.server_keys, separators=(",", ":")),
        }
        return SETTINGS | {f"spark.sql.catalog.kelek.{it}": options[it] for it in options}

    def submit(self, run: str, *steps: str) -> "Job":
        """Starts job.py by spark-submit on the driver's machine. Its words are those of job.py."""
        logs = ",".join(node.url for node in self._nodes.nodes.values())
        shown = page_command("spark-submit").replace("spark.key_secret", f"{KEY}.key_secret")
        words = shlex.quote(self.gate_address), logs, shlex.quote(run), *steps
        return Job(
            self.machines.shells[DRIVER], shown.replace("squares.py", " ".join(["job.py", *words]))
        )

    @property
    def gate_address(self) -> str:
        return f"{self.address[ADMIN]}:{GATE_PORT}"

    def gate(self) -> "Gate":
        words = self.address[ADMIN], GATE_PORT
        return Gate(self.machines.program(ADMIN, f"{__package__}.gate", *words))

    def content(self, *what: str) -> list[Any]:
        """What content.py reads."""
        key = f"keys/{KEY}.key_secret"
        with self.machines.program(ADMIN, f"{__package__}.content", "topology.yaml", key) as reader:
            reader.send(json.dumps(what))
            found: list[Any] = json.loads(reader.receive())
        return found

    def log(self) -> str:
        """The ends of the logs of Spark's processes and of the nodes."""
        patterns = "*/spark.log", "w?/*/app-*/*/std*"
        files = [path for pattern in patterns for path in self.machines.folder.glob(pattern)]
        ends = (f"{path}: {path.read_text(errors='replace')[-3000:]}" for path in sorted(files))
        return "\n".join([*ends, self.machines.log()])

    def close(self) -> None:
        self.machines.close()
        for process in self._daemons:
            process.wait()


class Lines(Thread):
    """The lines that a process prints."""

    def __init__(self, file: IO[str]) -> None:
        super().__init__(daemon=True)
        self._file, self.lines = file, list[str]()
        self.start()

    def run(self) -> None:
        for line in self._file:
            self.lines.append(line.rstrip("\n"))


class Gate:
    """gate.py."""

    def __init__(self, program: Program) -> None:
        self._program = program
        assert program.receive() == "up"
        assert program.process.stdout is not None
        self._lines = Lines(program.process.stdout)

    def hold(self, place: str, count: int = 0) -> None:
        """Lets count more tasks pass, and holds those behind them."""
        self._program.send(f"hold {place} {count}")

    def open(self, place: str) -> None:
        self._program.send(f"open {place}")

    def arrived(self, place: str) -> list[str]:
        """The addresses of the tasks that came to a place so far."""
        found = [line.split() for line in self._lines.lines]
        return [words[-1] for words in found if words[0] == place]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._program.__exit__(None, None, None)


class Job:
    """spark-submit on a machine."""

    def __init__(self, shell: Shell, command: str) -> None:
        self._process = subprocess.Popen(
            [*shell.within, "bash", "-c", command], cwd=shell.folder, env=shell.environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self._lines = Lines(self._process.stdout)

    def wait_for(self, found: Callable[[], object]) -> None:
        """Waits for something that the job does. Fails when the job ends before."""

        def look() -> bool:
            ended = self._process.poll() is not None
            return bool(found()) or ended

        wait_until(look, self.text, JOB_S)
        assert found(), self.text()

    def result(self, step: str) -> Any:
        """Waits for the end of a step; what it returns."""
        begin = f"done {step} "

        def ends() -> list[str]:
            return [line for line in self._lines.lines if line.startswith(begin)]

        self.wait_for(ends)
        return json.loads(ends()[0].removeprefix(begin))

    def ended(self) -> int:
        """Waits for its end; its exit code."""
        return self._process.wait(JOB_S)

    def end(self) -> None:
        assert self.ended() == 0, self.text()

    def text(self) -> str:
        return "\n".join(self._lines.lines[-200:])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with self._process:
            self._process.kill()
