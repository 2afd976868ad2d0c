"""Sums of patients' gradients, each clipped: what a private answer is made of before its noise.

A patient's gradient is the mean over the patient's rows of the gradient of `NetworkProblem.patient_part`, less that of
`public_part`, by x and by y as one vector. Whatever the model, the point and the rows are, a patient whose rows count
nothing in place of what they count moves the sum by at most the clip: the norm is taken of the very numbers that are
added, in float64, and a gradient that is not finite counts 0. (The rows stay where they are, so that nobody else's
gradient is rounded in another way; a model at the edge of what float32 holds would tell how many rows there are.)
Networks of linear layers give the norm from the layers' inputs and output gradients (Goodfellow 2015,
arXiv:1510.01799), without the gradient itself; others give it row by row, in blocks that bound the memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations_with_replacement, pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from edelweiss.common import PROCESS_CACHE
from edelweiss.models import MODELS
from edelweiss.models.dropout import Dropout
from edelweiss.problems.network import NetworkProblem, channels_last, evaluation_batch

if TYPE_CHECKING:
    from edelweiss.datasets import Samples
    from edelweiss.models import FlatNetwork
    from edelweiss.problems import Batch, Problem

MOST_NUMBERS = 2**25  # of a block of gradients: 128 MB in float32
BUILT_IN = NetworkProblem.__module__.rpartition(".")[0] + "."
ROUNDING = 2.3e-16  # of float64, twice
MOST_NORM = 1e30  # beyond it a clipped gradient may have no exact float32; it counts 0


class Term:
    """A point at which gradients are taken, and their weights by x and by y: a difference has two terms."""

    def __init__(self, x: Tensor, y: Tensor | None, weights: tuple[float, float] = (1.0, 1.0)) -> None:
        self.x, self.y, self.weights = x, y, weights
        self.dual = x[:0] if y is None else y
        self._public: Tensor | None = None

    def public(self, problem: NetworkProblem) -> Tensor:
        """Return the gradient here of `NetworkProblem.public_part`, of weight 1: by the scalars in x and by y."""
        if self._public is None:
            point = [part.detach().clone().requires_grad_() for part in (self.x[problem.network.size :], self.dual)]
            value = problem.public_part(*point) if sum(map(len, point)) else point[0].sum()
            parts = torch.autograd.grad(value, point, materialize_grads=True) if value.requires_grad else point
            self._public = torch.cat(parts) if value.requires_grad else torch.zeros_like(torch.cat(point).detach())
        return self._public


@dataclass(frozen=True)
class Rows:
    """The rows of some patients.

    Attributes
    ----------
    positions : Tensor
        Their indices in the site's samples, shape (r,) int64, one patient after the other.
    owners : Tensor
        Whose each is, shape (r,) int64: 0, 0, 1, 2, 2, ...
    shares : Tensor
        1 / (rows of its patient), shape (r,) float32.
    """

    positions: Tensor
    owners: Tensor
    shares: Tensor

    @property
    def single(self) -> bool:
        """Whether each patient has one row."""
        return len(self.owners) == 0 or int(self.owners[-1]) == len(self.owners) - 1


def clipped_sum(problem: NetworkProblem, samples: Samples, rows: Rows, terms: Sequence[Term], clip: float) -> Tensor:
    """Return Σ_i g_i min(1, clip / ‖g_i‖) over patients, float64, shape (d + p,); g_i = Σ_terms weight · gradient.

    Parameters
    ----------
    problem
        Without a `refusal`.
    samples, rows
        The site's samples, and those of the patients that the sum is over.
    terms
        Points of the problem's shapes.
    clip
        Above 0; infinite: no clipping.
    """
    network = problem.network
    network.train(True)
    size = len(terms[0].x) + len(terms[0].dual)
    total = torch.zeros(size, dtype=torch.float64, device=problem.device)
    layers = _dense(problem)
    ghost = layers is not None and rows.single
    block = (
        evaluation_batch(samples.shape) if ghost else max(1, min(evaluation_batch(samples.shape), MOST_NUMBERS // size))
    )
    unfinished = total.new_zeros(0)  # the gradient so far of a patient whose rows go on in the next block
    starts = [*range(0, len(rows.positions), block), len(rows.positions)]
    for start, end in pairwise(starts):
        part = slice(start, end)
        batch = samples.batch(rows.positions[part].to(samples.rows.device))
        if ghost and layers is not None:
            _add_clipped(total, [_Factors.of(problem, term, batch, layers) for term in terms], terms, clip)
            continue
        owners = rows.owners[part]
        each = _weighted_gradients(problem, terms[0], batch, layers)
        for term in terms[1:]:
            each += _weighted_gradients(problem, term, batch, layers)
        if not rows.single:
            mine = (owners - owners[0]).to(each.device)
            each = each.new_zeros(int(mine[-1]) + 1, size).index_add_(0, mine, each * rows.shares[part, None].to(each))
            if len(unfinished):
                each[0] += unfinished
            goes_on = end < len(rows.owners) and bool(rows.owners[end] == owners[-1])
            unfinished, each = (each[-1].clone(), each[:-1]) if goes_on else (total.new_zeros(0), each)
        factors = _factors(torch.linalg.vector_norm(each, dim=1, dtype=torch.float64), clip)
        each = torch.where(factors[:, None] > 0, each, 0).mul_(factors[:, None].to(each.dtype))
        total += each.sum(0, dtype=torch.float64)
    return total


def public_gradient(problem: NetworkProblem, terms: Sequence[Term]) -> Tensor:
    """Return the gradient of the part of the objective without data, shape (d + p,); it needs no privacy."""
    size, d = problem.network.size, len(terms[0].x)
    total = torch.zeros(d + len(terms[0].dual), dtype=problem.dtype, device=problem.device)
    for term in terms if len(total) > size else ():
        by_x, by_y = term.weights
        total[size:d] += term.public(problem)[: d - size] * by_x
        total[d:] += term.public(problem)[d - size :] * by_y
    return total


@PROCESS_CACHE.keeps(32)
def refusal(problem: Problem) -> str:
    """Return why patients' gradients cannot be told apart; empty if they can. Found by trials, once per process."""
    name, kind = problem.name, type(problem)
    if problem.mixes_patients:
        return f"problem = {name!r}: {problem.mixes_patients}"
    plain = ("gradient", "value", "outputs")
    if not isinstance(problem, NetworkProblem) or any(
        getattr(kind, each) is not getattr(NetworkProblem, each) for each in plain
    ):
        return f"problem = {name!r} computes gradients in a way of its own, which does not tell patients apart"
    model = problem.setting.architecture.model
    if any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in problem.network.module.modules()):
        instead = f"{model}-gn" if f"{model}-gn" in MODELS else "one without it, such as resnet18-gn"
        return f"model = {model!r} has batch norm, which mixes the patients of a batch: take {instead}"
    start, labels = problem.initial(), torch.tensor([1, 0], device=problem.device)
    if problem.labels:
        labels = labels[:, None].expand(2, problem.width)
    inputs = torch.zeros(2, *problem.setting.data_summary.shape, device=problem.device)
    term = Term(start["x"], start.get("y"))
    try:
        _gradients(problem, term, (inputs, labels), _dense(problem))
    except (RuntimeError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return f"model = {model!r} or problem = {name!r} cannot be differentiated patient by patient ({reason})"
    return "" if _is_a_weighted_mean(problem) else f"problem = {name!r}: its loss is no weighted mean over samples"


def _is_a_weighted_mean(problem: NetworkProblem) -> bool:
    """Whether the loss is linear in the samples' weights, as `NetworkProblem.loss` says: else no patient has a part."""
    random, start = torch.Generator().manual_seed(0), problem.initial()
    shape = (3, problem.width) if problem.multiclass or problem.labels else (3,)
    outputs = torch.randn(shape, generator=random).to(start["x"])
    labels = torch.tensor([1, 0, 1], device=outputs.device)
    cast = labels[:, None].expand(shape).to(problem.dtype) if problem.labels else problem.cast_labels(labels)
    point = start["x"][problem.network.size :], start.get("y", start["x"][:0])
    ones = torch.ones_like(cast, dtype=problem.dtype)
    none, one, two = (problem.loss(outputs, cast, *point, count * ones) for count in (0, 1, 2))
    first = problem.loss(outputs[:1], cast[:1], *point, ones[:1])
    of_first = torch.zeros_like(ones)
    of_first[0] = 3
    alone = problem.loss(outputs, cast, *point, of_first)
    near = partial(torch.allclose, rtol=1e-3, atol=1e-5)
    return near(two - one, one - none) and near(first, alone) and not near(one, none, rtol=0, atol=0)


# ---------------------------------------------------------------------- gradients row by row


def _factors(norms: Tensor, clip: float) -> Tensor:
    """Return what gradients of these norms are multiplied with; 0 for those that are not finite."""
    factors = (clip / norms.clamp(min=1e-300)).clamp(max=1.0)
    return torch.where(norms <= MOST_NORM, factors, 0.0)


def _weighted_gradients(problem: NetworkProblem, term: Term, batch: Batch, layers: Dense | None) -> Tensor:
    each, (by_x, by_y) = _gradients(problem, term, batch, layers), term.weights
    if not by_x == by_y == 1.0:
        each[:, : len(term.x)] *= by_x
        each[:, len(term.x) :] *= by_y
    return each


def _gradients(problem: NetworkProblem, term: Term, batch: Batch, layers: Dense | None) -> Tensor:
    """Return the gradient of each row of a batch, shape (r, d + p)."""
    if layers is not None:
        return _Factors.of(problem, term, batch, layers).gradients()
    network, (inputs, labels) = problem.network, batch
    if problem.setting.architecture.model in MODELS.built_in and _is_built_in(problem) and term.x.device.type == "cpu":
        return _one_by_one(problem, term, batch)

    def part(x: Tensor, y: Tensor, one: Tensor, label: Tensor) -> Tensor:
        with problem.forward_precision():
            outputs = network.functional(x, problem.transform(one[None], y))
        return problem.patient_part(problem.squeeze_outputs(outputs), label[None], x[network.size :], y)

    by_point = vmap(grad(part, argnums=(0, 1)), in_dims=(None, None, 0, 0), randomness="different")
    with network.drawing():
        by_x, by_y = by_point(term.x.detach(), term.dual.detach(), inputs, labels)
    each = torch.cat([by_x, by_y], 1)
    each[:, network.size :] -= term.public(problem)
    return each


@dataclass(frozen=True)
class Dense:
    """A network of linear layers: all its layers in order, and where the parameters of the linear ones lie in x."""

    layers: tuple[nn.Module, ...]
    spans: tuple[tuple[slice, slice | None], ...]


def dense_layers(network: FlatNetwork) -> Dense | None:
    """Return the layers of a network of linear layers, ReLU and dropout; None for any other."""
    names = {module: name for name, module in network.module.named_modules()}
    leaves = [*_leaves(network.module)]
    known = (nn.Linear, nn.ReLU, nn.Flatten, nn.Identity, Dropout, nn.Dropout)
    if any(type(leaf) not in known or leaf._forward_hooks or leaf._forward_pre_hooks for leaf in leaves):
        return None
    if any(isinstance(leaf, nn.ReLU | nn.Dropout) and leaf.inplace for leaf in leaves):
        return None
    linear = [leaf for leaf in leaves if isinstance(leaf, nn.Linear)]
    spans = network.spans
    found = [(spans.get(f"{names[each]}.weight"), spans.get(f"{names[each]}.bias")) for each in linear]
    if sum(span.stop - span.start for pair in found for span in pair if span) != network.size:
        return None  # frozen or shared parameters
    if not all(weight for weight, _ in found) or not leaves or len(set(map(id, linear))) < len(linear):
        return None
    return Dense(tuple(leaves), tuple((weight, bias) for weight, bias in found if weight))


def _one_by_one(problem: NetworkProblem, term: Term, batch: Batch) -> Tensor:
    """Return the gradient of each row, shape (r, d + p), by a pass for each.

    On a processor that takes less time than ``vmap``, whose convolutions are grouped: half for cnn-mnist. A network
    from outside could carry something over from row to row, in a buffer; ``vmap`` refuses that.
    """
    network, (inputs, labels) = problem.network, batch
    network.bind(term.x)
    each = []
    for row, label in zip(torch.split(inputs, 1), torch.split(labels, 1), strict=True):
        scalars, y = (part.detach().requires_grad_() for part in (term.x[network.size :], term.dual))
        with problem.forward_precision():
            outputs = network.forward(channels_last(problem.transform(row, y)))
        value = problem.patient_part(problem.squeeze_outputs(outputs), label, scalars, y)
        by_x, *rest = network.gradient(value, [scalars, y])
        each.append(torch.cat([by_x, torch.cat(rest) - term.public(problem)]))
    return torch.stack(each)


def _is_built_in(problem: NetworkProblem) -> bool:
    return type(problem).__module__.startswith(BUILT_IN)


def _dense(problem: NetworkProblem) -> Dense | None:
    """Return the layers that rows may share a pass through: in code from outside one row could see the others."""
    return dense_layers(problem.network) if _is_built_in(problem) else None


def _leaves(module: nn.Module) -> Iterator[nn.Module]:
    if type(module) is nn.Sequential:
        for child in module:
            yield from _leaves(child)
    else:
        yield module


@dataclass(frozen=True)
class _Factors:
    """The gradients of r rows in a network of linear layers, as factors: by a weight b_i a_iᵀ, by a bias b_i.

    ``rest`` are the rows' gradients by the problem's scalars and by y, shape (r, scalars + p).
    """

    a: list[Tensor]  # (r, in) of each layer
    b: list[Tensor]  # (r, out)
    rest: Tensor
    dense: Dense
    size: int  # of the network
    primal: int  # d

    @classmethod
    def of(cls, problem: NetworkProblem, term: Term, batch: Batch, dense: Dense) -> _Factors:
        network, (inputs, labels) = problem.network, batch
        network.bind(term.x)
        scalars = term.x[network.size :].detach().repeat(len(inputs), 1).requires_grad_()
        y = term.dual.detach().repeat(len(inputs), 1).requires_grad_()
        befores: list[Tensor] = []
        after: list[Tensor] = []
        with network.drawing(), problem.forward_precision():
            z = problem.transform(inputs[:, None], y)[:, 0]
            for layer in dense.layers:
                if isinstance(layer, nn.Linear):
                    befores.append(z)
                    after.append(z := layer(z))
                else:
                    z = layer(z)
        outputs = problem.squeeze_outputs(z)
        parts = vmap(problem.patient_part)(outputs[:, None], labels[:, None], scalars, y)
        *by_outputs, by_scalars, by_y = torch.autograd.grad(parts.sum(), [*after, scalars, y], materialize_grads=True)
        rest = torch.cat([by_scalars, by_y], 1) - term.public(problem)
        a, b = (
            [part.detach().to(torch.promote_types(part.dtype, torch.float32)) for part in parts]
            for parts in (befores, by_outputs)
        )
        return cls(a, b, rest, dense, network.size, len(term.x))

    def gradients(self) -> Tensor:
        """Return them in full, shape (r, d + p)."""
        each = self.rest.new_empty(len(self.rest), self.size + self.rest.shape[1])
        for a, b, (weight, bias) in zip(self.a, self.b, self.dense.spans, strict=True):
            torch.mul(b[:, :, None], a[:, None, :], out=each[:, weight].view(len(b), b.shape[1], a.shape[1]))
            if bias is not None:
                each[:, bias] = b
        each[:, self.size :] = self.rest
        return each


def _add_clipped(total: Tensor, each: Sequence[_Factors], terms: Sequence[Term], clip: float) -> None:
    """Add the clipped gradients of rows to a sum, shape (d + p,), without making them.

    A difference of terms may cancel, so what rounding can hide of its norm is added to it: it is never too small.
    """
    first, weights = each[0], [term.weights[0] for term in terms]
    rest = torch.zeros(first.rest.shape, dtype=torch.float64, device=total.device)
    for factors, (by_x, by_y) in zip(each, (term.weights for term in terms), strict=True):
        split = first.primal - first.size
        rest[:, :split] += factors.rest[:, :split] * by_x
        rest[:, split:] += factors.rest[:, split:] * by_y
    squares, terms_alone, width = rest.square().sum(1), rest.new_zeros(len(rest)), 0
    layers = [[(of.a[place].double(), of.b[place].double()) for of in each] for place in range(len(first.a))]
    for layer, (_, bias) in zip(layers, first.dense.spans, strict=True):
        width = max(width, layer[0][0].shape[1], layer[0][1].shape[1])
        for i, j in combinations_with_replacement(range(len(each)), 2):
            (a, b), (c, d) = layer[i], layer[j]
            product = weights[i] * weights[j] * ((a * c).sum(1) + (bias is not None)) * (b * d).sum(1)
            squares += product if i == j else 2 * product
            terms_alone += product if i == j else 0
    if len(each) > 1:
        squares = squares.clamp(min=0) + ROUNDING * (width + 10) * len(each) * terms_alone
    clipped = _factors(squares.sqrt(), clip)[:, None]
    finite = clipped > 0
    for layer, (weight, bias) in zip(layers, first.dense.spans, strict=True):
        for by_x, (a, b) in zip(weights, layer, strict=True):
            b = torch.where(finite, b, 0) * (clipped * by_x)
            total[weight].view(b.shape[1], a.shape[1]).addmm_(b.T, torch.where(finite, a, 0))
            if bias is not None:
                total[bias] += b.sum(0)
    total[first.size :] += (torch.where(finite, rest, 0) * clipped).sum(0)
