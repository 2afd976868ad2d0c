"""A new hospital: it is given a body, trains its own head, and learns how it does before and after."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from edelweiss.client_app.cli import main
from edelweiss.client_app.oracle import SiteOracle, stream
from edelweiss.client_app.personalise import FinishedRun, personalise
from edelweiss.models import build
from edelweiss.models.storage import StoredTensors
from edelweiss.problems.metrics import ranking
from edelweiss.server_app import simulate
from edelweiss.server_app.console import Progress
from edelweiss.server_app.coordinator import coordinate
from edelweiss.strategies import ALGORITHMS
from tests import forks
from tests.client_app.newcomer import at_home, built, finished, in_order, newcomer
from tests.said import lines as printed_lines
from tests.server_app.sites import FEATURES, SiteGrid, hospitals, site_job, table, write_table

REPO = Path(__file__).resolve().parents[2]
STEPS = 60


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[float, float]]:
    """Return the table that was printed: before and after, by metric."""
    lines = capsys.readouterr().out.splitlines()
    [head] = [i for i, line in enumerate(lines) if line.split() == ["before", "after"]]
    cells = [line.split() for line in lines[head + 1 : -1]]
    return {name: (float(before), float(after)) for name, before, after in cells}


# ---------------------------------------------------------------------- what it does


@pytest.mark.slow
def test_a_table_in_its_own_spelling_is_read_by_the_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, data = finished(tmp_path), newcomer(tmp_path)
    options = ["personalise", "--model", str(folder), "--steps", "5", "--state-dir", str(tmp_path), "--data-dir"]
    assert main([*options, str(data)]) == 0
    plain = said(capsys)
    (head, *rows) = (data / "data.csv").read_text().splitlines()
    words = [row.rpartition(",") for row in rows]
    spelt = [f"{row},{'sick' if label == '1' else 'well'}".replace(",", ";") for row, _, label in words]
    (data / "data.csv").write_text("\n".join([head.replace(",", ";"), *spelt]))
    study = 'delimiter = ";"\n[label]\ncolumn = "label"\nnegative = ["well"]\npositive = ["sick"]\n'
    study += "".join(f"[columns.{name}]\n" for name in head.split(",")[:-1])
    (tmp_path / "study.toml").write_text(study)
    assert main([*options, str(data), "--study", str(tmp_path / "study.toml")]) == 0
    assert said(capsys) == plain


@pytest.mark.parametrize(
    ("problem", "classes"),
    [
        ("auc", 2),
        ("cross-entropy", 3),
        *(pytest.param(name, 2, marks=pytest.mark.slow) for name in ("bce", "auprc")),
        pytest.param("fair", 3, marks=pytest.mark.slow),
    ],
)
def test_only_the_head_is_trained_and_it_helps(
    tmp_path: Path, problem: str, classes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    if classes > 2:
        config = site_job(tmp_path, algorithm="fedrep", problem=problem, model="mlp", hidden=8, rounds=3)
        nodes = hospitals(tmp_path)
        for node in nodes:
            features, _ = table(60, seed=len(str(node["site"])))
            write_table(Path(str(node["data-dir"])), features, np.arange(60) % classes)
        with SiteGrid(config, nodes) as grid:
            folder = coordinate(config, grid, Progress(quiet=True)).folder
    else:
        folder = finished(tmp_path, problem=problem)
    data_dir, state = newcomer(tmp_path, classes=classes), tmp_path / "state"
    arguments = ["--model", str(folder), "--data-dir", str(data_dir), "--state-dir", str(state), "--site", "new"]
    assert main(["personalise", *arguments, "--steps", "200", "--lr", "0.1"]) == 0
    reported = said(capsys)
    [file] = state.rglob("*.safetensors")
    assert file.relative_to(state) == Path("models") / f"{folder.name}-new.safetensors"

    given, data = at_home(folder, data_dir)
    problem_here = built(given).of_site(data.train.targets())
    own, head = load_file(file), problem_here.head
    start = problem_here.initial()
    body = in_order(given, classes)[:head]
    assert len(in_order(given, classes)) - head == 9 * (1 if classes == 2 else classes), "weights of 8 units, a bias"
    assert torch.equal(own["x"][:head], body), "the body is as it was given"
    moved = own["x"][head:] != start["x"][head:]
    assert moved.float().mean() > 0.5, "units that are always off aside"
    assert moved[moved.numel() - len(problem_here.scalars) :].all(), "a and b belong to the head"  # type: ignore[attr-defined]
    assert sorted(own) == sorted(start)

    shift, scale = (torch.tensor(given.facts[key]) for key in ("shift", "scale"))
    held_out = data.held_out.standardised(shift, scale)
    before = problem_here.metrics(torch.cat([body, start["x"][head:]]), start.get("y"), held_out)
    after = problem_here.metrics(own["x"], own.get("y"), held_out)
    for name in reported:
        assert reported[name] == pytest.approx((before[name], after[name]), abs=1e-4)
    better = "accuracy" if classes > 2 else "auroc"
    if classes == 2:  # labels of three classes are dealt in turn: there is nothing to learn
        assert reported[better][1] > max(0.8, reported[better][0])
    facts = StoredTensors.read(file).facts
    assert (facts["algorithm"], facts["problem"]) == ("fedrep", problem)
    assert facts["d"] == len(own["x"])
    assert facts["shift"] == given.facts["shift"]


@pytest.mark.slow
def test_the_numbers_are_those_of_plain_pytorch(tmp_path: Path) -> None:
    """A frozen body, an optimiser on the head, torch's own loss; only the batches come from the app."""
    folder = finished(tmp_path, problem="bce")
    given, data = at_home(folder, newcomer(tmp_path))
    outcome = personalise(given, data, steps=STEPS, lr=0.07)

    module = build("mlp", (FEATURES,), 1, hidden=8)
    module.load_state_dict(load_file(folder / "model.safetensors"), strict=True)
    module.body.requires_grad_(False)  # type: ignore[union-attr]
    optimiser = torch.optim.SGD(module.head.parameters(), lr=0.07)  # type: ignore[union-attr]
    shift, scale = (torch.tensor(given.facts[key]) for key in ("shift", "scale"))
    train, held_out = (samples.standardised(shift, scale) for samples in (data.train, data.held_out))
    dealer = SiteOracle.open(given.config, built(given), train, stream(given.config.seed, 0, 0, 0))

    def evaluated() -> tuple[float, dict[str, float]]:
        inputs, labels = held_out.batch(torch.arange(len(held_out)))
        with torch.no_grad():
            logits = module(inputs).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels.float())
        return loss.item(), ranking(labels.numpy(), logits.numpy())

    seen = [evaluated()]
    for _ in range(STEPS):
        inputs, labels = dealer.draw() or pytest.fail("no batch")
        loss = torch.nn.functional.binary_cross_entropy_with_logits(module(inputs).squeeze(1), labels.float())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    seen.append(evaluated())
    for (loss_value, rank), metrics in zip(seen, (outcome.before, outcome.after), strict=True):
        assert metrics["loss"] == pytest.approx(loss_value, abs=1e-5)
        assert metrics["auroc"] == pytest.approx(rank["auroc"], abs=1e-3)
    vector = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    assert torch.allclose(vector, outcome.model["x"], atol=1e-5)
    assert outcome.before["loss"] != outcome.after["loss"]


@pytest.mark.slow
def test_the_same_again_gives_the_same_bits_and_replaces_the_model(tmp_path: Path) -> None:
    folder, data_dir = finished(tmp_path), newcomer(tmp_path)
    files = set()
    for _ in range(2):
        arguments = ["--model", str(folder), "--data-dir", str(data_dir), "--state-dir", str(tmp_path / "state")]
        assert main(["personalise", *arguments, "--steps", "20"]) == 0
        [file] = (tmp_path / "state" / "models").glob("*.safetensors")
        assert file.name == f"{folder.name}-private-new.safetensors", "called after the data folder"
        files.add(file.read_bytes())
    assert len(files) == 1


@pytest.mark.slow
def test_how_the_runs_data_were_split_plays_no_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = {"algorithm": "fedrep", "problem": "cross-entropy", "dataset": "digits", "sites": 3, "rounds": 1}
    folder = simulate({**run, "personal-test": True, "workers": 1, "runs-dir": str(tmp_path)}).folder
    for k, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (50, 8, 8), np.uint8)):
        Image.fromarray(pixels).save(tmp_path / f"{k}.png")
    lines = ["path,label", *(f"{k}.png,{k % 10}" for k in range(50))]
    (tmp_path / "labels.csv").write_text("\n".join(lines), encoding="utf-8")
    own = ["--data-dir", str(tmp_path), "--state-dir", str(tmp_path / "state")]
    assert main(["personalise", "--model", str(folder), *own]) == 0
    assert printed_lines(capsys.readouterr().out, 40, 10)


@pytest.mark.slow
def test_another_head_can_be_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", str(finished(tmp_path)), "--data-dir", str(newcomer(tmp_path)), "--steps", "5"]
    arguments += ["--state-dir", str(tmp_path / "state")]
    trained = []
    for change in ([], ["--run-config", 'head="body.3"']):
        assert main(["personalise", *arguments, *change]) == 0
        trained += re.findall(r"\d+ of 123\b", capsys.readouterr().out)
    assert trained == ["11 of 123", "83 of 123"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["d-psgd", "deprl", "dispfl", "fedrep", "ditto", "fedrod"])
def test_every_personalised_algorithm_leaves_what_a_new_site_needs(tmp_path: Path, name: str) -> None:
    problem = "auc" if "minimax" in ALGORITHMS[name].solves else "cross-entropy"
    run = finished(tmp_path, algorithm=name, problem=problem, hidden=32)  # of 8, half masked, all may be dead
    given, data = at_home(run, newcomer(tmp_path, rows=320))
    assert given.facts["head"] == "fresh"
    outcome = personalise(given, data, steps=200, lr=0.1)
    assert outcome.head > 0
    better = "auroc" if problem == "auc" else "accuracy"
    one = 1 / outcome.after["n"]  # type: ignore[operator]  # of the patients that the new site holds out
    assert outcome.after[better] >= max(0.85, outcome.before[better] - one)  # type: ignore[operator]
    assert not torch.equal(outcome.model["x"][outcome.head :], built(given).fresh()["head"])


@pytest.mark.slow
def test_from_a_shell(tmp_path: Path) -> None:
    folder = finished(tmp_path, algorithm="codasca")
    arguments = ["--model", str(folder), "--data-dir", str(newcomer(tmp_path)), "--state-dir", str(tmp_path / "state")]
    done = forks.python(["-m", "edelweiss.client_app.cli", "personalise", *arguments, "--steps", "3"], REPO)
    assert done.returncode == 0, done.stderr
    assert "before     after" in done.stdout
    assert done.stderr == ""


def test_a_run_of_an_earlier_release_is_read(tmp_path: Path) -> None:
    """Its keys of the problem stood at the top, with those of all other problems; later ones are not in it."""
    folder = finished(tmp_path, algorithm="codasca")
    written = folder / "config.toml"
    now = FinishedRun.read(folder).config
    text = written.read_text(encoding="utf-8").replace('[auc]\nprior = 0.0\nscore = "sigmoid"\nnormalise = true\n', "")
    written.write_text('score = "sigmoid"\nprior = 0.0\nways = 5\nsaddle-file = ""\n' + text, encoding="utf-8")
    assert "[auc]" not in written.read_text(encoding="utf-8")
    before = FinishedRun.read(folder).config
    assert before == now.model_copy(update={"options": {k: v for k, v in now.options.items() if k != "normalise"}})
