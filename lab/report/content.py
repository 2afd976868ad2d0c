"""What a run folder holds, read for its report; the run that made it may be of another machine."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from edelweiss.common import shown
from edelweiss.common.files import as_path, reason
from edelweiss.config import RunConfig
from edelweiss.datasets import DataSummary, ModelSchema
from edelweiss.datasets.config import SITE
from edelweiss.evidence import VERSION
from edelweiss.federation import RunError
from edelweiss.lab.run_folder import AGAIN, read_config, read_part, read_records
from edelweiss.models.storage import StoredTensors
from edelweiss.problems import PROBLEMS
from edelweiss.problems.metrics import HEADLINE, by_label
from edelweiss.server_app import about
from edelweiss.server_app.evidence import FILE as EVIDENCE

UNKNOWN = "not known here"
MOST_NAMES = 50  # of inputs
Row = dict[str, Any]
Rows = list[list[str]]
"""The cells of a table."""
Table = tuple[list[str], Rows]
"""Its heads, and its cells."""


@dataclass(frozen=True)
class Content:
    """A run."""

    folder: Path  # where it is
    config: RunConfig  # what was asked for
    # of `status.json`: "complete", "stopped" or "running", since when, and why; what looks wrong with its training
    status: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)  # see `about.gathered`
    records: list[Row] = field(default_factory=list)  # the lines of `metrics.jsonl`
    evidence: dict[str, Any] | None = None  # see `evidence.summary`; None where there is none
    label: str = ""  # the one of several labels that this is about, see `parts`; empty: the whole run

    @classmethod
    def read(cls, name: str | Path) -> Content:
        """Read a run folder; RunError naming the file that is missing, damaged or of another version."""
        try:
            folder = as_path(name)
            config, records = read_config(folder), read_records(folder)
            parts = {file: read_part(folder, file) for file in ("status.json", about.FILE, EVIDENCE)}
            for file, latest in ((about.FILE, about.VERSION), (EVIDENCE, VERSION)):
                if parts[file] and (found := parts[file].get("version")) not in range(1, latest + 1):
                    what = f"its {file} has version {shown(found)}; this release reads 1 to {latest}"
                    raise ValueError(f"{what}: {AGAIN}")
        except (OSError, ValueError) as error:
            where = shown(str(name)) if isinstance(error, OSError) else repr(str(name))  # no path, or one to be found
            raise RunError(f"{where}: {reason(error)}") from None
        return cls(folder, config, parts["status.json"], parts[about.FILE], records, parts[EVIDENCE] or None)

    @property
    def title(self) -> str:
        """The run in a few words."""
        needs_data = PROBLEMS[self.config.problem].needs_data
        data = f" on {self.config.dataset}" if needs_data else ""
        return f"{self.config.algorithm}, {self.config.problem}{data}"

    @property
    def personalised(self) -> bool:
        """Whether each site has a model of its own."""
        return self.config.personalised

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of several labels; empty for one."""
        return self.config.several if PROBLEMS[self.config.problem].several and not self.label else ()

    @cached_property
    def parts(self) -> list[Content]:
        """The run as it would be if each of several labels were the only one; empty where there is one."""
        judged = (self.evidence or {}).get("labels", {})
        return [
            replace(
                self,
                label=label,
                evidence=judged.get(label),
                about={**self.about, "sites": self._sites_of(place)},
                records=[_of_label(record, label, self.personalised) for record in self.records],
            )
            for place, label in enumerate(self.labels)
        ]

    def _sites_of(self, place: int) -> dict[str, Row]:
        """Return what each site reported about a label before the run."""
        counted = {"examples": "label-counts", "positives": "label-positives"}
        return {
            name: {key: site[counts][place] for key, counts in counted.items() if counts in site}
            for name, site in self.about.get("sites", {}).items()
        }

    @property
    def account(self) -> list[str]:
        """How the data were prepared, a sentence each; for hospitals' own data see the sites' notes."""
        reported = self.about.get("sites", {}).values() if self.config.dataset != SITE else ()
        return list(
            dict.fromkeys(f"{note[:1].upper()}{note[1:]}." for site in reported for note in site.get("notes", []))
        )

    @property
    def notes(self) -> list[str]:
        """What a reader of the results must know, with the labels that it concerns where not all."""
        warnings = list(map(str, self.status.get("warnings", [])))
        if not self.labels:
            return [*warnings, *(self.evidence or {}).get("notes", [])]
        judged = {part.label: part.evidence["notes"] for part in self.parts if part.evidence}
        found: dict[str, list[str]] = {}
        for label, notes in judged.items():
            for note in notes:
                found.setdefault(note, []).append(label)
        of_labels = [note if len(of) == len(judged) else f"{', '.join(of)}: {note}" for note, of in found.items()]
        return [*warnings, *of_labels]

    @property
    def data_warnings(self) -> list[str]:
        """What may be wrong with the data, a line each."""
        return list(self.about.get("data-warnings", []))

    @cached_property
    def model_schema(self) -> ModelSchema | None:
        """What the inputs and labels are, as far as the model's file says; None without one."""
        path = self.folder / "model.safetensors"
        if not (PROBLEMS[self.config.problem].needs_data and os.path.lexists(path)):
            return None
        try:
            facts = StoredTensors.read(path).facts
            return ModelSchema.of_file(facts, DataSummary.of_file(facts))
        except (OSError, ValueError) as error:
            raise RunError(f"{path} is damaged, or of another version ({reason(error)}): run it anew") from None

    @property
    def inputs(self) -> str:
        """The inputs, with their units where a study says them."""
        shape, model_schema = self.about.get("inputs", {}).get("shape"), self.model_schema
        if model_schema and model_schema.features:
            columns = model_schema.study.columns if model_schema.study else ()
            units = {name: column.unit for column in columns for name in column.features}
            for column in columns:
                if column.one_hot:
                    units |= dict(zip(column.features, column.meanings.values(), strict=True))
                elif column.before_index:
                    units[column.name] = column.unit or f"{column.before_index} before the index date"
            named = [f"{name} ({units[name]})" if units.get(name) else name for name in model_schema.features]
            return ", ".join(named[:MOST_NAMES]) + f" and {len(named) - MOST_NAMES} more" * (len(named) > MOST_NAMES)
        return f"of shape {' x '.join(map(str, shape))}, names {UNKNOWN}" if shape else UNKNOWN

    @property
    def outcome(self) -> str:
        """The label, and what stands for a positive."""
        model_schema = self.model_schema
        if model_schema is None or not (model_schema.label or model_schema.classes):
            return UNKNOWN
        means = [" or ".join(own) for own in model_schema.classes]
        positive = f", positive: {means[1]}" if len(means) == 2 else ""
        if model_schema.dataset == SITE and model_schema.study is None and len(means) == 2 and not self.labels:
            positive = f"{positive}, or what a hospital's own study file says"
        if len(means) > 2 and means != [*map(str, range(len(means)))]:
            positive = ", " + ", ".join(f"class {number}: {own}" for number, own in enumerate(means))
        unusual = "".join(f". {text.removesuffix('.')}" for text in model_schema.unusual())
        column = f"columns {', '.join(self.labels)}" if self.labels else f"column {model_schema.label}"
        return f"{column if model_schema.label else 'classes of the data set'}{positive}{unusual}"

    @cached_property
    def last(self) -> Row:
        """The last round that the sites evaluated; empty where none was."""
        return next((record for record in reversed(self.records) if "sites" in record), {})

    @cached_property
    def sites(self) -> list[Row]:
        """A row for each site: what it reported before the run, what it did, and how the last model performs there."""
        known = dict(self.about.get("sites", {}))
        known |= {name: {} for name in self.last.get("sites", {}) if name not in known}
        rounds: dict[str, int] = {}
        gradients: dict[str, float] = {}
        for record in self.records:
            for name, count in record.get("site-gradients", {}).items():
                rounds[name] = rounds.get(name, 0) + 1
                gradients[name] = gradients.get(name, 0.0) + count
        judged = (self.evidence or {}).get("sites", {})
        return [
            {
                "name": name,
                **reported,
                "rounds": rounds.get(name, 0),
                "gradients": gradients.get(name, 0.0),
                "metrics": self.last.get("sites", {}).get(name, {}),
                "evidence": judged.get(name),
            }
            for name, reported in known.items()
        ]

    @cached_property
    def cost(self) -> dict[str, float]:
        """What the whole run took: rounds, bytes both ways, gradients, samples, seconds."""
        kinds = ("bytes-down", "bytes-up", "gradients", "samples", "seconds", "seconds-waiting")
        totals = {kind: math.fsum(record.get(kind) or 0.0 for record in self.records) for kind in kinds}
        return {"rounds": float(len(self.records))} | totals


def shares(run: Content) -> str:
    """Return the share of positives of each of several labels, in words; it is not known of an older run."""
    priors = run.about.get("inputs", {}).get("priors", {})
    return ", ".join(f"{label} {priors[label]:.1%}" if label in priors else label for label in run.labels)


def _of_label(record: Row, label: str, personalised: bool) -> Row:
    """Return a line of metrics.jsonl as it would be if this label were the only one; costs are left out."""
    own: Row = {"round": record["round"]}
    own |= {
        part: by_label(record[part]).get(label, {}) for part in ("pooled", "central", "over-sites") if part in record
    }
    if "sites" in record:
        own["sites"] = {name: by_label(metrics).get(label, {}) for name, metrics in record["sites"].items()}
    line: Row = own.get("central") or own.get("pooled") or {}
    if personalised:
        line = {name: summary["mean"] for name, summary in own.get("over-sites", {}).items()}
    return own | {name: line[name] for name in HEADLINE if name in line}
