"""A drafted study file is read as it is, the doctor runs on it, and it names nothing that few patients have."""

from pathlib import Path

import numpy as np
import pytest

from edelweiss.client_app.cli import main
from edelweiss.client_app.connection import JoinConfig
from edelweiss.client_app.doctor import examine
from edelweiss.common.files import toml_in
from edelweiss.config.study import parse

N = 200


def table(kind: str) -> list[list[str]]:
    random = np.random.default_rng(3)
    rows = [["age", "crp", "died"]]
    rows += [
        [str(18 + a), f"{b:.2f}", str(int(c < 0.3))]
        for a, b, c in random.random((N, 3)) * [70, 50, 1] // [1, 0.01, 1e-9] * [1, 0.01, 1e-9]
    ]
    for place, row in enumerate(rows[1:]):
        row[0] = str(int(float(row[0])))
        if kind == "missing codes" and place % 8 == 0:
            row[1] = "-9"
        if kind == "unknown" and place % 8 == 0:
            row[1] = "unknown"
    more = {
        "categories": ("ward", lambda place: "leprosarium" if place < 9 else ("ICU", "general", "surgery")[place % 3]),
        "dates": ("admitted", lambda place: f"2021-{place % 12 + 1:02}-{place % 28 + 1:02}"),
        "ids": ("mrn", lambda place: str(7000000 + 37 * place)),
        "patients": ("patient_id", lambda place: f"P{place // 3}"),
        "semicolons": ("sex", lambda place: "mf"[place % 2]),
    }
    if kind in more:
        name, value = more[kind]
        rows = [[name if not place else value(place - 1), *row] for place, row in enumerate(rows)]
    return rows


def drafted(folder: Path, rows: list[list[str]], delimiter: str = ",") -> str:
    lines = [delimiter.join(cell.replace(".", ",") if delimiter == ";" else cell for cell in row) for row in rows]
    (folder / "data.csv").write_text("\n".join(lines) + "\n")
    assert main(["study", "draft", f"{folder}/data.csv", "--label", "died", "--out", f"{folder}/study.toml"]) == 0
    return (folder / "study.toml").read_text()


@pytest.mark.parametrize("kind", ["categories", "missing codes", "unknown", "dates", "ids", "patients", "semicolons"])
def test_the_draft_of_a_dirty_table_is_what_reads_it(tmp_path: Path, kind: str) -> None:
    rows = table(kind)
    text = drafted(tmp_path, rows, ";" if kind == "semicolons" else ",")
    study = parse("draft", toml_in(text.encode()))
    features = {column.name for column in study.columns}
    assert {"age", "crp"} <= features
    assert not {"admitted", "mrn", "patient_id", "died"} & features
    assert (study.patient == "patient_id") == (kind == "patients")
    assert ("NO COLUMN SAYS WHOSE" in text) == (kind not in ("patients", "ids"))
    assert "leprosarium" not in text
    if kind == "categories":  # what the draft leaves out, a person adds
        text = text.replace('"icu"', '"leprosarium", "icu"')
        (tmp_path / "study.toml").write_text(text)
        study = parse("draft", toml_in(text.encode()))
    keys = {"data-dir": str(tmp_path), "study": f"{tmp_path}/study.toml", "superlink": "127.0.0.1:1", "insecure": True}
    said = {finding.about: finding for finding in examine(JoinConfig.read("", keys))}
    assert said["data"].level == "ok", said["data"].text
    found = study.read(tmp_path / "data.csv")
    assert len(found.frame) == N
    if kind in ("missing codes", "unknown"):
        assert int(found.frame["crp"].isna().sum()) == N // 8


def test_a_table_without_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("\n".join(",".join(row) for row in table("ids")[1:]))
    assert main(["study", "draft", f"{tmp_path}/data.csv", "--out", f"{tmp_path}/study.toml"]) == 1
    assert not (tmp_path / "study.toml").exists()


def test_the_few_with_an_outcome_are_not_told(tmp_path: Path) -> None:
    rows = table("")
    for place, row in enumerate(rows[1:]):
        row[2] = "relapse" if place < 9 else "cured"
        row[1] = "77777.7" if place < 9 else row[1]
    text = drafted(tmp_path, rows)
    assert "cured" in text
    assert "relapse" not in text
    assert "77" not in text


def test_rows_of_one_patient_are_one(tmp_path: Path) -> None:
    rows = table("patients")
    for place, row in enumerate(rows):
        row.append("drug" if not place else "mercury" if place <= 27 else ("none given", "aspirin")[place % 2])
    text = drafted(tmp_path, rows)
    assert "aspirin" in text
    assert "mercury" not in text


def test_no_identifier_is_told_where_few_patients_have_many_rows(tmp_path: Path) -> None:
    rows = table("")
    for place, row in enumerate(rows):
        row += [f"stay-{place % 20}", f"person-{place % 5}"] if place else ["stay_id", "subject"]
    text = drafted(tmp_path, rows)
    assert 'patient = "subject"' in text
    assert "stay-" not in text
    assert "person-" not in text
