"""The saddle problem: its solution, and the files that it can be read from."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edelweiss.problems import ProblemError
from edelweiss.problems.saddle import saddle_coefficients
from tests.problems.example import make

K, D = 3, 5


def write(path: Path, **arrays: object) -> str:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return str(path)


def test_drawn_coefficients_are_those_of_the_papers() -> None:
    t, b = saddle_coefficients(400, 30, 7.0, 0)
    assert t.min() >= 0
    assert t.max() <= 0.1
    assert t.mean() == pytest.approx(0.05, abs=0.01)
    np.testing.assert_allclose(b.mean(0), 0, atol=1e-12)
    assert b.std() == pytest.approx(7.0, rel=0.05)
    half = saddle_coefficients(400, 30, 3.5, 0)
    np.testing.assert_allclose(2 * half[1], b)
    np.testing.assert_array_equal(half[0], t)
    assert not np.array_equal(saddle_coefficients(400, 30, 7.0, 1)[1], b)


@pytest.mark.parametrize("source", ["drawn", "file"])
def test_metrics_are_distances_to_the_stationary_point_of_the_mean_objective(source: str, tmp_path: Path) -> None:
    """Found here by solving for a zero of the sites' mean gradient, which is linear in (x, y)."""
    if source == "drawn":
        file = ""
    else:  # couplings and offsets that the draw never has: mean(b) is not zero
        random = np.random.default_rng(0)
        file = write(tmp_path / "game.npz", t=random.normal(0, 3, K), b=random.normal(2, 5, (K, D)))
    common: dict[str, Any] = {"sites": K, "dimension": D, "heterogeneity": 4.0, "file": file, "seed": 0}
    problems = [make("saddle", site=site, **common) for site in range(K)]

    def mean_gradient(z: np.ndarray) -> np.ndarray:
        x, y = torch.from_numpy(z[:D]), torch.from_numpy(z[D:])
        pairs = [problem.gradient(x, y, None) for problem in problems]
        return np.asarray(np.mean([np.concatenate([gx, gy]) for gx, gy in pairs], axis=0))

    origin = mean_gradient(np.zeros(2 * D))
    matrix = np.column_stack([mean_gradient(column) - origin for column in np.eye(2 * D)])
    solution = np.linalg.solve(matrix, -origin)
    coordinator = make("saddle", **common)
    for problem in (coordinator, *problems):
        at = problem.metrics(torch.from_numpy(solution[:D]), torch.from_numpy(solution[D:]), None)
        assert set(at) == {"distance-x", "distance-y"}
        assert max(float(str(value)) for value in at.values()) < 1e-20
        shift = torch.arange(D, dtype=torch.float64)
        off = problem.metrics(torch.from_numpy(solution[:D]) + shift, torch.from_numpy(solution[D:]) - 2 * shift, None)
        assert off["distance-x"] == pytest.approx(30)
        assert off["distance-y"] == pytest.approx(120)
    assert (np.abs(solution).max() > 0.1) == (source == "file")


def test_a_file_gives_each_site_its_own_coefficients(tmp_path: Path) -> None:
    t, b = np.array([1.0, 2.0, 3.0]), np.arange(15.0).reshape(3, 5)
    file = write(tmp_path / "game.npz", t=t, b=b)
    for site in range(K):
        problem = make("saddle", site=site, sites=K, file=file)
        assert len(problem.b) == 5, "the file's, not the key's"
        x, y = torch.ones(5, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
        gx, gy = problem.gradient(x, y, None)
        torch.testing.assert_close(gx, 10 * x)
        torch.testing.assert_close(gy, torch.from_numpy(b[site]) - t[site] * x)


def test_integers_in_a_file_are_numbers(tmp_path: Path) -> None:
    t, b = saddle_coefficients(2, 9, 1.0, 0, write(tmp_path / "game.npz", t=np.array([1, 2]), b=np.eye(2, dtype=int)))
    assert t.dtype == b.dtype == np.float64


def damaged(path: Path) -> None:
    np.savez_compressed(path, t=np.zeros(K), b=np.random.default_rng(0).random((K, 3000)))
    raw = bytearray(path.read_bytes())
    for i in range(1000, 1400):
        raw[i] ^= 0x5A
    path.write_bytes(raw)


def truncated(path: Path) -> None:
    write(path, t=np.zeros(K), b=np.zeros((K, D)))
    path.write_bytes(path.read_bytes()[:200])


def other_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("t.npy", "b.npy"):
            archive.writestr(name, b"no array")


def bare_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros(K))


T, B = np.zeros(K), np.zeros((K, D))
HOLES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "folder": lambda path: path.mkdir(),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("t = 1\n"),
    "bare-array": bare_array,
    "other-zip": other_zip,
    "truncated": truncated,
    "damaged": damaged,
    "words": lambda path: write(path, t=np.array(["a"] * K), b=B),
    "objects": lambda path: write(path, t=np.array([None] * K), b=B),
    "no-b": lambda path: write(path, t=T),
    "no-t": lambda path: write(path, b=B),
    "other-names": lambda path: write(path, T=T, B=B),
    "few-sites": lambda path: write(path, t=T[1:], b=B[1:]),
    "one-missing": lambda path: write(path, t=T, b=B[1:]),
    "t-matrix": lambda path: write(path, t=B, b=B),
    "b-vector": lambda path: write(path, t=T, b=T),
    "no-columns": lambda path: write(path, t=T, b=B[:, :0]),
    "nan": lambda path: write(path, t=T, b=np.where(np.arange(D) == 2, np.nan, B)),
    "infinite": lambda path: write(path, t=T + np.inf, b=B),
}


@pytest.mark.parametrize("hole", HOLES)
def test_a_file_that_cannot_be_used_is_one_clear_error(hole: str, tmp_path: Path) -> None:
    path = tmp_path / "my-game.npz"
    HOLES[hole](path)
    with pytest.raises(ProblemError) as error:
        make("saddle", sites=K, file=str(path))
    assert (error.value.key, error.value.value) == ("saddle.file", str(path))
    assert len(str(error.value).splitlines()) == 1
    assert error.value.__context__ is None or error.value.__suppress_context__, "the reader needs one error, not two"
