"""``report.html``: one file, without a network, of all that a run folder says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from config import RunConfig
from models.storage import replacing
from problems import PROBLEMS
from problems.metrics import HEADLINE, METRICS, shown
from server_app.console import volume
from server_app.page import figures
from server_app.page.content import Content, shares
from server_app.page.figures import estimate
from server_app.page.template import PAGE, STYLE
from strategies import ALGORITHMS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from matplotlib.figure import Figure

FILE = "report.html"
PLACES = {"pooled": "all sites pooled", "within-sites": "within sites", "common-test-set": "common test set"}
MOST_DRAWN = 20  # of several labels: the numbers of all are there
CONSERVATIVE = (
    "The ends of a mean's interval are the means of the labels' ends. All labels are of the same patients, so they may "
    "be wrong together; the interval is as wide as if they were, and so no narrower than it should be."
)
Rows = list[list[str]]
Table = tuple[list[str], Rows]


def write(run: Content) -> Path:
    """Write the page, and its curves as files of their own; returns the page's path."""
    path = run.folder / FILE
    with replacing(path) as file:
        file.write(html(run).encode())
    if run.records:
        figures.save(drawings(run)["curves"], run.folder / "curves")
    return path


def html(run: Content) -> str:
    """Return the page."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    pictures = {name: Markup(figures.as_svg(draw)) for name, draw in drawings(run).items()}
    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True).from_string(PAGE)
    return page.render(
        run=run,
        style=Markup(STYLE),
        pictures=pictures,
        numbers=list(_numbers(run)),
        notes=run.notes,
        data=_data(run),
        sites=_site_table(run),
        site_note=_site_note(run),
        known=_known_table(run),
        labels=_label_table(run),
        conservative=CONSERVATIVE,
        parts=[{"anchor": anchor, "label": part.label, "sites": _site_table(part), "short": _in_short(part),
                **_judged(part)} for anchor, part in _anchored(run)],
        costs=_costs(run),
        left=list(_left(run)),
        **_settings(run.config),
        versions=[[name, number] for name, number in _versions(run).items()],
        whole={"anchor": "", **_judged(run)},
    )  # fmt: skip


def drawings(run: Content) -> dict[str, Callable[[], Figure]]:
    """Return what can be drawn of a run, by name."""
    found: dict[str, Callable[[], Figure]] = {}
    if run.records:
        several = bool(run.labels)
        found["curves"] = lambda: figures.curves(run.records, personalised=run.personalised, several=several)
    if run.labels:
        if judged := run.evidence:
            found["labels"] = lambda: figures.labels(judged)
        for anchor, part in list(_anchored(run))[:MOST_DRAWN]:
            found |= {f"{anchor}-{name}": draw for name, draw in drawings(part).items()}
    elif evidence := run.evidence:
        found["calibration"] = lambda: figures.calibration(evidence)
        if evidence["sites"]:
            found["forest"] = lambda: figures.forest(evidence)
        if evidence["pooled"] or evidence["common-test-set"]:
            found["roc"] = lambda: figures.roc(evidence)
            found["precision-recall"] = lambda: figures.precision_recall(evidence)
            found["net-benefit"] = lambda: figures.net_benefit(evidence)
    return found


# ---------------------------------------------------------------------- what was reached


def _numbers(run: Content) -> Iterator[tuple[str, str, str]]:
    """Yield the numbers at the top: a label, the value, what it is of."""
    means = run.evidence["mean"] if run.labels and run.evidence else {}
    for key, label in PLACES.items():
        if mean := means.get(key):
            yield f"Mean AUROC over labels, {label}", *_halves(mean["auroc"], f"{mean['labels']} labels")
    evidence = None if run.labels else run.evidence
    for key, label in (("pooled", "AUROC, all sites pooled"), ("common-test-set", "AUROC, common test set")):
        if evidence and (one := evidence[key]):
            yield label, *_halves(one["auroc"], f"{one['positives']:,} positive of {one['n']:,}")
    if evidence and evidence["within-sites"]["sites"]:
        within = evidence["within-sites"]
        yield "AUROC within sites", *_halves(within["auroc"], f"mean of {within['sites']} sites with both classes")
    if evidence and (one := evidence["pooled"]):
        yield "Average precision", *_halves(one["auprc"], f"chance: {one['positives'] / one['n']:.2f}")
    if not run.evidence and run.last:
        over = "mean over sites" if run.personalised else "the line of the last round"
        over = f"mean over labels; {over}" if run.labels else over
        for name in HEADLINE:
            if run.last.get(name) is not None:
                yield METRICS[name].label, shown(run.last[name]), over
    yield "Rounds", f"{len(run.records):,} of {run.config.rounds:,}", f"{len(run.sites)} sites"
    yield "Moved", volume(run.cost["bytes-up"] + run.cost["bytes-down"]), f"{run.cost['seconds']:,.0f} s"


def _halves(found: Mapping[str, Any], of: str) -> tuple[str, str]:
    value, _, ends = estimate(found).partition(" (")
    return value, f"{ends.removesuffix(')')}; {of}" if ends else of


def _anchored(run: Content) -> Iterator[tuple[str, Content]]:
    """Yield each of several labels with a name for its place in the page, and for its pictures."""
    for place, part in enumerate(run.parts, 1):
        yield f"label-{place}-{re.sub(r'[^A-Za-z0-9]+', '-', part.label).strip('-')}".strip("-"), part


def _label_table(run: Content) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return the heads of the table of labels, and its rows: where a label's part begins, and the cells."""
    if not (run.labels and run.evidence):
        return [], []
    judged, mean = run.evidence["labels"], run.evidence["mean"]
    cells = [(key, kind) for kind in ("auroc", "auprc") for key in PLACES if kind in (mean[key] or {})]
    kinds = {"auroc": "AUROC", "auprc": "average precision"}
    heads = ["label", "samples", "positive", *(f"{kinds[kind]}, {PLACES[key]}" for key, kind in cells)]
    rows = []
    for anchor, part in _anchored(run):
        own = judged.get(part.label)
        values = [estimate(own[key][kind]) if own and own[key] else "-" for key, kind in cells]
        rows.append((anchor, [part.label, *_counts(own), *values]))
    last = [f"{estimate(mean[key][kind])}, of {mean[key]['labels']}" for key, kind in cells]
    return heads, [*rows, ("", ["mean over labels", "", "", *last])]


def _counts(own: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return of how many samples a label is known that the model was judged on, and of how many it is positive."""
    every = list(own["sites"].values()) or [own["common-test-set"]] if own else []
    sums = (sum(one[key] for one in every) for key in ("n", "positives"))
    n, positives = (f"{count:,}" if every else "-" for count in sums)
    return n, positives


def _in_short(part: Content) -> str:
    """Say in a line what came of a label."""
    own = part.evidence
    said = [f"AUROC {PLACES[key]} {estimate(own[key]['auroc'])}" for key in PLACES if own and own[key]]
    return "; ".join(said) or "no sample that it is known of was evaluated"


def _judged(run: Content) -> dict[str, Any]:
    """Return what the page says of the evidence of one label."""
    evidence = None if run.labels else run.evidence
    if not evidence:
        return {"evidence": None}
    together = [(label, one) for label, one, _ in figures.together(evidence)]
    every = together + ([] if together else list(evidence["sites"].items()))
    points = [
        [f"{label}: {point['told']} at {point['fixed']} {point['at']:.2f}", f"{point['reached']:.3f}",
         estimate(point), shown(point["threshold"])]
        for label, one in together for point in one["points"] if point["value"] is not None
    ]  # fmt: skip
    rows = [[label, f"{one['n']:,}", estimate(one["calibration"]["intercept"]), estimate(one["calibration"]["slope"]),
             shown(one["calibration"]["brier"]), shown(one["calibration"]["ece"])] for label, one in every]  # fmt: skip
    groups = [[f"{column}: {name}", f"{one['n']:,}", f"{one['positives']:,}", str(one["sites"]),
               *(estimate(one[key]) if key in one else "-" for key in ("auroc", "sensitivity", "specificity"))]
              for column, found in evidence["subgroups"].items() for name, one in found.items()]  # fmt: skip
    return {
        "evidence": evidence,
        "points": points,
        "point_heads": ["operating point", "reached", "value (95 % interval)", "threshold of the score"],
        "probabilities": _probabilities(evidence["probabilities"]),
        "calibration_rows": rows,
        "calibration_heads": ["", "samples", "intercept", "slope", "Brier score", "calibration error (ECE)"],
        "subgroups": groups,
        "subgroup_heads": ["group", "samples", "positive", "sites", "AUROC", "sensitivity", "specificity"],
        "compared": _compared(evidence["compared"]),
    }


def _compared(compared: Mapping[str, Any] | None) -> Rows:
    """Return the rows of the table that compares two models."""
    if not compared:
        return []
    every = list(compared["by-site"].items())
    for label, key in (("all sites pooled", "pooled"), ("common test set", "common-test-set")):
        every += [(label, compared[key])] * bool(compared.get(key))  # an older run has none that is pooled
    rows = [[name, shown(one["auroc"]), shown(one["other"]), estimate(one["difference"], signed=True), shown(one["p"])]
            for name, one in every]  # fmt: skip
    mean = [f"mean within {compared['sites']} sites", "", "", estimate(compared["difference"], signed=True)]
    return rows + [[*mean, shown(compared["p"])]] * bool(compared["sites"])


def _probabilities(said: Mapping[str, Any]) -> str:
    if said["by"] == "none":
        return "The model's scores are log-odds, so they are probabilities as they stand."
    how = "Training for the area under a curve ranks patients and yields no probabilities. A Platt map, p = 1 / "
    how += "(1 + exp(-(a + b s))), was fitted to the scores s of held-out patients"
    if said["intercept"] is not None:
        how += f" (a = {said['intercept']:.3g}, b = {said['slope']:.3g})"
    return how + {
        "other-sites": "; each site is assessed with the map that was fitted at all others.",
        "same-patients": "; it is assessed on the patients that it was fitted on, which is optimistic.",
    }.get(said["assessed-on"], ".")


# ---------------------------------------------------------------------- whose data


def _data(run: Content) -> str:
    told, inputs = run.about.get("sites", {}), run.about.get("inputs", {})
    if not PROBLEMS[run.config.problem].needs_data:
        return f"{len(run.sites)} sites; the problem is in closed form and needs no patients."
    if not inputs:
        return f"{len(run.sites)} sites; the run ended before they had told of their data."
    train = sum(site.get("examples") or 0 for site in told.values())
    held_out = sum(site.get("held-out") or 0 for site in told.values())
    shape = inputs["shape"]
    form = f"{shape[0]} features" if len(shape) == 1 else f"images of {' x '.join(map(str, shape))}"
    share = (
        "" if PROBLEMS[run.config.problem].multiclass else f", {inputs['prior']:.1%} positive as the sites are weighted"
    )
    what = f"{inputs['classes']} classes{share}"
    if run.labels:
        what = f"{len(run.labels)} labels, positive as the sites that know them are weighted: {shares(run)}"
    return (
        f"{len(told)} sites with {train:,} samples to train on and {held_out:,} held out; {form}, "
        f"{what}. Inputs: {run.inputs}. Outcome: {run.outcome}."
    )


def _known_table(run: Content) -> Table:
    """Return how many training samples each site has of which each of several labels is known, and positive."""
    rows = [[site["name"], *(f"{positive:,} of {known:,}" if known else "-"
                             for positive, known in zip(site["label-positives"], site["label-counts"], strict=True))]
            for site in run.sites if run.labels and "label-counts" in site]  # fmt: skip
    return ["site", *run.labels], rows


def _site_table(run: Content) -> Table:
    """Return the heads and rows of the table of sites; that of one of several labels leaves out what is of all."""
    judged = any(site["evidence"] for site in run.sites)
    names = [name for name in HEADLINE if any(site["metrics"].get(name) is not None for site in run.sites)]
    counted = {"examples": "train", "positives": "positive", "held-out": "held out", "missing": "missing values"}
    counted = {key: label for key, label in counted.items() if any(site.get(key) for site in run.sites)}
    heads = [
        "site",
        *counted.values(),
        *([] if run.label else ["rounds", "gradients"]),
        *["AUROC (95 % interval)", "AP (95 % interval)"] * judged,
    ]
    of = ", mean over labels" if run.labels else ""
    heads += [METRICS[name].label + of for name in names if not (judged and name in ("auroc", "auprc"))]
    rows = []
    for site in run.sites:
        row = [site["name"], *(f"{site[key]:,}" if site.get(key) is not None else "-" for key in counted)]
        row += [] if run.label else [f"{site['rounds']:,}", f"{site['gradients']:,.0f}"]
        if judged:
            one = site["evidence"]
            row += [estimate(one["auroc"]), estimate(one["auprc"])] if one else ["-", "-"]
        row += [shown(site["metrics"].get(name)) for name in names if not (judged and name in ("auroc", "auprc"))]
        rows.append(row)
    return heads, rows


def _site_note(run: Content) -> str:
    notes = [f"{site['name']}: {note}" for site in run.sites for note in site.get("notes", [])]
    told = "Each site's own model, on its own held-out samples." if run.personalised else ""
    return " ".join([told or "The final model, on each site's held-out samples.", *(f"{note}." for note in notes)])


# ---------------------------------------------------------------------- what it took


def _costs(run: Content) -> Rows:
    cost, rounds = run.cost, max(1.0, run.cost["rounds"])
    rows = [["rounds", f"{cost['rounds']:,.0f}", ""]]
    for key, label in (("bytes-down", "sent to sites"), ("bytes-up", "sent by sites")):
        rows.append([label, volume(cost[key]), volume(cost[key] / rounds)])
    for key, label in (("gradients", "mini-batch gradients"), ("samples", "gradients of single samples")):
        rows.append([label, f"{cost[key]:,.0f}", f"{cost[key] / rounds:,.0f}"])
    for key, label in (("seconds", "seconds"), ("seconds-waiting", "of these waiting for sites")):
        rows.append([label, f"{cost[key]:,.1f}", f"{cost[key] / rounds:,.2f}"])
    return rows


def _left(run: Content) -> Iterator[list[str]]:
    """Yield what leaves a site, and when."""
    algorithm, needs_data = ALGORITHMS[run.config.algorithm], PROBLEMS[run.config.problem].needs_data
    lengths = ", ".join(f"{name}: {length:,}" for name, length in run.about.get("parameters", {}).items())
    answers = sum(site["rounds"] for site in run.sites)
    mean = f" {volume(run.cost['bytes-up'] / answers)} in a round on average." if answers else ""
    if needs_data:
        yield ["before the run", "counts, shape, a hash of the column names" + (
            ", and for each feature count, sum and sum of squares over the training samples"
            if run.config.standardise else "")]  # fmt: skip
    yield [
        "in every round",
        f"{algorithm.card.sends.replace('`', '')} (numbers in {lengths}).{mean} "
        "Counts of gradients and samples, seconds, and from which round what the site remembers is.",
    ]
    judged = [name for name in HEADLINE if any(name in site["metrics"] for site in run.sites)]
    if judged:
        every = run.config.evaluate_every
        when = f"every {every} rounds and at the end" if every else "at the end"
        of = ", of each label" * bool(run.labels)
        named = ", ".join(METRICS[name].label for name in judged)
        yield [f"evaluations, {when}", f"{named}; histograms of scores{of}"]
    if run.evidence:
        yield ["at the end", _left_at_the_end(run)]
    if algorithm.card.remembers:
        yield ["nothing of", f"what stays at the site between rounds: {algorithm.card.remembers}"]


def _left_at_the_end(run: Content) -> str:
    """Return what left the sites for the evidence: of those that tell of groups only no counts on a grid."""
    every = [part.evidence for part in run.parts] if run.labels else [run.evidence]
    judged = [one for one in every if one]
    grouped = [site["grouped"] for one in judged for site in one["sites"].values()]
    said = []
    if not all(grouped):
        whose = ", of the sites that tell of each patient" * any(grouped)
        said.append("quantiles and counts of held-out scores on a common grid, from which the intervals follow" + whose)
    if any(one["compared"] and one["compared"].get("pooled") for one in judged):
        said.append("the same of the other model's scores, and sums of how much the two differ")
    if any(one["subgroups"] for one in judged):
        said.append("of each subgroup counts and AUROC")
    return "; ".join(said) or "nothing more of scores"


def _settings(config: RunConfig) -> dict[str, Rows]:
    """Return the keys that were changed, with value and default, and those that were not."""
    written = config.written()
    usual = RunConfig.parse({"algorithm": config.algorithm, "problem": config.problem}).written()
    changed = [[key, _said(value), _said(usual[key])] for key, value in written.items() if usual[key] != value]
    return {"changed": changed, "usual": [[key, _said(value)] for key, value in written.items() if usual[key] == value]}


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value) or '""'


def _versions(run: Content) -> dict[str, str]:
    about, found = run.about, dict[str, str]()
    if "app" in about:
        found["edelweiss (fingerprint of the sources)"] = about["app"]
    found |= about.get("versions", {})
    return found | ({"device": about["device"]} if "device" in about else {})
