"""The report's account of the data, the run's costs, what left the sites, and the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edelweiss.config import RunConfig
from edelweiss.federation.returned_iterate import returned
from edelweiss.federation.table import remembers, sends
from edelweiss.lab.report.content import shares
from edelweiss.lab.report.figures import estimate
from edelweiss.problems import PROBLEMS
from edelweiss.problems.metrics import HEADLINE, METRICS, format_named
from edelweiss.server_app.console import volume
from edelweiss.strategies import ALGORITHMS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edelweiss.lab.report.content import Content, Rows, Table


def data(run: Content) -> str:
    """Describe the sites' samples and the outcome."""
    reported, inputs = run.about.get("sites", {}), run.about.get("inputs", {})
    if not PROBLEMS[run.config.problem].needs_data:
        return f"{len(run.sites)} sites; the problem is in closed form and needs no patients."
    if not inputs:
        return f"{len(run.sites)} sites; the run ended before they had reported their data."
    trained = [site.get("examples") or 0 for site in reported.values()]
    train = max(trained, default=0) if run.config.pooled else sum(trained)  # of a pooled run each site has all
    held_out = sum(site.get("held-out") or 0 for site in reported.values())
    shape = inputs["shape"]
    form = f"{shape[0]} features" if len(shape) == 1 else f"images of {' x '.join(map(str, shape))}"
    share = (
        "" if PROBLEMS[run.config.problem].multiclass else f", {inputs['prior']:.1%} positive as the sites are weighted"
    )
    what = f"{inputs['classes']} classes{share}"
    if run.labels:
        what = f"{len(run.labels)} labels, positive as the sites that know them are weighted: {shares(run)}"
    return (
        f"{len(reported)} sites with {train:,} samples to train on{', in one place,' * run.config.pooled} and "
        f"{held_out:,} held out; {form}, "
        f"{what}. Inputs: {run.inputs}. Outcome: {run.outcome}."
    ) + "".join(f" {line}" for line in run.account)


def known_table(run: Content) -> Table:
    """Return how many training samples each site has with each label known, and how many of them are positive."""
    rows = [
        [
            site["name"],
            *(
                f"{positive:,} of {known:,}" if known else "-"
                for positive, known in zip(site["label-positives"], site["label-counts"], strict=True)
            ),
        ]
        for site in run.sites
        if run.labels and "label-counts" in site
    ]
    return ["site", *run.labels], rows


def site_table(run: Content) -> Table:
    """Return the heads and rows of the table of sites; that of one of several labels leaves out what is of all."""
    judged = any(site["evidence"] for site in run.sites)
    names = [
        name
        for name in HEADLINE
        if any(site["metrics"].get(name) is not None for site in run.sites)
        and not (judged and name in ("auroc", "auprc"))
    ]
    counted = {"examples": "train", "positives": "positive", "held-out": "held out", "missing": "missing values"}
    counted = {key: label for key, label in counted.items() if any(site.get(key) for site in run.sites)}
    heads = [
        "site",
        *counted.values(),
        *([] if run.label else ["rounds", "gradients"]),
        *["AUROC (95 % interval)", "AP (95 % interval)"] * judged,
    ]
    of = ", mean over labels" if run.labels else ""
    heads += [METRICS[name].label + of for name in names]
    rows = []
    for site in run.sites:
        row = [site["name"], *(f"{site[key]:,}" if site.get(key) is not None else "-" for key in counted)]
        row += [] if run.label else [f"{site['rounds']:,}", f"{site['gradients']:,.0f}"]
        if judged:
            one = site["evidence"]
            row += [estimate(one["auroc"]), estimate(one["auprc"])] if one else ["-", "-"]
        row += [format_named(site["metrics"], name) for name in names]
        rows.append(row)
    return heads, rows


def site_note(run: Content) -> str:
    """Describe the models in the table of sites, with the sites' notes."""
    notes = [f"{site['name']}: {note}" for site in run.sites for note in site.get("notes", []) if not run.account]
    whose = "Each site's own model, on its own" if run.personalised else "The final model, on each site's"
    said = f"{whose} held-out samples."
    if run.config.private:
        said = "Counts of positives have noise; no site sent numbers of its own on the final model."
    return " ".join([said, *(f"{note}." for note in notes)])


def last_values(run: Content) -> str:
    """Describe the end of the curves if it is not the last iterate."""
    text = returned(run.config.strategy)
    return text and f" {text[0].upper()}{text[1:]}."


# ---------------------------------------------------------------------- what it took


def costs(run: Content) -> Rows:
    """Return the rows of the run's costs: name, total, mean per round."""
    cost, rounds = run.cost, max(1.0, run.cost["rounds"])
    rows = [["rounds", f"{cost['rounds']:,.0f}", ""]]
    for key, label in (("bytes-down", "sent to sites"), ("bytes-up", "sent by sites")):
        rows.append([label, volume(cost[key]), volume(cost[key] / rounds)])
    for key, label in (("gradients", "mini-batch gradients"), ("samples", "gradients of single samples")):
        rows.append([label, f"{cost[key]:,.0f}", f"{cost[key] / rounds:,.0f}"])
    for key, label in (("seconds", "seconds"), ("seconds-waiting", "of these waiting for sites")):
        rows.append([label, f"{cost[key]:,.1f}", f"{cost[key] / rounds:,.2f}"])
    return rows


def left(run: Content) -> Iterator[list[str]]:
    """Yield what leaves a site, and when it does."""
    algorithm, needs_data = ALGORITHMS[run.config.algorithm], PROBLEMS[run.config.problem].needs_data
    lengths = ", ".join(f"{name}: {length:,}" for name, length in run.about.get("parameters", {}).items())
    answers = sum(site["rounds"] for site in run.sites)
    mean = f" {volume(run.cost['bytes-up'] / answers)} in a round on average." if answers else ""
    if needs_data:
        moments = ", and for each feature count, sum and sum of squares over the training samples"
        counts = "numbers of patients, noised counts of classes" if run.config.private else "counts"
        more = moments * (run.config.standardise and not run.config.private)
        yield ["before the run", f"{counts}, shape, a hash of the column names{more}"]
    yield [
        "in every round",
        f"{sends(algorithm).replace('`', '')} (numbers in {lengths}).{mean} "
        + ("All with noise. " if run.config.private else "")
        + f"Counts of gradients and samples, {'' if run.config.private else 'seconds, '}and the round of the site's "
        "memory.",
    ]
    judged = [name for name in HEADLINE if any(name in site["metrics"] for site in run.sites)]
    if judged:
        every = run.config.evaluate_every
        often = "every round" if every == 1 else f"every {every} rounds"
        when = f"{often} and at the end" if every else "at the end"
        of = ", of each label" * bool(run.labels)
        named = ", ".join(METRICS[name].label for name in judged)
        yield [f"evaluations, {when}", f"{named}; histograms of scores{of}"]
    if run.config.private and run.evidence:
        each = ", of each label" * bool(run.labels)
        yield ["at the end", f"two histograms of scores, with noise in each count{each}"]
    elif run.evidence:
        yield ["at the end", _left_at_the_end(run)]
    if stays := remembers(algorithm).replace("`", ""):
        yield ["nothing of", f"what stays at the site between rounds: {stays}"]


def _left_at_the_end(run: Content) -> str:
    """Return what left the sites for the evidence, in addition to their evaluations."""
    every = [part.evidence for part in run.parts] if run.labels else [run.evidence]
    judged = [one for one in every if one]
    grouped = [site["grouped"] for one in judged for site in one["sites"].values()]
    said = []
    if not all(grouped):
        whose = ", of the sites that report single patients" * any(grouped)
        said.append("AUROC and its variance, and design effects, from which the intervals follow" + whose)
    if any(one["compared"] and one["compared"].get("pooled") for one in judged):
        said.append("histograms of the other model's scores, and sums of how much the two differ")
    if any(one["subgroups"] for one in judged):
        said.append("of each subgroup counts and AUROC")
    return "; ".join(said) or "nothing more of scores"


def settings(config: RunConfig) -> dict[str, Rows]:
    """Return the keys that were changed, with value and default, and those that were not."""
    written = config.written()
    usual = RunConfig.parse({"algorithm": config.algorithm, "problem": config.problem}).written()
    changed = [[key, _said(value), _said(usual[key])] for key, value in written.items() if usual[key] != value]
    return {"changed": changed, "usual": [[key, _said(value)] for key, value in written.items() if usual[key] == value]}


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value) or '""'


def versions(run: Content) -> dict[str, str]:
    """Return what the run was made with, by name: the app, packages, the device."""
    about, found = run.about, dict[str, str]()
    if "app" in about:
        found["edelweiss (fingerprint of the sources)"] = about["app"]
    found |= about.get("versions", {})
    return found | ({"device": about["device"]} if "device" in about else {})
