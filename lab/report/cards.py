"""``model-card.md`` and ``tripod-ai.md``: what a run knows of its model, and what its authors have to add."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edelweiss.lab.report import figures, private
from edelweiss.lab.report.content import UNKNOWN, shares
from edelweiss.lab.report.figures import estimate
from edelweiss.lab.report.judged import PLACES
from edelweiss.lab.report.page import CONSERVATIVE
from edelweiss.models.storage import atomic_writer
from edelweiss.problems import PROBLEMS
from edelweiss.strategies import ALGORITHMS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edelweiss.lab.report.content import Content

TEMPLATES = ("model-card.md", "tripod-ai.md")


def write(run: Content) -> None:
    """Write both files."""
    for name in TEMPLATES:
        with atomic_writer(run.folder / name) as file:
            file.write(card(run, name).encode())


def card(run: Content, name: str) -> str:
    """Return one of `TEMPLATES` about a run, as Markdown."""
    from jinja2 import Environment, StrictUndefined

    algorithm = ALGORITHMS[run.config.algorithm]
    evidence = [one for one in ([part.evidence for part in run.parts] if run.labels else [run.evidence]) if one]
    platt = any(one["probabilities"]["by"] == "platt" and figures.assessed(one) for one in evidence)
    jinja = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    return jinja.from_string(Path(__file__).with_name(name).read_text(encoding="utf-8")).render(
        run=run,
        config=run.config,
        problem=PROBLEMS[run.config.problem],
        algorithm=algorithm,
        papers="; ".join(paper.short for paper in algorithm.info.papers),
        unknown=UNKNOWN,
        size=_size(run),
        data=list(_data(run)),
        results=list(_results(run)),
        limits=list(_limits(run, platt=platt)),
        platt=platt,
        subgroups=any(one["subgroups"] for one in evidence),
    )


def _size(run: Content) -> str:
    parameters = run.about.get("parameters", {})
    return f"{parameters['x']:,} parameters" if "x" in parameters else f"parameters {UNKNOWN}"


def _data(run: Content) -> Iterator[str]:
    if not PROBLEMS[run.config.problem].needs_data:
        yield "None: the problem is in closed form."
        return
    yield f"Source: `{run.config.dataset}`, at {len(run.sites)} sites; who was included, where and when: {UNKNOWN}."
    yield from run.account
    if run.labels:
        yield f"{len(run.labels)} labels, positive as the sites that know them are weighted: {shares(run)}."
    for site in run.sites:
        counts = [
            f"{site[key]:,} {label}"
            for key, label in (
                ("examples", "to train on"),
                ("positives", "of them positive"),
                ("held-out", "held out"),
                ("missing", "values missing"),
            )
            if site.get(key) is not None and not (key == "missing" and run.config.private)  # not sent
        ]
        known = zip(run.labels, site.get("label-positives", ()), site.get("label-counts", ()), strict=False)
        counts += [
            f"{label} positive in {positive:,} of {count:,}" if count else f"no {label}"
            for label, positive, count in known
        ]
        yield f"{site['name']}: {', '.join(counts) or UNKNOWN}."


def _results(run: Content) -> Iterator[str]:
    evidence = run.evidence
    if not evidence:
        yield "See `report.html`: its evaluations have no intervals."
        return
    if run.labels:
        for key, where in PLACES.items():
            if (mean := evidence["mean"].get(key)) and "auroc" in mean:
                yield f"Mean AUROC over {mean['labels']} labels, {where}: {estimate(mean['auroc'])}."
        yield CONSERVATIVE
        for part in run.parts:
            lines = list(_results(part)) if part.evidence else ["no evaluated sample has this label."]
            yield from (f"{part.label}: {line}" for line in lines)
        return
    for key, label in (("pooled", "all sites' held-out patients together"), ("common-test-set", "common test set")):
        if one := evidence[key]:
            yield (
                f"{label[0].upper()}{label[1:]} ({one['positives']:,} positive of {one['n']:,}): AUROC "
                f"{estimate(one['auroc'])}, average precision {estimate(one['auprc'])}, calibration slope "
                f"{estimate(one['calibration']['slope'])}."
            )
    if evidence["within-sites"]["sites"]:
        yield f"Within sites, on average: AUROC {estimate(evidence['within-sites']['auroc'])}."
    yield from (f"Held-out patients, under noise: {text}" for text in private.in_words(run))
    for name, one in evidence["sites"].items():
        yield f"{name}: AUROC {estimate(one['auroc'])}."
    for column, groups in evidence["subgroups"].items():
        for name, one in groups.items():
            more = [f", {key} {estimate(one[key])}" for key in ("sensitivity", "specificity") if key in one]
            yield f"{column} = {name}: AUROC {estimate(one['auroc'])}{''.join(more)}."


def _limits(run: Content, *, platt: bool) -> Iterator[str]:
    yield from (f"What may be wrong with the data: {text}{'.' * (text[-1] not in '.?')}" for text in run.data_warnings)
    yield from run.notes
    yield from private.privacy(run)
    for site, patients, noise, *_ in private.noises(run)[1]:
        yield f"{site}: noise of {noise} clips, from {patients} patients."
    if platt:
        each = " of each label" * bool(run.labels)
        yield f"Scores are no probabilities: `evidence.json` has the map{each} that makes them so."
    yield "Held-out patients are of the hospitals that trained it: how it does at others is not known here."
    if run.status.get("status") != "complete":
        yield "The run did not end as planned."
