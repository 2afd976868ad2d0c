"""One problem at many points at once, each with a batch of its own: what clients that train side by side ask for."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch.func import grad, vmap

from problems.base import Problem
from problems.network import NetworkProblem

if TYPE_CHECKING:
    from torch import Tensor

    from problems.base import Batch


class Stacked:
    """Gradients and projections of K clients, with one operation where one client after the other takes K.

    x is (K, d), y (K, p), and each tensor of a batch has a leading axis of length K. PyTorch's ``vmap`` turns the
    problem's own code for one client into that for many: linear layers become batched products, convolutions grouped
    ones. The numbers are those of one client after the other, up to the order in which products are summed.

    Parameters
    ----------
    problem : Problem
        One that has no reason against it, see `Problem.not_stacked`.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._network = problem.network if isinstance(problem, NetworkProblem) else None
        self._gradients = vmap(grad(self._value, argnums=(0, 1, 2)))
        self._projection = None if type(problem).project is Problem.project else vmap(problem.project)

    def gradient(self, x: Tensor, y: Tensor | None, batch: Batch | None) -> tuple[Tensor, Tensor | None]:
        """Return the gradients by x (K, d) and by y (K, p), each row as `Problem.gradient` has it."""
        if self._network is None or batch is None:
            return self.problem.gradients(x, y, batch)
        self._network.train(True)
        size, dual = self._network.size, x[:, :0] if y is None else y
        parts, g_scalars, gy = self._gradients(self._network.pieces(x), x[:, size:], dual, batch)
        gx = torch.cat([*(part.flatten(1) for part in parts.values()), g_scalars], 1)
        return gx, None if y is None else gy

    @cached_property
    def masks(self) -> bool:
        """Whether a sample of weight zero counts for nothing: batches of different sizes then fit into one stack.

        Found by trying: a loss may leave weights alone, where no sampler of the run has any.
        """
        if self._network is None:
            return False
        start, cohort, many = self.problem.initial(), self.problem.setting.cohort, torch.Generator().manual_seed(0)
        x, y = start["x"][None], start["y"][None] if "y" in start else None
        inputs = torch.randn(1, 5, *cohort.shape, generator=many).to(x)
        labels = torch.tensor([[0, 1, 1, 0, 1]], device=x.device)
        if cohort.labels:
            labels = labels[..., None].expand(-1, -1, len(cohort.labels))
        weights = torch.tensor([[5 / 3, 5 / 3, 5 / 3, 0.0, 0.0]]).to(x)
        try:
            wanted = self.gradient(x, y, (inputs[:, :3], labels[:, :3]))
            found = self.gradient(x, y, (inputs, labels, weights))
        except (RuntimeError, TypeError, ValueError):
            return False
        both = ([part for part in parts if part is not None] for parts in (wanted, found))
        return all(torch.allclose(one, other, rtol=1e-3, atol=1e-6) for one, other in zip(*both, strict=True))

    def project(self, y: Tensor) -> Tensor:
        """Return each row of y (K, p) projected onto its feasible set."""
        return y if self._projection is None else self._projection(y)

    def _value(self, parameters: dict[str, Tensor], scalars: Tensor, y: Tensor, batch: Batch) -> Tensor:
        """Return the objective of one client."""
        assert isinstance(self.problem, NetworkProblem), "others have gradients in closed form"
        return self.problem.value(batch, scalars, y, parameters)


def tried(problem: Problem) -> str:
    """Say why a problem that has no reason against it cannot be stacked after all; empty: for two clients it worked."""
    start, cohort = problem.initial(), problem.setting.cohort
    x, y = start["x"].expand(2, -1), start.get("y")
    if problem.needs_data:
        several = (len(cohort.labels),) if cohort.labels else ()
        labels = torch.zeros(3, *several, dtype=torch.int64, device=x.device)
        drawn: Batch | None = (x.new_zeros(3, *cohort.shape), labels)
    else:
        drawn = problem.draw(None, None, torch.Generator().manual_seed(0), 3)
    batch = None if drawn is None else tuple(torch.stack([part, part]) for part in drawn)
    try:
        Stacked(problem).gradient(x, None if y is None else y.expand(2, -1), batch)
    except (RuntimeError, TypeError) as error:
        return f"problem = {problem.name!r} does not allow it ({str(error).splitlines()[0]})"
    return ""
