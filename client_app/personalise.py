"""Personalisation at a new hospital: it trains its own head on the body of a finished run and sends nothing."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from edelweiss.client_app.fine_tuning import finite, own_rate, trained
from edelweiss.client_app.oracle import SiteOracle, stream
from edelweiss.client_app.recalibration import Entry, fit_maps
from edelweiss.common import shorter, shown
from edelweiss.common.files import is_file, reason
from edelweiss.config import RunConfig, read_overrides
from edelweiss.config.plug_ins import require_known
from edelweiss.config.tables import renamed
from edelweiss.datasets import DataSummary, ModelSchema, columns_hash
from edelweiss.models import ModelError, prepare_device, resolve_device
from edelweiss.models.storage import StoredTensors
from edelweiss.problems import PROBLEMS, ProblemError, ranks
from edelweiss.problems.network import NetworkProblem
from edelweiss.problems.scalars import restore_scalars
from edelweiss.strategies.local_steps import existing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from edelweiss.common import Value
    from edelweiss.datasets import Samples, SiteData
    from edelweiss.problems import Arrays, Metrics

WARM_UP = 50  # batches to estimate batch-norm statistics if the run provides none


class PersonaliseError(ValueError):
    """A model cannot be used at this hospital; the message says why and what to change."""


@dataclass(frozen=True)
class FinishedRun:
    """A finished run, as read by a new site."""

    config: RunConfig  # the run-config
    data_summary: DataSummary  # the combined facts of its sites
    # further metadata of the model file: the problem's scalars, and "head": "fresh" where the head is untrained
    facts: dict[str, Any]
    state: dict[str, Tensor]  # the network's state dict

    @property
    def untrained(self) -> bool:
        """Whether the model's head is an untrained one: sites keep those that they have trained."""
        return self.facts.get("head") == "fresh"

    @classmethod
    def read(cls, folder: Path, changes: Mapping[str, Value] | None = None) -> FinishedRun:
        """Read a run folder.

        Parameters
        ----------
        folder : Path
            With ``config.toml`` and ``model.safetensors``.
        changes : mapping, optional
            Run-config keys to change, such as ``batch-size`` or ``head``.

        Raises
        ------
        PersonaliseError
            If the folder is not that of a finished run with a network.
        edelweiss.config.ConfigError
            If its configuration, with the changes, is invalid.
        """
        file, written = folder / "model.safetensors", folder / "config.toml"
        if not is_file(written):
            text = "is not a run folder: it has no config.toml; name one such as runs/<run>"
            raise PersonaliseError(f"{shorter(str(folder))} {text}")
        keys = renamed(read_overrides([str(written)])) | dict(changes or {})
        require_known(keys)
        config = RunConfig.parse(keys)
        if not PROBLEMS[config.problem].needs_data:
            raise PersonaliseError(
                f"{folder}: problem = {config.problem!r} has no network, so there is no head to train"
            )
        try:
            stored = StoredTensors.read(file)
            facts = stored.facts
            if "shape" not in facts:
                raise ValueError("it does not describe its inputs; a run of this version writes one that does")
            data_summary = DataSummary.of_file(facts)
            ModelSchema.of_file(facts, data_summary)
        except FileNotFoundError:
            why = "it was stopped early, or its sites shared nothing"
            if not config.strategy.exchanges:
                why = f"with algorithm = {config.algorithm!r} sites share nothing"
            raise PersonaliseError(f"{folder}: the run left no model.safetensors: {why}") from None
        except (OSError, ValueError) as error:
            raise PersonaliseError(f"{file} cannot be used: {reason(error)}") from None
        if broken := [name for name, tensor in stored.tensors.items() if not tensor.isfinite().all()]:
            raise PersonaliseError(f"{file} cannot be used: NaN or infinity in {', '.join(broken[:3])}")
        for key, value in (("problem", config.problem), ("model", config.model), ("hidden", config.hidden)):
            if facts.get(key, value) != value:
                raise PersonaliseError(
                    f"{file} has {key} = {shown(facts[key])}, but config.toml and --run-config have {value!r}: "
                    "config.toml and model.safetensors do not belong together"
                )
        if data_summary.labels != (config.several if PROBLEMS[config.problem].several else ()):
            raise PersonaliseError(
                f"{file} is of {', '.join(data_summary.labels) or 'one label'}, but config.toml and --run-config say "
                f"label = {config.label!r}: config.toml and model.safetensors do not belong together; give the names "
                "of your own columns with --label"
            )
        return cls(config, data_summary, facts, stored.tensors)


@dataclass(frozen=True)
class Personalised:
    """The result of personalisation: metrics before and after, and the model."""

    # before, after: on the held-out samples, with the initial head and with the trained one
    before: Metrics
    after: Metrics
    model: Arrays  # x, and y and buffers if there are any
    head: int  # index in x where the head begins; the entries before it are unchanged
    # maps from scores to probabilities, see `client_app.recalibration`; None if the scores are log-odds
    maps: list[Entry | None] | None = None


def require_head(problem: NetworkProblem, finished: FinishedRun, data: SiteData, head: str) -> int:
    """Return the index in x where the head begins.

    Raises
    ------
    PersonaliseError
        If there is no head, or it cannot be trained as requested or with these samples.
    """
    if finished.untrained and head == "trained":
        raise PersonaliseError(
            f"--head trained: with algorithm = {finished.config.algorithm!r} sites keep their trained heads, and the "
            "model's is untrained: use --head fresh"
        )
    if not problem.head:
        raise PersonaliseError(
            f"model = {finished.config.model!r} has no separable head, so there is no body to build on"
        )
    if problem.multiclass and (
        text := problem.shortfall(data.train.targets().bincount(minlength=data.classes).tolist())
    ):
        raise PersonaliseError(f"the site has too few training samples: {text}")
    return problem.head


def probabilities(problem: NetworkProblem, x: Tensor, held_out: Samples) -> list[Entry | None] | None:
    """Fit maps from a ranking's scores to probabilities on the held-out samples; None for other problems."""
    if not ranks(type(problem)) or problem.log_odds:
        return None
    scores = problem.logits(x, held_out).double().cpu().numpy().reshape(len(held_out), -1)
    return fit_maps(scores, held_out.targets().double().cpu().numpy().reshape(scores.shape))


def personalise(
    finished: FinishedRun,
    data: SiteData,
    *,
    steps: int = 500,
    lr: float | None = None,
    lr_dual: float | None = None,
    head: str = "",
    device: str = "",
) -> Personalised:
    """Train the head of a given model on a new site's samples: θ ← θ - α ∇_θ f(φ, θ), and y, if any, by ascent.

    Batches are drawn as in the run: its sampler, its batch size, its seed.

    Parameters
    ----------
    finished : FinishedRun
        The finished run.
    data : SiteData
        The new site's.
    steps : int
        On the head, 1 or more.
    lr, lr_dual : float, optional
        Step sizes, above 0; by default those of the run's algorithm, ``lr-head`` where it has one.
    head : str
        What the training starts from. ``"fresh"``: a random head, drawn as for one more site of the run, and the start
        of y; no body has been trained with it. ``"trained"``: the head that the model has, with its y. Default: that,
        or, where sites keep theirs, the untrained one that the model has.
    device : str
        In place of the run's.

    Raises
    ------
    PersonaliseError
        If data and model do not match, the model's head is untrained but requested, or training diverges.
    """
    config = finished.config
    require_fit(finished, data)
    device = resolve_device(device or config.device)
    prepare_device(device, config.matmul_precision)
    problem = config.build_problem(config.setting(finished.data_summary, device))
    assert isinstance(problem, NetworkProblem), "others have no data"
    split = require_head(problem, finished, data, head)
    lr, lr_dual = lr or own_rate(config, "lr_head", "lr"), lr_dual or own_rate(config, "lr_dual", "lr")
    x, y = starting_point(problem, finished)
    if head == "fresh":
        fresh = problem.fresh(config.sites)
        x, y = torch.cat([x[:split], fresh["head"]]), fresh.get("y")
    problem = problem.of_site(data.train.targets())  # y is the site's own
    train, held_out = (
        finished.data_summary.standardised(part).to(problem.device) for part in (data.train, data.held_out)
    )
    with closing(SiteOracle.open(config, problem, train, stream(config.seed, 0, 0, 0))) as oracle:
        if problem.buffers().numel() and (finished.untrained or config.bn == "local"):
            warm_up(problem, x, oracle)
        before = problem.metrics(x, y, held_out)
        y = trained(x, y, oracle, steps, lr, lr_dual, slice(split, None))
    if not finite(x, y):
        raise PersonaliseError(f"training the head diverges: lower the step size, --lr {lr:g}")
    after = problem.metrics(x, y, held_out)
    maps = probabilities(problem, x, held_out)
    statistics = problem.buffers()
    model = existing(x=x, y=y, buffers=statistics if statistics.numel() else None)
    return Personalised(before, after, model, split, maps)


def require_fit(finished: FinishedRun, data: SiteData) -> None:
    """Check that the data match the model's training data; PersonaliseError lists all mismatches."""
    data_summary, wrong = finished.data_summary, []
    if tuple(data.train.shape) != data_summary.shape:
        have, need = ("x".join(map(str, shape)) for shape in (data.train.shape, data_summary.shape))
        wrong.append(f"the data's inputs are of size {have}, the model's of size {need}: they need the same features")
    elif columns_hash(data.features) != (data_summary.columns or columns_hash(())):
        wrong.append(
            f"the columns are not those that the model was trained on, or in another order: here, by name, "
            f"{', '.join(data.features[:3])}, ..."
        )
    problem = PROBLEMS[finished.config.problem]
    if (columns := data.train.labels[:1].numel()) != (outputs := max(1, len(data_summary.labels))):
        wrong.append(f"--label names {columns} columns, and the model has {outputs}: {', '.join(data_summary.labels)}")
    if problem.multiclass and data.classes > data_summary.classes:
        wrong.append(f"the labels go up to {data.classes - 1}, the model's only to {data_summary.classes - 1}")
    classes = set(data.train.targets().flatten().tolist())
    if not problem.multiclass and outputs == 1 and len(classes) == 1:
        only = "positive" if classes == {1} else "negative"
        wrong.append(
            f"all {len(data.train)} samples to train on are {only}: a ranking needs both classes; check the label "
            "column, or give more samples"
        )
    if not len(data.held_out):
        wrong.append("no sample is held out, so nothing can be reported: raise holdout-share, or give more samples")
    if wrong:
        raise PersonaliseError("\n".join(wrong))


def starting_point(problem: NetworkProblem, finished: FinishedRun) -> tuple[Tensor, Tensor | None]:
    """Return the given x and y; parts that the run left to the sites are initialised by the problem."""
    try:
        parameters, buffers = problem.network.flatten(finished.state)
        start = restore_scalars(problem, parameters, finished.facts)
    except (ModelError, ProblemError) as error:
        raise PersonaliseError(f"config.toml and model.safetensors do not belong together: {error}") from None
    problem.load_buffers(buffers)
    return start


def warm_up(problem: NetworkProblem, x: Tensor, oracle: SiteOracle) -> None:
    """Estimate batch-norm statistics on the site's own batches, for a run that leaves them to the sites."""
    problem.network.bind(x)
    problem.network.train(True)
    with torch.no_grad():
        for _ in range(WARM_UP):
            batch = oracle.draw()
            assert batch is not None, "a network learns from batches"
            problem.outputs(batch[0])
