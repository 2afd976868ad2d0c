"""Four hospitals with the UCI files as they are downloaded, one study file: a run as on tables prepared by hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bin.run import REPO
from edelweiss.common import Value
from edelweiss.datasets.sources.heart_disease import FEATURES, HOSPITALS
from edelweiss.federation import RunError
from tests.said import has
from tests.server_app.sites import run_at, site_job

pytestmark = pytest.mark.usefixtures("public_batches")

STUDY = REPO / "experiments" / "heart" / "study.toml"


def nodes(folder: Path, prepared: bool) -> list[dict[str, Value]]:
    """Write the hospitals' folders: the files as they are, or as each hospital would have to prepare them."""
    found: list[dict[str, Value]] = []
    for name in HOSPITALS:
        file = Path(os.environ["EDELWEISS_DATA"]) / "heart_disease" / f"{name}.data"
        lines = [line for line in file.read_text().splitlines() if not line.startswith("age")]
        place = folder / f"{prepared}-{name}"
        place.mkdir()
        if prepared:
            (place / "data.csv").write_text("\n".join([",".join([*FEATURES, "target"]), *map(by_hand, lines)]) + "\n")
        else:
            (place / f"processed.{name}.data").write_text("\n".join(lines) + "\n")
        own = {"label": "target"} if prepared else {"study": str(STUDY)}
        own |= {"site": name, "data-dir": str(place), "state-dir": str(folder / f"state-{prepared}-{name}")}
        found.append({**own, "policy": str(folder / "site.toml")})
    (folder / "site.toml").write_text('[policy]\nseed = "the same"\nfewest-of-each-class = 1\n')
    return found


def by_hand(line: str) -> str:
    """Return a patient's line as our tables want it."""
    *values, target = ["" if value in ("?", "-9") else value for value in line.split(",")]
    for name in ("trestbps", "chol"):
        if values[FEATURES.index(name)] and float(values[FEATURES.index(name)]) == 0:
            values[FEATURES.index(name)] = ""
    return ",".join([*values, str(int(float(target) > 0))])


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("EDELWEISS_DATA"), reason="EDELWEISS_DATA names no folder with real data")
def test_downloaded_files_give_the_bits_of_prepared_ones(tmp_path: Path) -> None:
    runs = [
        run_at(site_job(tmp_path, sites=4, model="mlp", run_name=str(prepared)), nodes(tmp_path, prepared))
        for prepared in (False, True)
    ]
    assert [record["pooled"] for record in runs[0].metrics] == [record["pooled"] for record in runs[1].metrics]
    assert (runs[0].folder / "model.safetensors").read_bytes() == (runs[1].folder / "model.safetensors").read_bytes()


def test_a_study_file_that_cannot_be_used_is_told_without_its_place(tmp_path: Path) -> None:
    node: dict[str, Value] = {"site": "north", "data-dir": str(tmp_path), "study": f"{tmp_path}/absent.toml"}
    with pytest.raises(RunError, check=has("study file", sites=("north",))) as told:
        run_at(site_job(tmp_path, sites=1), [node])
    assert str(tmp_path) not in str(told.value)
