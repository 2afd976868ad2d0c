"""docs/operations.md, followed by an operator: its commands, in its order, on one federation of real processes."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from subprocess import CompletedProcess, Popen
from typing import Any

import httpx
import pytest

from edelweiss.client_app.connection import JoinConfig, read_certificate, read_certificates, read_key
from edelweiss.client_app.doubts import doubts
from edelweiss.client_app.fleet import connected
from edelweiss.client_app.policy.records import Records
from edelweiss.common import Value
from edelweiss.federation.ticket import study_key
from edelweiss.lab.commands.submit import Connection
from edelweiss.lab.dashboard.superlink import SuperLink
from edelweiss.lab.submission import REPO
from tests.deployment.host import HOSPITALS, SERVICES, Host, make_certificates, node_id, operations
from tests.deployment.processes import PATIENCE, process_logs, until
from tests.server_app.sites import table, write_table

pytestmark = pytest.mark.deployments

JOB: dict[str, Value] = {"algorithm": "codasca", "problem": "auc", "dataset": "site", "model": "linear", "rounds": 1}
JOB |= {"sites": 3, "local-steps": 2, "dp.epsilon": 2.0, "batch-size": 32, "workers": 1, "device": "cpu"}
A, B, C = HOSPITALS


class Operator:
    """Who types the page's commands, with this machine in the place of Docker."""

    def __init__(self, host: Host, stack: ExitStack) -> None:
        self.host, self.stack = host, stack
        self.processes: dict[str, Popen[str]] = {}
        (host.root / "certificates").symlink_to(host.certificates)

    def up(self, *services: str) -> None:
        """Start services: hospitals side by side, once the coordinator's are there."""
        for together in (["superlink"], ["serverapp"], HOSPITALS):
            names = [name for name in together if name in services]
            waiting = [self.host.up(name) for name in names]
            with ThreadPoolExecutor(len(waiting) or 1) as pool:
                self.processes |= zip(names, pool.map(self._entered, waiting), strict=True)

    def _entered(self, service: AbstractContextManager[Popen[str]]) -> Popen[str]:
        process = service.__enter__()
        self.stack.push(service.__exit__)
        return process

    def stop(self, *services: str) -> None:
        """End them, all at once."""
        for name in services:
            self.processes[name].terminate()
        for name in services:
            self.processes.pop(name).wait(PATIENCE)

    def types(self, lines: Sequence[str], **named: str) -> str:
        """Type the lines of a block, with numbers in the place of NUMBER and RUN; return all that they say."""
        return "".join(self._typed(re.sub("NUMBER|RUN", lambda found: named[found[0]], line)) for line in lines)

    def _typed(self, line: str) -> str:
        words = shlex.split(line)
        match words:
            case ["bin/make_certs.sh", *arguments]:
                return make_certificates(self.host.certificates, *arguments)
            case ["docker", "compose", "stop", *services]:
                self.stop(*services)
            case ["docker", "compose", "up", "-d", *services]:
                anew = "--force-recreate" in services
                named = [name for name in services if not name.startswith("-")] or [
                    "superlink",
                    "serverapp",
                    *HOSPITALS,
                ]
                if anew:
                    self.stop(*(name for name in named if name in self.processes))
                self.up(*(name for name in named if name not in self.processes))
            case ["docker", "compose", "run", "--rm", "flower", *arguments]:
                return self.host.flower(*arguments)
            case ["docker", "compose", "run", "--rm", *more]:
                return self._runs([word for word in more if word != "-T"])
            case ["rm", *_]:
                subprocess.run(["bash", "-c", line], cwd=self.host.root, check=True)
            case _:
                raise AssertionError(f"no operator types {line!r}")
        return ""

    def _runs(self, words: list[str]) -> str:
        """Run a command in a hospital's container, with its input or output in a file if the line says so."""
        service, *words = words
        streams = {word[0]: self.host.root / word[1:] for word in words if word[0] in "<>"}
        command = [self._here(service, word) for word in words if word[0] not in "<>"]
        command = [*(word.replace("$$", "$") for word in SERVICES[service]["entrypoint"]), *command]
        given = streams["<"].read_bytes() if "<" in streams else b""
        done = subprocess.run(command, env=self.host.environment(service), input=given, capture_output=True)
        said = done.stdout.decode(errors="replace") + done.stderr.decode(errors="replace")
        assert done.returncode == 0, f"{words}: {said}"
        if ">" in streams:
            streams[">"].write_bytes(done.stdout)
        return said

    def _here(self, service: str, word: str) -> str:
        at = str(self.host.folder(service, "/state"))
        return re.sub(r"(?<![\w/])/state\b", at, self.host.here(service, word))

    # ------------------------------------------------------------------ what is so

    def submits(self, **keys: Value) -> CompletedProcess[str]:
        """Submit a run."""
        return self.host.submitted(JOB | keys)

    def trains(self, **keys: Value) -> None:
        """Submit a run, which is to be complete."""
        done = self.submits(**keys)
        code = done.returncode
        assert code == 0, done.stdout + done.stderr + process_logs(self.host.root)

    def number(self, hospital: str) -> str:
        """Return the SuperLink's number of a hospital, as its log has it."""
        until(lambda: node_id(self.host, hospital) is not None, lambda: self.host.log(hospital))
        return node_id(self.host, hospital) or ""

    def begun(self, hospital: str) -> set[str]:
        """Return the runs that a hospital has begun to answer."""
        return {record.run for record in Records(str(self.host.folder(hospital, "/state"))).runs() if record.rounds}

    def config(self, hospital: str) -> JoinConfig:
        """Return the settings of a hospital."""
        file = str(self.host.folder(hospital, "/") / "site.toml")
        return JoinConfig.read(file, {"policy": file, "site": hospital})

    def nodes(self) -> dict[str, bool]:
        """Return the hospitals that the coordinator's page shows, and whether each is connected."""
        found, problems = self.asks(self.host.certificates)
        assert problems == []
        return {each["name"]: each["online"] for each in found}

    def asks(self, shown: Path) -> tuple[list[dict[str, Any]], list[str]]:
        """Ask the SuperLink for the hospitals, with the operator's certificate and key of a folder."""
        made, address = self.host.certificates, f"127.0.0.1:{self.host.ports['superlink', '8000']}"
        own = [str(file) for file in (made / "ca.crt", shown / "operator.crt", shown / "operator.key")]
        return SuperLink(Connection(address, *own), str(made / "public")).nodes()

    @contextmanager
    def page(self, hospital: str, password: str) -> Iterator[httpx.Client]:
        """Log in at a hospital's page, as its operator."""
        until(lambda: "page: http" in self.host.log(hospital), lambda: self.host.log(hospital))
        url = re.findall(r"page: (http\S+)", self.host.log(hospital))[-1]
        with httpx.Client(base_url=url, follow_redirects=True, timeout=PATIENCE) as client:
            before = re.search(r'name="before" value="([^"]+)"', client.get("/login").text)
            assert before
            client.post("/login", data={"name": "operator", "password": password, "before": before[1]})
            yield client

    def refused(self, ca: Path, key: Path, certificate: Path) -> str:
        """Try to join with these files; return why that fails."""
        said: list[str] = []

        def wait(_: float) -> None:
            raise TimeoutError

        identity = read_key(str(key))
        own = read_certificate(str(certificate), identity)
        address = f"127.0.0.1:{self.host.ports['superlink', '9092']}"
        with (
            pytest.raises(TimeoutError),
            connected(address, read_certificates(str(ca)), identity, own, wait=wait, say=said.append),
        ):
            pass
        return said[0]


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    """Run a coordinator and three hospitals with privacy budgets."""
    made = tmp_path / "made"
    make_certificates(made)
    for number, name in enumerate(HOSPITALS):
        write_table(tmp_path / name / "data", *table(200, number))
    with ExitStack() as stack:
        host = Host(tmp_path, made)
        for name in HOSPITALS:
            file = host.folder(name, "/") / "site.toml"
            rules = file.read_text(encoding="utf-8").replace('# label = "outcome"', 'label = "label"')
            rules += "runs-per-day = 0\n[privacy]\nepsilon = 50.0\ndelta = 1e-4\n"
            file.write_text(rules if name == A else re.sub("(?m)^page = .*", "", rules), encoding="utf-8")
        it = Operator(host, stack)
        it.up("superlink", "serverapp")
        host.register(*HOSPITALS)
        it.up(*HOSPITALS)
        yield it
        it.stop(*it.processes)


def test_the_page_is_followed(operator: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    it, host = operator, operator.host
    password = re.findall(r"password (\S+)", host.log(A))[0]
    backs_up, restores, accepts, _ = operations("Backup and restore")
    certificates, hospital, *others, sets_password = operations("Rotation of certificates and keys")
    withdraws, forgets, _ = operations("Leaving a study")

    # Backup and restore, and a hospital of another release
    it.trains()
    it.types(backs_up)
    assert list(doubts(it.config(A))) == []
    it.stop(C)
    shutil.copytree(REPO / "edelweiss", tmp_path / "other" / "edelweiss")
    (tmp_path / "other" / "edelweiss" / "common" / "newer.py").write_text("# of another release\n")
    with monkeypatch.context() as patch, ThreadPoolExecutor(1) as pool:
        patch.setitem(SERVICES[C], "environment", {"PYTHONPATH": str(tmp_path / "other")})
        other = pool.submit(it.up, C)
        it.types(restores)
        other.result()
    done = it.submits()
    assert done.returncode == 1, done.stdout
    for words in ("cannot tell what its patients have spent", "this site runs version"):
        assert words in done.stdout + done.stderr
    assert "this site runs version" in host.log(C)
    assert host.log(A).count("no run begins: ") == len(list(doubts(it.config(A)))) == 2
    with it.page(A, password) as page:
        for words in ("No run begins:", "Nothing is answered:"):
            assert words in page.get("/").text
        it.types(accepts)
        assert list(doubts(it.config(A))) == []
        assert 'role="alert"' not in page.get("/").text

        # Rotation
        new = re.findall(r"password: (\S+)", it.types(sets_password))[0]
        assert page.get("/").url.path == "/login", "logged out"
    for word, path in ((password, "/login"), (new, "/")):
        with it.page(A, word) as page:
            assert page.get("/").url.path == path

    it.stop(C)
    it.up(C)
    shutil.copytree(made := host.certificates, old := tmp_path / "old")
    number = it.number(B)
    it.types(hospital, NUMBER=number)
    assert it.number(B) != number
    key, certificate = f"{B}.key", Path("public") / f"{B}.crt"
    assert "is not registered" in it.refused(made / "ca.crt", old / key, old / certificate)
    for block in (*others, certificates):  # whose services are all recreated at the end, once
        assert block[-1].startswith("docker compose up -d --force-recreate")
        it.types(block[:-1])
    it.types(certificates[-1:])
    until(lambda: node_id(host, B) is not None, lambda: host.log(B))
    hospitals, problems = it.asks(old)
    assert (hospitals, len(problems)) == ([], 1), "the old operator is let in no more"
    assert set(it.nodes()) == set(HOSPITALS), "and the new one is"
    assert "was not signed by the authority" in it.refused(old / "ca.crt", made / key, made / certificate)
    assert "certificate" in it.refused(made / "ca.crt", made / f"{A}.key", old / "public" / f"{A}.crt")
    pinned = study_key(str(made / "study.pub"))
    assert all(f"study-keys = ['{pinned}']" in host.log(name) for name in HOSPITALS)
    new_executor = (made / "executor.pub").read_bytes()
    shutil.copy2(old / "executor.pub", made)
    done = it.submits()
    assert done.returncode == 1
    assert "another executor's key" in done.stdout + done.stderr
    (made / "executor.pub").write_bytes(new_executor)

    # Leaving, in the midst of a run
    assert it.nodes() == dict.fromkeys(HOSPITALS, True)
    with ThreadPoolExecutor(1) as pool:
        known, number = it.begun(C), it.number(C)
        run = pool.submit(it.submits, rounds=200)
        until(lambda: bool(it.begun(C) - known) or run.done(), lambda: process_logs(tmp_path))
        os.kill(it.processes[A].pid, signal.SIGSTOP)  # so the round stays open
        try:
            it.types(withdraws[:1], RUN=(it.begun(C) - known).pop())
        finally:
            os.kill(it.processes[A].pid, signal.SIGCONT)
        done = run.result()
    assert done.returncode == 1, "it needs all of them"
    assert "its operator refused the run" in done.stdout
    assert "its operator refused the run" in host.log(C)
    it.types(withdraws[1:])
    it.types(forgets, NUMBER=number)
    assert it.nodes() == {A: True, B: True}
    it.trains(sites=2)
