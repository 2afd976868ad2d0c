"""A site's privacy ledger: no answer without its line, whatever happens to processes, disks and copies."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from edelweiss.client_app.cli import main
from edelweiss.client_app.errors import RefusedError
from edelweiss.client_app.policy.records import Records
from edelweiss.client_app.policy.rules import Budget
from edelweiss.client_app.privacy.ledger import FILE, PARTS, Ledger, LedgerError, Part, Spent
from edelweiss.client_app.privacy.randomness import digest_of, with_statistics
from edelweiss.client_app.process_cache import cached_problem
from edelweiss.config.privacy import counts_cost, price
from edelweiss.datasets import Facts
from edelweiss.federation.privacy_account import ORDERS, Query, epsilon, spent
from edelweiss.federation.wire import pack, unpack
from edelweiss.models import networks
from tests.client_app.ledgers import COST, SECRET, ledger
from tests.client_app.policies import WAITS, Hospital, site_toml, told
from tests.said import has
from tests.server_app.sites import question, site_job, table

REPO = Path(__file__).resolve().parents[2]


def work(folder: Path, first: int, kill_at: int = -1) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-m", "tests.client_app.ledgers", str(folder), str(first), str(kill_at)]
    return subprocess.Popen(arguments, cwd=REPO, stdout=subprocess.PIPE, text=True)


def charge_often(book: Ledger) -> None:
    for i in range(500):
        book.charge([b"more", str(i).encode()], COST)


def lines(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "state" / "policy" / FILE).read_text()
    return [json.loads(line) for line in text.splitlines()][1:]


# ---------------------------------------------------------------------- the filter


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(0.01, 1.0), st.floats(0.5, 20.0), st.integers(1, 50)), min_size=1, max_size=30))
def test_what_was_answered_never_costs_more_than_the_budget(asked: list[tuple[float, float, int]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        book, total = ledger(Path(place), epsilon=3.0), np.zeros(len(ORDERS))
        for i, (rate, noise, count) in enumerate(asked):
            cost = spent({Query(rate): count}, noise)
            try:
                book.charge([str(i).encode()], cost)
            except RefusedError:
                assert epsilon(total + cost, 1e-5) > 3.0  # what fits is answered
            else:
                total = total + cost
            assert epsilon(total, 1e-5) <= 3.0
        assert book.spent("training") == pytest.approx(epsilon(total, 1e-5))
        assert book.spent("held-out") == 0.0


def test_the_same_question_is_paid_for_once_and_parts_have_a_budget_each(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    for _ in range(3):
        book.charge([b"a", b"bc"], COST, run="1")
    assert book.spent("training") == epsilon(COST, 1e-5)
    book.charge([b"ab", b"c"], COST, run="1")  # other parts, though the bytes together are the same
    book.charge([b"a", b"bc"], COST, "held-out", run="2")
    assert len(lines(tmp_path)) == 3
    again = ledger(tmp_path)
    assert again.spent("training") == epsilon(2 * COST, 1e-5)
    assert again.spent("held-out") == epsilon(COST, 1e-5)
    assert [(part, run, answers) for part, run, answers, _ in again.runs()] == [
        ("training", "1", 2),
        ("held-out", "2", 1),
    ]


# ---------------------------------------------------------------------- killed, at once, full


@pytest.mark.slow
@pytest.mark.parametrize("kill_at", [1, 7])
def test_a_killed_process_has_answered_nothing_unpaid_and_the_next_goes_on(tmp_path: Path, kill_at: int) -> None:
    process = work(tmp_path, 0, kill_at)
    answered = process.communicate()[0].split()
    assert process.returncode == -signal.SIGKILL
    paid = {line["question"] for line in lines(tmp_path)}
    assert len(paid) in (len(answered), len(answered) + 1)  # the one that was killed may be paid for
    book = ledger(tmp_path)
    before = book.spent("training")
    for i in map(int, answered):
        book.charge([str(i).encode()], COST)
    assert book.spent("training") == before  # all that was answered is there
    book.charge([b"next"], COST)
    assert len(lines(tmp_path)) == len(paid) + 1


def test_half_a_line_of_a_killed_process_is_dropped(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    book.charge([b"1"], COST)
    file = tmp_path / "state" / "policy" / FILE
    with file.open("ab") as stream:
        stream.write(b'{"at": 1')
    again = ledger(tmp_path)
    again.charge([b"2"], COST)
    assert len(lines(tmp_path)) == 2
    assert ledger(tmp_path).spent("training") == epsilon(2 * COST, 1e-5)


@pytest.mark.slow
def test_two_processes_at_once_share_one_budget(tmp_path: Path) -> None:
    both = [work(tmp_path, first) for first in (0, 1000)]
    answered = [process.communicate()[0].split() for process in both]
    assert len(lines(tmp_path)) == sum(map(len, answered)) > 0
    assert ledger(tmp_path).spent("training") <= 20.0
    book = ledger(tmp_path)
    with pytest.raises(RefusedError):
        charge_often(book)


def test_a_full_disk_answers_nothing_and_loses_nothing(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    book.charge([b"1"], COST)
    size = (tmp_path / "state" / "policy" / FILE).stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 40, limits[1]))  # half a line fits
    try:
        with pytest.raises(RefusedError, check=has(os.strerror(errno.ENOSPC))):
            book.charge([b"2"], COST)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert book.spent("training") == ledger(tmp_path).spent("training") == epsilon(COST, 1e-5)
    book.charge([b"2"], COST)
    assert ledger(tmp_path).spent("training") == epsilon(2 * COST, 1e-5)


def test_where_the_clock_of_files_stands_still_processes_still_see_each_others_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ledger, "_changed", lambda self: 1)  # as within a second, or a tick, of some file systems
    books, answered = [ledger(tmp_path), ledger(tmp_path)], 0
    while books[0].fits(COST):
        books[answered % 2].charge([str(answered).encode()], COST)
        answered += 1
    for book in books:
        with pytest.raises(RefusedError, check=has(20, "1e-05")):
            book.charge([b"more"], COST)
    assert len(lines(tmp_path)) == answered > 2
    assert ledger(tmp_path).spent("training") <= 20.0


def test_a_witness_that_is_gone_ends_answers_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    book = ledger(tmp_path, witness=str(tmp_path / "elsewhere"))
    book.charge([b"1"], COST)
    shutil.rmtree(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_text("no folder any more")
    for again in (book, ledger(tmp_path, witness=str(tmp_path / "elsewhere"))):
        with pytest.raises((RefusedError, LedgerError), check=has("seal")):
            again.charge([b"2"], COST)


# ---------------------------------------------------------------------- copied, damaged, lost


def changed(file: Path, old: bytes, new: bytes) -> None:
    text = file.read_bytes()
    assert old in text
    file.write_bytes(text.replace(old, new, 1))


def put_back(folder: Path, copy: Path, what: str) -> None:
    """Put a copy of the state folder, or of one file, back as a backup does: times of contents and all."""
    if what == "all":
        shutil.rmtree(folder / "state")
        shutil.copytree(copy, folder / "state")
    else:
        shutil.copy2(copy / what, folder / "state" / what)


LOST: dict[str, Callable[[Path, Path], None]] = {
    "an older copy of all": lambda folder, copy: put_back(folder, copy, "all"),
    "an older copy of the ledger": lambda folder, copy: put_back(folder, copy, f"policy/{FILE}"),
    "the ledger is gone": lambda folder, copy: (folder / "state" / "policy" / FILE).unlink(),
    "the folder is gone": lambda folder, copy: shutil.rmtree(folder / "state" / "policy"),
    "the seal is gone": lambda folder, copy: (folder / "state" / "policy-ledger.seal").unlink(),
    "the seal is damaged": lambda folder, copy: (folder / "state" / "policy-ledger.seal").write_text("{"),
    "a line is changed": lambda folder, copy: changed(folder / "state" / "policy" / FILE, b'"run":"2"', b'"run":"3"'),
    "a line is damaged": lambda folder, copy: changed(folder / "state" / "policy" / FILE, b'"part"', b'"p\xffrt"'),
}


@pytest.mark.parametrize("what", LOST)
def test_a_ledger_that_may_lack_answers_answers_nothing(tmp_path: Path, what: str) -> None:
    book = ledger(tmp_path)
    book.charge([b"1"], COST, run="1")
    book.charge([b"2"], COST, run="2")
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    for i in range(3, 6):
        book.charge([str(i).encode()], COST, run=str(i))
    LOST[what](tmp_path, tmp_path / "copy")
    known = [] if "seal" in what else [book]  # a process that has read the ledger needs no seal
    for again in (ledger(tmp_path), *known):
        with pytest.raises(LedgerError):
            again.charge([b"6"], COST)


def test_a_whole_disk_put_back_is_noticed_by_a_witness_elsewhere(tmp_path: Path) -> None:
    """Even where every time stamp is the former one, as it is in a snapshot of a disk."""
    witness = str(tmp_path / "elsewhere")
    book = ledger(tmp_path, witness=witness)
    book.charge([b"1"], COST)
    file = tmp_path / "state" / "policy" / FILE
    text = file.read_bytes()
    book.charge([b"2"], COST)
    file.write_bytes(text)
    with pytest.raises(LedgerError, check=has(FILE, tmp_path / "elsewhere" / "policy-ledger.seal", 2, 3)):
        ledger(tmp_path, witness=witness).charge([b"3"], COST)


def test_an_empty_state_folder_is_noticed_by_a_witness_elsewhere(tmp_path: Path) -> None:
    budget = {"epsilon": 20.0, "delta": 1e-5, "witness": str(tmp_path / "elsewhere")}
    rules = site_toml(tmp_path, privacy=budget)
    state = tmp_path / "state"
    command = ["budget", "--state-dir", str(state), "--policy", rules]
    state.mkdir()
    assert main(command) == 0
    records = Records(str(state))
    Ledger(records.folder, records.secret, Budget.model_validate(budget), "data").charge([b"1"], COST)
    assert main(command) == 0
    shutil.rmtree(state)
    state.mkdir()
    seal = (tmp_path / "elsewhere" / "policy-ledger.seal").read_bytes()
    for words in (command, [*command, "--accept"]):
        assert main(words) == 2
        assert not [*state.iterdir()], "no secret is made, with which the seal would be another site's"
    assert (tmp_path / "elsewhere" / "policy-ledger.seal").read_bytes() == seal


def test_nobody_accepts_a_ledger_that_lacks_answers_its_seal_counts(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    book.charge([b"1"], COST)
    file, seal = tmp_path / "state" / "policy" / FILE, tmp_path / "state" / "policy-ledger.seal"
    earlier = file.read_bytes()
    book.charge([b"2"], COST)
    latest, sealed = file.read_bytes(), seal.read_bytes()
    file.write_bytes(earlier)
    seal.unlink()
    ledger(tmp_path).accept()
    for more in (b"3", b"4"):
        ledger(tmp_path).charge([more], COST)
    longer = file.read_bytes()  # of a site that went on from the copy
    others = b"".join(longer.splitlines(keepends=True)[:-1])
    for text in (earlier, b"", others, longer):
        seal.write_bytes(sealed)
        file.write_bytes(text)
        for act in (Ledger.accept, Ledger.in_words):
            with pytest.raises(LedgerError, check=has(FILE, seal, 3)):
                act(ledger(tmp_path))
        assert seal.read_bytes() == sealed
    file.write_bytes(latest)
    seal.write_text("{")
    ledger(tmp_path).accept()
    assert ledger(tmp_path).spent("training") == epsilon(2 * COST, 1e-5)


def test_another_sites_ledger_is_refused(tmp_path: Path) -> None:
    ledger(tmp_path).charge([b"1"], COST)
    with pytest.raises(LedgerError, check=has(FILE, "line 1")):
        ledger(tmp_path, secret=b"t" * 32).charge([b"2"], COST)


# ---------------------------------------------------------------------- data that change

ANSWERS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(PARTS), st.integers(1, 9), st.integers(0, 9)), max_size=12
)


@settings(max_examples=60, deadline=None)
@given(ANSWERS)
def test_nobody_pays_more_than_is_counted_in_whichever_part_of_whichever_data_they_are(answers: list[Any]) -> None:
    """A patient may be in another part of other data. The least that is counted is what somebody pays, too."""
    spent, by = Spent(), dict[tuple[str, Part], Any]()
    for data, part, low, high in answers:
        cost = np.where(ORDERS < 16, low, high).astype(float)
        spent.add({"part": part, "data": data}, cost)
        by[data, part] = by.get((data, part), 0 * COST) + cost
    for data in "abc":
        for part in PARTS:
            others = [other for other in "abc" if other != data]
            everybody = [
                sum(
                    (by.get(place, 0 * COST) for place in zip(others, parts, strict=True)),
                    by.get((data, part), 0 * COST),
                )
                for parts in product(PARTS, repeat=2)
            ]
            assert np.array_equal(spent.on(part, data), np.maximum.reduce(everybody))


def test_what_was_spent_on_other_data_counts_for_both_parts(tmp_path: Path) -> None:
    budget = Budget.model_validate({"epsilon": 1.1 * epsilon(COST, 1e-5), "delta": 1e-5})
    first, later = (Ledger(tmp_path / "state" / "policy", SECRET, budget, data) for data in ("a", "b"))
    first.charge([b"1"], COST)
    for part in PARTS:
        with pytest.raises(RefusedError, check=has(f"{budget.epsilon:g}", "1e-05")):
            later.charge([b"2"], COST, part)
    first.charge([b"2"], COST, "held-out")  # nobody was trained on and is held out of the same data


def test_a_line_of_an_earlier_release_counts_for_both_parts(tmp_path: Path) -> None:
    spent = Spent()
    for number, part in enumerate(PARTS):
        spent.add({"part": part, "question": str(number)}, COST)
    assert np.array_equal(spent.on("training", "new"), 2 * COST)


# ---------------------------------------------------------------------- a hospital

RUN: dict[str, Any] = {
    "algorithm": "codasca", "problem": "auc", "rounds": 3, "local_steps": 2, "batch_size": 16,
    "dp.epsilon": 4.0, "dp.delta": 1e-4,
}  # fmt: skip


BUDGET = {"epsilon": 6.0, "delta": 1e-4}


def hospital(folder: Path, patient: str = "", **privacy: Any) -> Hospital:
    features, labels = table(200, seed=3)
    budget = BUDGET | privacy if privacy.get("epsilon", 1) else {}
    return Hospital(folder, features, list(labels), runs_per_day=0, privacy=budget, patient=patient)


def refusal(site: Hospital, **keys: Any) -> str:
    said = site.described(**RUN | keys)
    assert isinstance(said, str), said
    return said


def trained(site: Hospital, model_seed: int = 0, run: str = "first", **keys: Any) -> Any:
    """Begin a run and return the answer to its first round: a model, or why there is none."""
    with site.run(**RUN | keys) as grid:
        facts = told(grid)
        if isinstance(facts, str):
            return facts
        job = grid.config
        start = job.build_problem(job.setting(facts_summary(facts), "cpu", site=0)).initial()
        start["x"] = start["x"] + model_seed
        answer = grid.ask("train", 0, question(job, "train", start, run=run)).content
        if "error" in answer.config_records:
            return str(answer.config_records["error"]["message"])
        return unpack(answer.array_records["arrays"])


def facts_summary(facts: Facts) -> Any:
    from edelweiss.datasets import DataSummary

    return DataSummary(shape=facts.shape, prior=0.3)


def test_data_are_others_once_a_patient_may_have_changed_parts(tmp_path: Path) -> None:
    """Other pseudonyms under the same name, or another column, can be told from the data alone."""

    def answered(site: Hospital, seed: int) -> list[str]:
        assert isinstance(site.described(**RUN | {"seed": seed}), Facts)
        return [line["data"] for line in lines(site.folder)]

    def named(site: Hospital, first: int) -> None:
        header, *rows = (site.data / "data.csv").read_text().splitlines()
        rows = [f"{row},{first + 7 * number}" for number, row in enumerate(rows)]
        (site.data / "data.csv").write_text("\n".join([f"{header},patient", *rows]))

    site = hospital(tmp_path, patient="patient")
    original = (site.data / "data.csv").read_text()
    named(site, 0)
    before = answered(site, 0)
    assert answered(site, 1) == before, "the same question, of the same patients, was paid for"
    (site.data / "data.csv").write_text(original)
    named(site, 5)
    assert len(set(answered(site, 2))) == 2


def test_where_a_machine_rounds_otherwise_the_same_question_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model may let rounding decide, and the difference of two answers with the same noise would be without."""
    site = hospital(tmp_path)
    first, paid = trained(site), len(lines(tmp_path))
    assert torch.equal(trained(site, run="first")["x"], first["x"])
    assert len(lines(tmp_path)) == paid
    monkeypatch.setattr("edelweiss.client_app.privacy.site.rounding", lambda device: "another processor")
    other = trained(site)
    assert len(lines(tmp_path)) == paid + 1
    assert (other["x"] != first["x"]).float().mean() > 0.9, "the noise is another"


def test_what_decides_how_a_machine_rounds_is_known() -> None:
    code = "from edelweiss.client_app.privacy.randomness import rounding; print(rounding('auto'))"

    def said(**settings: str) -> str:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **settings}
        return subprocess.run(
            [sys.executable, "-c", code], cwd=REPO, env=environment, check=True, capture_output=True, text=True
        ).stdout

    assert said() == said() == said(ANYTHING="else")
    assert (
        len({said(), said(MKL_CBWR="COMPATIBLE"), said(ATEN_CPU_CAPABILITY="default"), said(OMP_NUM_THREADS="2")}) == 4
    )


def test_a_run_that_waits_for_the_operator_has_cost_nothing(tmp_path: Path) -> None:
    features, labels = table(200, seed=3)
    site = Hospital(tmp_path, features, list(labels), privacy=BUDGET, approve="ask")
    for seed in range(3):
        assert site.described(**RUN | {"seed": seed}) == WAITS
    shown = [record.shown for record in Records(site.state).runs()]
    assert len(shown) == 3
    assert all("noised count" in lines["sends once"] for lines in shown)
    assert not (tmp_path / "state" / "policy" / FILE).exists()


def test_a_hospital_pays_for_each_answer_before_it_gives_it_and_stops_when_the_budget_is_spent(tmp_path: Path) -> None:
    site = hospital(tmp_path)
    first = trained(site)
    assert "x" in first
    entered = lines(tmp_path)
    assert len(entered) == 2  # the noised counts, and one answer
    run = site_job(tmp_path, **RUN | {"sites": 1})
    described = site.described(**RUN)
    assert isinstance(described, Facts)
    cost = price(run, 1, described.examples or 0)
    assert np.allclose(entered[0]["cost"], counts_cost())
    assert np.allclose(entered[1]["cost"], spent(cost.plan[1, run.strategy.phases[0]], cost.noise))

    again = trained(site, run="another")  # the same question in another run: the same bits, and nothing more to pay
    assert all((first[name] == again[name]).all() for name in first)
    assert len(lines(tmp_path)) == 2

    other = trained(site, 1, "third")
    assert len(lines(tmp_path)) == 3
    assert not (first["cx"] == other["cx"]).any()
    answers = 0
    while not isinstance(found := trained(site, 2 + answers, f"run-{answers}"), str):
        answers += 1
        assert answers < 100
    assert "privacy budget" in found
    assert "fits" in found
    spent_now = epsilon(sum((np.array(line["cost"]) for line in lines(tmp_path)), np.zeros(len(ORDERS))), 1e-4)
    assert spent_now <= 6.0


def test_with_a_budget_runs_need_differential_privacy_and_without_one_they_may_not_have_it(tmp_path: Path) -> None:
    with_budget = hospital(tmp_path / "with")
    assert "dp.epsilon = 0" in refusal(with_budget, **{"dp.epsilon": 0.0, "dp.delta": 1e-5})
    assert "folds" in refusal(with_budget, folds=5)
    without = hospital(tmp_path / "without", epsilon=0)
    assert "no privacy budget" in refusal(without)
    assert not list((tmp_path / "with").rglob(FILE))  # nothing was spent


def test_two_noises_of_one_stream_are_never_answered(tmp_path: Path) -> None:
    """An answer's noise depends on the number of sites and more; were only the stream the same, two would give none."""
    site = hospital(tmp_path, epsilon=100.0)
    one, other = trained(site), trained(site, run="another", **{"dp.clip": 2.0})
    assert not isinstance(one, str), one
    assert not isinstance(other, str), other
    noise = [found["cx"].double() for found in (one, other)]
    assert not np.allclose(2 * noise[0], noise[1], rtol=0.05)


def normed(name: str, shape: tuple[int, ...], outputs: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(shape[0]), nn.Linear(shape[0], outputs))


def test_statistics_of_a_batch_norm_are_no_second_question_about_held_out_patients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same x and other statistics, the same noise would be about other scores: a difference without noise."""
    monkeypatch.setitem(networks.MODELS, "mlp", normed)
    cached_problem.cache_clear()
    site = hospital(tmp_path, epsilon=100.0)
    with site.run(**RUN | {"model": "mlp", "algorithm": "fedavg", "problem": "bce"}) as grid:
        assert isinstance(told(grid), Facts)
        asked = question(grid.config, "evaluate")
        asked["arrays"] = pack(unpack(asked.array_records["arrays"]) | {"buffers": torch.ones(8)})
        answer = grid.ask("evaluate", 0, asked).content.config_records
    cached_problem.cache_clear()
    assert "batch norm" in str(answer["error"]["message"])
    assert not [line for line in lines(tmp_path) if line["part"] == "held-out"]


def test_an_answer_depends_on_the_statistics_that_a_message_brings() -> None:
    network = nn.BatchNorm1d(2)
    holder = SimpleNamespace(buffers=lambda: torch.cat([each.flatten().float() for each in network.buffers()]))
    sent = {"x": torch.zeros(3)}
    before = digest_of(with_statistics(sent, holder))  # type: ignore[arg-type]
    network.running_mean += 1  # type: ignore[operator]
    assert digest_of(with_statistics(sent, holder)) != before  # type: ignore[arg-type]


def test_the_operator_reads_before_approving_what_a_private_run_costs_and_sends(tmp_path: Path) -> None:
    from edelweiss.client_app.policy import TRUST
    from edelweiss.client_app.policy.records import Records

    site = hospital(tmp_path)
    trained(site)
    [record] = Records(str(site.state)).runs()
    assert "after this run" in record.shown["privacy"]
    assert TRUST not in record.shown.values()
    assert record.shown["evaluates"] == "two noised histograms"
    assert record.shown["evaluated"] == "at the end"
    assert "nothing" in record.shown["standardises by"]  # there is no study file


def test_the_operator_sees_budget_and_expense(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = hospital(tmp_path)
    site.state.mkdir()
    options = ["budget", "--state-dir", str(site.state), "--policy", str(site.node["policy"])]
    assert main(options) == 0
    assert "ε = 0 of 6 is spent" in capsys.readouterr().out
    assert not (site.state / "policy" / "randomness").exists()  # looking writes nothing
    trained(site)
    assert main(options) == 0
    text = capsys.readouterr().out
    assert "training patients: 2," in text
    (site.state / "policy-ledger.seal").unlink()
    assert main(options) == 2
    assert main([*options, "--accept"]) == 0
    assert main(options) == 0


BAD = [
    ({"epsilon": -1.0}, "epsilon", "-1"),
    ({"epsilon": 3.0, "delta": 1.0}, "delta", "1"),
    ({"epsilom": 3.0}, "epsilom", "'epsilon'?"),
]


@pytest.mark.parametrize(("privacy", "key", "said"), BAD, ids=lambda value: str(value))
def test_a_bad_budget_refuses_everything_and_names_the_key(
    tmp_path: Path, privacy: dict[str, Any], key: str, said: str
) -> None:
    from edelweiss.client_app.policy.rules import Policy, PolicyError

    with pytest.raises(PolicyError, check=has(said, keys=[f"privacy.{key}"])):
        Policy.read(site_toml(tmp_path, privacy=privacy))
