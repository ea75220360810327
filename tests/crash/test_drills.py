"""The log on real disks: killed at random points, refused by the system, out of space."""

import os
import shutil
import subprocess
from pathlib import Path
from random import Random

import pytest

from kelek.protocols.record import decode_block
from kelek.storage.disk.disk import Disk
from kelek.storage.errors import StorageError
from kelek.storage.log.hard_state import HardStateFile
from kelek.storage.log.log import Log
from kelek.storage.log.reader import LogReader
from kelek.tests.crash import drill
from kelek.tests.crash.programs import in_namespace, killed, own_disk, started

DRILL = Path(__file__).with_name("drill.py")
DEADLINE_S = 60
WAYS = ["inline", "thread"]


def last_line(output: str) -> str:
    return output.splitlines()[-1]


def check(directory: Path, acked: int) -> int:
    """The log holds all acknowledged entries, and none that was never written."""
    index = 0
    for batch in LogReader(Disk(directory), drill.ME).scan():
        for record in decode_block(batch.block)[1]:
            index += 1
            assert record == drill.record(index)
    assert index >= acked
    return index


@pytest.mark.parametrize("writer", WAYS)
def test_killed_at_random_points(tmp_path: Path, writer: str) -> None:
    random, acked = Random(writer), 0
    for epoch in range(1, 13):
        process = started(DRILL, tmp_path, writer, epoch)
        assert process.stdout is not None
        held = check_opened(process, tmp_path, acked)
        for _ in range(random.choice((0, 1, 5, 40))):
            held = int(process.stdout.readline().split()[0])
        lines = killed(process)
        acked = int(lines[-1].split()[0]) if lines else held
        assert check(tmp_path, acked) >= acked
        assert sum(1 for _ in tmp_path.glob("log/*.seg")) <= acked // 4 + 3 * epoch


def check_opened(process: subprocess.Popen[str], directory: Path, acked: int) -> int:
    assert process.stdout is not None
    held = int(process.stdout.readline().split()[0])
    assert held >= acked
    assert check(directory, held) >= held
    return held


def stracing(*inject: str) -> list[str]:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    command = ["strace", "-f", "-qq", "-o", os.devnull]
    if subprocess.run([*command, "true"], capture_output=True).returncode != 0:
        pytest.skip("strace may not trace here")
    for rule in inject:
        command += ["-e", f"inject={rule}"]
    return command


@pytest.mark.parametrize("writer", WAYS)
@pytest.mark.parametrize("when", [1, 2, 5])
def test_a_failed_sync_is_final(tmp_path: Path, when: int, writer: str) -> None:
    command = stracing(f"fdatasync:error=EIO:when={when}")
    process = started(DRILL, tmp_path, writer, 1, 50, command=command)
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert "can't sync: EIO" in last_line(output)
    acked = [line for line in output.splitlines() if line[0].isdigit()]
    log = Log(Disk(tmp_path), drill.ME, epoch=2, segment_bytes=drill.SEGMENT_BYTES)
    assert check(tmp_path, int(acked[-1].split()[0]) if acked else 0) == log.last_index
    log.close()


@pytest.mark.parametrize("writer", WAYS)
def test_a_full_disk_refuses_until_there_is_room(tmp_path: Path, writer: str) -> None:
    mount = f"mount -t tmpfs -o size=600k none {tmp_path}"
    command = in_namespace(f"{mount}; head -c 300k /dev/zero >{tmp_path}/ballast")
    process = started(DRILL, tmp_path, writer, 1, command=command)
    assert process.stdin is not None
    assert process.stdout is not None
    index = 0
    while (line := process.stdout.readline()) != "full\n":
        index = int(line.split()[0])
    assert index > 0
    for _ in range(3):
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "full\n"
    Path(f"/proc/{process.pid}/root/{tmp_path}/ballast").unlink()
    process.stdin.write("\n")
    process.stdin.flush()
    assert int(process.stdout.readline().split()[0]) > index
    process.kill()
    process.communicate(timeout=DEADLINE_S)


def test_no_space_at_the_first_start(tmp_path: Path) -> None:
    process = started(DRILL, tmp_path, "inline", 1, command=own_disk(tmp_path, "16k"))
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert "no space is left on the disk; free some" in last_line(output)


def test_a_read_only_directory_is_refused_with_the_reason(tmp_path: Path) -> None:
    log = Log(Disk(tmp_path), drill.ME, epoch=1, segment_bytes=drill.SEGMENT_BYTES)
    log.close()
    HardStateFile(Disk(tmp_path), drill.ME).close()
    read_only = f"mount --bind {tmp_path} {tmp_path}; mount -o remount,bind,ro {tmp_path}"
    process = started(DRILL, tmp_path, "inline", 2, command=in_namespace(read_only))
    output, _ = process.communicate(timeout=DEADLINE_S)
    way_out = "give this user the right to write there"
    assert output == f"failed {tmp_path}/lock: can't lock: EROFS; {way_out}\n"


def test_a_file_in_the_way_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a directory")
    with pytest.raises(StorageError, match="can't make the folder: E"):
        Log(Disk(tmp_path / "data"), drill.ME, epoch=1)
