"""A drafted study file is read as it is, the doctor runs on it, and it names nothing that few patients have."""

import gzip
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pyreadstat
import pytest

from edelweiss.client_app.cli import main
from edelweiss.client_app.connection import JoinConfig
from edelweiss.client_app.doctor import examine
from edelweiss.common.files import toml_in
from edelweiss.config.study import parse, parse_file
from edelweiss.datasets.site.draft import Table, draft
from edelweiss.lab.cli import main as researcher

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


def column(name: str, value: str) -> list[list[str]]:
    rows = table("")
    return [[name if not place else value.format(place % 4), *row] for place, row in enumerate(rows)]


@pytest.mark.parametrize("name", ["name", "Patient", "patient_name", "Nachname", "subject"])
def test_no_patient_is_named_as_a_word_of_a_category(tmp_path: Path, name: str) -> None:
    text = drafted(tmp_path, column(name, "Anna Nass {}"))
    assert "Anna" not in text
    assert f'patient = "{name}"' in text
    assert "name of drug" in drafted_as(tmp_path, column("name of drug", "aspirin {}"))


def drafted_as(folder: Path, rows: list[list[str]]) -> str:
    (folder / "study.toml").unlink()
    return drafted(folder, rows)


@pytest.mark.parametrize(
    "line",
    [
        "{name},{ward},{sex},{died}",
        "{ward},{sex},{died}",
        "{number},{ward},{sex},{died}",
        "{ward},{sex},{died},{died}{place}",
    ],
)
def test_a_table_of_words_without_names_is_refused(tmp_path: Path, line: str) -> None:
    """The draft would send a patient's words on as the names of columns."""
    rows = [
        line.format(
            name=("Anna", "Berta", "Clara")[n % 3] + "x" * (n % 7),
            ward=("icu", "general")[n % 2],
            sex=("f", "m")[n // 2 % 2],
            died=("yes", "no")[n % 3 % 2],
            number=n,
            place=n,
        )
        for n in range(60)
    ]
    (tmp_path / "data.csv").write_text("\n".join(rows))
    assert main(["study", "draft", f"{tmp_path}/data.csv", "--out", f"{tmp_path}/study.toml"]) == 1
    assert not (tmp_path / "study.toml").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv.gz", "xlsx", "parquet", "dta", "sav", "xpt", "latin-1", "tabs"])
def test_every_format_has_a_draft_that_reads_it(tmp_path: Path, kind: str) -> None:
    rows = [[*row, ("größe", "ja", "nein")[min(place, 1) * (1 + place % 2)]] for place, row in enumerate(table(""))]
    frame = pd.DataFrame(rows[1:], columns=rows[0]).astype({"age": int, "crp": float, "died": int})
    frame["größe"] = frame["größe"].replace("ja", "größer")
    file, options, size = tmp_path / f"data.{kind}", list[str](), "größe"
    if kind == "xpt":  # SAS's old format has short names of ASCII
        size = "GROESSE"
        frame = frame.rename(columns={"größe": size})
        pyreadstat.write_xport(frame, str(file), file_format_version=5)
    elif kind in ("latin-1", "tabs"):
        file = tmp_path / "data.csv"
        frame.to_csv(file, index=False, encoding="latin-1" if kind == "latin-1" else "utf-16", sep="\t", decimal=",")
    elif kind == "csv.gz":
        file.write_bytes(gzip.compress(frame.to_csv(index=False).encode()))
    elif kind == "xlsx":
        with pd.ExcelWriter(file) as book:
            pd.DataFrame({"read": ["me"]}).to_excel(book, sheet_name="notes", index=False)
            frame.to_excel(book, sheet_name="patients", index=False, startrow=2)
        options = ["--sheet", "patients", "--header-row", "3"]
    elif kind == "parquet":
        frame.to_parquet(file)
    elif kind == "dta":
        frame.to_stata(file, write_index=False, version=118)
    else:
        pyreadstat.write_sav(frame, str(file))
    if kind == "xlsx":
        assert main(["study", "draft", str(file)]) == 1
    out = tmp_path / "study.toml"
    assert researcher(["study", "draft", str(file), "--label", "died", *options, "--out", str(out)]) == 0
    study = parse("draft", toml_in(out.read_bytes()))
    assert {each.name for each in study.columns} == {"age", "crp", size}
    found = study.read(file).frame
    assert found["crp"].tolist() == pytest.approx(frame["crp"].tolist())
    assert found[size].tolist() == [float(text == "nein") for text in frame[size]]


@pytest.mark.parametrize(
    ("option", "value", "rows"),
    [("--decimal", ",", "61;1,234;1\n48;2,345;0\n"), ("--encoding", "latin-1", "61,a\x81,1\n48,b,0\n")],
)
def test_what_is_unclear_is_an_option_of_the_draft(
    tmp_path: Path, option: str, value: str, rows: str, capsys: pytest.CaptureFixture[str]
) -> None:
    head = "age,crp,died\n".replace(",", ";" if ";" in rows else ",")
    (tmp_path / "data.csv").write_text(head + rows * 20, encoding="latin-1")
    assert main(["study", "draft", f"{tmp_path}/data.csv"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert option in line
    assert main(["study", "draft", f"{tmp_path}/data.csv", option, value]) == 0


def test_a_name_of_two_lines_is_told_in_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a\nb.csv").write_text("age,died\n61,1\n")
    assert main(["study", "draft", f"{tmp_path}/a\nb.csv"]) == 2
    assert main(["doctor", "--superlink=127.0.0.1:1", "--insecure", f"--data-dir={tmp_path}", "--label=died"]) == 1
    said = capsys.readouterr()
    assert not [line for line in (said.out + said.err).splitlines() if line.startswith("b.csv")]


def test_options_that_contradict_are_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "draft"]) == 2
    assert main(["study", "draft", "a.csv", "--query", "q.sql", "--header-row", "0", "--encoding", "zzz"]) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("--query", "--header-row", "--encoding"))
    assert main(["study", "draft", str(tmp_path / "none.csv")]) == 1


def test_a_draft_from_a_query_has_it_and_names_no_password(tmp_path: Path) -> None:
    rows = table("categories")
    file, query, out = tmp_path / "db.sqlite", tmp_path / "q.sql", tmp_path / "study.toml"
    with closing(sqlite3.connect(file)) as database, database:
        database.execute(f"CREATE TABLE p ({', '.join(rows[0])})")
        database.executemany(f"INSERT INTO p VALUES ({', '.join('?' * len(rows[0]))})", rows[1:])
    query.write_text("SELECT * FROM p;")
    source = ["--source", f"sqlite:///{file}", "--query", str(query), "--label", "died"]
    for command in (main, researcher):
        assert command(["study", "draft", *source, "--out", str(out)]) == 0
        study = parse_file("draft", toml_in(out.read_bytes()))
        assert study.extract is not None
        assert study.extract.query == "SELECT * FROM p"
        assert {"age", "crp", "ward"} == set(study.columns)
        assert "leprosarium" not in out.read_text()
        out.unlink()
    query.write_text("DELETE FROM p")
    assert main(["study", "draft", *source]) == 1
    assert researcher(["study", "draft", *source]) == 1
    assert not out.exists()


def test_of_a_large_table_some_rows_are_kept_and_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edelweiss.datasets.site.draft.MOST", 50)
    rows = table("categories")
    (tmp_path / "data.csv").write_text("\n".join(map(",".join, rows)))
    found = Table.read(tmp_path / "data.csv")
    assert (len(found.rows), found.of) == (50, N)
    places = [rows[1:].index(row) for row in found.rows]
    assert len(set(places)) == 50
    assert max(places) > N // 2  # not the first ones
    text = draft(tmp_path / "data.csv", "died")
    assert "50" in text.partition("file =")[0]
    assert "leprosarium" not in text
