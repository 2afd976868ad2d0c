"""Few-shot learning by model-agnostic meta-learning: ``maml``.

arXiv:1703.03400, arXiv:2310.02524
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from pydantic import Field
from torch.nn.functional import cross_entropy

from edelweiss.common import Stream
from edelweiss.models import ModelError
from edelweiss.models.stack import Stack
from edelweiss.problems import papers
from edelweiss.problems.capabilities import InnerFunction
from edelweiss.problems.network import NetworkProblem

if TYPE_CHECKING:
    from torch import Tensor

    from edelweiss.datasets import Sampler, Samples
    from edelweiss.problems.base import Batch, Metrics

VALUES = {"cpu": 2**20, "cuda": 2**26}
"""Size limit of the largest activation, which bounds the tasks computed at once. On a CPU 4 MB stay near the caches;
larger tensors return to the system when freed and cost page faults in every step."""


Steps = list[tuple[list["Tensor"], Sequence["Tensor"]]]
"""The starting points of the inner steps, and the gradients there with their graphs."""


@dataclass(eq=False, kw_only=True)
class Maml(NetworkProblem, InnerFunction):
    """Model-agnostic meta-learning (Finn, Abbeel & Levine, ICML 2017; FCSG 5.2).

    F(x) = E_ξ L(x - λ ∇L(x; support); query), L the mean cross-entropy. A task draws N classes, and for each class K
    samples to adapt to (the support set, the inner samples η) and Q others to evaluate on (the query set); ξ is the
    task with its queries. Several inner steps follow each other. The gradient is exact, including second derivatives
    through the inner steps.

    x = network, with N outputs for any number of classes in the data: classes are numbered 0 to N-1 within each task.
    Batch norm uses the statistics of the support or query set itself (transductive; FCSG does not specify it) and
    tracks none.

    As a composition f(g(x)), which Local-SCGD needs, g(x) is the adapted vector, averaged over the tasks of a batch,
    and f the mean of their query losses at that vector; ∇gᵀ∇f is (mean Jacobian)ᵀ (mean gradient). This is the gradient
    of F only with one task per batch, since the form ignores that the inner function depends on ξ.
    """

    name = "maml"
    kind = "conditional"
    optimises = "the query loss of new few-shot tasks after a gradient step on their support sets"
    reports = ("accuracy",)
    papers = (papers.MAML, papers.FCSG)
    multiclass = True
    mixes_patients = "a task adapts to some patients and is judged on others, and a patient is in many tasks"

    ways: int = Field(5, ge=2, le=10**5, description="N: classes of a task")
    shots: int = Field(1, ge=1, description="K: samples of each class to adapt to")
    queries: int = Field(15, ge=1, description="Q: samples of each class to evaluate on")
    inner_lr: float = Field(0.4, gt=0, description="λ: step size of adaptation")
    inner_steps: int = Field(1, ge=1, le=1000, description="steps of adaptation, in training")
    test_inner_steps: int = Field(3, ge=1, le=1000, description="steps of adaptation, in evaluation")
    test_tasks: int = Field(
        100, ge=1, le=10**6, description="tasks in an evaluation, fixed by the seed and the samples"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            self.stack = Stack(self.network)
        except ModelError as error:
            raise ModelError(f"model = {self.setting.architecture.model!r}: {error}", key="model") from None
        per_task = (
            max(self.shots, self.queries) * self.ways * self.stack.largest_activation(self.setting.data_summary.shape)
        )
        self.block = max(1, VALUES[self.device.type] // per_task)

    @property
    def width(self) -> int:
        """The number of outputs: one for each class of a task."""
        return self.ways

    # ------------------------------------------------------------------ tasks

    def shortfall(self, counts: Sequence[int]) -> str:
        """Return why these class counts are too small for a task; see `Problem.shortfall`."""
        drawings = self.shots + self.queries
        enough = sum(count >= drawings for count in counts)
        if enough >= self.ways:
            return ""
        return (
            f"{enough} classes with at least {drawings} samples (maml.shots = {self.shots}, maml.queries = "
            f"{self.queries}), and a task needs maml.ways = {self.ways}: lower these keys, or give each site more of "
            "the data (fewer sites)"
        )

    def draw(
        self, samples: Samples | None, sampler: Sampler | None, generator: torch.Generator, size: int
    ) -> Batch | None:
        """Draw b = ``size`` tasks: inputs (b, (K+Q) N, *shape) and labels (b, (K+Q) N), the support sets first.

        Classes are uniform among those with K+Q samples, without replacement within a task, and so are samples within
        a class. The sampler is not used.
        """
        assert samples is not None, "tasks are made of samples"
        labels = samples.targets().cpu()
        rows = sample_tasks(labels, size, self.ways, self.shots + self.queries, generator)
        inputs, _ = samples.batch(rows.flatten().to(samples.rows.device))
        numbers = torch.arange(self.ways, device=self.device).repeat(size, self.shots + self.queries)
        return inputs.view(*numbers.shape, *inputs.shape[1:]), numbers

    def blocks(self, batch: Batch) -> list[tuple[Batch, Batch]]:
        """Split a batch into blocks of tasks, and each into support and query sets."""
        support = self.ways * self.shots
        parts = zip(*(torch.split(values, self.block) for values in batch), strict=True)
        return [
            ((z[:, :support], labels[:, :support]), (z[:, support:], labels[:, support:]))
            for z, labels in ((z.to(self.dtype), labels) for z, labels in parts)
        ]

    # ------------------------------------------------------------------ losses and adaptation

    def loss(self, logits: Tensor, labels: Tensor, scalars: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the mean cross-entropy."""
        return cross_entropy(logits, labels)

    def predict(self, parameters: Sequence[Tensor], inputs: Tensor, twice: bool = False) -> Tensor:
        """Return each task's logits with its own parameters, shape (b, n, N)."""
        with self.forward_precision():
            return self.stack.forward(parameters, inputs, outermost=twice).to(self.dtype)

    def losses(self, parameters: Sequence[Tensor], sets: Batch, twice: bool = False) -> Tensor:
        """Return the sum of the tasks' L, whose gradient by a task's parameters is that of its own L."""
        inputs, labels = sets
        logits = self.predict(parameters, inputs, twice)
        return cross_entropy(logits.flatten(0, 1), labels.flatten()) * len(labels)

    def adapt(self, start: list[Tensor], support: Batch, steps: int, twice: bool) -> tuple[list[Tensor], Steps]:
        """Take inner steps; return the adapted parameters, and the point and gradient of each step.

        ``twice`` keeps the graphs of the gradients for `pullback`.
        """
        path: Steps = []
        for _ in range(steps):
            loss = self.losses(start, support, twice)
            slope = torch.autograd.grad(loss, start, create_graph=twice, materialize_grads=True)
            if twice:
                path.append((start, slope))
            start = [
                torch.sub(p.detach(), g.detach(), alpha=self.inner_lr).requires_grad_()
                for p, g in zip(start, slope, strict=True)
            ]
        return start, path

    def pullback(self, v: Sequence[Tensor], path: Steps) -> Sequence[Tensor]:
        """Return Jᵀv for the Jacobian J of the inner steps: v ← (I - λ ∇²L) v from the last step to the first."""
        for point, slope in reversed(path):
            curved = torch.autograd.grad(slope, point, v, materialize_grads=True)
            v = [torch.sub(a, b, alpha=self.inner_lr) for a, b in zip(v, curved, strict=True)]
        return v

    def gradient(self, x: Tensor, y: Tensor | None, batch: Batch | None) -> tuple[Tensor, Tensor | None]:
        """Return the mean over the tasks of ∇ L(adapted(x); query)."""
        assert batch is not None, "a network learns from batches"
        self.network.train(True)
        total = torch.zeros_like(x)
        for support, query in self.blocks(batch):
            adapted, path = self.adapt(self.stack.parameters(x, len(support[1])), support, self.inner_steps, True)
            v = torch.autograd.grad(self.losses(adapted, query), adapted, materialize_grads=True)
            total += self.stack.total(self.pullback(v, path))
        return total.div_(len(batch[1])), None

    def inner(self, x: Tensor, batch: Batch | None) -> Tensor:
        """Return the adapted vector, averaged over the tasks."""
        assert batch is not None, "a network learns from batches"
        self.network.train(True)
        total = torch.zeros_like(x)
        for support, _ in self.blocks(batch):
            start = self.stack.parameters(x, len(support[1]))
            total += self.stack.total(self.adapt(start, support, self.inner_steps, False)[0])
        return total.div_(len(batch[1]))

    def compositional_gradient(self, x: Tensor, s: Tensor, batch: Batch | None) -> Tensor:
        """Return (mean Jacobian of the adaptation at x)ᵀ (mean gradient of the query losses at s)."""
        assert batch is not None, "a network learns from batches"
        self.network.train(True)
        blocks, tasks = self.blocks(batch), len(batch[1])
        outer, total = torch.zeros_like(x), torch.zeros_like(x)
        for _, query in blocks:
            point = self.stack.parameters(s, len(query[1]))
            v = torch.autograd.grad(self.losses(point, query), point, materialize_grads=True)
            outer += self.stack.total(v)
        outer /= tasks
        for support, _ in blocks:
            start = self.stack.parameters(x, len(support[1]))
            _, path = self.adapt(start, support, self.inner_steps, True)
            total += self.stack.total(self.pullback(self.stack.parameters(outer, len(support[1])), path))
        return total.div_(tasks)

    def example(self) -> Metrics:
        """Return an example evaluation; two samples are too few for a task."""
        return {"loss": 0.0, "accuracy": 0.0, "n": 0}

    def metrics(self, x: Tensor, y: Tensor | None, data: Samples | None) -> Metrics:
        """Return query loss and accuracy after adaptation, over tasks of these samples; empty if they are too few.

        ``n`` is the number of samples to draw from, the weight of a site in pooling.
        """
        assert data is not None, "a network is evaluated on samples"
        counts = data.targets().bincount()
        if self.shortfall(counts.tolist()):
            return {}
        self.network.train(False)
        loss, right = 0.0, 0
        seed = int(np.random.SeedSequence([self.setting.seed, Stream.TEST_TASKS]).generate_state(1, np.uint64)[0])
        generator = torch.Generator().manual_seed(seed)
        for tasks in (min(self.block, self.test_tasks - done) for done in range(0, self.test_tasks, self.block)):
            batch = self.draw(data, None, generator, tasks)
            assert batch is not None, "there are samples"
            [(support, query)] = self.blocks(batch)
            start = self.stack.parameters(x, tasks)
            adapted, _ = self.adapt(start, support, self.test_inner_steps, False)
            with torch.no_grad():
                logits = self.predict(adapted, query[0])
                loss += cross_entropy(logits.flatten(0, 1), query[1].flatten(), reduction="sum").item()
                right += int((logits.argmax(2) == query[1]).sum())
        queries = self.test_tasks * self.ways * self.queries
        n = int(counts[counts >= self.shots + self.queries].sum())
        return {"loss": loss / queries, "accuracy": right / queries, "n": n}


def sample_tasks(labels: Tensor, tasks: int, ways: int, drawings: int, generator: torch.Generator) -> Tensor:
    """Draw many tasks at once: indices of labels, shape (tasks, drawings, ways), one class along the second axis.

    At least ``ways`` of the classes among labels, (n,) int64, have ``drawings`` samples. The generator is on the CPU.
    """
    counts = labels.bincount()
    order, first = labels.argsort(stable=True), counts.cumsum(0) - counts
    classes = torch.nonzero(counts >= drawings).flatten()
    # The indices of the smallest of uniform numbers are a draw without replacement.
    chosen = classes[torch.rand(tasks, len(classes), generator=generator).topk(ways, 1, largest=False).indices]
    size = counts[chosen][..., None]
    keys = torch.rand(tasks, ways, int(size.max()), generator=generator)
    keys.masked_fill_(torch.arange(keys.shape[2]) >= size, 2.0)  # no such sample
    places = keys.topk(drawings, 2, largest=False).indices
    return order[places + first[chosen][..., None]].transpose(1, 2)
