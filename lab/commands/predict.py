"""``predict RUN DATA``: score patients with the model of a run."""

from __future__ import annotations

import argparse

from edelweiss.lab.commands import print_result

SUMMARY = "score patients with the model of a run"
DESCRIPTION = (
    "Score patients with the model of a run: a table or images in, a CSV file out, with all columns that are no "
    "features, the score, and the probability where there is an honest one."
)


def takes(parser: argparse.ArgumentParser) -> None:
    """Name the options."""
    add = parser.add_argument
    add("run", metavar="RUN", help="a run folder, or a model file")
    add(
        "data",
        metavar="DATA",
        help="a table (CSV, Excel, Parquet, ...), labels.csv beside images, or a folder that holds one",
    )
    add("--to", default="scores.csv", metavar="FILE", help="where the scores go (default: scores.csv)")
    add(
        "--others",
        nargs="+",
        default=[],
        metavar="COLUMN",
        help="columns that are no features; only needed for a model that does not name its features",
    )
    add("--device", default="cpu", help="auto, cpu, cuda, cuda:1 (default: cpu)")


def main(options: argparse.Namespace) -> int:
    """Predict; returns the exit code."""
    from edelweiss.models import resolve_device
    from edelweiss.problems.prediction import predict
    from edelweiss.problems.trained_model import TrainedModel

    def predicted() -> list[str]:
        model = TrainedModel.read(options.run, resolve_device(options.device))
        return predict(model, options.data, options.to, options.others)

    return print_result(predicted)
