"""Data of several studies at one site: the signature decides which a run gets, and no choice of study buys privacy."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from PIL import Image

from edelweiss.client_app.connection import JoinConfig
from edelweiss.client_app.doctor import examine
from edelweiss.client_app.policy.advance import Decision, advance_of, decide_in_advance, next_number, withdraw
from edelweiss.client_app.policy.records import Records
from edelweiss.client_app.policy.rules import Policy, PolicyError
from edelweiss.client_app.site import OpenSite
from edelweiss.common import Value, from_record
from edelweiss.common.overrides import toml_value
from edelweiss.config import RunConfig, SiteConfig
from edelweiss.config.privacy import evaluation_cost
from edelweiss.datasets import Facts
from edelweiss.federation.fingerprint import fingerprint
from edelweiss.federation.privacy_account import Query, spent
from edelweiss.server_app.console import Progress
from edelweiss.server_app.coordinator import coordinate
from edelweiss.server_app.tickets import EXECUTOR_KEY
from tests.client_app.policies import WAITS
from tests.said import has
from tests.server_app.sites import SiteGrid, table
from tests.server_app.studies import Study, changed

PATIENTS = 160
SECRET = b"s" * 32


def write_patients(folder: Path, who: range, columns: int = 3, seed: int = 0) -> Path:
    """Write a table with a patient column; a patient has the same values in every folder of one seed."""
    features, labels = table(400, seed)
    folder.mkdir(parents=True, exist_ok=True)
    lines = [",".join(["pid", *(f"marker_{place}" for place in range(columns)), "label"])]
    for number in who:
        row = (400 // 160 * number + seed) % 400
        lines.append(",".join([f"p{number}", *map(str, features[row, :columns].tolist()), str(labels[row])]))
    (folder / "data.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


class Site:
    """A hospital with the data of two studies, and their keys; `stranger` signs for none of them."""

    def __init__(self, folder: Path, other: Path | None = None, **privacy: float) -> None:
        folder.mkdir(exist_ok=True)
        self.keys = Study(folder, names=("east",))
        self.first = write_patients(folder / "first", range(PATIENTS))
        self.second = other or write_patients(folder / "second", range(100, 100 + PATIENTS), columns=2)
        self.file = folder / "site.toml"
        self.privacy, self.rules = privacy, list[str]()
        assert self.keys.nodes
        self.write(self.both)
        node = dict(self.keys.nodes[0])
        node |= {"policy": str(self.file)}
        del node["data-dir"], node["label"]
        self.node: dict[str, Value] = node

    @property
    def both(self) -> dict[str, tuple[str, Path]]:
        """The studies with data here: their keys and folders."""
        return {"sepsis": ("study", self.first), "falls": ("stranger", self.second)}

    def write(self, studies: dict[str, tuple[str, Path]]) -> None:
        """Write the settings."""
        lines = ["[policy]", 'seed = "tests"', 'patient = "pid"', *self.rules]
        if self.privacy:
            lines += ["[privacy]", *(f"{key} = {value}" for key, value in self.privacy.items())]
        for name, (key, data) in studies.items():
            lines += [f"[studies.{name}]", f"study-key = {toml_value(str(self.keys.folder / f'{key}.key.pub'))}"]
            lines += [f"data-dir = {toml_value(str(data))}", 'label = "label"']
        self.file.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def signed(self, by: str, **keys: Value) -> RunConfig:
        """Return a run that one of the studies has signed."""
        job = self.keys.job(**keys)
        return changed(job, ticket=self.keys.ticket(job, by=f"{by}.key"))

    def open(self, job: RunConfig) -> OpenSite:
        """Open the site for a run, as a message does."""
        return OpenSite._of(job, SiteConfig.parse(self.node), 1)

    def ask(self, job: RunConfig) -> Facts | str:
        """Ask for the facts; return why they were refused."""
        with SiteGrid(job, [self.node]) as grid:
            question = Message(
                RecordDict({"config": ConfigRecord({"app": fingerprint(), "run": token_hex(4)})}), 1, "query"
            )
            if job.ticket:
                self.keys.seals(job).seal(question)
            [answer] = grid.send_and_receive([question])
        records: Any = answer.content.config_records
        if "waiting" in records:
            return WAITS
        return str(records["error"]["message"]) if "error" in records else from_record(Facts, dict(records["facts"]))

    def decide(self, decision: Decision, by: str, **more: str) -> int:
        """Decide in advance on the runs that a study signs; empty: whoever signs."""
        records, until = Records(str(self.node["state-dir"])), time.strftime("%Y-%m-%d")
        limits = {"until": until, "study-key": self.keys.digits(f"{by}.key") if by else ""}
        if decision == "approved":
            limits |= {"algorithm": "codasca", "problem": "auc", "model": "linear", "rounds": "2", "runs": "9"}
            limits |= {"release": fingerprint()}
        found = advance_of(limits | more, decision, "anna", next_number(records))
        assert decide_in_advance(records, found, "here")
        return found.number


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def asking(tmp_path: Path) -> Site:
    """Return a site whose operator decides on each run."""
    site = Site(tmp_path)
    site.rules = ['approve = "ask"']
    site.write(site.both)
    return site


def facts(said: Facts | str) -> Facts:
    assert isinstance(said, Facts), said
    return said


# ---------------------------------------------------------------------- which data a run gets


def test_a_run_gets_the_data_of_the_study_that_signed_it(site: Site) -> None:
    first, second = facts(site.ask(site.signed("study"))), facts(site.ask(site.signed("stranger")))
    assert (first.shape, second.shape) == ((3,), (2,))


def test_no_other_run_gets_any(site: Site) -> None:
    """Neither unsigned, nor with the ticket of another run, nor signed by a key that no study here has."""
    assert "no study that has data here" in str(site.ask(site.keys.job()))
    site.node["data-dir"] = str(site.first)
    assert "has no ticket" in str(site.ask(site.keys.job()))
    borrowed = changed(site.keys.job(local_steps=9), ticket=site.signed("study").ticket)
    assert "run-config is not the one" in str(site.ask(borrowed))
    site.write({"sepsis": ("study", site.first)})
    assert "signed by no study key" in str(site.ask(site.signed("stranger")))


def test_a_key_of_the_rules_gets_the_folder_above(site: Site, tmp_path: Path) -> None:
    site.write({"sepsis": ("study", site.first)})
    pinned = f'seed = "tests"\nstudy-keys = ["{site.keys.digits("stranger.key")}"]'
    site.file.write_text(site.file.read_text().replace('seed = "tests"', pinned))
    assert "no data-dir for others" in str(site.ask(site.signed("stranger")))
    site.node["data-dir"], site.node["label"] = str(site.second), "label"
    assert facts(site.ask(site.signed("stranger"))).shape == (2,)
    assert facts(site.ask(site.signed("study"))).shape == (3,)


def test_each_study_counts_its_own_tickets(site: Site) -> None:
    """The persons of two studies do not know when the other signs; within a study no ticket is used twice."""
    early, late = site.signed("stranger"), site.signed("study")
    facts(site.ask(late))
    facts(site.ask(early))
    assert "used for another run" in str(site.ask(early))


def test_the_operator_sees_whose_run_it_is(site: Site) -> None:
    facts(site.ask(site.signed("stranger")))
    (record,) = Records(str(site.node["state-dir"])).runs()
    assert record.shown["study"] == "falls"


# ---------------------------------------------------------------------- one split, one record, one budget


def test_a_patient_is_held_out_in_all_studies_or_in_none(site: Site) -> None:
    held_out = []
    for by in ("study", "stranger"):
        data = site.open(site.signed(by)).data()
        assert data is not None
        assert data.patient_ids is not None
        everybody = {*data.patient_ids.tolist()}
        held_out.append((everybody, {*data.patient_ids[data.held_out.rows.numpy()].tolist()}))
    (first, its), (second, others) = held_out
    assert len(first & second) == PATIENTS - 100
    assert its & second == others & first
    assert len(its & second) > 5


def test_two_folders_that_differ_by_one_patient_give_nobody_away(tmp_path: Path) -> None:
    site = Site(tmp_path, other=write_patients(tmp_path / "one-more", range(PATIENTS + 1)))
    facts(site.ask(site.signed("study")))
    assert "differ by fewer than" in str(site.ask(site.signed("stranger")))


@pytest.mark.parametrize("same", [True, False])
def test_another_name_for_a_folder_has_no_budget_of_its_own(tmp_path: Path, same: bool) -> None:
    """Nor has a folder that overlaps: what one study spends is gone for all."""
    site = Site(tmp_path, other=tmp_path / "first" if same else None, epsilon=3.0, delta=1e-5)
    keys: dict[str, Value] = {"dp.epsilon": 2.7, "dp.delta": 1e-5, "evidence": False, "problem": "bce"}
    keys |= {"algorithm": "fedavg", "sites": 1}
    fresh = Site(tmp_path / "fresh", epsilon=3.0, delta=1e-5)
    facts(fresh.ask(fresh.signed("stranger", **keys)))
    before = site.open(site.signed("study", **keys)).ledger
    cost = spent({Query(0.1): 20}, 1.5)
    before.charge([b"first"], cost)
    after = site.open(site.signed("stranger", **keys)).ledger
    assert after.folder == before.folder
    assert after.spent("training") == pytest.approx(before.spent("training"))
    assert after.spent("training") > 0
    assert "more than is left" in str(site.ask(site.signed("stranger", **keys)))


@pytest.mark.slow
def test_a_whole_run_of_one_study_leaves_the_other_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A private run of three rounds, then one of another study with other patients: the budget is the site's."""
    monkeypatch.setenv(EXECUTOR_KEY, str(tmp_path / "executor.key"))
    site = Site(tmp_path, epsilon=3.0, delta=1e-5)
    keys: dict[str, Value] = {"dp.epsilon": 2.7, "dp.delta": 1e-5, "evidence": False, "problem": "bce", "sites": 1}
    keys |= {"algorithm": "fedavg", "rounds": 3, "round_timeout": 600.0}
    first = site.signed("study", **keys)
    with SiteGrid(first, [site.node]) as grid:
        coordinate(first, grid, Progress(quiet=True))
    gone = site.open(first).ledger.spent("training")
    assert 2.0 < gone <= 2.7
    said = str(site.ask(site.signed("stranger", **keys)))
    assert "more than is left" in said
    assert f"ε = {gone:.3g} of 3 is spent" in said
    assert site.open(first).ledger.spent("training") == gone, "a refused run costs nothing"
    [fits] = re.findall("at most dp.epsilon = ([0-9.]+) fits", said)
    small = site.signed("stranger", **{**keys, "dp.epsilon": float(fits)})
    with SiteGrid(small, [site.node]) as grid:
        coordinate(small, grid, Progress(quiet=True))
    assert gone < site.open(first).ledger.spent("training") <= 3.0


def test_what_a_run_costs_is_what_it_costs_those_who_lose_most(tmp_path: Path) -> None:
    """With a run's tiny δ those held out lose more than those trained on, at the site's δ."""
    site = Site(tmp_path, epsilon=6.0, delta=1e-4)
    keys: dict[str, Value] = {"dp.epsilon": 6.0, "dp.delta": 1e-8, "problem": "bce", "algorithm": "fedavg", "sites": 1}
    judged, unjudged = (site.open(site.signed("study", **keys, evidence=evidence)) for evidence in (True, False))
    assert judged.privacy
    assert unjudged.privacy
    most, shown = judged.privacy.epsilon(1), judged.privacy.in_words(1)
    assert most > unjudged.privacy.epsilon(1) + 0.5
    book = judged.ledger
    book.charge([b"trained"], judged.privacy.price(1).curve)
    book.charge([b"judged"], evaluation_cost(judged.run), "held-out")
    assert book.spent("training") == pytest.approx(unjudged.privacy.epsilon(1))
    assert book.spent("held-out") == pytest.approx(most)
    assert f"{book.spent('training'):.3g}" in shown
    assert f"{most:.3g}" in shown


def test_the_data_of_a_study_may_be_images(site: Site, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    (folder := tmp_path / "images").mkdir()
    for place in range(60):
        Image.fromarray(random.integers(0, 255, (8, 8), np.uint8)).save(folder / f"{place}.png")
    rows = [f"{place}.png,p{place},{place % 2}" for place in range(60)]
    (folder / "labels.csv").write_text("\n".join(["path,pid,label", *rows]))
    site.write({"sepsis": ("study", site.first), "falls": ("stranger", folder)})
    first, second = facts(site.ask(site.signed("study"))), facts(site.ask(site.signed("stranger", model="lenet5")))
    assert (first.shape, second.shape) == ((3,), (1, 8, 8))
    found = [*examine(JoinConfig.read(str(site.file), {**site.node, "superlink": "127.0.0.1:1", "insecure": True}))]
    assert [one.text for one in found if one.about == "images"] == [
        "study falls: 60 rows; 60 PNG of 8 bits, grey; all 8x8"
    ]


# ---------------------------------------------------------------------- what the operator is told


def test_doctor_reads_every_folder(site: Site) -> None:
    (site.second / "data.csv").write_text("pid,marker_0,label\np1,abc,1\np2,2,0\n")
    options = {**site.node, "superlink": "127.0.0.1:1", "insecure": True}
    found = [*examine(JoinConfig.read(str(site.file), options))]
    read = [finding for finding in found if finding.about == "data"]
    assert [finding.level for finding in read] == ["ok", "error"]
    assert "study sepsis: 160 samples" in read[0].text
    assert "study falls: " in read[1].text
    assert "row 1 ('abc')" in read[1].text


MISTAKES = {
    "no key": ("data-dir = '/data/a'", "study-key", ""),
    "no folder": (f"study-key = '{'0' * 64}'", "data-dir", ""),
    "no such key": ("study-key = '/nowhere'\ndata-dir = '/data'", "study-key", "/nowhere"),
    "another key": ("folder = '/data'", "folder", "study-key"),
    "an address": (f"study-key = '{'0' * 64}'\ndata-dir = 'https://x/y'", "data-dir", "https://x/y"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_study_is_told(tmp_path: Path, name: str) -> None:
    lines, key, said = MISTAKES[name]
    (tmp_path / "site.toml").write_text(f"[studies.a]\n{lines}\n")
    with pytest.raises(PolicyError, check=has(said)) as caught:
        Policy.read(str(tmp_path / "site.toml"))
    assert caught.value.keys[0] == f"studies.a.{key}"


def test_two_studies_with_one_key_are_refused(site: Site) -> None:
    site.write({"sepsis": ("study", site.first), "falls": ("study", site.second)})
    with pytest.raises(PolicyError, check=has("'sepsis'", keys=["studies.falls.study-key"])):
        Policy.read(str(site.file))


def test_records_of_earlier_releases_are_read(site: Site) -> None:
    facts(site.ask(site.signed("study")))
    records = Records(str(site.node["state-dir"]))
    (file,) = (records.folder / "runs").glob("*.json")
    said = json.loads(file.read_text())
    del said["study"]
    file.write_text(json.dumps(said))
    assert records.latest_serial("") == said["serial"]
    assert np.isfinite(said["began"])


# ---------------------------------------------------------------------- decisions in advance


def test_a_decision_for_one_studys_key_approves_no_run_of_another(asking: Site) -> None:
    records = Records(str(asking.node["state-dir"]))
    for own, other in (("study", "stranger"), ("stranger", "study")):
        number = asking.decide("approved", own, runs="2")
        assert asking.ask(asking.signed(other)) == WAITS
        facts(asking.ask(asking.signed(own)))
        assert asking.ask(asking.signed(other)) == WAITS, "nor after one that it let begin"
        begun = [run for run in records.runs() if run.advance]
        assert [(run.study, run.advance) for run in begun][-1] == ({"study": "sepsis"}.get(own, "falls"), number)
        assert withdraw(records, number, "anna", "here")
        assert asking.ask(asking.signed(own)) == WAITS


def test_a_decision_counts_the_runs_of_its_own_study_only(asking: Site) -> None:
    for name in ("study", "stranger"):
        asking.decide("approved", name, runs="1")
    assert isinstance(asking.ask(asking.signed("study")), Facts)
    assert isinstance(asking.ask(asking.signed("stranger")), Facts), "the other's one run was left"
    assert [asking.ask(asking.signed(name)) for name in ("study", "stranger")] == [WAITS] * 2


def test_a_refusal_of_one_study_leaves_the_other_alone(asking: Site) -> None:
    asking.decide("approved", "")
    asking.decide("refused", "stranger")
    assert "operator refused" in str(asking.ask(asking.signed("stranger")))
    facts(asking.ask(asking.signed("study")))
    asking.rules = []
    asking.write(asking.both)
    assert "operator refused" in str(asking.ask(asking.signed("stranger"))), "also where runs do not wait"
    facts(asking.ask(asking.signed("study")))


def test_a_decision_follows_the_key_and_not_the_name_of_a_study(asking: Site) -> None:
    asking.decide("approved", "study")
    asking.write({"falls": ("study", asking.first), "sepsis": ("stranger", asking.second)})
    assert asking.ask(asking.signed("stranger")) == WAITS, "the study that now has the name"
    facts(asking.ask(asking.signed("study")))
    asking.write({"falls": ("stranger", asking.second)})
    assert "no study that has data here" in str(asking.ask(asking.signed("study"))), "a key that the rules have no more"
    asking.rules += [f"study-keys = {toml_value([str(asking.keys.folder / 'study.key.pub')])}"]
    asking.write({"falls": ("stranger", asking.second)})
    asking.node["data-dir"] = str(asking.first)
    asking.node["label"] = "label"
    facts(asking.ask(asking.signed("study")))
    assert asking.ask(asking.signed("stranger")) == WAITS


def test_no_borrowed_or_forged_ticket_begins_by_the_other_studys_decision(asking: Site) -> None:
    asking.decide("approved", "study")
    own, other = asking.signed("study"), asking.signed("stranger")
    payloads, signatures = zip(*(job.ticket.split(".") for job in (own, other)), strict=True)
    for ticket in (f"{payloads[1]}.{signatures[0]}", f"{payloads[0]}.{signatures[1]}", f"{payloads[1]}.", ""):
        answer = asking.ask(changed(other, ticket=ticket))
        assert isinstance(answer, str), ticket
        assert answer != WAITS, "it is refused at once"
    borrowed = changed(asking.keys.job(local_steps=9), ticket=own.ticket)
    assert "run-config is not the one" in str(asking.ask(borrowed))
    assert not [run for run in Records(str(asking.node["state-dir"])).runs() if run.open]
    facts(asking.ask(own))
    assert "ticket was used" in str(asking.ask(own)), "nor a second run by the same ticket"
