"""A heterogeneous quadratic saddle problem with a known solution, to measure the distance to it.

arXiv:2211.07303, arXiv:2205.02215
"""

from __future__ import annotations

import io
import zipfile
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch
from pydantic import Field

from edelweiss.common import FileName, Stream
from edelweiss.common.files import read_file, reason
from edelweiss.common.memory import shortage
from edelweiss.problems import papers
from edelweiss.problems.base import Problem
from edelweiss.problems.capabilities import ClosedFormDual
from edelweiss.problems.errors import ProblemError

if TYPE_CHECKING:
    from torch import Tensor

    from edelweiss.datasets import Samples
    from edelweiss.problems.base import Arrays, Batch, Metrics

LARGEST = 1e18  # largest coefficient, whose square is still a float32
LARGEST_FILE = 2**30  # bytes
TAU = 10.0


@dataclass(eq=False, kw_only=True)
class Saddle(Problem, ClosedFormDual):
    """The saddle problem of AdaFGDA 6.1 and FEDNEST: f_k = τ/2 ‖x‖² - ½ ‖y‖² + b_kᵀy - t_k yᵀx.

    With mean(b_k) = 0 the saddle point of the mean objective is x* = y* = 0; otherwise it solves a 2 × 2 system per
    coordinate. ``metrics`` reports the squared distances to it. The coordinator evaluates but never trains. AdaFGDA
    uses τ = 10 and s = 1 and 10, without stating K and d.
    """

    name = "saddle"
    kind = "minimax"
    optimises = "a quadratic game with a known solution, so that the distance to it can be measured"
    reports = ("distance-x", "distance-y")
    papers = (papers.ADAFGDA, papers.FEDNEST)
    needs_data = False
    mixes_patients = "it has no data, so there are no patients"

    dimension: int = Field(20, ge=1, description="d")
    heterogeneity: float = Field(1.0, ge=0, description="s: how much the sites differ")
    file: Annotated[str, FileName(".npz")] = Field(
        "", description="t (K,) and b (K, d) of the sites, instead of drawn ones"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        t, b = self.coefficients()
        self.t = float(t[self.setting.site])
        self.b = torch.as_tensor(b[self.setting.site]).to(self.device, self.dtype)
        # Stationarity of the mean objective: τx = t̄y and y = b̄ - t̄x.
        t_mean, b_mean = float(t.mean()), b.mean(0)
        y_star = b_mean * TAU / (TAU + t_mean**2)
        self.y_star = torch.as_tensor(y_star).to(self.device, self.dtype)
        self.x_star = torch.as_tensor(y_star * t_mean / TAU).to(self.device, self.dtype)

    def coefficients(self) -> tuple[np.ndarray, np.ndarray]:
        """Return t, shape (K,), the coupling of each site, and b, shape (K, d), the linear term of each."""
        setting = self.setting
        return saddle_coefficients(setting.sites, self.dimension, self.heterogeneity, setting.seed, self.file)

    def initial(self) -> Arrays:
        """Return standard normal x and y, the same at every site."""
        draw = np.random.default_rng([self.setting.seed, Stream.SADDLE_START]).standard_normal((2, len(self.b)))
        start = torch.as_tensor(draw).to(self.device, self.dtype)
        return {"x": start[0].clone(), "y": start[1].clone()}

    def gradient(self, x: Tensor, y: Tensor | None, batch: Batch | None) -> tuple[Tensor, Tensor | None]:
        """Return the exact gradients: τx - t_k y and b_k - y - t_k x."""
        assert y is not None, "the saddle problem has a dual variable"
        return TAU * x - self.t * y, self.b - y - self.t * x

    def dual_terms(self, x: Tensor, batch: Batch | None) -> tuple[Tensor, Tensor]:
        """Return b_k - t_k x: the optimal y is its mean over the sites."""
        return (self.b - self.t * x)[None], torch.ones_like(self.b[:1])

    def metrics(self, x: Tensor, y: Tensor | None, data: Samples | None) -> Metrics:
        """Return ‖x-x*‖² and ‖y-y*‖²."""
        assert y is not None, "the saddle problem has a dual variable"
        return {
            "distance-x": (x - self.x_star).double().square().sum().item(),
            "distance-y": (y - self.y_star).double().square().sum().item(),
        }


@lru_cache(maxsize=2)
def saddle_coefficients(
    sites: int, dimension: int, heterogeneity: float, seed: int, file: str = ""
) -> tuple[np.ndarray, np.ndarray]:
    """Return (t, b), drawn as in the papers, or read from a file.

    Drawn: t_k ~ U(0, 0.1), b_k = b̃_k - mean(b̃), b̃_k ~ N(0, s²I).

    `t` has shape (K,) and `b` (K, d), float64, for K sites; a ``.npz`` file has both, and then dimension and
    heterogeneity are ignored.

    Raises
    ------
    ProblemError
        If the file is missing, unreadable, lacks an array, has a wrong shape or a value that is not finite.
    """
    if not file:
        what = f"saddle.dimension = {dimension} for sites = {sites}"
        if text := shortage(16 * sites * dimension, what, "lower them"):
            raise ProblemError(text, key="saddle.dimension", value=dimension)
        rng = np.random.default_rng([seed, Stream.SADDLE_COEFFICIENTS])
        b = heterogeneity * rng.standard_normal((sites, dimension))
        return rng.uniform(0.0, 0.1, sites), b - b.mean(0)
    wanted = f"an .npz with t of shape ({sites},) and b of shape ({sites}, d), as numpy.savez(file, t=t, b=b) makes"
    try:
        with np.load(io.BytesIO(read_file(file, LARGEST_FILE)), allow_pickle=False) as loaded:
            arrays = {name: loaded[name].astype(np.float64, casting="same_kind") for name in ("t", "b")}
    except KeyError as error:
        text = f"saddle.file = {file!r} holds no array {error}: it must be {wanted}"
        raise ProblemError(text, key="saddle.file", value=file) from None
    except (OSError, EOFError, ValueError, AttributeError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        text = f"saddle.file = {file!r} cannot be read ({reason(error)}): it must be {wanted}"
        raise ProblemError(text, key="saddle.file", value=file) from None
    t, b = arrays["t"], arrays["b"]
    if t.shape != (sites,) or b.ndim != 2 or b.shape[0] != sites or b.shape[1] == 0:
        text = f"saddle.file = {file!r} has t {t.shape} and b {b.shape}: it must be {wanted}"
        raise ProblemError(text, key="saddle.file", value=file)
    if not (np.all(np.abs(t) <= LARGEST) and np.all(np.abs(b) <= LARGEST)):
        raise ProblemError(
            f"saddle.file = {file!r} holds NaN, infinity or a value beyond {LARGEST:g}: every value must be finite",
            key="saddle.file",
            value=file,
        )
    return t, b
