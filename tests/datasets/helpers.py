"""Small made files of the data sets, as they are published, and what else several tests share."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from edelweiss.datasets import DataConfig, SiteData, load_site
from edelweiss.datasets.sources import heart_disease, omniglot
from edelweiss.datasets.sources.harbox import ACTIVITIES

CIFAR_CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def sites_of(config: DataConfig, sites: int) -> list[SiteData]:
    return [load_site(config, site, sites) for site in range(sites)]


def idx(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes() + values.tobytes()


def write_mnist(folder: Path, packed: bool, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    arrays = {}
    for part, count in (("train", 40), ("t10k", 20)):
        arrays[f"{part}-images-idx3"] = rng.integers(0, 256, (count, 28, 28), np.uint8)
        arrays[f"{part}-labels-idx1"] = (np.arange(count) % 10).astype(np.uint8)
    for name, values in arrays.items():
        content = idx(values)
        file = folder / f"{name}-ubyte{'.gz' if packed else ''}"
        file.write_bytes(gzip.compress(content) if packed else content)
    return arrays


def write_tar(file: Path, shade: int = 0, size: int = 32, classes: list[str] = CIFAR_CLASSES) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w") as archive:
        for part, count in (("test", 2), ("train", 3)):
            for number, name in enumerate(classes):
                for copy in range(count):
                    stream = io.BytesIO()
                    Image.new("RGB", (size, size), (20 * number, shade, 0)).save(stream, "JPEG", quality=95)
                    member = tarfile.TarInfo(f"{part}/{name}/{copy:04}.jpg")
                    member.size = stream.tell()
                    stream.seek(0)
                    archive.addfile(member, stream)


def write_hearts(folder: Path, header: bool, rows: int = 12) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, hospital in enumerate(heart_disease.HOSPITALS):
        lines = [",".join([*heart_disease.FEATURES, "target"])] if header else []
        lines += [f"{row},{number},?,1.5,.7,1,2,3,4,5,6,7,8,{row % 3}" for row in range(rows)]
        (folder / f"{hospital}.data").write_text("\n".join(lines) + "\n")


def picture(seed: int, side: int = 105) -> bytes:
    """A drawing of one stroke, in black on white with one bit per pixel, as Omniglot's are."""
    rng = np.random.default_rng(seed)
    paper = np.ones((side, side), bool)
    row, column = rng.integers(10, side - 40, 2)
    paper[row : row + 8, column : column + 30] = False
    stream = io.BytesIO()
    Image.fromarray(paper).save(stream, "PNG")
    return stream.getvalue()


def write_zips(
    folder: Path, characters: int = 6, drawings: int = 4, shared: int = 2, names: tuple[str, ...] = omniglot.PARTS[1]
) -> None:
    """Write two zip files that overlap in some characters."""
    folder.mkdir(parents=True, exist_ok=True)
    cut = (characters - shared) // 2
    parts = (range(cut + shared), range(cut, characters))
    for name, part in zip(names, parts, strict=True):
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr(f"{name[:-4]}/", "")
            for character in part:
                place = f"{name[:-4]}/Alphabet{character % 2}/character{character:02}"
                for drawing in range(drawings):
                    archive.writestr(f"{place}/{character:04}_{drawing + 1:02}.png", picture(100 * character + drawing))


def write_users(folder: Path, users: int = 12, windows: int = 10, header: str = "") -> dict[str, np.ndarray]:
    """Write tables of random windows, in turn of each activity; even users write its name, odd ones its number."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    tables = {}
    for user in range(1, users + 1):
        values = rng.standard_normal((windows, 900)).astype(np.float32)
        lines = [header] if header else []
        for number, row in enumerate(values):
            activity = number % 5 if user % 2 else ACTIVITIES[number % 5].title()
            lines.append(", ".join([*(f"{value:.9g}" for value in row), str(activity)]))
        (folder / f"{user}.csv").write_text("\n".join(lines) + "\n\n")
        tables[str(user)] = values
    return tables
