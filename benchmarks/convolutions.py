"""Convolutions of many clients on a processor, in four ways: milliseconds of a gradient for each client.

    python -m benchmarks.convolutions      # about five minutes

``one by one`` is what the engine does with ``stack = 1``: a batch's images are laid out channels-last. The others take
all clients at once: ``innermost`` as `models.stack.Stack` does, as one grouped convolution with the channels innermost;
``outermost`` the same with the channels outermost, as ``torch.vmap`` has them; ``unfolded`` by im2col and a batched
product. Random images, cross-entropy of one output, one thread; the least processor time of some repeats, in turn. The
gradients of all four are compared first.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.functional import unfold

from edelweiss.common.memory import keep_freed_memory
from edelweiss.models import FlatNetwork, build
from edelweiss.models.stack import Stack
from edelweiss.problems.network import channels_last

if TYPE_CHECKING:
    from collections.abc import Callable

NETWORKS = {"lenet5": (1, 28, 28), "cnn-mnist": (1, 28, 28), "cnn-cifar": (3, 32, 32)}
BATCHES, CLIENTS, REPEATS = (1, 4, 16, 50), (8, 32), 5
VALUES = 2**23  # between two layers: more of them are left out


class Unfolded(nn.Conv2d):
    """A convolution as a product with the patches of its input."""

    def forward(self, z: Tensor) -> Tensor:
        """Return the same as a convolution."""
        patches = unfold(z, self.kernel_size, padding=self.padding, stride=self.stride)  # type: ignore[arg-type]  # numbers, in our networks
        rows = (z.shape[2] + 2 * int(self.padding[0]) - self.kernel_size[0]) // self.stride[0] + 1
        found = torch.matmul(self.weight.flatten(1), patches)
        if self.bias is not None:
            found = found + self.bias[:, None]
        return found.view(len(z), -1, rows, patches.shape[-1] // rows)


def ways(name: str, shape: tuple[int, ...], clients: int, size: int) -> dict[str, Callable[[], Tensor]]:
    """Return the gradients of all clients in each way, as vectors (K, d)."""
    random = torch.Generator().manual_seed(0)
    images = torch.randn(clients, size, *shape, generator=random)
    labels = torch.randint(0, 2, (clients, size), generator=random).float()
    network, unfolded = FlatNetwork(build(name, shape)), build(name, shape)
    for layer in unfolded.modules():
        if type(layer) is nn.Conv2d:
            layer.__class__ = Unfolded
    stack, x = Stack(network), network.vector().repeat(clients, 1)
    rows = list(x)

    def one_by_one() -> Tensor:
        found = []
        for row, batch, truth in zip(rows, images, labels, strict=True):
            network.bind(row)
            found += network.gradient(bce(network.forward(channels_last(batch))[:, 0], truth))
        return torch.stack(found)

    def together(outermost: bool) -> Tensor:
        parameters = stack.from_rows(x)
        scores = stack.forward(parameters, images, outermost)[..., 0]
        loss = bce(scores, labels, reduction="none").mean(1).sum()
        return torch.cat([part.flatten(1) for part in torch.autograd.grad(loss, parameters)], 1)

    def loss_of(parameters: dict[str, Tensor], batch: Tensor, truth: Tensor) -> Tensor:
        return bce(functional_call(unfolded, parameters, (batch,))[:, 0], truth)

    named = dict(zip(dict(unfolded.named_parameters()), stack.from_rows(x), strict=True))
    named = {name: part.detach() for name, part in named.items()}

    def patches() -> Tensor:
        found: dict[str, Tensor] = vmap(grad(loss_of))(named, images, labels)
        return torch.cat([part.flatten(1) for part in found.values()], 1)

    return {
        "one by one": one_by_one,
        "innermost": partial(together, False),
        "outermost": partial(together, True),
        "unfolded": patches,
    }


def milliseconds(call: Callable[[], Any]) -> float:
    """Return the processor's for a call."""
    began = time.process_time()
    call()
    return 1e3 * (time.process_time() - began)


def main() -> None:
    """Measure and print a Markdown table."""
    keep_freed_memory()
    torch.set_num_threads(1)
    print("| network | batch | clients | one by one, ms | innermost | outermost | unfolded |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, shape in NETWORKS.items():
        widest = Stack(FlatNetwork(build(name, shape))).widest(shape)
        for size in BATCHES:
            for clients in (clients for clients in CLIENTS if widest * size * clients <= VALUES):
                found = ways(name, shape, clients, size)
                first, *others = (call() for call in found.values())
                for other in others:  # a rounding error may choose another maximum, or side of a ReLU
                    torch.testing.assert_close(other, first, rtol=1e-2, atol=1e-2)
                taken = [[milliseconds(call) for call in found.values()] for _ in range(REPEATS + 1)][1:]
                least = [min(times) / clients for times in zip(*taken, strict=True)]
                print(f"| {name} | {size} | {clients} | {' | '.join(f'{ms:.2f}' for ms in least)} |", flush=True)


if __name__ == "__main__":
    main()
