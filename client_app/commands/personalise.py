"""``personalise``: a new hospital trains its own head on the body of a finished run."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edelweiss.common.numbers import number, whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from edelweiss.client_app.personalise import Personalised
    from edelweiss.common import Value
    from edelweiss.datasets import SiteData

DESCRIPTION = (
    "Train a head on your own data, with the body unchanged; report the model's metrics on held-out samples before and "
    "after. Nothing leaves this machine."
)


NODE = ("data-dir", "study", "state-dir", "label", "device")
MOST_STEPS = 10**6
LARGEST = 1e38  # about the largest float32


def above_zero(text: str) -> float:
    """Parse a step size."""
    value = number(text)
    if not 0 < value <= LARGEST:
        raise argparse.ArgumentTypeError(f"{text}: must be a number above 0, up to {LARGEST:g}")
    return value


def at_least_one(text: str) -> int:
    """Parse a number of steps."""
    if not 1 <= (value := whole(text)) <= MOST_STEPS:
        raise argparse.ArgumentTypeError(f"{text}: must be from 1 to {MOST_STEPS:,}")
    return value


def declare(parser: argparse.ArgumentParser) -> None:
    """Name the options."""
    add = parser.add_argument
    add("--model", required=True, type=Path, help="the run folder: config.toml and model.safetensors")
    add("--data-dir", required=True, help="your data: data.csv, data.parquet, or images with labels.csv")
    add("--study", default="", help="TOML file that describes your table's columns, from the coordinator")
    add("--site", default="", help="your name, for your model's file (default: the data folder's)")
    add(
        "--state-dir",
        default="",
        help="your model is saved in the folder models there (default: a private folder for temporary files)",
    )
    add(
        "--label",
        default="",
        help="your label column, or one for each of the run's labels, separated by commas; default: the run's",
    )
    add("--policy", default="", metavar="FILE", help="your policy, whose plug-ins the model may need (default: none)")
    add("--patient", default="", help="your column with the patient ids, which is not a feature; default: none")
    add("--device", default="", help="auto, cpu, cuda, cuda:1; default: the run's")
    add("--steps", type=at_least_one, default=500, help="steps on the head (default: 500)")
    add(
        "--head",
        choices=("fresh", "trained"),
        default="",
        help="start from a new random head, or from the model's trained one (default: the model's)",
    )
    add("--lr", type=above_zero, help="step size of the head (default: the run's)")
    add("--lr-dual", type=above_zero, help="step size of y, if the problem has one (default: the run's)")
    add(
        "--run-config",
        action="append",
        default=[],
        metavar="'KEY=VALUE ...'",
        help="change keys of the run, such as batch-size, holdout-share, seed or head",
    )


def run(options: argparse.Namespace) -> None:
    """Train, report, and save the model."""
    import torch

    from edelweiss.client_app.local_data import study_of
    from edelweiss.client_app.memory import Memory
    from edelweiss.client_app.model_card import write_card
    from edelweiss.client_app.model_metadata import model_facts, provenance
    from edelweiss.client_app.personalise import FinishedRun, PersonaliseError, personalise
    from edelweiss.client_app.policy.plug_ins import load_for
    from edelweiss.common.files import as_path
    from edelweiss.config import SiteConfig, read_overrides
    from edelweiss.datasets import load_site

    # The same checks as for `join`; the name becomes part of the model's file name.
    SiteConfig.parse({key: getattr(options, key.replace("-", "_")) for key in NODE})
    name = options.site or as_path(options.data_dir).resolve().name
    SiteConfig.parse({"site": name})
    # The data are the hospital's own folder, so the run's data set and split do not matter.
    own: dict[str, Value] = {"dataset": "site", "partition": "iid", "personal-test": False, "data-file": ""}
    own |= {"group-column": "", "study": ""}
    own |= {"positive-classes": "", "negative-classes": ""}
    load_for(options.model, options.policy)
    finished = FinishedRun.read(options.model, read_overrides(options.run_config) | own)
    config = finished.config
    torch.set_num_threads(config.threads)
    own_data = config.data(options.data_dir, options.label)
    own_data = replace(own_data, patient=options.patient, study=study_of(options.study))
    data = load_site(own_data, 0, 1)
    for doubt in data.warnings:
        print(f"warning: {doubt}", file=sys.stderr)
    outcome = personalise(
        finished,
        data,
        steps=options.steps,
        lr=options.lr,
        lr_dual=options.lr_dual,
        head=options.head,
        device=options.device,
    )

    d = len(outcome.model["x"])
    print(
        f"{name}: {len(data.train)} samples to train on, {len(data.held_out)} held out; {config.model} of "
        f"{config.algorithm} on {config.problem}, {d - outcome.head:,} of {d:,} parameters trained in "
        f"{options.steps:,} steps"
    )
    print("\n".join([*of_labels(finished.data_summary.labels, data), *lines(outcome)]))
    store = Memory(options.state_dir, options.model.resolve().name, name, provenance(config, d))
    try:
        facts = model_facts(config, finished.data_summary, own_data, data, own=True, maps=outcome.maps)
        path = store.save_own_model(outcome.model, facts)
        write_card(path, config, own=True)
    except OSError as error:
        raise PersonaliseError(f"the model cannot be written: {error}; set another --state-dir") from None
    print(f"the model is in {path}")


def lines(outcome: Personalised) -> Sequence[str]:
    """Return a table of the metrics before and after."""
    from edelweiss.problems.metrics import RANKINGS, metric, split

    before, numbers = (
        {name: value for name, value in metrics.items() if isinstance(value, int | float)}
        for metrics in (outcome.before, outcome.after)
    )
    named = [name for name in numbers if metric(name).better]
    several = any(split(name)[1] for name in named)
    shown = {name: f"mean {name}" if several and name in RANKINGS else name for name in named}
    width = max(map(len, shown.values()))
    return [f"{'':{width}}    before     after"] + [
        f"{shown[name]:{width}}  {before.get(name, float('nan')):8.4f}  {numbers[name]:8.4f}" for name in named
    ]


def of_labels(labels: Sequence[str], data: SiteData) -> Iterator[str]:
    """Yield a line for each of several labels: how many samples have it, and how many are positive."""
    if not labels:
        return
    train, held_out = data.train.targets(), data.held_out.targets()
    for place, name in enumerate(labels):
        known, positive = int((train[:, place] >= 0).sum()), int((train[:, place] == 1).sum())
        if not known and not (held_out[:, place] >= 0).any():
            yield f"{name}: unknown for all samples here, so its output is not trained"
        else:
            left = len(train) - known
            yield f"{name}: {positive:,} positive of {known:,} to train on" + f", {left:,} unknown" * bool(left)
