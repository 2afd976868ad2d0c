"""``client_app join`` against a real SuperLink: it stays, runs no code but its own, and says what is wrong."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from bin.run import free_port, superlink
from edelweiss.client_app.policy.records import Records
from edelweiss.common import Value
from edelweiss.lab.submission import REPO, flower_environment, stage, started
from tests.deployment.processes import PATIENCE, Federation, Guarded, answers, until
from tests.server_app.sites import table, write_table

pytestmark = pytest.mark.deployments

JOB: dict[str, Value] = {"algorithm": "local-sgda", "problem": "saddle", "sites": 1, "rounds": 3, "local-steps": 1}


class Site:
    """A site process and what it says."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process, self.log = process, log

    def said(self) -> str:
        """Return its log."""
        return self.log.read_text(encoding="utf-8")

    def says(self, words: str, times: int = 1) -> None:
        """Wait until its log has these words so often."""
        until(lambda: self.said().count(words) >= times, self.said)


@contextmanager
def site(folder: Path, *options: str, environment: dict[str, str] | None = None) -> Iterator[Site]:
    """Run a site through the block."""
    log = folder / f"site-{time.monotonic_ns()}.log"
    command = [sys.executable, "-m", "edelweiss.client_app.cli", "join", *options]
    environment = environment or flower_environment(folder)
    with log.open("w") as stream, started(command, environment, cwd=REPO, stdout=stream, stderr=stream) as process:
        yield Site(process, log)


@dataclass(frozen=True)
class Open(Federation):
    """A SuperLink without TLS, at a port, that each test joins with a site of its own, which is gone at its end."""

    fleet: str = ""

    @contextmanager
    def joined(self, folder: Path, *options: str) -> Iterator[Site]:
        """Run a site through the block, in a folder of its own."""
        (own := folder / "own").mkdir()
        with site(own, f"--superlink={self.fleet}", "--insecure", *options) as here:
            here.says("joined, as number")
            yield here
            here.process.terminate()  # a farewell to the SuperLink: else the next test's run might ask this site
            here.process.wait(PATIENCE)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    folder, fleet = tmp_path_factory.mktemp("open"), f"127.0.0.1:{free_port()}"
    environment = flower_environment(folder)
    with superlink(folder, environment, "--fleet-api-type", "grpc-rere", "--fleet-api-address", fleet):
        yield Open(folder, environment, fleet=fleet)


def stop(run: Path) -> None:
    """Stop a run that goes on: else it would wait for its site for minutes."""
    status = json.loads((run / "status.json").read_text())
    assert status["status"] == "running"
    os.kill(status["process"], signal.SIGTERM)


ALONE = ("--partition-id=0", "--num-partitions=1")


def test_no_code_of_a_run_is_executed(federation: Open, tmp_path: Path) -> None:
    """Neither a foreign app nor ours in another release: its ClientApp would leave a mark as it is imported."""
    with federation.joined(tmp_path, *ALONE, f"--state-dir={tmp_path / 'state'}") as here:
        for name, mend in {
            "foreign": lambda text: text.replace('"edelweiss.server_app.app:app"', '"foreign:server"').replace(
                '"edelweiss.client_app.app:app"', '"foreign:client"'
            ),
            "release": lambda text: text,
        }.items():
            app = stage(tmp_path / name)
            mark = tmp_path / f"{name} was here"
            at_site = "'join' in open('/proc/self/cmdline').read()"
            trap = f"import pathlib\nif {at_site}: pathlib.Path({str(mark)!r}).touch()\n"
            project = app / "pyproject.toml"
            project.write_text(mend(project.read_text()).replace("fab-include = [", 'fab-include = ["foreign.py", '))
            client = app / "edelweiss" / "client_app" / "app.py"
            client.write_text(client.read_text().replace("import logging\n", f"import logging\n{trap}", 1))
            (app / "foreign.py").write_text(trap + FOREIGN)
            settings = tmp_path / f"{name}.toml"
            settings.write_text(f'algorithm="local-sgda"\nproblem="saddle"\nsites=1\nrounds=1\nruns-dir="{tmp_path}"\n')
            command = ["flwr", "run", str(app), "--stream", "--run-config", str(settings)]
            run = subprocess.run(command, env=federation.environment, capture_output=True, text=True, timeout=PATIENCE)
            refusal = re.search(r"this site runs version (\w+) of the app, the coordinator ([\w ]+):", run.stdout)
            assert refusal, run.stdout + run.stderr
            assert refusal[1] != refusal[2]
            assert not mark.exists()
            assert not list((tmp_path / "own").rglob("*.py")), "nothing was unpacked either"
        assert here.process.poll() is None


FOREIGN = """
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()

@server.main()
def main(grid, context):
    [node] = grid.get_node_ids()
    question = Message(RecordDict({"give": ConfigRecord({"rows": "all"})}), node, "query")
    [answer] = grid.send_and_receive([question], timeout=600)
    print(answer.content)
"""


def test_told_to_end_it_finishes_the_message_at_hand(federation: Open, tmp_path: Path) -> None:
    """A run of one long round goes through, though its site is told to end meanwhile; the next round waits in vain."""
    data, audit = write_table(tmp_path / "data", *table(200, seed=0)), tmp_path / "state" / "audit.jsonl"
    own = [f"--data-dir={data}", f"--state-dir={audit.parent}"]
    with federation.joined(tmp_path, "--site=north", *own) as here:
        job: dict[str, Value] = {"dataset": "site", "sites": 1, "model": "linear", "rounds": 2, "local-steps": 5000}
        job |= {"evaluate-every": 0, "round-timeout": 60.0, "runs-dir": str(tmp_path), "run-name": "long"}
        with ThreadPoolExecutor(1) as pool:
            run = pool.submit(federation.submit, job)
            until(lambda: audit.exists() and audit.read_text().count('"way":"in"') >= 2, here.said)
            here.process.send_signal(signal.SIGTERM)
            here.process.wait(PATIENCE)
            assert not run.result().ok
        assert "told to end: after the current message" in here.said()
        assert "train round 1" in here.said()
        assert here.process.returncode == 0
        assert (tmp_path / "long" / "metrics.jsonl").read_text().count("\n") == 1


def test_it_joins_again_when_the_coordinator_was_gone_and_serves_one_run_after_another(tmp_path: Path) -> None:
    fleet = f"127.0.0.1:{free_port()}"
    environment = flower_environment(tmp_path)
    arguments = ["--fleet-api-type", "grpc-rere", "--fleet-api-address", fleet]
    options = [f"--superlink={fleet}", "--insecure", "--partition-id=0", "--num-partitions=1"]
    with site(tmp_path, *options) as here:
        here.says(f"nothing listens at {fleet}")
        with superlink(tmp_path, environment, *arguments):
            here.says("joined, as number")
        with superlink(tmp_path, environment, *arguments):  # which knows nothing of the first one's sites
            here.says("joined, as number", 2)
            for name in "ab":
                job = JOB | {"runs-dir": str(tmp_path), "run-name": name}
                outcome = Federation(tmp_path, environment).submit(job)
                assert outcome.ok, outcome.log + here.said()
        assert here.process.poll() is None
    lines = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in "ab"]
    records = [[json.loads(line)["distance-x"] for line in of_run] for of_run in lines]
    assert records[0] == records[1]
    sent = (tmp_path / "superlink.log").read_text().count("POST /v1/runtime/push-object")
    assert sent <= 3 * len(re.findall(r"run \d+: ", here.said())), "a small message is itself, its content, one record"


def test_a_key_is_refused_until_it_is_registered_and_while_another_process_uses_it(
    guarded: Guarded, tmp_path: Path
) -> None:
    folder, fleet, control = guarded.folder, guarded.fleet, guarded.control
    options = [f"--superlink=127.0.0.1:{fleet}", f"--root-certificates={folder}/certificates/ca.crt"]
    options += [f"--key={folder}/certificates/hospital-a.key", f"--state-dir={tmp_path / 'state'}"]
    with site(tmp_path, *options) as here:
        here.says("this site's key is not registered")
        home = tmp_path / "home"
        home.mkdir()
        address = f'address = "127.0.0.1:{control}"\nroot-certificates = "{folder}/certificates/ca.crt"\n'
        (home / "config.toml").write_text(f'[superlink]\ndefault = "it"\n[superlink.it]\n{address}')
        command = ["flwr", "supernode", "register", f"{folder}/certificates/public/hospital-a.pub"]
        subprocess.run(command, env=flower_environment(home), check=True, capture_output=True)
        here.says("joined, as number")
        with site(tmp_path, *options) as second:
            second.says("another process has joined with")
            assert second.process.wait(PATIENCE) == 2
        shutil.copytree(tmp_path / "state", tmp_path / "copied")
        with site(tmp_path, *options[:-1], f"--state-dir={tmp_path / 'copied'}") as second:
            second.says("believes that this site's key is in use")
            here.process.terminate()
            assert here.process.wait(PATIENCE) == 0
            second.says("joined, as number")
            number = re.findall(r"joined, as number (\d+)", second.said())[-1]
            command = ["flwr", "supernode", "unregister", number]
            subprocess.run(command, env=flower_environment(home), check=True, capture_output=True)
            second.says("no longer knows this site: it has unregistered its key")
            second.says("this site's key is not registered")
            assert "ERROR" not in second.said()
            assert "RpcError" not in second.said()


def test_each_failure_to_connect_is_told_apart(guarded: Guarded, federation: Open, tmp_path: Path) -> None:
    folder, fleet = guarded.folder, guarded.fleet
    mine, other = f"--root-certificates={folder}/certificates/ca.crt", f"--root-certificates={folder}/others/ca.crt"
    key, host = f"--key={folder}/certificates/hospital-b.key", os.uname().nodename
    cases = {
        "was not signed by the authority": [f"--superlink=127.0.0.1:{fleet}", other, key],
        f"is not for the name {host}": [f"--superlink={host}:{fleet}", mine, key],
        "one side uses TLS and the other does not": [f"--superlink=127.0.0.1:{fleet}", "--insecure"],
        "answers without TLS": [f"--superlink={federation.fleet}", mine, key],
        "nothing listens at": [f"--superlink=127.0.0.1:{free_port()}", mine, key],
        "nowhere.invalid cannot be resolved": ["--superlink=nowhere.invalid:9092", mine, key],
    }
    with ExitStack() as stack:
        sites = {words: stack.enter_context(site(tmp_path, *options)) for words, options in cases.items()}
        for words, here in sites.items():
            here.says(words)
            assert here.said().count("WARNING") == 1, here.said()


def test_what_cannot_be_used_is_said_at_once(tmp_path: Path) -> None:
    locked = tmp_path / "locked.key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "secret", "-f", str(locked)], check=True)
    (tmp_path / "bad.pem").write_text("no certificate")
    (tmp_path / "site.toml").write_text('superlink = "x"\nstat-dir = "/state"\ninsecure = true\ncertificate = "c"\n')
    cases = (
        (["--policy", f"{tmp_path}/site.toml"], ["must be HOST:PORT", "Did you mean 'state-dir'", "goes with TLS"]),
        (["--superlink=a:1", f"--key={locked}", f"--root-certificates={locked}"], ["no certificate in PEM"]),
        ([], ["superlink is missing", "name the coordinator's ca.crt"]),
    )
    found = answers(*(["join", *options] for options, _ in cases))
    for (code, _, said), (_, words) in zip(found, cases, strict=True):
        assert code == 2
        assert all(word in said for word in words), said


def test_told_to_end_it_does_not_wait_for_its_operator(federation: Open, tmp_path: Path) -> None:
    """A run that nobody has approved yet is asked for again when the site is back."""
    data = tmp_path / "data"
    write_table(data, *table(200, seed=0))
    (tmp_path / "site.toml").write_text('[policy]\napprove = "ask"\n')
    options = [
        "--site=north",
        f"--data-dir={data}",
        f"--state-dir={tmp_path / 'state'}",
        f"--policy={tmp_path}/site.toml",
    ]
    with federation.joined(tmp_path, *options) as here:
        job: dict[str, Value] = {
            "dataset": "site",
            "sites": 1,
            "model": "linear",
            "rounds": 1,
            "round-timeout": PATIENCE,
            "runs-dir": str(tmp_path),
        }
        undecided = federation.submit(job | {"approval-timeout": 1.0, "run-name": "undecided"})
        assert undecided.code == 3, "stopped"
        assert "'north' still waits for approval" in undecided.details
        assert json.loads((tmp_path / "undecided" / "status.json").read_text())["status"] == "stopped"
        [site] = json.loads((tmp_path / "undecided" / "sites.json").read_text()).values()
        assert (site["name"], site["state"]) == ("north", "awaits approval")
        with ThreadPoolExecutor(1) as pool:
            run = pool.submit(federation.submit, job | {"run-name": "left"})
            here.says("waits for you", 2)
            here.process.send_signal(signal.SIGTERM)
            assert here.process.wait(PATIENCE) == 0
            stop(tmp_path / "left")
            assert not run.result().ok
        assert "WARNING north: no label: each run chooses the column" in here.said()


def test_a_hospital_takes_part_in_two_studies_of_two_coordinators_at_once(federation: Open, tmp_path: Path) -> None:
    """One site for each, over the same data, with a state folder of its own: neither counts what the other does."""
    data, rules, names = tmp_path / "data", tmp_path / "site.toml", ("heart", "lung")
    write_table(data, *table(200, seed=0))
    rules.write_text('[policy]\nruns-per-day = 1\napprove = "ask"\n')
    job: dict[str, Value] = {"dataset": "site", "sites": 1, "model": "linear", "rounds": 2}
    job["runs-dir"] = str(tmp_path / "runs")
    own = ["--insecure", "--site=north", f"--data-dir={data}", f"--policy={rules}"]
    states = {name: tmp_path / name / "state" for name in names}
    with ExitStack() as stack:
        pool, submitted, sites = stack.enter_context(ThreadPoolExecutor(2)), [], []
        (other := tmp_path / "lung").mkdir()
        second = Open(other, flower_environment(other), fleet=f"127.0.0.1:{free_port()}")
        stack.enter_context(
            superlink(other, second.environment, "--fleet-api-type=grpc-rere", f"--fleet-api-address={second.fleet}")
        )
        for name, coordinator in zip(names, (federation, second), strict=True):
            (home := tmp_path / name).mkdir(exist_ok=True)
            fleet = coordinator.fleet
            sites.append(stack.enter_context(site(home, f"--superlink={fleet}", f"--state-dir={states[name]}", *own)))
            sites[-1].says("joined, as number")
            submitted.append(pool.submit(coordinator.submit, job | {"run-name": name}))
        with site(tmp_path, f"--superlink={fleet}", f"--state-dir={states['heart']}", *own) as twin:
            twin.says("another process has joined with")
            assert twin.process.wait(PATIENCE) == 2
        for here in sites:  # so both runs are there at once
            here.says("waits for you")
        waiting = [Records(str(state)).runs() for state in states.values()]
        assert [len(runs) for runs in waiting] == [1, 1]
        assert not any(run.done() for run in submitted)
        approvals = [
            ["approve", run.run, "--state-dir", state] for [run], state in zip(waiting, states.values(), strict=True)
        ]
        assert [code for code, *_ in answers(*approvals)] == [0, 0]
        for each in submitted:
            assert each.result().ok, each.result().log
