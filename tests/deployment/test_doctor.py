"""``client_app doctor`` finds what is wrong before a run does, against a real SuperLink."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bin.run import free_port
from server_app.submission import REPO, flower_environment
from tests.deployment.processes import Guarded

pytestmark = pytest.mark.slow


def doctor(*options: str) -> tuple[int, dict[str, str]]:
    """Return the exit code, and each line by what it is about."""
    command = [sys.executable, "-m", "client_app", "doctor", *options]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    lines = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    return done.returncode, {about: f"{level} {text}" for level, about, text in lines}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "data.csv").write_text("age,dose,label\n" + "".join(f"{40 + n},{n}.5,{n % 2}\n" for n in range(40)))
    return folder


def test_where_all_is_well_it_says_so_and_what_fails_is_named_with_its_fix(
    guarded: Guarded, tmp_path: Path, data: Path
) -> None:
    made = guarded.folder / "certificates"
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "it"\n[superlink.it]\naddress = "127.0.0.1:{guarded.control}"\n'
        f'root-certificates = "{made}/ca.crt"\n'
    )
    command = ["flwr", "supernode", "register", f"{made}/public/hospital-c.pub"]
    subprocess.run(command, env=flower_environment(home), check=True, capture_output=True)
    good = {"superlink": f"127.0.0.1:{guarded.fleet}", "root-certificates": f"{made}/ca.crt"}
    good |= {"key": f"{made}/hospital-c.key", "data-dir": str(data), "label": "label", "state-dir": str(tmp_path / "state")}

    def found(**changed: str) -> tuple[int, dict[str, str]]:
        options = good | {key.replace("_", "-"): value for key, value in changed.items()}
        return doctor(*(f"--{key}={value}" for key, value in options.items()))

    code, lines = found()
    assert code == 0, lines
    assert lines["key"] == "ok registered at the coordinator, and not in use"
    assert lines["data"] == "ok 40 samples, 20 positive, 2 features; 0 values missing"
    assert all(line.startswith("ok") for about, line in lines.items() if about not in ("memory", "state")), lines

    (data / "data.csv").write_text("age,dose,label\n1,x,0\n")
    host = os.uname().nodename
    here = {"state_dir": f"{data}/data.csv/state", "device": "cuda:7"}
    for words, changed in (
        ({"name": "cannot be resolved", "state": "cannot be written", "device": "CUDA devices", "data": "'dose'"},
         {"superlink": "nowhere.invalid:9092", **here}),
        ({"port": "does not take connections"}, {"superlink": f"127.0.0.1:{free_port()}"}),
        ({"TLS": f"not for {host}"}, {"superlink": f"{host}:{guarded.fleet}"}),
        ({"TLS": "get the ca.crt of this"}, {"root_certificates": f"{guarded.folder}/others/ca.crt"}),
        ({"key": "not registered"}, {"key": f"{made}/hospital-b.key"}),
    ):  # fmt: skip
        code, lines = found(**changed)
        assert code == 1
        for about, word in words.items():
            assert lines[about].startswith("error"), lines
            assert word in lines[about]
