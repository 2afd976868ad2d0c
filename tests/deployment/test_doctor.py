"""``edelweiss-site doctor`` finds what is wrong before a run does, against a real SuperLink."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from bin.run import free_port
from edelweiss.lab.submission import flower_environment
from tests.client_app.proxies import proxy
from tests.deployment.processes import Guarded, answers

pytestmark = pytest.mark.deployments


Found = tuple[int, dict[str, str]]


def doctor(options: Mapping[str, str], *changes: Mapping[str, str]) -> list[Found]:
    """Return the exit code, and each line by what it is about, for each change of the options."""

    def read(code: int, said: str) -> Found:
        lines = [line.split(maxsplit=2) for line in said.splitlines()]
        return code, {about: f"{level} {text}" for level, about, text in lines}

    calls = [["doctor", *(f"--{key}={value}" for key, value in {**options, **changed}.items())] for changed in changes]
    return [read(code, said) for code, said, _ in answers(*calls)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "data.csv").write_text("age,dose,label\n" + "".join(f"{40 + n},{n}.5,{n % 2}\n" for n in range(60)))
    return folder


def test_where_all_is_well_it_says_so_and_what_fails_is_named_with_its_fix(
    guarded: Guarded, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
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
    good |= {"key": f"{made}/hospital-c.key", "data-dir": str(data), "label": "label"}
    good |= {"state-dir": str(tmp_path / "state")}

    [(code, lines)] = doctor(good, {})
    assert code == 0, lines
    assert lines["key"] == "ok registered at the coordinator, not in use"
    assert lines["clock"].startswith("ok ")
    assert lines["data"] == "ok 60 samples, 30 positive, 2 features; 0 values missing"
    assert lines.pop("privacy").startswith("warning "), "what no setting changes"
    assert all(line.startswith("ok") for about, line in lines.items() if about not in ("memory", "state")), lines

    with proxy(b"HTTP/1.1 200 OK") as there:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{there.port}")
        [(code, lines)] = doctor(good, {})
        assert code == 0, lines
        assert len(there.asked) >= 3, "the port, the certificate and the key were tried by way of it"
        assert [lines[about].split()[0] for about in ("proxy", "TLS", "clock", "key")] == ["ok"] * 4
    monkeypatch.delenv("https_proxy")

    (data / "data.csv").write_text("age,dose,label\n1,x,0\n")
    host = os.uname().nodename
    here = {"state-dir": f"{data}/data.csv/state", "device": "cuda:7"}
    cases: list[tuple[dict[str, str], dict[str, str]]] = [
        (
            {"name": "cannot be resolved", "state": "cannot be written", "device": "CUDA devices", "data": "'dose'"},
            {"superlink": "nowhere.invalid:9092", **here},
        ),
        ({"port": "does not take connections"}, {"superlink": f"127.0.0.1:{free_port()}"}),
        ({"TLS": f"not for {host}"}, {"superlink": f"{host}:{guarded.fleet}"}),
        ({"TLS": "get the ca.crt of this"}, {"root-certificates": f"{guarded.folder}/others/ca.crt"}),
        ({"key": "not registered"}, {"key": f"{made}/hospital-b.key"}),
    ]
    for (words, _), (code, lines) in zip(cases, doctor(good, *(changed for _, changed in cases)), strict=True):
        assert code == 1
        for about, word in words.items():
            assert lines[about].startswith("error"), lines
            assert word in lines[about]
