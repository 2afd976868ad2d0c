"""DisPFL (Dai, Shen, He, Tian & Tao, ICML 2022, Algorithms 1 and 2; arXiv:2206.00187)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from pydantic import Field

from edelweiss.federation import AlgorithmInfo, Oracle, Table, kept, step_size
from edelweiss.problems import papers
from edelweiss.problems.capabilities import Layers
from edelweiss.strategies.decentralised import Decentralised, relay
from edelweiss.strategies.local_steps import existing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from edelweiss.federation import RoundContext
    from edelweiss.federation.algorithm import Layout
    from edelweiss.problems import Arrays
    from edelweiss.strategies.decentralised import Parts


@dataclass(frozen=True, kw_only=True)
class DisPFL(Decentralised):
    """A sparse model at each worker, by a mask m_i of its own that moves, and mixing where masks meet.

    Worker i, from its own (x_i, y_i, m_i) in round r of R; all start with the same x and y, each with a random mask::

        1  x_i ← m_i ⊙ (Σ_j W_ij m_j ⊙ x_j) / (Σ_j W_ij m_j)
        2  repeat q times:
        3      draw a mini-batch; take gx, gy at (x_i, y_i)
        4      x_i ← x_i - ηx m_i ⊙ gx;  y_i ← P(y_i + ηy gy)
        5  draw a mini-batch; take gx at (x_i, y_i)
        6  in each sparse layer, of its n weights in m_i, with α_r = α/2 (1 + cos(π (r-1) / R)):
        7      prune the ⌈α_r n⌉ of least |x_i|
        8      regrow as many of largest |gx|, out of all that are not in m_i now
        9  x_i ← m_i ⊙ x_i

    Weights are masked, biases and normalisation are not. The Erdős-Rényi-Kernel rule gives a layer of shape s a density
    proportional to Σ s / Π s, at most 1, so that ``density`` is that of all weights together; layers that it leaves
    dense stay so. With W of equal weights line 1 is the paper's. y is not masked and not mixed. Step sizes may fall,
    and line 4 have weight decay and momentum, within the mask, see `LocalSteps`.

    Both ways go the values in a mask, and the mask, a bit for each entry of x. In the first round x comes down whole.

    Client state: y, and values and mask where the sites mix. A site that lost its y starts with that of all; one that
    lost its mask draws a new one.
    """

    name = "dispfl"
    info = AlgorithmInfo(papers=(papers.DISPFL,), where="Alg. 1 and 2", gradients="q + 1")
    messages = relay(
        {"x": "d"}, of="a bit for each entry of x, and the entries that it keeps", mask="uint8 m", values="v"
    ) + Table(kept(y="p", of="its y"))
    needs = frozenset({Layers})

    lr: float = step_size("ηx: step size of x")
    lr_dual: float = step_size("ηy: step size of y, where there is one")
    density: float = Field(0.5, gt=0, le=1, description="share of the weights that a worker has")
    prune: float = Field(
        0.5, ge=0, le=1, description="α: share of a layer's weights that are pruned in the first round"
    )

    def lengths(self, d: int, layers: Layout) -> dict[str, int]:
        """Return those of a mask as bytes, m, and of the values in it, v."""
        return {"m": d // 8 + 1, "v": d - sum(size - count for _, size, count in sparse(layers, self.density))}

    def mix(self, row: Parts, own: int) -> Arrays:
        """Line 1; a site whose mask is lost has all that its neighbours have, and no mask."""
        some = next(iter(row.values()))[1]
        total = torch.zeros_like(self.whole(some))
        mass = torch.zeros_like(total)
        for weight, vectors in row.values():
            where = places(unpacked(vectors["mask"], total.device))
            total.index_add_(0, where, vectors["values"], alpha=weight)
            mass.index_add_(0, where, torch.full_like(vectors["values"], weight))
        if own not in row:
            return {"x": total / mass.masked_fill_(mass == 0, 1.0)}
        mask = row[own][1]["mask"]
        where = places(unpacked(mask, total.device))
        return {"mask": mask, "values": total.index_select(0, where) / mass.index_select(0, where)}

    def whole(self, vectors: Arrays) -> Tensor:
        """Return the values in their places, and zeros elsewhere; x itself where there is no mask yet."""
        if "x" in vectors:
            return vectors["x"]
        values = vectors["values"]
        mask = unpacked(vectors["mask"], values.device)
        zeros = torch.zeros(len(mask), dtype=values.dtype, device=values.device)
        return zeros.index_copy_(0, places(mask), values)

    def local_update(
        self, sent: Arrays, memory: Arrays, oracle: Oracle, context: RoundContext
    ) -> tuple[Arrays, Arrays]:
        """Lines 2-9. Line 1 is the base's."""
        mixed = self.received(sent, memory)
        x, y = self.whole(mixed).clone(), memory.get("y", oracle.fresh().get("y"))
        mask = unpacked(mixed["mask"], x.device) if "mask" in mixed else self._drawn(len(x), oracle).to(x.device)
        ones = mask.to(x.dtype)  # a product with numbers takes an eighth of one with True and False
        x.mul_(ones)
        oracle, descent = self.clipped(oracle), self.descent(context)
        for _ in range(context.local_steps):  # l.2
            y = descent.step(x, y, oracle, self.lr, self.lr_dual, mask=ones)  # l.3-4
        mask = self._moved(x, y, mask, oracle, context)  # l.5-8
        reply = {"mask": packed(mask), "values": x.index_select(0, places(mask))}  # l.9
        return reply, self.remembered(reply) | existing(y=y)

    def unfit(self, arrays: Arrays, context: RoundContext, d: int) -> str:
        """Require a mask over all of x, with a value for each place in it."""
        for name, code in arrays.items():
            if name.startswith("mask") and code.numel():
                mask, values = unpacked(code, torch.device("cpu")), arrays[f"values{name.removeprefix('mask')}"]
                if (len(mask), int(mask.sum())) != (d, len(values)):
                    return f"array {name!r} has {int(mask.sum())} places in {len(mask)}: must be {len(values)} in {d}"
        return super().unfit(arrays, context, d)

    def personal(self, sent: Arrays, memory: Arrays, fresh: Callable[[], Arrays]) -> Arrays:
        """Return the mix, with the site's own y."""
        return {"x": self.whole(self.received(sent, memory))} | existing(y=memory.get("y", fresh().get("y")))

    def _drawn(self, size: int, oracle: Oracle) -> Tensor:
        """Return a random mask with each layer's density, on the CPU."""
        mask = torch.ones(size, dtype=torch.bool)
        for span, weights, count in sparse(oracle.layers, self.density):
            order = torch.randperm(weights, generator=oracle.generator)
            mask[span][order[count:]] = False
        return mask

    def _moved(self, x: Tensor, y: Tensor | None, mask: Tensor, oracle: Oracle, context: RoundContext) -> Tensor:
        """Lines 5-8."""
        rate = self.prune / 2 * (1 + math.cos(math.pi * (context.round - 1) / context.rounds))
        sparse = [span for span, shape in oracle.layers if len(shape) > 1 and not mask[span].all()]
        if not sparse or not rate:
            return mask
        gx, _ = oracle.gradient(x, y)  # l.5
        moved = mask.clone()
        for span in sparse:  # l.6
            part = moved[span]
            count = math.ceil(rate * int(part.sum()))
            others = 1 - part.to(x.dtype)
            sizes = x[span].abs().add_(others, alpha=torch.finfo(x.dtype).max)
            part[sizes.topk(count, largest=False, sorted=False).indices] = False  # l.7
            gains = gx[span].abs().masked_fill_(part, -1.0)
            part[gains.topk(count, sorted=False).indices] = True  # l.8
        return moved


def sparse(layers: Layout, density: float) -> list[tuple[slice, int, int]]:
    """Return where each layer's weights lie in x, how many there are, and how many of them a mask keeps."""
    weights = [(span, shape) for span, shape in layers if len(shape) > 1]
    densities = erk([shape for _, shape in weights], density)
    sizes = [(span, math.prod(shape)) for span, shape in weights]
    return [(span, n, max(1, round(share * n))) for (span, n), share in zip(sizes, densities, strict=True)]


def erk(shapes: Sequence[tuple[int, ...]], density: float) -> list[float]:
    """Return the density of each layer, by the Erdős-Rényi-Kernel rule (Evci et al., ICML 2020).

    Parameters
    ----------
    shapes : sequence of tuple of int
        Of the layers' weights.
    density : float
        In (0, 1], of all weights together.
    """
    sizes = np.array([math.prod(shape) for shape in shapes], dtype=float)
    raw = np.array([sum(shape) for shape in shapes]) / sizes
    dense = np.zeros(len(shapes), dtype=bool)
    while True:
        scale = (density * sizes.sum() - sizes[dense].sum()) / max(1e-300, (raw * sizes)[~dense].sum())
        beyond = ~dense & (scale * raw > 1)
        if not beyond.any():
            return [1.0 if full else float(scale * r) for full, r in zip(dense, raw, strict=True)]
        dense |= beyond  # scale grows then, so they stay beyond


def packed(mask: Tensor) -> Tensor:
    """Return a mask as bytes, a bit for each entry behind a one that says where they begin."""
    bits = mask.cpu().numpy()
    front = np.zeros(8 - len(bits) % 8, dtype=bool)
    front[-1] = True
    return torch.from_numpy(np.packbits(np.concatenate([front, bits])))


def unpacked(code: Tensor, device: torch.device) -> Tensor:
    """Return the mask that `packed` was given."""
    bits = np.unpackbits(code.cpu().numpy()).astype(bool)
    return torch.from_numpy(bits[int(bits.argmax()) + 1 :]).to(device)


def places(mask: Tensor) -> Tensor:
    """Return where a mask is True; what lies there is read and written several times as fast as by the mask itself."""
    return torch.from_numpy(np.flatnonzero(mask.cpu().numpy())).to(mask.device)
