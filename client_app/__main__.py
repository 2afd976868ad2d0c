"""``python -m client_app personalise``: a new hospital trains a head of its own on the body of a finished run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keys import Value


def above_zero(text: str) -> float:
    """Parse a step size."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: must be a finite number above 0")
    return value


def at_least_one(text: str) -> int:
    """Parse a number of steps."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be 1 or more")
    return value


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m client_app", description="What a hospital does by itself.")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser(
        "personalise",
        help="train a head of your own on the body of a finished run",
        description="Train a head on your own data, the body stays as it was given; report how the model does on "
        "samples that you hold out, before and after. Nothing leaves this machine.",
    )
    one.add_argument("--model", required=True, type=Path, help="the run folder: config.toml and model.safetensors")
    one.add_argument("--data-dir", required=True, help="your data: data.csv, data.parquet, or images with labels.csv")
    one.add_argument("--site", default="", help="your name, for your model's file (default: the data folder's)")
    one.add_argument("--state-dir", default="", help="where your model goes, into the folder models there (default: a "
                     "private folder for temporary files)")  # fmt: skip
    one.add_argument("--label", default="", help="your label column; default: the run's")
    one.add_argument("--device", default="", help="auto, cpu, cuda, cuda:1; default: the run's")
    one.add_argument("--steps", type=at_least_one, default=500, help="steps on the head (default: 500)")
    one.add_argument("--head", choices=("fresh", "trained"), default="", help="what the training starts from: a new "
                     "random head, or the model's, which must be trained (default: the model's, as it is)")  # fmt: skip
    one.add_argument("--lr", type=above_zero, help="step size of the head (default: the run's)")
    one.add_argument("--lr-dual", type=above_zero, help="step size of y, where there is one (default: the run's)")
    one.add_argument("--run-config", action="append", default=[], metavar="'KEY=VALUE ...'",
                     help="change keys of the run, such as batch-size, holdout-share, seed or head")  # fmt: skip
    two = commands.add_parser("join", help="stay, and answer the coordinator's messages", description="Connect to a "
                              "coordinator, answer its messages in this process, and stay until told to end.")  # fmt: skip
    from client_app.join import add_arguments

    add_arguments(two)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says; returns 0, 1 for data or a model that cannot be used, 2 for a configuration."""
    options = parsed(arguments)

    from client_app.memory import StateError
    from client_app.personalise import PersonaliseError
    from config import MISTAKES, ConfigError

    try:
        if options.command == "join":
            from client_app.join import main as join

            return join(options)
        run(options)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except (*MISTAKES, StateError, PersonaliseError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: the model cannot be written: {error}; set another --state-dir", file=sys.stderr)
        return 1
    return 0


def run(options: argparse.Namespace) -> None:
    """Train, report, and keep the model."""
    import torch

    from client_app.memory import Memory
    from client_app.personalise import FinishedRun, lines, personalise
    from client_app.site import model_facts, provenance
    from config import read_overrides
    from datasets import load_site

    # A hospital's own folder, whatever data the run was on, so how that was split plays no part.
    own: dict[str, Value] = {"dataset": "site", "partition": "iid", "personal-test": False}
    own |= {"positive-classes": "", "negative-classes": ""}
    given = FinishedRun.read(options.model, read_overrides(options.run_config) | own)
    config = given.config
    torch.set_num_threads(config.threads)
    data = load_site(config.data(options.data_dir, options.label), 0, 1)
    outcome = personalise(
        given,
        data,
        steps=options.steps,
        lr=options.lr,
        lr_dual=options.lr_dual,
        head=options.head,
        device=options.device,
    )

    name = options.site or Path(options.data_dir).resolve().name
    d = len(outcome.model["x"])
    print(f"{name}: {len(data.train)} samples to train on, {len(data.held_out)} held out; {config.model} of "
          f"{config.algorithm} on {config.problem}, {d - outcome.head:,} of {d:,} parameters trained in "
          f"{options.steps:,} steps")  # fmt: skip
    print("\n".join(lines(outcome)))
    store = Memory(options.state_dir, options.model.resolve().name, name, provenance(config, d))
    print(f"the model is in {store.keep(outcome.model, model_facts(config, given.cohort))}")


if __name__ == "__main__":
    sys.exit(main())
