"""``predict``: score your own patients with a model that your site has saved or received."""

from __future__ import annotations

import argparse
from pathlib import Path

DESCRIPTION = (
    "Score patients with a model that this site has saved: its own, or the common one of a run that shared it. Nothing "
    "leaves this machine."
)


def declare(parser: argparse.ArgumentParser) -> None:
    """Name the options."""
    add = parser.add_argument
    add(
        "data",
        help="the patients: a table (CSV, Excel, Parquet, ...), labels.csv beside images, or a folder that holds one",
    )
    add("--model", default="", help="a model file or a run folder (default: the newest in models of --state-dir)")
    add("--state-dir", default="", help="the site's state folder")
    add("--policy", default="", metavar="FILE", help="your policy, whose plug-ins the model may need (default: none)")
    add("--to", default="scores.csv", metavar="FILE", help="where the scores go (default: scores.csv)")
    add(
        "--others",
        nargs="+",
        default=[],
        metavar="COLUMN",
        help="columns that are not features; needed only for a model that does not name its features",
    )
    add("--device", default="cpu", help="auto, cpu, cuda, cuda:1 (default: cpu)")


def run(options: argparse.Namespace) -> None:
    """Predict."""
    from edelweiss.client_app.policy.plug_ins import load_for
    from edelweiss.models import resolve_device
    from edelweiss.problems.prediction import predict
    from edelweiss.problems.trained_model import TrainedModel

    place = options.model or newest(options.state_dir)
    load_for(place, options.policy)
    model = TrainedModel.read(place, resolve_device(options.device))
    print(f"model: {model.file}")
    print("\n".join(predict(model, options.data, options.to, options.others)))


def newest(state_dir: str) -> Path:
    """Return the newest model of the site.

    Raises
    ------
    PersonaliseError
        If there is none.
    """
    from edelweiss.client_app.personalise import PersonaliseError
    from edelweiss.client_app.state_folder import state_folder

    folder = state_folder(state_dir) / "models"
    found = sorted(folder.glob("*.safetensors"), key=lambda path: (path.stat().st_mtime_ns, path.name))
    if not found:
        raise PersonaliseError(
            f"{folder} has no model: a site saves one after a personalised run, a run with share-model = true, or "
            "personalise; name another with --model"
        )
    return found[-1]
