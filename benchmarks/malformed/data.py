"""Data that are damaged, or something else: hospitals' tables and images, and data sets known by name.

A lambda in a loop keeps the value of its turn as a default, whose type mypy cannot infer: hence `ignore[misc]`.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks.malformed import Case, Kind
from benchmarks.malformed.spoil import Spoil, cuts, flips, in_its_place

CELLS = (
    "inf",
    "-inf",
    "1e39",
    "1e19",
    "1_0",
    "\uff11",
    "\u00b2",
    "0x10",
    "high",
    "1,5",
    "\0",
    "\u0661",
    "2020-01-01",
    "1 2",
    "--1",
    "1e",
)
LABELS = ("", "nan", "2", "0.5", "inf", "sick", "1e400", "\u00b2", "-", "yes!")
COLUMNS = ("", " ", "Unnamed: 0", "a", " a", "label ", "a\0", "\x1b[31m", "7")
TABLE = "a,b,label\n" + "".join(f"{i},{i * i % 7},{i % 2}\n" for i in range(30))
OTHER_FILES: dict[str, bytes] = {
    "HTML": b"<!DOCTYPE html>\n<html><body>404</body></html>\n",
    "JSON": b'{"a": [1, 2], "label": [0, 1]}',
    "JSON lines": b'{"a": 1, "label": 0}\n{"a": 2, "label": 1}\n',
    "a PDF file": b"%PDF-1.4\n",
    "packed": gzip.compress(TABLE.encode()),
    "UTF-16": TABLE.encode("utf-16"),
    "separated by tabs": TABLE.replace(",", "\t").encode(),
    "separated by semicolons": TABLE.replace(",", ";").encode(),
    "separated by bars": TABLE.replace(",", "|").encode(),
    "in decimal commas": b"a;b;label\n" + b"".join(b"%d,5;1,5;%d\n" % (i, i % 2) for i in range(9)),
    "without a header": TABLE.partition("\n")[2].encode(),
    "a header": b"a,b,label\n",
    "empty lines": b"\n\n\n",
    "a header without end": b"a" * 10**6,
    "a quote without end": b'a,label\n"' + b"1,0\n" * 10**5,
    "NUL": bytes(1000),
}


def at_a_site(name: str, content: bytes, make: Callable[[Path], None] | None = None) -> Callable[[], None]:
    """Return what reads a hospital's folder with this file, which `make` may spoil."""

    def read() -> None:
        from edelweiss.datasets import DataConfig, load_site

        with tempfile.TemporaryDirectory(prefix="secret-") as scratch:
            file = Path(scratch) / name
            file.write_bytes(content)
            if make:
                make(file)
            try:
                load_site(DataConfig(dataset="site", data_dir=scratch), 0, 1)
            except Exception as error:
                if scratch in str(getattr(error, "public", "")):
                    raise RuntimeError("the public text names a path") from error
                raise

    return read


def tried(what: str, read: Callable[[], None], fine: bool = False) -> Case:
    """Return a case: silent where it is read, unless it is fine."""

    def attempt() -> bool | None:
        read()
        return fine or None

    return what, attempt


def tables(rng: Random) -> Iterator[Case]:
    """Yield tables of a hospital with one thing changed."""
    rows = [line.split(",") for line in TABLE.splitlines()]

    def changed(row: int, column: int, cell: str) -> bytes:
        lines = [list(line) for line in rows]
        lines[row][column] = cell
        return "\n".join(map(",".join, lines)).encode()

    for column, cells in ((0, CELLS), (1, CELLS), (2, LABELS)):
        for cell in cells:
            row = rng.randrange(1, len(rows))
            yield tried(f"row {row} has {cell!r} in column {column}", at_a_site("data.csv", changed(row, column, cell)))
    for column in range(3):
        for name in COLUMNS:
            if name != rows[0][column]:
                fine = name.strip() == rows[0][column] or (name == "7" and column < 2)  # a code is a name, too
                yield tried(f"column {column} is named {name!r}", at_a_site("data.csv", changed(0, column, name)), fine)
    for row in rng.sample(range(1, len(rows)), 10):
        for change in ("1", "1,2", "1,2,3,4", ",", ",,,,"):
            lines = [",".join(line) for line in rows]
            lines[row] = change
            yield tried(f"line {row} is {change!r}", at_a_site("data.csv", "\n".join(lines).encode()))
    empty = "a,b,label\n" + "".join(f",,{i % 2}\n" for i in range(30))
    yield tried("no value at all", at_a_site("data.csv", empty.encode()))
    for kind, content in OTHER_FILES.items():
        yield tried(f"data.csv is {kind}", at_a_site("data.csv", content))
    for what, spoil in in_its_place(rng):
        yield tried(f"data.csv {what}", at_a_site("data.csv", TABLE.encode(), spoil), fine="cut" in what)


def parquet(rng: Random) -> Iterator[Case]:
    """Yield Parquet files that are damaged, or hold what no model takes."""
    import pandas as pd

    def written(**columns: Any) -> bytes:
        stream = io.BytesIO()
        pd.DataFrame({"b": [1.0, 2.0], "label": [0, 1], **columns}).to_parquet(stream)
        return stream.getvalue()

    for name, values in {
        "bytes": [b"\xff\xfe", b"\0"],
        "lists": [[1], [2, 3]],
        "tables": [{"x": 1}, {"x": 2}],
        "dates": pd.to_datetime(["2020-01-01", "2021-01-01"]),
        "durations": pd.to_timedelta([1, 2], "D"),
        "texts": ["high", "low"],
        "infinity": [np.inf, 1.0],
        "1e39": [1e39, 1.0],
        "complex numbers in text": ["1+2j", "3"],
    }.items():
        yield tried(f"a column of {name}", at_a_site("data.parquet", written(a=values)))
    for name in ("", "Unnamed: 0", " b", "label ", "\x1b[31m"):
        yield tried(f"a column named {name!r}", at_a_site("data.parquet", written(**{name: [1.0, 2.0]})))
    frame = pd.DataFrame({"a": np.arange(500.0), "label": np.arange(500) % 2})
    stream = io.BytesIO()
    frame.to_parquet(stream)
    for what, spoil in in_its_place(rng):
        yield tried(f"data.parquet {what}", at_a_site("data.parquet", stream.getvalue(), spoil))


def images(rng: Random) -> Iterator[Case]:
    """Yield lists of images with a line too many, and images that are none."""
    from PIL import Image

    listed = "path,label\n" + "".join(f"{i}.png,{i % 2}\n" for i in range(4))

    def four(folder: Path) -> None:
        for i in range(4):
            Image.fromarray(np.full((4, 6), 9 * i, np.uint8)).save(folder / f"{i}.png")

    paths = ("a\0b.png", "x" * 5000, "/".join(["x" * 200] * 40), "loop.png", "gone.png", "../x.png", "/etc/passwd", "")
    for path in (*paths, ".", "~", "0.png", "./0.png", "link.png", "pipe.png"):

        def more(file: Path) -> None:
            import os

            four(file.parent)
            (file.parent / "loop.png").symlink_to("loop.png")
            (file.parent / "link.png").symlink_to("0.png")
            os.mkfifo(file.parent / "pipe.png")

        yield tried(f"a line of {path[:30]!r}", at_a_site("labels.csv", f"{listed}{path},1\n".encode(), more))
    for what, spoil in in_its_place(rng):

        def spoilt(file: Path, spoil: Callable[[Path], None] = spoil) -> None:
            four(file.parent)
            spoil(file.parent / "2.png")

        fine = any(f"cut at {n}" in what for n in "789") or "terabyte" in what  # behind the last pixel
        yield tried(f"an image {what}", at_a_site("labels.csv", listed.encode(), spoilt), fine)


def known(
    name: str,
    write: Callable[[Path], None],
    file: str,
    spoils: Iterator[Spoil],
    fine: Callable[[str], bool],
    **keys: Any,
) -> Iterator[Case]:
    """Yield a data set known by name with one of its files spoilt."""
    for what, spoil in spoils:

        def read(spoil: Callable[[Path], None] = spoil) -> None:
            from edelweiss.datasets import DataConfig, load_site, load_test

            with tempfile.TemporaryDirectory() as scratch:
                write(Path(scratch))
                spoil(Path(scratch) / file)
                config = DataConfig(dataset=name, data_root=scratch, download=False, **keys)
                load_test(config)
                load_site(config, 0, 2 if keys.get("partition") != "sites" else 4)

        yield tried(f"{name}: {file} {what}", read, fine(what))


def digits(rng: Random) -> Iterator[Case]:
    """Yield damaged files of MNIST."""
    names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

    def idx(values: np.ndarray) -> bytes:
        return bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes() + values.tobytes()

    def write(folder: Path) -> None:
        for part, count in (("train", 40), ("t10k", 20)):
            pictures, labels = np.zeros((count, 28, 28), np.uint8), (np.arange(count) % 10).astype(np.uint8)
            (folder / f"{part}-images-idx3-ubyte").write_bytes(idx(pictures))
            (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels))

    def packed(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
        def spoil(file: Path) -> None:
            data = file.read_bytes()
            file.unlink()
            file.with_name(f"{file.name}.gz").write_bytes(change(data))

        return spoil

    wrong: dict[str, bytes] = {
        "holds labels beyond 9": idx(np.full(40, 200, np.uint8)),
        "holds other images": idx(np.zeros((40, 20, 20), np.uint8)),
        "holds fewer": idx(np.zeros((39, 28, 28), np.uint8)),
        "holds none": idx(np.zeros((0, 28, 28), np.uint8)),
        "says negative sizes": bytes([0, 0, 8, 3]) + np.array([-1, 28, 28], ">i4").tobytes() + bytes(100),
        "says 2^31 images": bytes([0, 0, 8, 3]) + np.array([2**31 - 1, 28, 28], ">i4").tobytes(),
        "says 255 axes": bytes([0, 0, 8, 255]) + bytes(1100),
        "holds floats": bytes([0, 0, 13, 3]) + bytes(1000),
    }
    spoils = [(what, lambda file, data=data: file.write_bytes(data)) for what, data in wrong.items()]
    spoils.append(("is a bomb", packed(lambda data: gzip.compress(bytes(2**28), 1))))
    spoils.append(("is packed and cut", packed(lambda data: gzip.compress(data)[:-9])))
    spoils.append(("is named so, and not packed", packed(lambda data: data)))
    for name in names:
        every = [*spoils, *in_its_place(rng)]
        yield from known("mnist", write, name, iter(every), lambda what: False)  # type: ignore[arg-type]


def hospitals(rng: Random) -> Iterator[Case]:
    """Yield damaged files of the heart disease data."""
    from edelweiss.datasets.sources.heart_disease import HOSPITALS

    def write(folder: Path) -> None:
        for hospital in HOSPITALS:
            lines = [f"{row},1,?,1.5,.7,1,2,3,4,5,6,7,8,{row % 3}" for row in range(12)]
            (folder / f"{hospital}.data").write_text("\n".join(lines) + "\n")

    def line(cell: str, place: int) -> Callable[[Path], None]:
        cells = ["1"] * 14
        cells[place] = cell
        return lambda file: _append(file, ",".join(cells))

    cells = [("inf", 0), ("1e39", 3), ("1_0", 2), ("x", 5), ("", 1), ("-1", 13), ("2.5", 13), ("99", 13), ("?", 13)]
    spoils: list[Spoil] = [(f"has a line with {cell!r} as number {place}", line(cell, place)) for cell, place in cells]
    spoils += [(f"is {kind}", lambda file, data=data: file.write_bytes(data)) for kind, data in OTHER_FILES.items()]  # type: ignore[misc]
    spoils += in_its_place(rng)
    yield from known(
        "heart-disease", write, "va.data", iter(spoils), lambda what: "cut" in what, partition="sites", binary=True
    )


def archives(rng: Random) -> Iterator[Case]:
    """Yield damaged archives: CIFAR-10 in a tar, Omniglot in zip files."""
    from PIL import Image

    def image(mode: str, size: int) -> bytes:
        stream = io.BytesIO()
        Image.new(mode, (size, size), 1).save(stream, "PNG")
        return stream.getvalue()

    def tar(folder: Path) -> None:
        with tarfile.open(folder / "cifar10_images.tar", "w") as archive:
            for part in ("test", "train"):
                for number in range(10):
                    for copy in range(3):
                        _add(archive, f"{part}/{number}/{copy}.png", image("RGB", 32))

    def zips(folder: Path) -> None:
        for part in (1, 2):
            with zipfile.ZipFile(folder / f"images_background_small{part}.zip", "w") as archive:
                for character in range(4):
                    for drawing in range(3):
                        archive.writestr(f"set/Alphabet/{part}{character}/{drawing}.png", image("1", 105))

    def tar_of(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
        return lambda file: _replace(file, change(file.read_bytes()))

    def member(content: bytes) -> Callable[[Path], None]:
        def spoil(file: Path) -> None:
            with tarfile.open(file, "a") as archive:
                _add(archive, "train/3/more.png", content)

        return spoil

    spoils: list[Spoil] = [(f"holds an image of {side} pixels", member(image("L", side))) for side in (16, 4000, 13000)]
    spoils += [(f"holds {what}", member(data)) for what, data in (("no image", b"x" * 99), ("an empty file", b""))]
    for name, pack in (("xz", lzma.compress), ("bz2", bz2.compress), ("gz", gzip.compress)):
        for share in (0.3, 0.6, 0.9):
            cut = tar_of(lambda d, pack=pack, share=share: pack(d)[: int(share * len(pack(d)))])  # type: ignore[misc]
            damaged = tar_of(lambda d, pack=pack, share=share: _hole(pack(d), share))  # type: ignore[misc]
            spoils += [(f"is packed with {name} and cut", cut), (f"is packed with {name} and damaged", damaged)]
    spoils += in_its_place(rng)
    # Zeros behind the last image are padding: less of them lose nothing.
    yield from known("cifar10", tar, "cifar10_images.tar", iter(spoils), lambda what: "cut at 9" in what)
    drawings: list[Spoil] = [*in_its_place(rng), *cuts(rng)]
    for side in (4000, 13000):
        drawings.append((f"holds a drawing of {side} pixels", lambda file, side=side: _zipped(file, image("1", side))))  # type: ignore[misc]
    drawings.append(("holds a file of 2^28 zeros", lambda file: _zipped(file, bytes(2**28))))
    zipped = "images_background_small1.zip"
    yield from known("omniglot", zips, zipped, iter(drawings), lambda what: False, partition="by-group")
    # Each byte of a drawing is checked; of what stands between them, such as times, it is not.
    yield from known("omniglot", zips, zipped, flips(rng, 40), lambda what: True, partition="by-group")


def _append(file: Path, line: str) -> None:
    file.write_text(f"{file.read_text()}{line}\n")


def _replace(file: Path, data: bytes) -> None:
    file.write_bytes(data)


def _hole(data: bytes, share: float) -> bytes:
    where = int(share * len(data))
    return data[:where] + b"\x55" * 9 + data[where + 9 :]


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def _zipped(file: Path, content: bytes) -> None:
    with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("set/Alphabet/10/more.png", content)


KINDS: dict[str, Kind] = {
    "tables of a hospital": tables,
    "Parquet files": parquet,
    "images of a hospital": images,
    "MNIST": digits,
    "heart disease": hospitals,
    "archives": archives,
}
