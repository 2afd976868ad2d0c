"""Temporary folders: nobody's is removed while somebody lives who uses it, and afterwards by whoever comes next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edelweiss.common.scratch import Scratch

HOLDER = """
import os, sys, time
from edelweiss.common.scratch import Scratch
scratch = Scratch(sys.argv[1])
if sys.argv[2] == "fork" and os.fork():
    os._exit(0)  # its child has the folder now
print(scratch.path, os.getpid(), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("how", ["alone", "fork"])
def test_what_a_killed_process_left_goes_when_the_next_one_comes(tmp_path: Path, how: str) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        path, holder = process.stdout.readline().split()
        with Scratch(str(tmp_path)) as mine:
            assert Path(path).is_dir(), "it is in use"
            assert mine.is_dir()
        assert not mine.exists()
        os.kill(int(holder), signal.SIGKILL)
        process.stdout.read()  # until nobody holds the pipe, or the lock
    with Scratch(str(tmp_path)):
        assert not Path(path).exists()


def test_a_folder_of_somebody_else_stays(tmp_path: Path) -> None:
    for name in ("edelweiss-site", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "edelweiss-site" / "lock").touch()
    (tmp_path / "other" / ".in-use").touch()
    with Scratch(str(tmp_path)):
        assert (tmp_path / "edelweiss-site" / "lock").exists()
        assert (tmp_path / "other" / ".in-use").exists()
