"""The metric that a sweep may choose by: one on held-out samples that all of its problems report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edelweiss.common import hint
from edelweiss.common import shown as quoted
from edelweiss.lab.compare.runs import name_of
from edelweiss.problems import PROBLEMS
from edelweiss.problems.metrics import METRICS, RANKINGS, split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edelweiss.problems import Problem


def cannot_select(select: str, problems: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Return why a metric cannot choose, as a list of problems; empty if it can.

    With several labels, ``select`` names their mean, or one label's value as in ``pooled.auroc.Edema``. Unknown
    problems are reported elsewhere.
    """
    several = labels if len(labels) > 1 else ()
    each = {name: selectable(PROBLEMS[name], several) for name in problems if name in PROBLEMS}
    lacking = [name for name, own in each.items() if select not in own]
    if not lacking:
        return []
    forms = [form for form in next(iter(each.values())) if all(form in others for others in each.values())]
    if select.startswith("central.") and PROBLEMS[lacking[0]].needs_data:
        why, near = "the test set has no part in a choice.", hint(f"pooled.{name_of(select)}", forms)
    else:
        why = f"problem = {quoted(lacking[0])} does not report it." if name_of(select) else "unknown."
        near = hint(select, forms)
    common = f"It may be {', '.join(forms)}" if forms else f"No number is common to {', '.join(each)}"
    return [f"select = {quoted(select)}: {why}{near} {common}"]


def selectable(problem: type[Problem], labels: Sequence[str]) -> list[str]:
    """Return the paths of the numbers by which a problem's runs can be chosen."""
    names = [*problem.reports, *(["loss"] if problem.needs_data else [])]
    if not problem.needs_data:
        return [f"central.{name}" for name in names]
    names += [f"{name}.{label}" for name in RANKINGS if name in names and problem.several for label in labels]
    headline = [name for name in names if METRICS[split(name)[0]].headline]  # what is summed up over sites
    noised = [f"noised.{name}" for name in names if split(name)[0] in RANKINGS]  # with differential privacy
    return (
        [f"pooled.{name}" for name in names]
        + noised
        + [f"over-sites.{name}.{kind}" for kind in ("mean", "worst-decile") for name in headline]
    )
