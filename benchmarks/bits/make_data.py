"""Write the small data files that the jobs read, into data/ beside this file (once; they are kept, not made anew)."""

import csv
import json
from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).resolve().parent / "data"


def patients(file: Path, rows: int, seed: int) -> None:
    """A table with a group column, missing values, a patient column and a 0/1 label."""
    rng = np.random.default_rng(seed)
    y = (rng.random(rows) < 0.3).astype(int)
    x = rng.normal(size=(rows, 5)) + 0.8 * y[:, None]
    clinic = rng.choice(["a", "b", "c", "d"], rows, p=[0.4, 0.3, 0.2, 0.1])
    with file.open("w", newline="") as stream:
        out = csv.writer(stream)
        out.writerow(["age", "bmi", "crp", "hb", "na", "clinic", "patient", "died"])
        for k in range(rows):
            values = [f"{v:.4f}" for v in x[k]]
            if k % 17 == 0:
                values[k % 5] = ""
            out.writerow([*values, clinic[k], f"p{k // 2}", y[k]])


def wards(file: Path) -> None:
    """A table whose groups are twelve wards, without patients."""
    rng = np.random.default_rng(9)
    y = (rng.random(240) < 0.3).astype(int)
    x = rng.normal(size=(240, 3)) + 0.8 * y[:, None]
    with file.open("w", newline="") as stream:
        out = csv.writer(stream)
        out.writerow(["age", "bmi", "crp", "ward", "died"])
        out.writerows([*(f"{v:.4f}" for v in x[k]), f"w{k % 12}", y[k]] for k in range(240))


def study(folder: Path) -> None:
    """A table that needs a study file: semicolons, words, units, decimal points."""
    rng = np.random.default_rng(7)
    rows = 180
    y = rng.random(rows) < 0.35
    with (folder / "words.csv").open("w", newline="") as stream:
        out = csv.writer(stream, delimiter=";")
        out.writerow(["outcome", "age", "sex", "crp", "clinic"])
        for k in range(rows):
            crp = "n/a" if k % 13 == 0 else f"{rng.gamma(2) + 2 * y[k]:.3f}"
            out.writerow(
                [
                    "dead" if y[k] else "alive",
                    f"{50 + 10 * rng.normal() + 8 * y[k]:.1f}",
                    "fm"[k % 2],
                    crp,
                    "xyz"[k % 3],
                ]
            )
    (folder / "study.toml").write_text(
        'name = "words"\nfile = "words.csv"\ndelimiter = ";"\nmissing = ["n/a"]\n[label]\ncolumn = "outcome"\n'
        'negative = ["alive"]\npositive = ["dead"]\n[columns.age]\nunit = "years"\nrange = [0.0, 120.0]\n'
        'bands = [50.0, 65.0]\n[columns.sex]\ncodes = {f = 0.0, m = 1.0}\n[columns.crp]\nunit = "mg/l"\n'
    )


def labelled(place: Path) -> None:
    """Three hospitals' tables with three labels: 1, 0, -1 and blank."""
    random = np.random.default_rng(0)
    labels = ("Edema", "Effusion", "Mass")
    for site in ("alpha", "beta", "gamma"):
        features = random.normal(size=(60, 3))
        columns = []
        for number, _ in enumerate(labels):
            values = np.where(features[:, number] + 0.5 * np.sin(np.arange(60)) > 0.6, "1", "0").astype("<U2")
            values[number::11] = "-1"
            values[number + 1 :: 13] = ""
            if number == 2 and site != "beta":
                values[:] = ""
            columns.append(values)
        (place / site).mkdir(parents=True)
        with (place / site / "data.csv").open("w", newline="") as stream:
            lines = csv.writer(stream)
            lines.writerow(["f0", "f1", "f2", *labels])
            lines.writerows([*map(repr, row), *own] for row, *own in zip(features.tolist(), *columns, strict=True))


def pictures(place: Path) -> None:
    """Three hospitals' images that labels.csv lists, two to a patient."""
    for seed, site in enumerate(("north", "south", "west")):
        rng = np.random.default_rng(seed)
        folder = place / site
        folder.mkdir(parents=True)
        lines = ["path,label,pid,view"]
        for number in range(24):
            pixels = np.clip(rng.normal(90 + 40 * (number % 2) + 5 * seed, 25, (14, 18)), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
            lines.append(f"{number}.png,{number % 2},{number // 2},{'AP' if number % 3 else 'PA'}")
        (folder / "labels.csv").write_text("\n".join(lines))


def image_folder(place: Path) -> None:
    """image-folder/train/CLASS/*.png and test."""
    rng = np.random.default_rng(3)
    for part, count in (("train", 20), ("test", 8)):
        for c, name in enumerate(("cat", "dog", "owl")):
            folder = place / "image-folder" / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = np.clip(rng.normal(70 + 50 * c, 30, (12, 12, 3)), 0, 255)
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")


def hospitals(place: Path) -> None:
    """Three hospitals' own tables, for joined sites (dataset "site")."""
    for seed, (name, rows) in enumerate((("north", 120), ("south", 90), ("west", 150))):
        rng = np.random.default_rng(100 + seed)
        y = (rng.random(rows) < 0.3).astype(int)
        x = rng.normal(size=(rows, 4)) + 1.0 * y[:, None] + 0.2 * seed
        (place / name).mkdir(parents=True)
        with (place / name / "data.csv").open("w", newline="") as stream:
            out = csv.writer(stream)
            out.writerow(["marker_0", "marker_1", "marker_2", "marker_3", "label"])
            out.writerows([*(f"{v:.4f}" for v in x[k]), y[k]] for k in range(rows))


def main() -> None:
    HERE.mkdir()
    patients(HERE / "patients.csv", 240, 1)
    wards(HERE / "wards.csv")
    study(HERE)
    labelled(HERE / "labelled" / "site-folders")
    pictures(HERE / "pictures" / "site-folders")
    image_folder(HERE / "folder")
    hospitals(HERE / "hospitals")
    rng = np.random.default_rng(5)
    np.savez(HERE / "saddle.npz", t=rng.uniform(0.5, 2, 3), b=rng.normal(size=(3, 6)))
    (HERE / "edges.csv").write_text("0,1\n1,2\n")
    (HERE / "README.json").write_text(json.dumps({"made by": "make_data.py"}))


if __name__ == "__main__":
    main()
