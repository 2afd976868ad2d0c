"""The card of a model that a site saves: what it is, its inputs, and how to use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edelweiss.federation.fingerprint import fingerprint
from edelweiss.models.storage import atomic_writer
from edelweiss.problems.trained_model import TrainedModel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from edelweiss.config import RunConfig


def write_card(file: Path, run: RunConfig, *, own: bool) -> None:
    """Write ``<model>.md`` beside a model's file.

    Parameters
    ----------
    file
        The model's, which was just written.
    run
        The run-config of the model's run.
    own
        Whether it is this site's own model, and not the common one.
    """
    with atomic_writer(file.with_suffix(".md")) as card:
        card.write("\n".join([*_lines(file, run, own), ""]).encode())


def _lines(file: Path, run: RunConfig, own: bool) -> Iterator[str]:
    whose = "This site's own model" if own else f"The common model of {run.sites} sites"
    yield f"# {whose}, of {run.algorithm} on {run.problem}\n"
    yield f"- **Run**: {run.rounds} rounds, algorithm `{run.algorithm}`, problem `{run.problem}`, seed {run.seed}"
    yield f"- **Network**: `{run.model}`; written by version {fingerprint()} of the app"
    try:
        model = TrainedModel.read(file)
    except ValueError as error:  # for example, many classes
        yield f"- **Use**: not with `predict`: {str(error).removeprefix(f'{file} ')}"
        return
    model_schema = model.model_schema
    shape = " x ".join(map(str, model.data_summary.shape))
    yield f"- **Inputs**: {shape}" + (" features" if len(model.data_summary.shape) == 1 else ", images")
    filled = "the mean over the training samples of all sites" if model_schema.missing == "mean" else "0"
    yield f"- **Missing values** become {filled}"
    sides = [", ".join(texts) for texts in model_schema.classes]
    if model.labels:
        yield f"- **Labels**: {', '.join(model.labels)}; each has a score of its own"
        yield from (f"- {text}" for text in model_schema.unusual())
    elif len(sides) == 2:
        yield f"- **Label**: column `{model_schema.label}`; positive: {sides[1]}; negative: {sides[0]}"
    yield f"- **Score**: {model.describe_scores()}"
    yield f"- **Use**: `edelweiss-site predict patients.csv --model {file.name}`, or with `--state-dir`\n"
    yield "It is for research and not a medical device. Check it on your own patients first.\n"
    if model_schema.features:
        yield "| feature | unit | values |\n|---|---|---|"
    described = model_schema.study.columns if model_schema.study else ()
    columns = {name: (column, place) for column in described for place, name in enumerate(column.features)}
    for name in model_schema.features:
        column, place = columns.get(name, (None, 0))
        values = ""
        if column and column.one_hot:
            values = f"1: {[*column.meanings.values()][place]}; 0: another word"
        elif column and column.before_index:
            values = f"{column.before_index} from this date to the index date"
        elif column and column.codes:
            values = ", ".join(word for word, _ in column.codes)
        elif column and column.low < column.high < float("inf"):
            values = f"{column.low:g} to {column.high:g}"
        yield f"| {name.replace('|', '/')} | {column.unit if column else ''} | {values} |"
