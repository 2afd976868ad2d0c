"""The problem's own scalars and y, read back from what a model's file says of them."""

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


def restored(problem: NetworkProblem, parameters: Tensor, named: Mapping[str, Any]) -> tuple[Tensor, Tensor | None]:
    """Return x and y from the network's parameters and what its file names; the rest is the problem's start.

    Parameters
    ----------
    problem : NetworkProblem
        Whose x and y they are.
    parameters : Tensor
        The network's, shape (``network.size``,).
    named : mapping
        Numbers, or lists of them, by name; other names may be there.

    Raises
    ------
    ProblemError
        For what `NetworkProblem.scalars_of` cannot have given.
    """
    if wrong := [*_wrong(problem, named)]:
        raise ProblemError("; ".join(wrong))
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


def _wrong(problem: NetworkProblem, named: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the problem's own entries of x and y; without any they are at their start."""
    alone = problem.scalar_names()
    names = alone if problem.dual_scalars or not problem.dual else (*alone, "y")
    for name in names if any(name in named for name in names) or named.get("problem") == problem.name else ():
        count = problem.scalar_size if name in alone else problem.dual
        single = name in alone and not problem.labels
        values = [named.get(name)] if single else named.get(name)
        if not (isinstance(values, list) and len(values) == count and all(map(is_number, values))):
            noun = "a finite number" if single else f"{count} finite numbers"
            yield f"{name} = {shown(named.get(name))}: must be {noun}"
