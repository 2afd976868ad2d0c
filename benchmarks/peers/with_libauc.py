"""LibAUC's AUCMLoss and PESG, on what `benchmarks.peers.libauc` left in a folder; in a Python that has LibAUC.

    python -m benchmarks.peers.with_libauc {follow,train} FOLDER

reads FOLDER/job.json and FOLDER/job.npz, and writes FOLDER/answer.npz.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def network(start: np.ndarray) -> nn.Module:
    """Return LibAUC's ResNet-20 at a starting point (d,)."""
    from libauc.models import resnet20

    module: nn.Module = resnet20(pretrained=False, last_activation=None).to(torch.from_numpy(start).dtype)
    nn.utils.vector_to_parameters(torch.from_numpy(start), module.parameters())
    return module


def optimiser(module: nn.Module, job: dict[str, Any]) -> tuple[Any, Any]:
    """Return AUCMLoss, in the version that is its default, and PESG."""
    from libauc.losses import AUCMLoss
    from libauc.optimizers import PESG

    loss = AUCMLoss(margin=job["margin"], version="v1")
    keys = ("lr", "momentum", "clip_value", "epoch_decay", "weight_decay")
    return loss, PESG(module.parameters(), loss_fn=loss, verbose=False, **{key: job[key] for key in keys})


def flat(module: nn.Module, loss: Any) -> Tensor:
    """Return the network's parameters, then a and b."""
    return torch.cat([nn.utils.parameters_to_vector(module.parameters()), loss.a, loss.b]).detach().clone()


def follow(job: dict[str, Any], given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Take a step on each of the given batches.

    PESG draws the point that ``epoch_decay`` pulls to at random; here it is the starting point, as in the paper.

    Returns
    -------
    dict
        ``x``: the iterates after the noted steps; ``alpha``: before each step, and after the last; ``a``, ``b``: after
        each; ``positive``, ``negative``: the mean score of each class on each batch; ``mean``: of all iterates.
    """
    images, labels = torch.from_numpy(given["images"]), torch.from_numpy(given["labels"]).float()[:, None]
    module = network(given["start"])
    loss, pesg = optimiser(module, job)
    for parameter in (loss.a, loss.b, loss.alpha):
        parameter.data = parameter.data.to(images.dtype)
    if job["epoch_decay"]:
        for reference, parameter in zip(pesg.model_ref, pesg.params, strict=True):
            reference.data = parameter.data.clone()
    found: dict[str, list[Any]] = {name: [] for name in ("x", "a", "b", "alpha", "positive", "negative")}
    for step, rows in enumerate(torch.from_numpy(given["rows"]), 1):
        h, targets = torch.sigmoid(module(images[rows])), labels[rows]
        found["alpha"].append(loss.alpha.item())
        found["positive"].append(h[targets == 1].mean().item())
        found["negative"].append(h[targets == 0].mean().item())
        pesg.zero_grad()
        loss(h, targets).backward()
        pesg.step()
        found["a"].append(loss.a.item())
        found["b"].append(loss.b.item())
        if step in job["noted"]:
            found["x"].append(flat(module, loss).numpy())
    found["alpha"].append(loss.alpha.item())
    arrays = {name: np.array(values) for name, values in found.items()}
    if job["epoch_decay"]:
        arrays["mean"] = torch.cat([total.flatten() for total in pesg.model_acc]).numpy() / pesg.T
    return arrays


def train(job: dict[str, Any], given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Train as LibAUC's example does before its first decay of the step size: DualSampler, sigmoid scores.

    Returns
    -------
    dict
        ``scores`` of the test images (n,); ``seconds`` of CPU for each block of ``every`` steps.
    """
    from libauc.sampler import DualSampler

    torch.manual_seed(job["seed"])
    images, labels = torch.from_numpy(given["images"]), torch.from_numpy(given["labels"]).float()[:, None]
    module = network(given["start"])
    loss, pesg = optimiser(module, job)
    options = {"sampling_rate": job["sampling_rate"], "random_seed": job["seed"]}
    sampler = DualSampler(None, job["batch"], labels=given["labels"], **options)
    batches: Any = iter(())
    seconds, before = [], time.process_time()
    for step in range(1, job["steps"] + 1):
        if (rows := next(batches, None)) is None:  # a new epoch
            batches = iter(torch.tensor(list(iter(sampler))).view(-1, job["batch"]))
            rows = next(batches)
        h = torch.sigmoid(module(images[rows]))
        pesg.zero_grad()
        loss(h, labels[rows]).backward()
        pesg.step()
        if step % job["every"] == 0:
            seconds.append(time.process_time() - before)
            before = time.process_time()
    module.eval()
    with torch.no_grad():
        scores = torch.cat([module(part) for part in torch.from_numpy(given["test"]).split(500)])
    return {"scores": scores.flatten().numpy(), "seconds": np.array(seconds)}


def without_operators() -> None:
    """Define two operators that torchvision's import asks for; its own do not load beside a torch without CUDA."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
        sys.kept_library = library  # type: ignore[attr-defined]  # schemas live as long as this object
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]


def main() -> None:
    """Do what the command line says."""
    torch.set_num_threads(1)
    without_operators()
    import libauc

    what, folder = sys.argv[1], Path(sys.argv[2])
    with np.load(folder / "job.npz") as content:
        given = dict(content)
    answer = {"follow": follow, "train": train}[what](json.loads((folder / "job.json").read_text()), given)
    np.savez(folder / "answer.npz", versions=[f"libauc {libauc.__version__}", f"torch {torch.__version__}"], **answer)


if __name__ == "__main__":
    main()
