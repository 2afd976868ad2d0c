"""Restoring a problem's scalars and y from a model's file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from edelweiss.common import shown
from edelweiss.common.options import is_number
from edelweiss.problems.errors import ProblemError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from edelweiss.problems.network import NetworkProblem


def restore_scalars(
    problem: NetworkProblem, parameters: Tensor, named: Mapping[str, Any]
) -> tuple[Tensor, Tensor | None]:
    """Return x and y from the network's parameters and the file's named values; others keep their initial values.

    `named` holds numbers, or lists of them; other names are ignored.

    Raises
    ------
    ProblemError
        For values that `NetworkProblem.scalars_of` cannot have written.
    """
    if wrong := dict(_wrong(problem, named)):
        raise ProblemError("; ".join(wrong.values()), key=next(iter(wrong)), value=[*wrong])
    start, size = problem.initial(), problem.network.size
    x, y = start["x"], start.get("y")
    x[:size] = parameters
    own = x[size:].view(len(problem.scalars), problem.scalar_size)
    for entries, name in zip(own, problem.scalars, strict=True):
        if name in named:
            entries.copy_(torch.tensor(named[name], dtype=x.dtype))
    dual = [named[name] for name in problem.dual_scalars or ("y",) if name in named]
    if y is not None and dual:
        y = torch.tensor(dual, dtype=y.dtype, device=y.device).flatten()
    return x, y


def _wrong(problem: NetworkProblem, named: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield name and message for each invalid entry; a file without any entries is valid."""
    alone = problem.scalar_names()
    names = alone if problem.dual_scalars or not problem.dual else (*alone, "y")
    for name in names if any(name in named for name in names) or named.get("problem") == problem.name else ():
        count = problem.scalar_size if name in alone else problem.dual
        single = name in alone and not problem.labels
        values = [named.get(name)] if single else named.get(name)
        if not (isinstance(values, list) and len(values) == count and all(map(is_number, values))):
            noun = "a finite number" if single else f"{count} finite numbers"
            yield name, f"{name} = {shown(named.get(name))}: must be {noun}"
