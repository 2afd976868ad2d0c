"""One problem at many points at once, each with a batch of its own: what clients that train side by side ask for."""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch.func import vmap

from edelweiss.models.stack import Stack
from edelweiss.problems.base import Problem
from edelweiss.problems.network import NetworkProblem

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from edelweiss.problems.base import Batch

TRIES = 4  # of each way, before one is taken


class Stacked:
    """Gradients and projections of K clients, with one operation where one client after the other takes K.

    x is (K, d), y (K, p), and each tensor of a batch has a leading axis of length K. The network is computed for all by
    `models.stack.Stack`; PyTorch's ``vmap`` turns a problem's own code for one client into that for many. The numbers
    are those of one client after the other, up to the order in which products are summed.

    Parameters
    ----------
    problem : Problem
        One that has no reason against it, see `Problem.unstackable_reason`.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        if isinstance(problem, NetworkProblem):
            self._stack, self._objective = Stack(problem.network), vmap(problem.objective)
        self._projection = None if type(problem).project is Problem.project else vmap(problem.project)

    def gradient(self, x: Tensor, y: Tensor | None, batch: Batch | None) -> tuple[Tensor, Tensor | None]:
        """Return the gradients by x (K, d) and by y (K, p), each row as `Problem.gradient` has it."""
        problem = self.problem
        if batch is None or not isinstance(problem, NetworkProblem):
            return problem.gradients(x, y, batch)
        network, (inputs, labels, *weights) = problem.network, batch
        network.train(True)
        parameters = self._stack.from_rows(x[:, : network.size])
        scalars = x[:, network.size :].detach().requires_grad_()
        dual = (x[:, :0] if y is None else y).detach().requires_grad_()
        with problem.forward_precision():  # on a GPU the channels lie outermost, as was measured there
            outputs = self._stack.forward(parameters, problem.seen(inputs, dual), x.device.type == "cuda")
        losses = self._objective(problem.shaped(outputs), labels, scalars, dual, *weights)
        *gx, gy = torch.autograd.grad(losses.sum(), [*parameters, scalars, dual], materialize_grads=True)
        return torch.cat([part.flatten(1) for part in gx], 1), None if y is None else gy

    @cached_property
    def masks(self) -> bool:
        """Whether a sample of weight zero counts for nothing: batches of different sizes then fit into one stack.

        Found by trying: a loss may leave weights alone, where no sampler of the run has any.
        """
        if not isinstance(self.problem, NetworkProblem):
            return False
        start, data_summary, many = (
            self.problem.initial(),
            self.problem.setting.data_summary,
            torch.Generator().manual_seed(0),
        )
        x, y = start["x"][None], start["y"][None] if "y" in start else None
        inputs = torch.randn(1, 5, *data_summary.shape, generator=many).to(x)
        labels = torch.tensor([[0, 1, 1, 0, 1]], device=x.device)
        if data_summary.labels:
            labels = labels[..., None].expand(-1, -1, len(data_summary.labels))
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


def tried(problem: Problem) -> str:
    """Say why a problem that has no reason against it cannot be stacked after all; empty: for two clients it worked."""
    try:
        Stacked(problem).gradient(*_example(problem, 2, 3))
    except (RuntimeError, TypeError) as error:
        return f"problem = {problem.name!r} does not allow it ({str(error).splitlines()[0]})"
    return ""


def share_of_time(problem: Problem, clients: int, size: int) -> float:
    """Try how long gradients of many clients, on batches of a size, take side by side: as a share of one by one."""
    many, (x, y, batch) = Stacked(problem), _example(problem, clients, size)
    row, dual = x[0].clone(), None if y is None else y[0].clone()
    own = None if batch is None else (batch[0][0], batch[1][0])
    try:
        together = _seconds(problem, lambda: many.gradient(x, y, batch))
        return together / clients / _seconds(problem, lambda: problem.gradient(row, dual, own))
    finally:
        if problem.device.type == "cuda":
            torch.cuda.empty_cache()


def _seconds(problem: Problem, call: Callable[[], object]) -> float:
    """Return how long a call takes, the least of a few: what comes in between makes it longer."""
    taken = []
    for _ in range(TRIES):
        began = time.perf_counter()
        call()
        if problem.device.type == "cuda":
            torch.cuda.synchronize(problem.device)
        taken.append(time.perf_counter() - began)
    return min(taken)


def _example(problem: Problem, clients: int, size: int) -> tuple[Tensor, Tensor | None, Batch | None]:
    """Return points and batches of clients, which are all alike."""
    start, data_summary, random = problem.initial(), problem.setting.data_summary, torch.Generator().manual_seed(0)
    x, y = start["x"].repeat(clients, 1), start.get("y")
    if problem.needs_data:
        several = (len(data_summary.labels),) if data_summary.labels else ()
        labels = torch.zeros(size, *several, dtype=torch.int64, device=x.device)
        drawn: Batch | None = (torch.randn(size, *data_summary.shape, generator=random).to(x), labels)
    else:
        drawn = problem.draw(None, None, random, size)
    batch = None if drawn is None else tuple(part.expand(clients, *part.shape).contiguous() for part in drawn)
    return x, None if y is None else y.repeat(clients, 1), batch
