"""The true tables, where there are any: what is read agrees with what the owners, and CODASCA's Table 6, say of them.

They are looked for in the folders chexpert, mimic, nih, padchest and vindr under EDELWEISS_DATA; images are not needed.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from edelweiss.lab.importers import IMPORTERS, LABELS, Listing, Release


@pytest.fixture
def true(data_root: str, request: pytest.FixtureRequest) -> Listing:
    """Read the tables of the source that the test asks for, with its options."""
    name, options = request.param
    release = Release(Path(data_root) / name)
    files = {"nih": "Data_Entry_2017.csv", "vindr": "train.csv"}
    if not (release.has(IMPORTERS[name].layout[0]) or release.has(files.get(name, ""))):
        pytest.skip(f"{release.folder} does not hold {name}'s tables: {IMPORTERS[name].layout[0]}")
    return IMPORTERS[name].read(release, **options)


def ask(name: str, **options: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("true", [(name, options)], indirect=True, ids=[name])


def shares(frame: pd.DataFrame, of: int = 0) -> list[float]:
    return [(frame[label] == "1").sum() / (of or len(frame)) for label in LABELS]


@ask("chexpert", split="train")
def test_chexpert(true: Listing) -> None:
    frame = true.frame
    assert (len(frame), frame["patient"].nunique()) == (223_414, 64_540)
    # Table 6 has the shares of what LibAUC trains on: frontal images, edema and atelectasis where uncertain as present,
    # and images with cardiomegaly, then those with consolidation, a second time.
    frontal = frame[frame["view"] != "lateral"]
    assert len(frontal) == 191_027
    more = [frontal[frontal[label] == "1"] for label in ("Cardiomegaly", "Consolidation")]
    trained = pd.concat([frontal, *more]).replace({"Edema": {"-1": "1"}, "Atelectasis": {"-1": "1"}})
    assert shares(trained) == pytest.approx([0.211, 0.342, 0.120, 0.310, 0.414], abs=6e-4)


@ask("mimic", split="all")
def test_mimic(true: Listing) -> None:
    assert (true.rows, true.frame["patient"].str.len().unique().tolist()) == (377_110, [8])


@ask("mimic", split="train")
def test_mimic_s_split(true: Listing) -> None:
    assert true.rows - len(true.left_out["in another split than train"]) == 368_960


@ask("nih", split="all")
def test_nih(true: Listing) -> None:
    frame = true.frame
    assert (len(frame), frame["patient"].nunique()) == (112_120, 30_805)
    assert shares(frame) == pytest.approx([0.025, 0.021, 0.042, 0.103, 0.119], abs=6e-4)


@ask("padchest")
def test_padchest(true: Listing) -> None:
    frame = true.frame
    assert true.rows == 160_861
    assert len(true.left_out["the projection is EXCLUDE"]) <= 11
    # Table 6 is about the 110,641 images that are neither lateral nor of the ribs nor excluded by their projection; of
    # these, 1 % have no usable report.
    seen = frame[~frame["view"].isin(["lateral", "other"])]
    assert len(seen) == pytest.approx(110_641, rel=0.01)
    assert shares(seen, of=110_641) == pytest.approx([0.089, 0.012, 0.015, 0.056, 0.064], abs=6e-4)


@ask("vindr", split="train", readers="any")
def test_vindr(true: Listing) -> None:
    # Table 6 takes what any of the three readers sees.
    assert len(true.frame) == 15_000
    assert shares(true.frame) == pytest.approx([0.153, 0.000, 0.024, 0.012, 0.069], abs=6e-4)
