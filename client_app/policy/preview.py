"""The preview of a run for the operator: what would be computed here and sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edelweiss.client_app.policy import TRUST
from edelweiss.client_app.policy.suppression import no_evaluation
from edelweiss.datasets.errors import examples
from edelweiss.federation.table import sends
from edelweiss.problems import PROBLEMS
from edelweiss.problems.metrics import METRICS

if TYPE_CHECKING:
    from edelweiss.client_app.site import OpenSite
    from edelweiss.datasets import SiteData


def preview(site: OpenSite, data: SiteData | None) -> dict[str, str]:
    """Return the preview of a run, line by line."""
    run, strategy, problem = site.run, site.run.strategy, PROBLEMS[site.run.problem]
    lines = {"study": site.study} if site.study else {}
    often = "every round" if run.evaluate_every == 1 else f"every {run.evaluate_every} rounds"
    lines |= {
        "computes": f"{run.algorithm} on {run.problem}, {run.rounds} rounds" + f", {run.model}" * problem.needs_data,
        "sends in a round": sends(strategy).replace("`", ""),
        "each update from": f"{strategy.local_steps} steps on batches of {run.batch_size}",
        "evaluated": f"{often} and at the end" if run.evaluate_every else "at the end",
    }
    if run.secure_aggregation:
        lines["sent as"] = f"sums over {run.sites} sites, masked: with {', '.join(site.policy.peers) or 'nobody'}"
    if site.privacy is not None and site.guarded:
        lines["privacy"] = site.privacy.in_words(run.sites)
        lines["evaluated"] = "at the end"
    elif problem.needs_data:
        lines["trust"] = TRUST
    if data is None:
        return lines
    if site.privacy is not None and site.guarded and data.features:
        lines["standardises by"] = _standard(site, data)
    if run.fine_tune:
        lines["fine-tunes"] = f"{run.fine_tune} steps on its own samples, at the end"
    if run.share_model or run.personalised:
        lines["keeps here"] = "its own model" if run.personalised else "the final model of all sites"
    lines["label"] = "set by the study" if site.node.study else site.node.label or run.label
    if site.privacy is not None and site.guarded:  # its facts are noised counts, which are paid for once they are sent
        n, held_out = len(site.privacy.patients), len(site.privacy.held_out)
        of_each = " of each label" * bool(run.several)
        lines["sends once"] = f"examples = {n}, held-out = {held_out}; a noised count of each class{of_each}"
        lines["evaluates"] = f"two noised histograms{of_each}" if site.gives_noised and held_out else "nothing"
        return lines
    facts = site.facts()
    counts = {"examples": facts.examples, "held-out": facts.held_out, "positives": facts.positives}
    counted = ", ".join(f"{name} = {count}" for name, count in counts.items() if count is not None)
    counted += f"; counts of {len(facts.class_counts)} classes" * bool(facts.class_counts)
    if facts.label_counts:
        counted += "; for each label, the numbers of known and positive samples"
        each = zip(run.several, facts.label_positives, facts.label_counts, strict=True)
        lines["labels"] = ", ".join(f"{name} {p:,} of {n:,}" if n else f"no {name}" for name, p, n in each)
    lines["sends once"] = counted + f"; three sums of each of {len(facts.count)} features" * bool(facts.count)
    reports = ", ".join(METRICS[name].label for name in problem.reports) + ", of each label" * bool(run.several)
    groups = f"; in groups of {site.policy.fewest_of_each_class} or more"
    lines["evaluates"] = (no_evaluation(data, site.policy) or reports + groups) if site.suppresses else reports
    if site.gives_evidence:
        more = "the AUROC and its variance"
        more += "; histograms of a second model, and the difference of the two" * bool(run.compare_with)
        lines["for evidence.json"] = more if site.exact else "no individual scores; the study's subgroups only"
    if facts.notes:
        lines["differs from the run"] = "; ".join(facts.notes)
    return lines


def _standard(site: OpenSite, data: SiteData) -> str:
    """Return what a private run standardises the columns of a table by: no site sends sums of them."""
    study = site.data_config.study
    typical = study.typical() if study else {}
    left = [repr(name) for name in data.features if typical.get(name) is None]
    if not site.run.standardise or len(left) == len(data.features):
        return "nothing: no sums of columns are sent. Columns of large numbers drown the others"
    but = f", but not {examples(left)}, of which it says neither mean and deviation nor range"
    return "the study file" + but * bool(left)
