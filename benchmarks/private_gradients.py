"""What a private gradient costs beside a plain one, and beside Opacus.

    pip install --target OPACUS --no-deps opacus==1.6.0 opt_einsum
    python -m benchmarks.private_gradients --opacus OPACUS [--repeats 30] [--models linear mlp ...]

The three take turns in one process on one thread. *Plain* and *private* are a step's gradient as an algorithm asks for
it: a batch of a site with 2,000 patients is drawn, and differentiated; the private one is clipped, summed and noised.
*Opacus* gets the same network and a batch that is drawn already: a pass forward and back with per-sample gradients
(its hooks), clip, sum and noise. Times are of the processor, medians. Without Opacus its columns are empty.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from typing import TYPE_CHECKING, cast

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from edelweiss.client_app.oracle import SiteOracle
from edelweiss.client_app.privacy.oracle import Mechanism, Patients, PrivateOracle
from edelweiss.client_app.privacy.randomness import KeyedStream
from edelweiss.common.memory import keep_freed_memory
from edelweiss.datasets import DataSummary, Samples, make_sampler
from edelweiss.federation.privacy_account import Query
from edelweiss.federation.privacy_plan import rate_of
from edelweiss.models import Architecture
from edelweiss.problems import PROBLEMS, Setting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from edelweiss.problems.network import NetworkProblem

PATIENTS = 2000
SHAPES = {
    "linear": (1, 28, 28),
    "mlp": (1, 28, 28),
    "lenet5": (1, 28, 28),
    "cnn-mnist": (1, 28, 28),
    "resnet18-gn": (3, 32, 32),
}
BATCHES = (16, 64, 128)
SLOW, FEW = "resnet18-gn", 16  # of this one a batch has no more, which takes seconds


def steps(model: str, name: str, batch: int) -> dict[str, Callable[[], object]]:
    """Return what takes turns: plain, private, and Opacus where it is installed."""
    summary = DataSummary(shape=SHAPES[model], classes=2, prior=0.1)
    setting = Setting(data_summary=summary, architecture=Architecture(model=model, hidden=64), seed=0)
    problem = cast("NetworkProblem", PROBLEMS[name](setting))
    random = torch.Generator().manual_seed(0)
    labels = (torch.rand(PATIENTS, generator=random) < 0.1).long()
    samples = Samples(torch.randn(PATIENTS, *SHAPES[model], generator=random), labels, torch.arange(PATIENTS))
    start = problem.initial()
    x, y, stream = start["x"], start.get("y"), KeyedStream(bytes(32))
    generator = stream.generator("batches")
    plain = SiteOracle(problem, samples, make_sampler("uniform", labels, batch, 1, generator), generator, batch)
    paid = {Query(rate_of(batch, PATIENTS)): 10**6}
    private = PrivateOracle(problem, samples, Patients(PATIENTS), stream, Mechanism(1.0, 1.0, 1.0), paid, batch)
    found: dict[str, Callable[[], object]] = {
        "plain": lambda: plain.gradient(x, y),
        "private": lambda: private.gradient(x, y),
    }
    if name == "bce" and (theirs := _opacus(problem, samples, batch)):
        found["opacus"] = theirs
    return found


class _Copy(nn.Module):
    """A copy of the inputs."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Copy them."""
        return inputs.clone()


def _opacus(problem: NetworkProblem, samples: Samples, batch: int) -> Callable[[], object] | None:
    """Return a step of Opacus on a fixed batch; None if it is not installed."""
    try:
        from opacus.grad_sample import GradSampleModule
        from opacus.optimizers import DPOptimizer
    except ImportError:
        return None
    network = problem._built(0).module
    for place, module in [*network.named_modules()]:
        if isinstance(module, nn.GroupNorm):  # a network that overwrites its output would break their hooks
            network.set_submodule(place, nn.Sequential(module, _Copy()))
    for module in network.modules():  # parameters of their own, not views into one vector
        for key, parameter in list(module._parameters.items()):
            if parameter is not None:
                module._parameters[key] = nn.Parameter(parameter.detach().clone())
        if getattr(module, "inplace", False):
            module.inplace = False
    wrapped = GradSampleModule(network)
    sgd = torch.optim.SGD(wrapped.parameters(), lr=0.0)
    optimizer = DPOptimizer(sgd, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=batch)
    inputs, labels = samples.batch(torch.arange(batch))

    def step() -> None:
        optimizer.zero_grad()
        binary_cross_entropy_with_logits(wrapped(inputs).squeeze(1), labels.float()).backward()
        optimizer.pre_step()

    return step


def measure(turns: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the median milliseconds of the processor of each."""
    took: dict[str, list[float]] = {name: [] for name in turns}
    for repeat in range(repeats + 2):
        for name, step in turns.items():
            began = time.process_time()
            step()
            if repeat >= 2:  # after two to warm up
                took[name].append(1e3 * (time.process_time() - began))
    return {name: statistics.median(each) for name, each in took.items()}


def rows(models: Sequence[str], repeats: int) -> list[str]:
    """Return the table's rows, each as soon as it is measured."""
    found = []
    for model in models:
        for batch in BATCHES:
            if model == SLOW and batch > FEW:
                continue
            for name in ("bce", "auc"):
                took = measure(steps(model, name, batch), max(3, repeats // (10 if model == SLOW else 1)))
                plain, private, opacus = (took.get(each) for each in ("plain", "private", "opacus"))
                assert plain is not None
                assert private is not None
                cells = [model, name, str(batch), f"{plain:.3g}", f"{private:.3g}", f"{private / plain:.1f}"]
                cells += [f"{opacus:.3g}", f"{private / opacus:.2f}"] if opacus else ["", ""]
                found.append(f"| {' | '.join(cells)} |")
                print(found[-1], flush=True)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--opacus", default="", metavar="FOLDER", help="where it is installed; empty: leave it out")
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=[*SHAPES])
    options = parser.parse_args(arguments)
    sys.path += [options.opacus] * bool(options.opacus)
    torch.set_num_threads(1)
    keep_freed_memory()  # as every engine does
    warnings.filterwarnings("ignore")
    print("| model | problem | batch | plain, ms | private, ms | times plain | Opacus, ms | private / Opacus |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    rows(options.models, options.repeats)
    return 0


if __name__ == "__main__":
    sys.exit(main())
