"""Sums of patients' gradients, each clipped: what a private answer is made of before its noise.

A patient's gradient is the mean over the patient's rows of the gradient of `NetworkProblem.patient_part`, less that of
`public_part`, by x and by y as one vector. Whatever the model, the point and the rows are, a patient whose rows count
nothing in place of what they count moves the sum by at most the clip: the norm is taken of the very numbers that are
added, in float64, and a gradient that is not finite counts 0. Nor does it matter for the others how many rows there
are: passes are filled up, see `_filled`.
Rows share a pass through a network of linear layers, convolutions and group norm. Inputs and output gradients of its
layers give the norms, without the gradients themselves where that is less work (Goodfellow 2015, arXiv:1510.01799; of
convolutions Bu et al. 2022, arXiv:2205.10683), in blocks that bound the memory. Networks from outside are taken row by
row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.linalg import vecdot
from torch.nn import functional

from edelweiss.common import PROCESS_CACHE
from edelweiss.models import MODELS, FlatNetwork
from edelweiss.models.dropout import Dropout
from edelweiss.problems.network import NetworkProblem, channels_last, evaluation_batch

if TYPE_CHECKING:
    from edelweiss.datasets import Samples
    from edelweiss.problems import Batch, Problem
    from edelweiss.problems.capabilities import ClosedFormDual

MOST_NUMBERS = 2**26  # of a block of gradients: 256 MB in float32
BUILT_IN = NetworkProblem.__module__.rpartition(".")[0] + "."
ROUNDING = 2.3e-16  # of float64, twice
GRANULE = 8  # rows of a pass are a multiple of it
MOST_NORM = 1e30  # beyond it a clipped gradient may have no exact float32; it counts 0


class Term:
    """A point at which gradients are taken, and their weights by x and by y: a difference has two terms."""

    def __init__(self, x: Tensor, y: Tensor | None, weights: tuple[float, float] = (1.0, 1.0)) -> None:
        self.x, self.y, self.weights = x, y, weights
        self.dual = x[:0] if y is None else y
        self._public: Tensor | None = None

    def known(self, public: Tensor) -> None:
        """Note what `public` returns, where a pass over rows has found it beside them."""
        self._public = public

    def public(self, problem: NetworkProblem) -> Tensor:
        """Return the gradient here of `NetworkProblem.public_part`, of weight 1: by the scalars in x and by y."""
        if self._public is None:
            point = [part.detach().clone().requires_grad_() for part in (self.x[problem.network.size :], self.dual)]
            value = problem.public_part(*point)
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
    counts : Tensor, optional
        How many each patient has, shape (patients,) int64; default: one.
    """

    positions: Tensor
    counts: Tensor | None = None

    @cached_property
    def owners(self) -> Tensor:
        """Whose each is, shape (r,) int64: 0, 0, 1, 2, 2, ..."""
        numbers = torch.arange(len(self.positions if self.counts is None else self.counts))
        return numbers if self.counts is None else torch.repeat_interleave(numbers, self.counts)

    @cached_property
    def shares(self) -> Tensor:
        """1 / (rows of its patient), shape (r,) float32."""
        return torch.ones(len(self.positions)) if self.counts is None else 1 / self.counts[self.owners].float()


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
    layers, single = _layers(problem), rows.counts is None
    numbers = layers.numbers(len(terms)) if layers and single else size
    block = max(1, min(evaluation_batch(samples.shape), MOST_NUMBERS // numbers))
    unfinished = total.new_zeros(0)  # the gradient so far of a patient whose rows go on in the next block
    starts = [*range(0, len(rows.positions), block), len(rows.positions)]
    for start, end in pairwise(starts):
        part = slice(start, end)
        batch = samples.batch(rows.positions[part].to(samples.rows.device))
        if layers and single:
            _Gradients.of(problem, terms, batch, layers).add_clipped(total, clip)
            continue
        owners = rows.owners[part]
        each = _gradients(problem, terms, batch, layers)
        if not single:
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


def clipped_terms(problem: NetworkProblem, x: Tensor, samples: Samples, rows: Rows, size: int, clip: float) -> Tensor:
    """Return Σ_i t_i min(1, clip / ‖t_i‖) over patients, float64, shape (size,).

    t_i are patient i's `ClosedFormDual.dual_terms`, numerators and denominators as one vector: means over the patient's
    rows. They are taken patient by patient, so nobody's are rounded by another's; no gradient is needed.
    """
    total = torch.zeros(size, dtype=torch.float64, device=problem.device)
    counts = [1] * len(rows.positions) if rows.counts is None else rows.counts.tolist()
    for positions, shares in zip(torch.split(rows.positions, counts), torch.split(rows.shares, counts), strict=True):
        batch = samples.batch(positions.to(samples.rows.device))
        parts = cast("ClosedFormDual", problem).dual_terms(x, (*batch, shares.to(x)))
        own = torch.cat([part.flatten() for part in parts]).double()
        factor = _factors(torch.linalg.vector_norm(own), clip)
        total += torch.where(factor > 0, own, 0) * factor
    return total


def public_gradient(problem: NetworkProblem, terms: Sequence[Term]) -> Tensor:
    """Return the gradient of the part of the objective without data, by its scalars in x and by y; it needs no privacy.

    It has shape (scalars + p,): the network plays no part in it.
    """
    scalars = len(terms[0].x) - problem.network.size
    total = torch.zeros(scalars + len(terms[0].dual), dtype=problem.dtype, device=problem.device)
    for term in terms if len(total) else ():
        by_x, by_y = term.weights
        total[:scalars] += term.public(problem)[:scalars] * by_x
        total[scalars:] += term.public(problem)[scalars:] * by_y
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
        _gradients(problem, [term], (inputs, labels), _layers(problem))
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
    factors = (clip / norms).clamp_(max=1.0)  # 1 for a norm of 0
    return torch.where(norms <= MOST_NORM, factors, 0.0)


def _gradients(problem: NetworkProblem, terms: Sequence[Term], batch: Batch, layers: Layers | None) -> Tensor:
    """Return the gradient of each row of a batch, shape (r, d + p): the weighted sum over terms."""
    if layers:
        return _Gradients.of(problem, terms, batch, layers).in_full()
    network, (inputs, labels) = problem.network, _filled(batch)

    def part(x: Tensor, y: Tensor, one: Tensor, label: Tensor) -> Tensor:
        with problem.forward_precision():
            outputs = network.functional(x, problem.transform(one[None], y))
        return problem.patient_part(problem.squeeze_outputs(outputs), label[None], x[network.size :], y)

    by_point = vmap(grad(part, argnums=(0, 1)), in_dims=(None, None, 0, 0), randomness="different")
    total = inputs.new_zeros(())
    for term in terms:
        with network.drawing():
            by_x, by_y = by_point(term.x.detach(), term.dual.detach(), inputs, labels)
        each = torch.cat([by_x, by_y], 1)
        each[:, network.size :] -= term.public(problem)
        each[:, : len(term.x)] *= term.weights[0]
        each[:, len(term.x) :] *= term.weights[1]
        total = total + each
    return total[: len(batch[0])]


def _filled(batch: Batch) -> Batch:
    """Fill a batch with rows of zeros that nobody has: a product of three rows rounds otherwise than one of four.

    A patient more would else change what all others count, by a model that lets rounding decide.
    """
    missing = -len(batch[0]) % GRANULE
    inputs, labels = (torch.cat([part, part.new_zeros(missing, *part.shape[1:])]) for part in batch)
    return inputs, labels


@dataclass(frozen=True)
class Layer:
    """A layer whose parameters are a weight and perhaps a bias.

    A row's gradient by its weight is Σ_l b_l a_lᵀ over l < ``places``: a_l are inputs of the layer and b_l the row's
    gradient by its outputs, at a place of the image that a convolution moves over; other layers have one place.
    """

    module: nn.Module
    weight: slice  # where it lies in x
    bias: slice | None
    shape: tuple[int, int]  # (out, in): of the weight as a matrix
    places: int

    def ghost(self, terms: int) -> bool:
        """Whether a norm is found from inner products of a_l and b_l, without the gradient: less work and memory.

        The inner products are taken in float64, and a_l are made twice, so there have to be few.
        """
        places, (out, width) = terms * self.places, self.shape
        return not isinstance(self.module, nn.GroupNorm) and (places == 1 or 8 * places**2 <= out * width)

    def numbers(self, terms: int) -> int:
        """Return how many numbers are kept of a row: inputs and outputs, or the gradient."""
        out, width = self.shape
        return terms * self.places * (width // self.overlap + out) + (0 if self.ghost(terms) else out * width)

    def made(self, terms: int) -> int:
        """Return how many numbers the factors of a row take, for a while."""
        return terms * self.places * sum(self.shape)

    @property
    def overlap(self) -> int:
        """How many places see a number of a convolution's input."""
        return math.prod(self.module.kernel_size) if isinstance(self.module, nn.Conv2d) else 1

    def factors(self, inputs: Tensor, by_outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return a of shape (r, places, in) and b of shape (r, places, out)."""
        if isinstance(self.module, nn.Conv2d):
            form: Any = self.module
            a = functional.unfold(inputs, form.kernel_size, form.dilation, form.padding, form.stride).mT
            return a, by_outputs.flatten(2).mT
        if isinstance(self.module, nn.GroupNorm):  # per channel: the sums over its image are all that is needed
            normed = functional.group_norm(inputs, self.module.num_groups, eps=self.module.eps)
            return (by_outputs * normed).flatten(2).sum(2)[:, None], by_outputs.flatten(2).sum(2)[:, None]
        return inputs[:, None], by_outputs[:, None]


@dataclass(frozen=True)
class Layers:
    """All parameters of a network, layer by layer."""

    each: tuple[Layer, ...]

    def numbers(self, terms: int) -> int:
        """Return how many numbers a row takes."""
        return sum(layer.numbers(terms) for layer in self.each) + 3 * max(layer.made(terms) for layer in self.each)

    @contextmanager
    def recorded(self) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """Collect inputs and outputs of the layers, in order, of a forward pass in the block."""
        seen: list[tuple[Tensor, Tensor]] = []

        def note(module: nn.Module, given: tuple[Tensor], output: Tensor) -> Tensor | None:
            seen.append((given[0], output))
            return output.clone() if isinstance(module, nn.GroupNorm) else None  # networks overwrite what it returns

        hooks = [layer.module.register_forward_hook(note) for layer in self.each]
        try:
            yield seen
        finally:
            for hook in hooks:
                hook.remove()


_LAYERS: WeakKeyDictionary[FlatNetwork, Layers | None] = WeakKeyDictionary()
PLAIN = (nn.ReLU, nn.Flatten, nn.Identity, Dropout, nn.Dropout, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)


def _layers(problem: NetworkProblem) -> Layers | None:
    """Return the layers that rows may share a pass through; None where one row might see the others.

    That is so in code from outside: in a network that is neither built in nor a sequence of PyTorch's own layers.
    """
    network = problem.network
    if not type(problem).__module__.startswith(BUILT_IN):
        return None
    if network not in _LAYERS:
        known = problem.setting.architecture.model in MODELS.built_in or _is_plain(network.module)
        _LAYERS[network] = layers_of(network, problem.setting.data_summary.shape) if known else None
    return _LAYERS[network]


def layers_of(network: FlatNetwork, shape: Sequence[int]) -> Layers | None:
    """Return the layers of a network of linear layers, convolutions and group norm, in the order of a pass.

    None for any other, and for one with parameters that are frozen or shared.
    """
    found: list[Layer] = []
    names = {module: name for name, module in network.module.named_modules()}

    def note(module: nn.Module, given: Any, output: Tensor) -> None:
        weight: Tensor = module.weight  # type: ignore[assignment]
        matrix = (len(weight), weight[0].numel()) if weight.ndim > 1 else (1, len(weight))
        span, bias = network.spans.get(f"{names[module]}.weight"), network.spans.get(f"{names[module]}.bias")
        places = output[0, 0].numel() if isinstance(module, nn.Conv2d) else 1
        if span is not None:
            found.append(Layer(module, span, bias, matrix, places))

    own = [module for module in names if [*module.parameters(recurse=False)]]
    if not all(_is_recordable(module) for module in own):
        return None
    hooks = [module.register_forward_hook(note) for module in own]
    try:
        with torch.no_grad(), network.drawing():
            parameter = next(network.module.parameters())
            network.module(torch.zeros(1, *shape, device=parameter.device, dtype=parameter.dtype))
    finally:
        for hook in hooks:
            hook.remove()
    spans = [span for layer in found for span in (layer.weight, layer.bias) if span is not None]
    whole = sum(span.stop - span.start for span in spans) == network.size
    return Layers(tuple(found)) if whole and len(found) == len(own) else None


def _is_recordable(module: nn.Module) -> bool:
    if type(module) is nn.Conv2d:
        return module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return type(module) in (nn.Linear, nn.GroupNorm)


def _is_plain(module: nn.Module) -> bool:
    """Whether a network is a sequence of PyTorch's own layers, which keep rows apart and change no input."""
    if type(module) is nn.Sequential:
        return all(map(_is_plain, module))
    if module._forward_hooks or module._forward_pre_hooks or getattr(module, "inplace", False):
        return False
    return type(module) in PLAIN or _is_recordable(module)


@dataclass(frozen=True)
class _Gradients:
    """The gradients of r rows, layer by layer.

    ``recorded`` has a layer's inputs and weighted output gradients, of each term. ``rest`` are the rows' gradients by
    the problem's scalars and by y, shape (r, scalars + p).
    """

    recorded: list[tuple[tuple[Tensor, Tensor], ...]]
    rest: Tensor
    layers: Layers
    size: int  # of the network

    @classmethod
    def of(cls, problem: NetworkProblem, terms: Sequence[Term], batch: Batch, layers: Layers) -> _Gradients:
        """Take the gradients: a pass forward and one back for each term."""
        own, batch = slice(len(batch[0])), _filled(batch)
        each, rests = zip(*(_of_term(problem, term, batch, layers) for term in terms), strict=True)
        recorded = [
            tuple((inputs[own], by_outputs[own]) for inputs, by_outputs in layer) for layer in zip(*each, strict=True)
        ]
        return cls(recorded, sum(rests[1:], rests[0])[own], layers, problem.network.size)

    def _of_layer(self, place: int) -> tuple[Tensor, Tensor]:
        """Return a and b of a layer, all terms' places one after the other."""
        layer = self.layers.each[place]
        each = [layer.factors(inputs, by_outputs) for inputs, by_outputs in self.recorded[place]]
        return each[0] if len(each) == 1 else (torch.cat([a for a, _ in each], 1), torch.cat([b for _, b in each], 1))

    def in_full(self) -> Tensor:
        """Return them, shape (r, d + p)."""
        each = self.rest.new_empty(len(self.rest), self.size + self.rest.shape[1])
        for place, layer in enumerate(self.layers.each):
            a, b = self._of_layer(place)
            each[:, layer.weight] = self._by_weight(layer, a, b)
            if layer.bias is not None:
                each[:, layer.bias] = b.sum(1)
        each[:, self.size :] = self.rest
        return each

    def add_clipped(self, total: Tensor, clip: float) -> None:
        """Add them, clipped, to a sum, shape (d + p,) float64; the norm is that of what is added."""
        rest, in_full = self.rest.double(), dict[int, tuple[Tensor, Tensor]]()
        wide: dict[int, tuple[Tensor, Tensor]] = {}  # of layers with one place, whose factors take no more memory
        squares = vecdot(rest, rest) if rest.shape[1] else total.new_zeros(len(rest))
        for place, layer in enumerate(self.layers.each):
            a, b = self._of_layer(place)
            if layer.ghost(len(self.recorded[place])):
                a, b = a.double(), b.double()
                squares = squares + _squares_of_norms(a, b, bias=layer.bias is not None)
                if a.shape[1] == 1:
                    wide[place] = a, b
                continue
            in_full[place] = weight, bias = self._by_weight(layer, a, b), b.sum(1)
            for part in (weight, bias) if layer.bias is not None else (weight,):
                squares = squares + torch.linalg.vector_norm(part, dim=1, dtype=torch.float64).square()
        clipped = _factors(squares.sqrt(), clip)
        every = bool(clipped.min() > 0)

        def kept(numbers: Tensor) -> Tensor:
            numbers = numbers.double()
            return numbers if every else torch.where(clipped.view(-1, *[1] * (numbers.ndim - 1)) > 0, numbers, 0)

        for place, layer in enumerate(self.layers.each):
            if place in in_full:
                weight, bias = in_full.pop(place)
                total[layer.weight] += clipped @ kept(weight)
                by_bias = clipped @ kept(bias)
            else:
                a, b = wide.pop(place) if place in wide else self._of_layer(place)
                a, b = kept(a).flatten(0, 1), (kept(b) * clipped[:, None, None]).flatten(0, 1)
                total[layer.weight].view(layer.shape).addmm_(b.T, a)
                by_bias = b.sum(0)
            if layer.bias is not None:
                total[layer.bias] += by_bias
        if rest.shape[1]:
            total[self.size :] += clipped @ kept(rest)

    @staticmethod
    def _by_weight(layer: Layer, a: Tensor, b: Tensor) -> Tensor:
        """Return the gradients by a layer's weight, shape (r, out · in)."""
        return a.sum(1) if isinstance(layer.module, nn.GroupNorm) else (b.mT @ a).flatten(1)


def _squares_of_norms(a: Tensor, b: Tensor, *, bias: bool) -> Tensor:
    """Return each row's ‖Σ_l b_l [a_l, 1]ᵀ‖², shape (r,), without the 1 where there is no bias.

    The terms of a sum may cancel, so what rounding can hide is added: it is never too small.
    """
    places, width = a.shape[1], a.shape[2] + b.shape[2]
    if places == 1:
        square: Tensor = (vecdot(a, a) + bias) * vecdot(b, b)
        return square[:, 0]
    products = (a @ a.mT + bias) * (b @ b.mT)
    alone = products.diagonal(dim1=1, dim2=2).sum(1)
    return products.sum((1, 2)).clamp(min=0) + ROUNDING * (width + places) * places * alone


def _of_term(
    problem: NetworkProblem, term: Term, batch: Batch, layers: Layers
) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """Return the layers' inputs and output gradients, and the rows' gradients by scalars and by y; all weighted.

    Less the public part, that is.
    """
    network, (inputs, labels) = problem.network, batch
    count = len(inputs)
    network.bind(term.x)
    changes = type(problem).transform is not NetworkProblem.transform  # the inputs, by y
    moving = term.dual.detach().repeat(count, 1).requires_grad_() if changes else term.dual
    with layers.recorded() as seen, network.drawing(), problem.forward_precision():
        given = problem.transform(inputs[:, None], moving)[:, 0] if changes else inputs
        outputs = problem.squeeze_outputs(network.module(channels_last(given)))
    value, own = _sum_of_parts(problem, outputs, labels, term.x[network.size :], term.dual)
    wanted = [*(after for _, after in seen), *own, *[moving] * changes]
    found = [*torch.autograd.grad(value, wanted, materialize_grads=True)]
    by_inputs = found.pop() if changes else 0
    parts = [part.transpose(0, 1).flatten(1) for part in found[len(seen) :]]
    rest = torch.cat(parts, 1) if parts else outputs.new_zeros(count, 0)
    if len(rest) > count:  # the last is nobody's
        term.known(rest[-1])
        rest = rest[:-1]
    if rest.shape[1]:
        rest = rest - term.public(problem)
    if changes:
        rest[:, -len(term.dual) :] += by_inputs
    by_x, by_y = term.weights
    if rest.shape[1] and term.weights != (1.0, 1.0):
        rest[:, : len(term.x) - network.size] *= by_x
        rest[:, len(term.x) - network.size :] *= by_y
    recorded = [
        (_wide(before.detach()), _wide(after) if by_x == 1 else _wide(after) * by_x)
        for (before, _), after in zip(seen, found, strict=False)
    ]
    return recorded, rest


def _sum_of_parts(
    problem: NetworkProblem, outputs: Tensor, labels: Tensor, scalars: Tensor, y: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Return Σ `NetworkProblem.patient_part` over rows, and scalars and y as each row has its own, (s / L, r, L) each.

    Without either there are none, and one weighted mean over all rows is the sum.

    A loss of several labels is each label's on its own: there a row passes for a label with a batch of one. Another
    row, of weight 0, has the gradient of `NetworkProblem.public_part`, which the same pass finds.
    """
    width = problem.scalar_size
    if not (problem.labels or len(scalars) or len(y)):  # one weighted mean over all rows, see `_is_a_weighted_mean`
        cast = problem.cast_labels(labels)
        weights = torch.full_like(cast, len(cast), dtype=problem.dtype)
        return problem.loss(outputs, cast, scalars, y, weights).mean(), []
    rows = len(outputs) + problem.several
    own = [part.detach().view(-1, 1, width).repeat(1, rows, 1).requires_grad_() for part in (scalars, y)]
    if not problem.several:
        by_row = (part.transpose(0, 1).flatten(1) for part in own)
        return vmap(problem.patient_part)(outputs[:, None], labels[:, None], *by_row).sum(), own
    cast = (labels == 1).to(problem.dtype)
    weights = (labels >= 0).to(problem.dtype) if problem.labels else torch.ones_like(cast)
    more = (0, 0) * (outputs.ndim - 1) + (0, 1)
    outputs, cast, weights = (functional.pad(each, more)[None] for each in (outputs, cast, weights))
    value = problem.loss(outputs, cast, own[0].view(-1), own[1].view(-1), weights).sum()
    return value / width if width > 1 else value, own


def _wide(numbers: Tensor) -> Tensor:
    """Return numbers as float32 or wider."""
    return numbers.to(torch.promote_types(numbers.dtype, torch.float32))
