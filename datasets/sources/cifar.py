"""CIFAR-10 and CIFAR-100, from torchvision's files; CIFAR-10 also from a tar of JPEG files."""

from __future__ import annotations

import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edelweiss.common.files import reason
from edelweiss.datasets.errors import DataError, examples
from edelweiss.datasets.files import SearchPath, cached, downloaded, from_torchvision
from edelweiss.datasets.source import Bytes, Ints, Source

TAR = "cifar10_images.tar"
PADDING = 2**20  # most bytes of padding at the end of a tar
_ARRAYS = ("images", "classes", "test_images", "test_classes")


def read(name: str, class_name: str, count: int, search_path: SearchPath) -> Source:
    """CIFAR-10 or CIFAR-100: 60,000 colour images of 32x32, 10 or 100 classes."""
    batches = "cifar-10-batches-py" if count == 10 else "cifar-100-python"

    def found(root: Path) -> Source | None:
        for folder in (root / name, root):
            if (folder / batches).is_dir():
                return _joined(*from_torchvision(class_name, folder), count)
        for tar in (root / name / TAR, root / TAR):
            if count == 10 and tar.is_file():
                images, classes, test_images, test_classes = cached("cifar10", [tar], _ARRAYS, partial(_decode, tar))
                return Source.official(images, classes, test_images, test_classes, count)
        return None

    if (source := search_path.first(found)) is not None:
        return source
    inside = [batches, TAR] if count == 10 else [batches]
    sought = [folder / file for folder in search_path.under(name, "") for file in inside]
    return _joined(*downloaded(name, class_name, search_path, sought), count)


def _require_end(archive: tarfile.TarFile) -> None:
    """Check that an archive has an end marker and nothing after it; otherwise part of it may be lost."""
    assert archive.fileobj is not None
    archive.fileobj.seek(archive.offset)
    rest = archive.fileobj.read(PADDING + 1)
    if len(rest) < 2 * tarfile.BLOCKSIZE or len(rest) > PADDING or any(rest):
        raise ValueError("it was cut short, or is damaged")


def _joined(train: Any, test: Any, count: int) -> Source:
    images, test_images = (np.ascontiguousarray(part.data.transpose(0, 3, 1, 2)) for part in (train, test))
    return Source.official(images, np.array(train.targets), test_images, np.array(test.targets), count)


def _decode(tar: Path) -> tuple[Bytes, Ints, Bytes, Ints]:
    """Decode {train,test}/<class>/<name>.jpg; sorted class names are the classes 0 to 9."""
    from PIL import Image

    member_name = ""
    try:
        with tarfile.open(tar) as archive:
            members = [m for m in archive if m.isfile() and m.name.endswith((".jpg", ".jpeg", ".png"))]
            parts = [Path(m.name).parts[-3:-1] for m in members]
            names = sorted({part[-1] for part in parts if part})
            _require_end(archive)
            images = np.empty((len(members), 3, 32, 32), np.uint8)
            for index, member in enumerate(members):
                member_name = member.name
                # extractfile is not None: `members` are regular files.
                with Image.open(archive.extractfile(member), formats=("JPEG", "PNG")) as image:  # type: ignore[arg-type]
                    if image.size != (32, 32):
                        raise ValueError(f"it is {image.width}x{image.height}")
                    images[index] = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    except Exception as error:  # a damaged archive or image raises many kinds
        where = f"{tar} ({member_name})" if member_name else str(tar)
        raise DataError(
            f"{where} cannot be read: {reason(error)}; expected 32x32 JPEG images at train/<class>/<name>.jpg and "
            "test/<class>/<name>.jpg",
            f"{tar.name} cannot be read",
        ) from error
    is_train = np.array([part[:1] == ("train",) for part in parts], np.bool_)
    is_test = np.array([part[:1] == ("test",) for part in parts], np.bool_)
    if len(names) != 10 or not is_train.any() or not is_test.any():
        raise DataError(
            f"{tar} holds {is_train.sum()} training and {is_test.sum()} test images of the classes "
            f"{examples(names)}; expected both, at train/<class>/<name>.jpg and test/<class>/<name>.jpg, of "
            "10 classes",
            f"{tar.name} does not hold the 10 classes of CIFAR-10 in train/ and test/",
        )
    classes = np.searchsorted(names, [part[-1] for part in parts]).astype(np.int64)
    return images[is_train], classes[is_train], images[is_test], classes[is_test]
