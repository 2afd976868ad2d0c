"""``model-card.md`` and ``tripod-ai.md``: what a run knows of its model, and what its authors have to add.

The card has the sections of Mitchell et al. (Model cards for model reporting, FAT* 2019, arXiv:1810.03993). The table
has the 27 items of TRIPOD+AI (Collins et al., BMJ 2024;385:e078378), in our own few words: the statement itself says
what each asks for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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

CARD, TRIPOD = "model-card.md", "tripod-ai.md"


def write(run: Content) -> None:
    """Write both files."""
    for name, text in ((CARD, card(run)), (TRIPOD, tripod(run))):
        with atomic_writer(run.folder / name) as file:
            file.write(text.encode())


# ---------------------------------------------------------------------- the model card


def card(run: Content) -> str:
    """Return the model card, as Markdown."""
    algorithm, problem = ALGORITHMS[run.config.algorithm], PROBLEMS[run.config.problem]
    papers = "; ".join(paper.short for paper in algorithm.info.papers) or "a baseline"
    lines = [
        f"# Model card: {run.title}",
        "",
        "## Model",
        "",
        f"- Network: {run.config.model}, {_size(run)}.",
        f"- Trained with {run.config.algorithm} ({papers}) on the objective `{run.config.problem}`, "
        f"{len(run.records)} rounds at {len(run.sites)} sites, seed {run.config.seed}.",
        f"- Run `{run.folder.name}`, {run.status.get('status', 'unfinished')} since "
        f"{run.status.get('since', UNKNOWN)}; sources {run.about.get('app', UNKNOWN)}.",
        "- License, owner, contact: " + UNKNOWN + ".",
        "",
        "## Intended use",
        "",
        f"- Intended use, users, and uses out of scope: {UNKNOWN}. This is a research model and no medical device.",
        "",
        "## Data",
        "",
        *([f"- Inputs: {run.inputs}. Outcome: {run.outcome}."] if problem.needs_data else []),
        *(f"- {line}" for line in _data(run)),
        "",
        "## How good it is",
        "",
        *(f"- {line}" for line in _results(run)),
        "",
        "## Limits",
        "",
        *(f"- {line}" for line in _limits(run)),
        "",
        "## How to use it",
        "",
    ]
    if run.personalised:
        lines.append("Each site has a model of its own, which stayed there.")
    elif problem.needs_data:
        lines.append(f"`edelweiss predict {run.folder.name} patients.csv`")
    else:
        lines.append("`model.safetensors` holds the vectors themselves.")
    return "\n".join(lines) + "\n"


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
            if site.get(key) is not None
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
            if mean := evidence["mean"][key]:
                yield f"Mean AUROC over {mean['labels']} labels, {where}: {estimate(mean['auroc'])}."
        yield CONSERVATIVE
        for part in run.parts:
            lines = list(_results(part)) if part.evidence else ["no sample that it is known of was evaluated."]
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
    for name, one in evidence["sites"].items():
        yield f"{name}: AUROC {estimate(one['auroc'])}."
    for column, groups in evidence["subgroups"].items():
        for name, one in groups.items():
            more = [f", {key} {estimate(one[key])}" for key in ("sensitivity", "specificity") if key in one]
            yield f"{column} = {name}: AUROC {estimate(one['auroc'])}{''.join(more)}."


def _platt(run: Content) -> bool:
    """Whether a Platt map makes probabilities of its scores."""
    every = [part.evidence for part in run.parts] if run.labels else [run.evidence]
    return any(one is not None and one["probabilities"]["by"] == "platt" for one in every)


def _limits(run: Content) -> Iterator[str]:
    yield from (f"What may be wrong with the data: {text}{'.' * (text[-1] not in '.?')}" for text in run.data_warnings)
    yield from run.notes
    if _platt(run):
        each = " of each label" * bool(run.labels)
        yield f"Scores are no probabilities: `evidence.json` has the map{each} that makes them so."
    yield "Held-out patients are of the hospitals that trained it: how it does at others is not known here."
    if run.status.get("status") != "complete":
        yield "The run did not end as planned."


# ---------------------------------------------------------------------- TRIPOD+AI


ITEMS = (
    "Title",
    "Abstract",
    "Background: context, rationale, who is affected",
    "Objectives: development, evaluation or both",
    "Data: sources, dates",
    "Participants: setting, eligibility, treatments",
    "Data preparation",
    "Outcome: definition, assessment",
    "Predictors: choice, definition",
    "Sample size",
    "Missing data",
    "Analytical methods: model, fitting, internal validation, measures of performance",
    "Class imbalance",
    "Fairness",
    "Model output",
    "Training against evaluation: differences in data",
    "Ethical approval",
    "Open science: funding, conflicts, protocol, registration, data, code",
    "Patient and public involvement",
    "Results: participants",
    "Model development: participants and outcome events",
    "Model specification",
    "Model performance, with intervals, and heterogeneity",
    "Model updating",
    "Interpretation",
    "Limitations",
    "Usability: inputs of poor quality, expertise, next steps",
)


def tripod(run: Content) -> str:
    """Return the reporting table, as Markdown: what the run knows of each item, or that it does not."""
    known = _known(run) | _results_known(run)
    rows = [
        f"| {number} | {item} | {known.get(number, UNKNOWN).replace('|', chr(92) + '|')} |"
        for number, item in enumerate(ITEMS, 1)
    ]
    head = (
        "The items of the statement (Collins et al., BMJ 2024;385:e078378), in short, and what the run knows of each."
    )
    return "\n".join(
        [
            f"# TRIPOD+AI: {run.title}",
            "",
            f'{head} "{UNKNOWN}" is for the authors to fill in.',
            "",
            "| item | what it asks for | what the run knows |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def _known(run: Content) -> dict[int, str]:
    """Return what the run knows of methods, by item."""
    config, algorithm = run.config, ALGORITHMS[run.config.algorithm]
    split = f"fold {config.fold} of {config.folds}" if config.folds else f"a share of {config.holdout_share:g}"
    by = "; ".join(paper.short for paper in algorithm.info.papers)
    by = f" ({by}{', ' * bool(algorithm.info.where)}{algorithm.info.where})" if by else ""
    moments = "Inputs standardised with the moments of all sites' training samples."
    return {
        4: "Development, and an evaluation on held-out patients of the same sites.",
        5: f"`{config.dataset}`; dates {UNKNOWN}.",
        6: f"{len(run.sites)} sites; the rest {UNKNOWN}.",
        7: " ".join([moments if config.standardise else "Inputs as they are.", *run.account]),
        8: f"{run.outcome}; how it was assessed: {UNKNOWN}.",
        9: f"{run.inputs}; why these: {UNKNOWN}.",
        11: f"Imputed by {_filled(run)}.",
        12: f"{config.model}, trained with {config.algorithm}{by} on `{config.problem}`; hyper-parameters are in "
        f"`config.toml`. Held out: {split} at each site. AUROC, average precision, calibration, net benefit.",
        13: f"Objective `{config.problem}`, sampler `{config.sampler}`.",
        16: "The same sites, other patients.",
        18: f"Code: fingerprint {run.about.get('app', UNKNOWN)}, versions in `about.json`; the rest {UNKNOWN}.",
        24: f"Started from `{config.init_from}`." if config.init_from else "None.",
        27: f"Missing inputs are imputed by {_filled(run)}; the rest {UNKNOWN}.",
    }


def _results_known(run: Content) -> dict[int, str]:
    """Return what the run knows of results, by item."""
    data = " ".join(_data(run))
    score = f"A score{' for each label' * bool(run.labels)}"
    found = {
        10: data,
        15: f"{score}{', made a probability by a Platt map' * _platt(run)}.",
        20: data,
        21: data,
        22: "Each site has its own." if run.personalised else f"`model.safetensors`, {_size(run)}.",
        23: " ".join(_results(run)),
        26: " ".join(_limits(run)),
    }
    judged = [part.evidence for part in run.parts] if run.labels else [run.evidence]
    subgroups = any(one and one["subgroups"] for one in judged)
    return found | ({14: "See the subgroups in `report.html`."} if subgroups else {})


def _filled(run: Content) -> str:
    return "the mean over all sites' training samples" if run.config.standardise else "0"
