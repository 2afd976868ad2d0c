"""``export RUN --onnx``: the model of a run for other programs."""

from __future__ import annotations

import argparse

from edelweiss.lab.commands import print_result

SUMMARY = "write the model of a run for other programs"
DESCRIPTION = (
    "Write the model of a run as ONNX: raw values in, NaN where missing; the score out, and the probability where "
    "there is an honest one. What was written is checked against this program before it is left."
)


def takes(parser: argparse.ArgumentParser) -> None:
    """Name the options."""
    parser.add_argument("run", metavar="RUN", help="a run folder, or a model file")
    parser.add_argument(
        "--onnx",
        nargs="?",
        const="model.onnx",
        required=True,
        metavar="FILE",
        help="where it goes (default: model.onnx)",
    )


def main(options: argparse.Namespace) -> int:
    """Export; returns the exit code."""
    from edelweiss.problems.onnx_export import export
    from edelweiss.problems.trained_model import TrainedModel

    return print_result(lambda: export(TrainedModel.read(options.run), options.onnx))
