"""Data with rare positives at several sites, drawn by a seed: tables of four regimes, and small parts of image sets.

Every seed draws other patients, so that intervals over seeds are about new patients too. A file is in the format of
``dataset = "arrays"`` and holds who is at which site, unless the run's ``partition`` deals them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]

FEATURES = 10


def clean(x: Floats, ill: Bools, rng: np.random.Generator) -> Floats:
    """Move positives by 1.5 along one direction: logistic regression is the right model."""
    direction = np.linspace(1, 0.1, FEATURES)
    return x + 1.5 * ill[:, None] * direction / np.linalg.norm(direction)


def heavy(x: Floats, ill: Bools, rng: np.random.Generator) -> Floats:
    """Scale all features of a patient of ``clean`` alike, as Student's t with 1.5 degrees of freedom does."""
    return clean(x, ill, rng) * np.sqrt(1.5 / rng.chisquare(1.5, len(x)))[:, None]


def hard(x: Floats, ill: Bools, rng: np.random.Generator) -> Floats:
    """Let 3 % of the negatives look extreme in the most useful feature."""
    extreme = ~ill & (rng.random(len(x)) < 0.03)
    x[:, 0] += 2 * ill + 6 * extreme
    x[:, 1] += ill
    return x


def miscoded(x: Floats, ill: Bools, rng: np.random.Generator) -> Floats:
    """Let a tenth of the positives be coding errors: a far cluster on the wrong side."""
    wrong = ill & (rng.random(len(x)) < 0.1)
    x[:, 0] += 1.5 * (ill & ~wrong) - 6 * wrong
    x[:, 1] += ill & ~wrong
    return x


REGIMES: dict[str, Callable[[Floats, Bools, np.random.Generator], Floats]] = {
    regime.__name__: regime for regime in (clean, hard, miscoded, heavy)
}


@dataclass(frozen=True)
class Table:
    """A table of ten features.

    Attributes
    ----------
    regime : str
        One of `REGIMES`.
    shares : tuple of float
        The share of positives at each site; the sites are of one size.
    rows : int
        Rows of all sites.
    shift : float
        Standard deviation of what a site adds to each feature of all its patients.
    dealt : bool
        Whether the run deals the rows to sites, and the file names none.
    """

    regime: str
    shares: tuple[float, ...]
    rows: int
    shift: float = 0.0
    dealt: bool = False

    @property
    def positives(self) -> float:
        """How many rows are positive, in the mean of draws."""
        return self.rows * sum(self.shares) / len(self.shares)

    def draw(self, seed: int, data_root: str = "") -> dict[str, torch.Tensor]:
        """Return inputs (n, 10) float32, classes (n,) and, unless the run deals them, owner (n,)."""
        rng = np.random.default_rng([crc32(repr(self).encode()), seed])
        site = np.arange(self.rows) % len(self.shares)
        ill = rng.random(self.rows) < np.array(self.shares)[site]
        x = REGIMES[self.regime](rng.normal(size=(self.rows, FEATURES)), ill, rng)
        x += self.shift * rng.normal(size=(len(self.shares), FEATURES))[site]
        found = {"inputs": torch.from_numpy(x.astype(np.float32)), "classes": torch.from_numpy(ill.astype(np.int64))}
        return found if self.dealt else {**found, "owner": torch.from_numpy(site)}


@dataclass(frozen=True)
class Images:
    """Images of a data set of ten classes, 5 to 9 against 0 to 4.

    Attributes
    ----------
    dataset : str
        Its name: "mnist", "fashion-mnist" or "cifar10".
    share : float
        Share of positives.
    rows : int
        Images of all sites.
    sites : int
        How many sites there are.
    by_class : bool
        Whether each site has one or two negative and positive classes of its own, or all have all.
    """

    dataset: str
    share: float
    rows: int
    sites: int = 4
    by_class: bool = False

    @property
    def positives(self) -> int:
        """How many images are positive."""
        return round(self.share * self.rows)

    def draw(self, seed: int, data_root: str = "") -> dict[str, torch.Tensor]:
        """Return inputs (n, channels, side, side) uint8, classes (n,) and owner (n,)."""
        from edelweiss.datasets.files import SearchPath
        from edelweiss.datasets.sources import SOURCES

        source = SOURCES[self.dataset].read(SearchPath.of(data_root, download=True))
        classes = np.asarray(source.classes)
        rng = np.random.default_rng([round(1e4 * self.share), seed])
        rows = np.concatenate(
            [
                rng.choice(np.flatnonzero(side), count, replace=False)
                for side, count in ((classes < 5, self.rows - self.positives), (classes >= 5, self.positives))
            ]
        )
        owner = classes[rows] % 5 % self.sites if self.by_class else rng.permutation(self.rows) % self.sites
        return {
            "inputs": source.inputs[torch.from_numpy(rows)],
            "classes": torch.from_numpy((classes[rows] >= 5).astype(np.int64)),
            "owner": torch.from_numpy(owner.astype(np.int64)),
        }


def file_of(data: Table | Images, seed: int, folder: Path, data_root: str = "") -> Path:
    """Return the file of a draw, which is written where it is not there."""
    from safetensors.torch import save_file

    file = folder / f"{crc32(repr(data).encode()):08x}-{seed}.safetensors"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        tensors = data.draw(seed, data_root)
        sites = int(tensors["owner"].max()) + 1 if "owner" in tensors else 0
        draft = file.with_suffix(".draft")
        save_file(tensors, draft, {"names": json.dumps([f"site {site}" for site in range(sites)])})
        draft.replace(file)
    return file
