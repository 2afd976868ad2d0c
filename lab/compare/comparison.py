"""A comparison of groups of runs: its table as Markdown, LaTeX and CSV, and its pictures."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

from edelweiss.common import unknown
from edelweiss.config import ConfigError
from edelweiss.config.values import parse_words
from edelweiss.lab.compare.folders import Found, edges, grouped
from edelweiss.lab.compare.groups import CONFIDENCE, Difference, Group
from edelweiss.lab.compare.pictures import draw
from edelweiss.lab.compare.runs import final, label_of, metric, name_of, paths
from edelweiss.lab.compare.samples import require_comparable
from edelweiss.lab.compare.text import NOTHING, amount, latex, markdown, remark, spread
from edelweiss.problems import PROBLEMS
from edelweiss.problems.metrics import HEADLINE, METRICS, RANKINGS
from edelweiss.strategies import ALGORITHMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from edelweiss.config import RunConfig

COSTS = {"megabytes": "MB per site", "gradients": "gradients per site", "seconds": "seconds"}
WHERE = {"central": "test set", "pooled": "held out", "noised": "held out, under noise", "over-sites": "over sites"}


@dataclass(frozen=True)
class Comparison:
    """Groups of runs, compared in some metrics; in a notebook it shows its table.

    Attributes
    ----------
    groups : list of Group
        The lines of the table.
    metrics : dict
        Path in a line of metrics.jsonl → heading. Differences are in the first.
    base : Group
        To which the differences are.
    found : list of Found
        The run folders.
    notes : list of str
        What one has to know to read the table.
    columns : dict
        Heading → the text of a group, by the name of any of its run folders: of a sweep, what was chosen.
    corrected : bool
        Whether the intervals of differences are wider by their number (Bonferroni), so that all hold together.
    """

    groups: list[Group]
    metrics: dict[str, str]
    base: Group
    found: list[Found]
    notes: list[str] = field(default_factory=list)
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    corrected: bool = False

    @classmethod
    def of(
        cls,
        found: list[Found],
        metrics: Sequence[str] = (),
        versus: str = "",
        notes: Sequence[str] = (),
        columns: Mapping[str, Mapping[str, str]] | None = None,
        corrected: bool = False,
    ) -> Comparison:
        """Compare run folders in some metrics, by default in those of a round's line that all have.

        Raises
        ------
        ConfigError
            For a metric or a group that is not there, and for runs that cannot be compared.
        """
        chosen = {path: heading_of(path, found) for path in chosen_metrics(found, metrics)}
        require_comparable(found, next(iter(chosen)))
        groups, names = grouped(found)
        labels = [group.label for group in groups]
        if versus and versus not in labels:
            raise ConfigError("command", [f"--versus: {unknown('group', versus, labels)}"])
        base = groups[labels.index(versus) if versus else 0]
        comparison = cls(groups, chosen, base, found, corrected=corrected)
        return replace(comparison, notes=[*comparison._notes(), *names, *notes], columns=columns or {})

    def difference(self, group: Group) -> Difference:
        """Return a group's difference to the base, in the first metric."""
        comparisons = max(1, len(self.groups) - 1) if self.corrected else 1
        return Difference.between(group, self.base, next(iter(self.metrics)), comparisons)

    def _notes(self) -> Iterator[str]:
        path, heading = next(iter(self.metrics.items()))
        runs = [run for group in self.groups for run in group.runs]
        seeds = {key: sorted({run.repeat[key] for run in runs}) for key in runs[0].repeat}
        over = " × ".join(f"{key} {', '.join(map(str, values))}" for key, values in seeds.items())
        yield f"Mean ± standard deviation over runs ({over}). Diverged runs are excluded from means."
        if len(self.groups) > 1:
            corrected = (
                "by Bonferroni wide enough to hold together" if self.corrected else "not corrected for their number"
            )
            yield (
                f"Differences in {heading} to {self.base.label}, paired by seed: mean and {CONFIDENCE:.0%} confidence "
                f"interval (Student's t over the pairs, {corrected}). An interval that contains 0 "
                "shows no order. They are about seeds, which draw split, start and batches, not about other patients."
            )
        if (off := max(group.max_tie_error(path) for group in self.groups)) >= 5e-5:
            yield (
                f"Some sites reported groups of patients, so {heading} of a run may be off by up to {off:.2g}; smaller "
                "differences show no order."
            )
        if alone := [
            group.label for group in self.groups if group is not self.base and self.difference(group).pairs < 2
        ]:
            yield f"Fewer than two pairs of equal seeds with {self.base.label}: {'; '.join(alone)}."
        yield from edges(self.found, path)
        versions = {run.outcome.version for run in runs}
        if len(versions) > 1:
            named = ", ".join(sorted(version or "?" for version in versions))
            yield f"The runs are of {len(versions)} versions of the code: {named}."

    # ------------------------------------------------------------------ the table

    def lines(self) -> list[list[str]]:
        """Return the table: its heading, and a line per group."""
        heading = next(iter(self.metrics.values()))
        several = len(self.groups) > 1
        differences = [f"difference in {heading}"] * several
        folder = {id(each.run): each.path.name for each in self.found}
        lines = [["setting", *self.columns, "runs", *self.metrics.values(), *differences, "rounds", *COSTS.values()]]
        for group in self.groups:
            name = folder[id(group.runs[0])]
            line = [group.label + remark(group), *(texts[name] for texts in self.columns.values())]
            line.append(str(len(group.runs)))
            line += [spread(group.values(each), group.max_tie_error(each)) for each in self.metrics]
            if several:
                difference = self.difference(group)
                shows = group is not self.base and difference.pairs > 1
                line.append(str(difference) if shows else NOTHING)
            rounds = max((len(run.outcome.records) for run in group.converged), default=0)
            lines.append([*line, str(rounds), *(amount(group.spent(kind)) for kind in COSTS)])
        return lines

    def markdown(self) -> str:
        """Return the table and its notes."""
        heading, *rest = self.lines()
        rule = ["---", *["---:"] * (len(heading) - 1)]
        return "\n\n".join((markdown([heading, rule, *rest]), *self.notes)) + "\n"

    def latex(self) -> str:
        """Return the table for LaTeX with booktabs; the notes are its comments."""
        return latex(self.lines(), self.notes)

    @cached_property
    def runs(self) -> pd.DataFrame:
        """A row for each run: its group, seed, metrics, costs and folder; NaN where it has no value."""
        place = {id(each.run): each for each in self.found}
        rows = []
        for group in self.groups:
            for run in group.runs:
                row: dict[str, Any] = {"group": group.label, **run.repeat}
                row |= {"rounds": len(run.outcome.records), "outcome": "diverged" if run.outcome.diverged else "done"}
                for path in self.metrics:
                    row |= {path: final(run.outcome, path)} | place[id(run)].over_patients(path)
                row |= {
                    heading: round(curve[-1][1], 6) for kind, heading in COSTS.items() if (curve := run.spending(kind))
                }
                rows.append(row | {"folder": str(place[id(run)].path)})
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        return self.markdown()

    def _repr_html_(self) -> str:
        heading, *rest = self.lines()
        return pd.DataFrame(rest, columns=heading).to_html(index=False)

    def write(self, folder: Path, against: Sequence[str] = ("rounds",)) -> None:
        """Write runs.csv, table.md and table.tex, and a picture for each of what curves are drawn against."""
        folder.mkdir(parents=True, exist_ok=True)
        self.runs.to_csv(folder / "runs.csv", index=False)
        text = self.markdown()
        if any(group.converged for group in self.groups):
            for each in against:
                draw(self.groups, self.metrics, each, folder / f"curves-{each}")
                text += f"\n![curves against {each}](curves-{each}.png)\n"
            text += "\nLines: means over the runs. Bands: ± one standard deviation.\n"
        (folder / "table.md").write_text(text, encoding="utf-8")
        (folder / "table.tex").write_text(self.latex(), encoding="utf-8")


def chosen_metrics(found: Sequence[Found], wanted: Sequence[str]) -> list[str]:
    """Return the paths of what is compared; ConfigError when there is no such metric in all runs.

    A name such as ``auroc`` is taken on the common test set where all runs have one; else over the sites where some
    runs train a model for each, or on all held-out samples. ``auroc.Edema`` is one label's, and ``auroc`` the mean over
    labels. Without names it is all that a round's line shows; the loss, which depends on the problem, only if there is
    nothing else.
    """
    ended = [each for each in found if not each.run.outcome.diverged and each.run.outcome.records]
    if not ended:
        raise ConfigError("runs to compare", ["all of them diverged"])
    there = [
        path for path in paths(ended[0].run.outcome.last) if all(path in paths(each.run.outcome.last) for each in ended)
    ]
    own = any(ALGORITHMS[str(each.written["algorithm"])].personalised for each in found)
    named = _named(there, own=own)
    if not there:
        texts = [f"{each.path} has {', '.join(paths(each.run.outcome.last)) or 'none'}" for each in ended]
        raise ConfigError("runs to compare", ["no metric is in the last line of all of them:", *texts])
    _require_known(wanted, [*named, *there])
    default = [path for name, path in named.items() if name in HEADLINE and name != "loss"]
    default = default or list(named.values()) or there[:1]
    first = default[0].partition(".")[0]  # the others are taken on the same samples
    return [named.get(name, name) for name in wanted] or [p for p in default if p.partition(".")[0] == first]


def require_metrics(runs: Sequence[RunConfig], wanted: Sequence[str]) -> None:
    """Check names of metrics before there are any runs.

    Raises
    ------
    ConfigError
        For those that `chosen_metrics` could not find. Whether there is a common test set shows later, in the data.
    """
    each = [_expected(run) for run in runs]
    there = [path for path in each[0] if all(path in others for others in each)]
    _require_known(wanted, [*_named(there, own=any(run.strategy.personalised for run in runs)), *there])


def _expected(run: RunConfig) -> list[str]:
    """Return the path of each metric that the last line of such a run may have."""
    problem = PROBLEMS[run.problem]
    labels = run.several if problem.several else ()
    names = [*problem.reports, *parse_words(run.metrics)]
    names += (f"{name}.{label}" for name in RANKINGS for label in labels if name in problem.reports)
    if problem.needs_data:
        names.append("loss")
    counts = [name for name, row in METRICS.items() if not row.better and row.pooled != "only"]
    tested = not run.strategy.personalised and not (
        problem.needs_data and (run.dataset == "site" or not run.central_test or run.bn != "average")
    )
    parts = ["central"] * tested + ["pooled"]
    found = [f"{part}.{name}" for part in parts for name in (*names, *counts)]
    found += [f"noised.{name}" for name in names if run.private and name.partition(".")[0] in RANKINGS]
    return found + [f"over-sites.{name}.{kind}" for name in names for kind in ("mean", "std", "worst-decile")]


def _named(there: Sequence[str], *, own: bool) -> dict[str, str]:
    """Return names in short, and the path that each stands for; ``own``: whether sites have models of their own."""
    forms = ["central.{}", *(["over-sites.{}.mean"] if own else ["pooled.{}", "over-sites.{}.mean"]), "noised.{}"]
    named = {}
    outside = (name for name, row in METRICS.items() if row.of)
    for name in (*HEADLINE, *outside, *dict.fromkeys(each for path in there if (each := _of_a_label(path)))):
        if path := next((form.format(name) for form in forms if form.format(name) in there), ""):
            named[name] = path
    return named


def _require_known(wanted: Sequence[str], allowed: Sequence[str]) -> None:
    if wrong := [f"--metric: {unknown('metric', name, allowed)}" for name in wanted if name not in allowed]:
        raise ConfigError("command", wrong)


def _of_a_label(path: str) -> str:
    """Return the name of a label's own metric, as in ``"auroc.Edema"``; empty if a path leads to none."""
    label, name = label_of(path), name_of(path)
    return f"{name}.{label}" if label and name in HEADLINE else ""


def heading_of(path: str, found: Sequence[Found]) -> str:
    """Return how a person reads a path."""
    part, _, rest = path.partition(".")
    name = name_of(path)
    label = METRICS[name].label if name else rest
    if of := label_of(path):
        label = f"{label} of {of}"
    elif name and any(_of_a_label(other) for other in paths(found[0].run.outcome.last)):
        label = f"mean {label}"
    kind = rest.rpartition(".")[2] if part == "over-sites" else ""
    where = f"{kind} {WHERE[part]}".strip()
    coordinator = part == "central" and all(metric(each.run.outcome.last, "central.n") is None for each in found)
    return label if coordinator else f"{label}, {where}"
