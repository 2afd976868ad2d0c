"""Vectorised gradients of one problem for many clients, each with its own point and batch."""

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

TRIES = 4  # timings of each way


class Stacked:
    """Vectorised gradients and projections of K clients.

    x is (K, d), y (K, p), and each tensor of a batch has a leading axis of length K. `models.stack.Stack` evaluates the
    network; PyTorch's ``vmap`` vectorises the problem's own code. The numbers are those of one client after the other,
    up to the order in which products are summed.

    Parameters
    ----------
    problem : Problem
        A problem without an `Problem.unstackable_reason`.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        if isinstance(problem, NetworkProblem):
            self._stack, self._objective = Stack(problem.network), vmap(problem.objective)
        self._projection = None if type(problem).project is Problem.project else vmap(problem.project)

    def gradient(self, x: Tensor, y: Tensor | None, batch: Batch | None) -> tuple[Tensor, Tensor | None]:
        """Return the gradients by x (K, d) and by y (K, p), each row as in `Problem.gradient`."""
        problem = self.problem
        if batch is None or not isinstance(problem, NetworkProblem):
            return problem.gradients(x, y, batch)
        network, (inputs, labels, *weights) = problem.network, batch
        network.train(True)
        parameters = self._stack.from_rows(x[:, : network.size])
        scalars = x[:, network.size :].detach().requires_grad_()
        dual = (x[:, :0] if y is None else y).detach().requires_grad_()
        with problem.forward_precision():  # channels-first is faster on a GPU
            outputs = self._stack.forward(parameters, problem.transform(inputs, dual), x.device.type == "cuda")
        losses = self._objective(problem.squeeze_outputs(outputs), labels, scalars, dual, *weights)
        *gx, gy = torch.autograd.grad(losses.sum(), [*parameters, scalars, dual], materialize_grads=True)
        return torch.cat([part.flatten(1) for part in gx], 1), None if y is None else gy

    @cached_property
    def supports_masking(self) -> bool:
        """Whether samples with weight zero have no effect, so that batches of different sizes can be padded.

        Found by a trial, since a loss may ignore weights.
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
        """Project each row of y (K, p) onto its feasible set."""
        return y if self._projection is None else self._projection(y)


def trial_failure(problem: Problem) -> str:
    """Try the problem with two clients; return why it cannot be vectorised, empty if it worked."""
    try:
        Stacked(problem).gradient(*_example(problem, 2, 3))
    except (RuntimeError, TypeError) as error:
        return f"problem = {problem.name!r} does not allow it ({str(error).splitlines()[0]})"
    return ""


def relative_time(problem: Problem, clients: int, size: int) -> float:
    """Measure the time of vectorised gradients for many clients, as a share of the time one by one."""
    many, (x, y, batch) = Stacked(problem), _example(problem, clients, size)
    row, dual = x[0].clone(), None if y is None else y[0].clone()
    own = None if batch is None else (batch[0][0], batch[1][0])
    try:
        vectorised = _seconds(problem, lambda: many.gradient(x, y, batch))
        return vectorised / clients / _seconds(problem, lambda: problem.gradient(row, dual, own))
    finally:
        if problem.device.type == "cuda":
            torch.cuda.empty_cache()


def _seconds(problem: Problem, call: Callable[[], object]) -> float:
    """Return the minimum duration of a few calls."""
    taken = []
    for _ in range(TRIES):
        began = time.perf_counter()
        call()
        if problem.device.type == "cuda":
            torch.cuda.synchronize(problem.device)
        taken.append(time.perf_counter() - began)
    return min(taken)


def _example(problem: Problem, clients: int, size: int) -> tuple[Tensor, Tensor | None, Batch | None]:
    """Return identical points and batches for all clients."""
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
