"""The metadata of a site's files: the origin of vectors, and how to use a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edelweiss.datasets import ModelSchema
from edelweiss.problems import PROBLEMS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edelweiss.client_app.memory import Provenance
    from edelweiss.client_app.recalibration import Entry
    from edelweiss.config import RunConfig
    from edelweiss.datasets import DataConfig, DataSummary, SiteData


def provenance(run: RunConfig, d: int) -> Provenance:
    """Return the origin of a site's vectors: algorithm, problem, model, and d, the size of x."""
    model: Provenance = {"model": run.model} if PROBLEMS[run.problem].needs_data else {}
    return {"algorithm": run.algorithm, "problem": run.problem, **model, "d": d}


def model_facts(
    run: RunConfig,
    data_summary: DataSummary,
    config: DataConfig,
    data: SiteData | None,
    *,
    own: bool,
    maps: Sequence[Entry | None] | None = None,
) -> dict[str, object]:
    """Return the metadata for using a model of this run; empty for a problem in closed form.

    ``maps`` convert its scores to probabilities, by label; None if they are probabilities or there are no maps. For an
    ``own`` model the metadata list the labels that this site lacks, whose outputs are untrained.
    """
    if data is None:
        return {}
    more: dict[str, object] = {}
    known = (data.train.targets() >= 0).view(len(data.train), -1).any(0).tolist()
    lacking = [label for label, some in zip(data_summary.labels, known, strict=False) if not some]
    if own and lacking:
        more["lacking"] = lacking
    if maps is not None:
        more["platt"] = [*maps]
    model_schema = ModelSchema.of(config, data_summary, data.features, data.class_names)
    return {"hidden": run.hidden, **more, **data_summary.facts(), **model_schema.facts()}
