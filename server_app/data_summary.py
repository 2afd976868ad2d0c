"""Combines the facts that sites report into the summary of all data, and reports contradictions between them."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from itertools import chain, combinations, zip_longest
from statistics import median
from typing import TYPE_CHECKING

from flwr.app import ConfigRecord, Message, RecordDict

from edelweiss.common import alike, amount, from_record, in_a_line, plain, shown
from edelweiss.config.study import read_study
from edelweiss.datasets import (
    DataSummary,
    Facts,
    ModelSchema,
    class_names_of,
    columns_hash,
    features_of,
    load_test,
    missing_classes,
    standardisation,
    wrong_facts,
)
from edelweiss.datasets.config import SITE
from edelweiss.datasets.errors import examples
from edelweiss.datasets.samplers import AUTO, are_rare
from edelweiss.datasets.samples import moments
from edelweiss.federation import BadReplyError, RunError, Site
from edelweiss.federation.fingerprint import fingerprint
from edelweiss.federation.masks import SHARE
from edelweiss.federation.replies import require_records
from edelweiss.problems import PROBLEMS
from edelweiss.server_app.claims import believed, capped, names_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from edelweiss.config import RunConfig
    from edelweiss.federation import Exchange
    from edelweiss.problems import Problem
    from edelweiss.server_app.console import Progress

MOST_OF_ALL, MANY_TIMES = 0.9, 100
CLOSING = 30.0  # seconds in which a finished run brings its last receipts


def ask(config: RunConfig, exchange: Exchange, run: str) -> tuple[dict[int, Facts], dict[int, bytes]]:
    """Send every site the run's key and ask for its facts; return them by node id, and the keys for masks.

    A site that cannot take part, for instance with unreadable data, is left out if `min-replies` others can.
    """
    problem = PROBLEMS[config.problem]

    def read(site: Site, question: Message, answer: Message) -> Facts:
        masked = config.secure_aggregation and SHARE in answer.content
        require_records(answer.content, facts=ConfigRecord, **({SHARE: ConfigRecord} if masked else {}))
        record = plain(answer.content, "facts", ConfigRecord)
        kind = {"needs_data": problem.needs_data, "multiclass": problem.multiclass}
        wrong = wrong_facts(
            record, config.sites, **kind, labels=max(1, len(config.several)), summed=config.secure_aggregation
        )
        if wrong:
            raise BadReplyError(in_a_line(wrong))
        facts = from_record(Facts, record)
        exchange.noted(site, "answered", {"name": facts.name})
        if exchange.seals and facts.name != (sealed := exchange.seals.names[site.node_id]):
            raise BadReplyError(f"it calls itself {facts.name!r}, and the ticket {sealed!r}")
        if masked and isinstance(share := plain(answer.content, SHARE, ConfigRecord).get(SHARE), bytes):
            shares[site.node_id] = share
        return facts

    shares: dict[int, bytes] = {}
    messages = _questions(exchange, run)
    quorum = 0 if config.secure_aggregation else None  # all sites: `min-replies` is no way out there
    replies = exchange(messages, read=read, min_replies=quorum, wait_for_all=True)
    return {site.node_id: facts for site, facts in replies}, shares


def _questions(exchange: Exchange, run: str) -> list[Message]:
    asked = ConfigRecord({"app": fingerprint(), "run": run})
    return [Message(RecordDict({"config": asked}), node, "query") for node in exchange.by_node]


def bring_receipts(exchange: Exchange, run: str, progress: Progress) -> None:
    """Ask once more for the facts, which are not read: the question brings the receipts of the last answers."""
    last = replace(exchange, timeout=min(CLOSING, exchange.timeout), approval_timeout=0.0, warn=lambda _: None)
    try:
        deque(last(_questions(last, run), read=lambda site, question, answer: True, min_replies=0), maxlen=0)
    except RunError:
        progress.say("not all sites have the receipts of the last answers: some are away")


def assign_places(config: RunConfig, by_node: Mapping[int, Facts]) -> dict[Site, Facts]:
    """Assign name, index and weight to every site; the index is the same in every run.

    Raises
    ------
    RunError
        If two sites have the same name, or names that look the same, which would be confused in reports and files.
    """
    names = names_of(by_node)
    if twice := alike(names.values()):
        listed = "; ".join(", ".join(f"{name!a}" for name in group) for group in twice)
        raise RunError(
            f"two sites have the same name, or names that look the same ({listed}): set another site= in "
            "their --node-config",
            key="site",
            sites=chain(*twice),
        )
    uniform = config.strategy.weighting == "uniform"
    idle = PROBLEMS[config.problem].idle
    weights = [
        0.0 if idle(facts) else 1.0 if uniform or facts.examples is None else float(facts.examples)
        for facts in map(by_node.__getitem__, names)
    ]
    if config.robustness.aggregation != "mean":
        weights = capped(weights, config.outlier_multiple)
    return {
        Site(place, names[node], node, weight, by_node[node].held_out): by_node[node]
        for place, (node, weight) in enumerate(zip(names, weights, strict=True))
    }


def warn_of_shared_patients(sites: Mapping[Site, Facts], progress: Progress) -> dict[Site, Facts]:
    """Warn about patients shared by sites, as far as their hashes are reported, and drop the hashes."""
    telling = [(site, set(facts.patients)) for site, facts in sites.items() if facts.patients]
    for (one, own), (other, theirs) in combinations(telling, 2):
        if shared := len(own & theirs):
            progress.warn(
                f"sites {one.name!r} and {other.name!r} have {shared} patients in common: one may hold out patients "
                "that the other trains on, which makes the evaluation optimistic"
            )
    if telling and len(telling) < len(sites):
        silent = ", ".join(repr(site.name) for site, facts in sites.items() if not facts.patients)
        progress.say(f"{silent} report no hashes, so it is unknown whether they share patients with others")
    return {site: replace(facts, patients=()) for site, facts in sites.items()}


def pooled(config: RunConfig, sites: Mapping[Site, Facts], progress: Progress) -> DataSummary:
    """Check that the sites' data are compatible, and return their summary.

    Raises
    ------
    RunError
        With all incompatibilities.
    """
    problem = PROBLEMS[config.problem]
    if not problem.needs_data:
        return DataSummary()
    facts = {site.name: found for site, found in sites.items()}
    wrong = [*_inputs_differ(facts), *_no_images(config, facts)]
    if wrong := [*wrong, *_one_class(config, facts)]:
        raise RunError.join(wrong)
    _tell(config, facts, progress)
    every = list(facts.values())
    if config.robust:
        every, left_out = believed(facts)
        for name in left_out:
            progress.warn(f"site {name!r}: its sums are beyond all others', so inputs are standardised without them")
    positives = sum(site.weight * (one.positives or 0) / (one.examples or 1) for site, one in sites.items())
    counts = [sum(column) for column in zip_longest(*(one.class_counts for one in every), fillvalue=0)]
    telling = [one for one in every if one.count]
    if text := _empty_everywhere(config, telling):
        progress.warn(text)
    sums = [
        [sum(column) for column in zip(*(getattr(one, name) for one in telling), strict=True)]
        for name in ("count", "total", "squares")
    ]
    if config.private or config.secure_aggregation:
        sums = _public_moments(config, every[0].shape, progress)
    shift, scale = (tuple(v.tolist()) for v in standardisation(*sums)) if any(sums) else ((), ())
    return DataSummary(
        shape=every[0].shape,
        classes=max(one.classes for one in every),  # a site knows only its own classes
        prior=0.5 if problem.multiclass or config.several else positives / sum(site.weight for site in sites),
        shares=tuple(count / sum(counts) for count in counts) if problem.multiclass else (),
        labels=config.several,
        priors=tuple(_prior(sites, place) for place in range(len(config.several))),
        shift=shift,
        scale=scale,
        columns=every[0].columns,
    )


def _public_moments(config: RunConfig, shape: Sequence[int], progress: Progress) -> list[list[float]]:
    """Return count, sum and sum of squares of a run whose sites send no sums of their inputs: of no site's samples.

    Those of the common test set, which the coordinator has itself. Without one, a study file says what is typical of
    each feature, and images are taken as uniform from black to white; other tables stay as they are.
    """
    if not config.standardise:
        return [[], [], []]
    if config.dataset != SITE and (test := load_test(config.data())) is not None:
        progress.say("inputs are standardised by the common test set: sites send no sums")
        return [*moments(test)]
    if len(shape) == 3:
        return [[1.0] * shape[0], [255 / 2] * shape[0], [255**2 / 3] * shape[0]]
    study = read_study(config.study) if config.study else None
    typical = dict(sorted(study.typical().items())) if study else {}
    if len(typical) != shape[0]:  # with another study file than the sites' the run ends, see `build_model_schema`
        progress.warn(
            "inputs are not standardised: sites send no sums of them. Name a study file (study) that says what is "
            "typical of each feature, or bring all features to one scale first"
        )
        return [[], [], []]
    if unsaid := [name for name, found in typical.items() if found is None]:
        progress.warn(
            f"not standardised: {examples([repr(name) for name in unsaid])}. Sites send no sums of them here; give "
            "these columns mean and deviation, or a range, in the study file"
        )
    known = [found or (0.0, 1.0) for found in typical.values()]
    return [[1.0] * len(known), [mean for mean, _ in known], [mean**2 + spread**2 for mean, spread in known]]


def build_model_schema(config: RunConfig, data_summary: DataSummary, progress: Progress) -> ModelSchema:
    """Build the schema of the model's inputs and labels, for its file.

    Hospitals report no column names; a study file at the coordinator gives them, if it is the hospitals' one.

    Raises
    ------
    RunError
        If it is not.
    """
    if not data_summary.shape:
        return ModelSchema()
    data = config.data()
    if config.dataset == SITE and config.study:
        data = replace(data, study=read_study(config.study))
    model_schema = ModelSchema.of(data, data_summary, features := features_of(data), class_names_of(data))
    if features and not model_schema.features and data.study:
        raise RunError(
            f"study = {config.study!r}: the sites' columns are not its {len(features)} (fingerprint "
            f"{columns_hash(features)}, theirs {data_summary.columns}): name the study file that they have",
            key="study",
            value=config.study,
        )
    if len(data_summary.shape) == 1 and not model_schema.features:
        progress.say("the model's file will not name its features, which sites do not report; set study to name them")
    return model_schema


def require_alike(facts: Mapping[str, Facts]) -> None:
    """Check that all sites have inputs of one form.

    Raises
    ------
    RunError
        If they differ.
    """
    if wrong := [*_inputs_differ(facts)]:
        raise RunError.join(wrong)


def _inputs_differ(facts: Mapping[str, Facts]) -> Iterator[RunError]:
    if len({one.shape for one in facts.values()}) > 1:
        listed = ", ".join(f"{name} has {'x'.join(map(str, one.shape))}" for name, one in facts.items())
        fixes = ["Every site needs the same features"]
        if all(len(one.shape) == 3 for one in facts.values()):
            fixes = []
            if len({one.shape[0] for one in facts.values()}) > 1:
                fixes.append('Some have grey images (1) and some colour images (3): set image-colour = "grey" or "rgb"')
            if len({one.shape[1:] for one in facts.values()}) > 1:
                fixes.append("Their images differ in size: set image-size")
        value = {name: one.shape for name, one in facts.items()}
        yield RunError(f"the sites' inputs differ: {listed}. {'. '.join(fixes)}", key="shape", value=value)
    elif len({one.columns for one in facts.values()}) > 1:
        listed = ", ".join(f"{name}: {one.columns}" for name, one in facts.items())
        text = f"the sites' feature columns have different names (fingerprints {listed}): rename them"
        yield RunError(text, key="columns", value={name: one.columns for name, one in facts.items()})


def _no_images(config: RunConfig, facts: Mapping[str, Facts]) -> Iterator[RunError]:
    tables = [name for name, one in facts.items() if len(one.shape) == 1]
    for key, value in config.augmentation.keys().items() if tables else ():
        text = f"{key} = {shown(value)} is for images, but these sites have tables: {', '.join(tables)}; leave it out"
        yield RunError(text, key=key, value=value, sites=tables)


def _prior(sites: Mapping[Site, Facts], label: int) -> float:
    """Return the weighted average share of positives over the sites that know a label."""
    known = {site: one for site, one in sites.items() if one.label_counts[label]}
    shares = [site.weight * one.label_positives[label] / one.label_counts[label] for site, one in known.items()]
    return sum(shares) / sum(site.weight for site in known)


def _one_class(config: RunConfig, facts: Mapping[str, Facts]) -> Iterator[RunError]:
    problem = PROBLEMS[config.problem]
    for place, label in enumerate(config.several):
        known, positive = (
            sum(getattr(one, key)[place] for one in facts.values()) for key in ("label_counts", "label_positives")
        )
        if not 0 < positive < known:
            only = f"all {known} samples that have it are {'positive' if positive else 'negative'}" if known else ""
            text = f"label {label!r}: {only or 'no site has it'}: both classes are needed, so leave it out"
            yield RunError(text, key="label", value=label)
    if config.several:
        return
    examples = sum(one.examples or 0 for one in facts.values())
    positives = sum(one.positives or 0 for one in facts.values())
    classes = {label for one in facts.values() for label, count in enumerate(one.class_counts) if count}
    if problem.multiclass and not classes:
        text = "no site reports its class counts, because one class is small: choose larger classes"
        yield RunError(text, key="classes")
    elif problem.multiclass and len(classes) < 2:
        text = f"all {examples} training samples of all sites are of one class: there is nothing to tell apart"
        yield RunError(text, key="classes", value=classes)
    elif problem.multiclass and config.dataset == SITE and not config.study and (text := missing_classes(facts)):
        yield RunError(text, key="classes", value=classes)
    elif not problem.multiclass and not 0 < positives < examples:
        only = "positive" if positives else "negative"
        text = f"all {examples} training samples of all sites are {only}: a ranking needs both classes"
        yield RunError(text, key="classes", value={bool(positives)})


def _tell(config: RunConfig, facts: Mapping[str, Facts], progress: Progress) -> None:
    """Report harmless oddities of the sites' data."""
    problem = PROBLEMS[config.problem]
    by_itself = config.strategy.own_dual and problem.kind == "minimax"
    helps = "alone it has only one class and learns nothing" if by_itself else "it still contributes to training"
    if text := _outweighing(config, facts):
        progress.warn(text)
    if config.thin_share and PROBLEMS[config.problem].needs_data and not config.data().thin_share:
        progress.say(f"thin-share = {config.thin_share:g} is not applied: it is for two classes of simulated sites")
    if text := _rare(config, facts):
        progress.say(text)
    for line in dict.fromkeys(note for one in facts.values() for note in one.notes if config.dataset != SITE):
        progress.say(line)
    for name, one in facts.items():
        for note in one.notes if config.dataset == SITE else ():
            progress.warn(f"site {name!r}: {note}")
        if problem.idle(one):
            has = "only positives" if one.positives else "no positives"
            progress.warn(
                f"site {name!r} has {has} to train on: in problem = {config.problem!r} it contributes nothing and has "
                "no weight in averages; it is still evaluated"
            )
        elif one.positives in (0, one.examples):
            only = "positive" if one.positives else "negative"
            progress.warn(
                f"site {name!r} has only {only} training samples: {helps}; check its label column if this is a surprise"
            )
        if lacking := [label for label, count in zip(config.several, one.label_counts, strict=True) if not count]:
            progress.say(f"site {name!r} has no {', '.join(lacking)}: it contributes to the other labels")
        if one.missing:
            filled = "the mean over all sites" if config.standardise else "0, because standardise = false"
            progress.say(f"site {name!r}: {amount(one.missing, 'missing value')}, imputed by {filled}")


def _rare(config: RunConfig, facts: Mapping[str, Facts]) -> str:
    """Say where ``sampler = "auto"`` fixes the positives of each batch; empty where it does not."""
    b, m = config.positives_per_batch, config.batch_size
    counts = {
        name: max(one.label_positives) if one.label_positives else one.positives or 0 for name, one in facts.items()
    }
    rare = [name for name, count in counts.items() if are_rare(count, facts[name].examples or 0, b, m)]
    if config.sampler != AUTO or not rare:
        return ""
    where = "all sites" if len(rare) == len(facts) else examples(rare)
    return (
        f'sampler = "auto": positives are rare at {where}, so {b} of the {m} samples of each batch are positive there, '
        "weighted back to the site's share"
    )


def require_enough(problem: Problem, sites: Mapping[Site, Facts], progress: Progress) -> None:
    """Check that each site has the samples per class that the problem needs; warn about sites that cannot evaluate.

    Raises
    ------
    RunError
        With all sites that cannot train.
    """
    if not problem.multiclass:
        return
    lacks = {site.name: problem.shortfall(facts.class_counts) for site, facts in sites.items()}
    silent = [site.name for site, facts in sites.items() if not facts.class_counts]
    wrong = [
        f"site {name!r} "
        + ("reports no counts per class; it needs" if name in silent else "has too few training samples:")
        + f" {text}"
        for name, text in lacks.items()
        if text
    ]
    if wrong:
        raise RunError("\n".join(wrong), key="classes", sites=[name for name, text in lacks.items() if text])
    for site, facts in sites.items():
        if sum(facts.held_out_counts) and (text := problem.shortfall(facts.held_out_counts)):
            progress.warn(
                f"site {site.name!r} has too few held-out samples and is not evaluated: {text}, or raise holdout-share"
            )


def summary(config: RunConfig, data_summary: DataSummary, sites: int, parameters: int) -> str:
    """Describe the run in one line."""
    what = f"{config.algorithm} on {config.problem}: {sites} sites, "
    if not PROBLEMS[config.problem].needs_data:
        return f"{what}{parameters:,} parameters"
    labels = f"{data_summary.classes} classes"
    if not PROBLEMS[config.problem].multiclass:
        shares = zip(data_summary.labels, data_summary.priors, strict=True)
        labels = ", ".join(f"{label} {prior:.1%}" for label, prior in shares) or f"{data_summary.prior:.1%}"
        labels += " positive" + " on average over sites" * (config.strategy.weighting == "uniform")
    return f"{what}{config.dataset}, {labels}, {config.model} with {parameters:,} parameters"


def _empty_everywhere(config: RunConfig, telling: Sequence[Facts]) -> str:
    """Name the features without any training value at the sites that report sums; empty if there are none."""
    counts = zip(*(one.count for one in telling), strict=True)
    places = [place for place, column in enumerate(counts) if not any(column)]
    if not places:
        return ""
    data = config.data()
    if config.dataset == SITE and config.study:
        data = replace(data, study=read_study(config.study))
    names = features_of(data)  # unknown for hospitals without a study file
    which = examples([repr(names[place]) if names else f"number {place + 1}" for place in places])
    order = "" if names else ", in the order of their names"
    return (
        f"no site reports a value of {len(places)} features ({which}{order}): every site has none or too few in "
        "training, so the model learns nothing from them: fill them in, or remove them at all sites"
    )


def _outweighing(config: RunConfig, facts: Mapping[str, Facts]) -> str:
    """Warn about a site that claims nearly all samples; empty if none does.

    Nearly all: more than `MOST_OF_ALL` of the sum, or `MANY_TIMES` the sites' median.
    """
    claimed = {name: one.examples or 0 for name, one in facts.items()}
    most, total = max(claimed, key=claimed.__getitem__), sum(claimed.values())
    usual = median(claimed.values())
    if len(claimed) < 2 or not (claimed[most] > MOST_OF_ALL * total or claimed[most] > MANY_TIMES * usual):
        return ""
    decides = 'the averages over sites nearly equal its own (weighting = "examples")'
    if config.strategy.weighting == "uniform":
        decides = "inputs are standardised nearly by its own means" if config.standardise else ""
    return (
        f"site {most!r} claims {claimed[most]:,} of the {total:,} training samples: ask it whether that is right"
        + f"; {decides}" * bool(decides)
    )
