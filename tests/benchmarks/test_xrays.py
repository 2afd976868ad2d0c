"""The drawn chest X-rays: who is ill, what the labels say, and what is seen where."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from benchmarks import xrays
from benchmarks.xrays import HOSPITALS, LABELS, ONES, SIDE, draw, generate, main, make
from edelweiss.config import RunConfig
from edelweiss.datasets import DataConfig, load_site, load_test
from tests.said import has

once = cache(generate)  # several tests look at the same images
SHARE = 0.001  # of the sources' images, for tests

TABLE_6 = {  # of Yuan et al., ICML 2021: images, and the share of positives of each label
    "chexpert": (224_316, 0.211, 0.342, 0.120, 0.310, 0.414),
    "nih": (112_120, 0.025, 0.021, 0.042, 0.103, 0.119),
    "padchest": (110_641, 0.089, 0.012, 0.015, 0.056, 0.064),
    "mimic": (377_110, 0.196, 0.179, 0.047, 0.246, 0.237),
    "vindr": (15_000, 0.153, 0.000, 0.024, 0.012, 0.069),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("data") / "xrays", share=SHARE)


def data(root: Path, **keys: object) -> DataConfig:
    """What a run of the studies reads of a folder."""
    run = RunConfig.parse({"dataset": "site-folders", "label": ",".join(LABELS), "label-preset": "chexpert"})
    given = {"dataset": "site-folders", "data_root": str(root), "label": run.label, "labels": run.labels}
    return DataConfig(**{**given, "partition": "sites", "test_share": 0.0, "holdout_share": 0.0, **keys})  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_shares_of_positives_are_those_of_table_6_as_a_run_reads_them(folder: Path) -> None:
    for place, name in enumerate(sorted(TABLE_6)):
        site, (images, *shares) = load_site(data(folder), place, len(TABLE_6)), TABLE_6[name]
        assert site.name == name
        labels = site.train.targets().numpy()
        assert len(labels) == round(images * SHARE)
        lacks = np.array(shares) == 0
        assert ((labels == -1) == lacks).all(), "it lacks the label, and nothing else is unknown"
        wanted = np.maximum(1, np.rint(np.array(shares) * len(labels)))
        assert (labels == 1).sum(0).tolist() == np.where(lacks, 0, wanted).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSPITALS)
def test_a_patient_has_several_images_and_stays_ill(name: str) -> None:
    images, each = once(name), HOSPITALS[name].per_patient
    assert len(images.patient) / len(np.unique(images.patient)) == pytest.approx(each, rel=0.01)
    if each > 1:
        effusion = images.labels[:, -1] == "1"
        before = effusion[:-1][images.patient[1:] == images.patient[:-1]]
        after = effusion[1:][images.patient[1:] == images.patient[:-1]]
        assert (before & after).sum() / before.sum() > 1.5 * effusion.mean()


@pytest.mark.slow
def test_reports_are_uncertain_and_silent_where_the_hospital_says_so() -> None:
    for name, hospital in HOSPITALS.items():
        images = once(name)
        assert not set(np.unique(images.labels)) - {"1", "0", "-1", ""}
        for place, label in enumerate(LABELS):
            said, share = images.labels[:, place], hospital.uncertain[place]
            doubtful = said == "-1"
            if not hospital.positive[place]:
                assert (said == "").all()
                continue
            among = (said == "1") | doubtful if label in ONES else said != "1"
            assert doubtful.sum() == pytest.approx(share * among.sum(), abs=1)
            negative = (said == "0") | (said == "")
            assert (said == "").sum() == pytest.approx(hospital.blank * negative.sum(), abs=1)
            if doubtful.sum() > 50:
                assert 0.3 < images.seen[doubtful, place].mean() < 0.7
    certain = generate("chexpert", images=200, certain=True)
    assert ((certain.labels == "1") == certain.seen).all()
    assert set(np.unique(certain.labels)) == {"0", "1"}


@pytest.mark.slow
def test_the_same_seed_draws_the_same_images_and_no_two_hospitals_share_one() -> None:
    first, again, other, test = (once("nih"), generate("nih"), generate("nih", 1), generate("nih", images=1121))
    assert (first.pixels == again.pixels).all()
    assert (first.labels == again.labels).all()
    assert len(test.pixels) == len(first.pixels)
    for changed in (other, test, once("padchest")):
        count = min(len(first.pixels), len(changed.pixels))
        assert not (first.pixels[:count] == changed.pixels[:count]).all((1, 2)).any()


@pytest.mark.parametrize("place", range(len(LABELS)), ids=LABELS)
def test_a_finding_is_seen_in_its_place_and_nothing_else_changes(place: int) -> None:
    patient, count = np.repeat(np.arange(100), 2), 200
    without = np.zeros((count, len(LABELS)), np.bool_)
    with_it = without.copy()
    with_it[:, place] = True
    healthy, ill = (draw(HOSPITALS["nih"], patient, seen, np.random.default_rng(3)) for seen in (without, with_it))
    change = ill.astype(int) - healthy
    assert change.min() >= 0, "findings are shadows: brighter"
    changed = change > 2
    assert changed.any((1, 2)).mean() > 0.8
    rows, columns = changed.any(2), changed.any(1)
    left, right = columns[:, : SIDE // 2].any(1), columns[:, SIDE // 2 :].any(1)
    name = LABELS[place]
    if name == "Cardiomegaly":
        assert not columns[:, : SIDE // 4].any()
        assert not rows[:, : SIDE // 3].any(), "below the lungs' upper third"
    elif name == "Edema":
        assert (left & right).mean() > 0.7
    else:
        assert not (left & right).any(), "in one lung"
        assert left.any()
        assert right.any()
    if name == "Consolidation":
        assert rows.sum(1).max() <= 9
    if name == "Atelectasis":
        assert rows.sum(1).max() <= 3
    if name == "Pleural Effusion":
        assert not rows[:, : round(0.66 * SIDE)].any()


def test_sources_are_brighter_or_darker_than_each_other() -> None:
    means = {name: generate(name, share=0.001).pixels.mean() for name in HOSPITALS}
    assert sorted(means, key=means.__getitem__) == ["padchest", "mimic", "chexpert", "nih", "vindr"]


@pytest.mark.slow
def test_folders_of_the_first_sources_have_the_same_test_patients_and_hold_out_the_same_ones(folder: Path) -> None:
    """So what the first stage held out at CheXpert, no later stage trains on."""
    held_out = []
    for count in (1, 2, 5):
        config = data(folder / f"first-{count}", holdout_share=0.3)
        site = load_site(config, 0, count)
        assert site.name == "chexpert"
        held_out.append(site.held_out.inputs[site.held_out.rows])
        test = load_test(config)
        assert test is not None
        assert (test.targets() >= 0).all()
        names = {load_site(config, place, count).name for place in range(count)}
        assert names == set(list(HOSPITALS)[:count])
    assert all(inputs.equal(held_out[0]) for inputs in held_out)


def test_folders_are_made_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(xrays, "write", full)
        with pytest.raises(OSError, check=has("no space")):
            make(tmp_path / "xrays", share=0.0005)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["{}"], "exists"), (["new", "--share", "0"], "--share"), (["new", "--seed", "-1"], "--seed")],
)
def test_mistakes_on_the_command_line(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([argument.format(tmp_path) for argument in arguments])
    assert said in capsys.readouterr().err
