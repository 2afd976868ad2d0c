"""Tests of the site's own data and policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from edelweiss.client_app.connection import JoinConfig
from edelweiss.client_app.doctor import Finding
from edelweiss.common import ConfigError, PlugInError
from edelweiss.datasets.errors import examples

if TYPE_CHECKING:
    from edelweiss.client_app.policy.rules import Policy
    from edelweiss.datasets import DataConfig, SiteData
    from edelweiss.datasets.site.study import Study
    from edelweiss.datasets.site.survey import Survey

PROCESS, VECTORS = 0.44e9, 10  # bytes of a site without data; number of vectors as long as x, roughly
SIDE = 224  # side of images that differ in size, in this test
LARGE = 10.0  # root mean square of a column that would drown columns of scale 1
ANY = 1 - 1e-9  # allowed share of bad images in this test


def examine_data(config: JoinConfig) -> Iterator[Finding]:
    """Read the site's own data, and check them against its policy."""
    from edelweiss.client_app.policy.rules import Policy

    if config.partition_id >= 0 and not config.data_dir:
        return
    try:
        policy = Policy.read(config.policy)
    except ConfigError as error:
        yield Finding("error", "rules", "; ".join(error.problems))
        return
    yield Finding("ok", "rules", f"{f'from {config.policy}: ' * bool(config.policy)}{policy.in_words()}")
    yield from _plug_ins(policy)
    if config.data_dir:
        yield from _read(config, policy)
    elif not policy.studies:
        yield Finding("error", "data", "none: set data-dir to the folder of this site's data")


def _read(config: JoinConfig, policy: Policy) -> Iterator[Finding]:
    """Read the data of a folder."""
    from edelweiss.client_app.local_data import image_cache, study_of
    from edelweiss.datasets import DataConfig, DataError, label_values, load_site
    from edelweiss.datasets.labels import Labels
    from edelweiss.datasets.site.survey import Survey

    if not config.names_label:
        text = "no label: each run chooses the column; set label to yours"
        yield Finding("error" if policy.strict or policy.budget else "warning", "rules", text)
    own = DataConfig(dataset="site", data_dir=config.data_dir, patient=policy.patient)
    own = replace(own, label=config.label) if config.label else own
    labels = Labels.of(config.label, "zeros", "zeros", "")  # a run decides how to read uncertain and blank
    several = labels.names if labels.several and not config.study else ()
    if several:
        own = replace(own, labels=labels)
    try:
        own = replace(own, study=study_of(config.study))
    except DataError as error:  # the table may be one that is read without it, too
        yield Finding("error", "data", str(error))
        return
    survey = None
    needed, text = _to_read(config)
    if text:
        yield Finding("error", "needed", text)  # the kernel would end this process
        return
    try:
        if not config.study and (survey := Survey.of(config.data_dir, config.follow_links)):
            yield Finding("ok", "images", survey.in_words())
            own = replace(own, follow_links=config.follow_links, image_cache=image_cache(config), bad_images=ANY)
            own = replace(own, image_size=0 if survey.one_size else SIDE)
        data = load_site(own, 0, 1)
    except DataError as error:
        try:
            data = load_site(replace(own, binary=False), 0, 1)
        except DataError:
            yield Finding("error", "data", str(error))
            return
    if said := _encoding(config.data_dir, own.study):
        yield Finding("ok", "encoding", said)
    if several:
        yield from _labels(label_values(config.data_dir, several))
    yield from _samples(data, own, len(several), survey, policy)
    if policy.budget:
        yield from _scales(data, own.study)
    yield _needed(data, 0 if survey else needed)


def examine_studies(config: JoinConfig) -> Iterator[Finding]:
    """Read the data of each study that has its own."""
    from edelweiss.client_app.policy.rules import Policy

    try:
        policy = Policy.read(config.policy)
    except ConfigError:  # said already
        return
    for name, study in policy.studies.items():
        own = config.model_copy(update=study.model_dump(exclude={"study_key"}))
        for finding in _read(own, policy):
            yield replace(finding, text=f"study {name}: {finding.text}")


def _encoding(folder: str, study: Study | None) -> str:
    """Say in which encoding a table was found to be, if it is not UTF-8."""
    from edelweiss.datasets.site import file_of
    from edelweiss.datasets.site.formats import encoding_of

    found = encoding_of(study.place(folder) if study else file_of(folder))
    if (study and study.encoding) or found in ("", "UTF-8"):
        return ""
    return f"read as {found}, for it is not UTF-8; if letters are wrong, name its encoding in a study file"


def _plug_ins(policy: Policy) -> Iterator[Finding]:
    """Compare the policy's plug-ins with the installed ones, and show the lines that would allow others."""
    from edelweiss.client_app.policy.plug_ins import installed, line_of

    offered, allowed = installed(), {line.partition(" ")[0]: line for line in policy.plug_ins}
    for name, found in {**{name: name for name in allowed}, **offered}.items():
        line = allowed.get(name)
        try:
            here = line_of(name, found)
        except PlugInError as error:
            text = f"{name}: {'; '.join(error.problems)}: install it, or remove the line"
            yield Finding("error" if line else "warning", "plug-ins", text)
            continue
        if here == line:
            yield Finding("ok", "plug-ins", f"{name} matches the policy")
        elif line:
            text = f'{name} has changed: runs that use it are refused; review it, then allow it with "{here}"'
            yield Finding("error", "plug-ins", text)
        else:
            text = f'{name} is installed but not allowed; to allow it: plug-ins = ["{here}"]'
            yield Finding("ok", "plug-ins", text)


def _samples(data: SiteData, own: DataConfig, several: int, survey: Survey | None, policy: Policy) -> Iterator[Finding]:
    """Report the samples, of ``several`` labels or one, and likely mistakes."""
    import torch

    from edelweiss.datasets.site.table import as_study

    truth = torch.cat([data.train.targets(), data.held_out.targets()])
    samples, which = len(truth), f"{int(truth.sum()):,} positive"
    if several:
        which = f"{several} labels"
    fewest = policy.fewest_training + policy.fewest_held_out
    if samples < fewest:
        text = f"{samples} samples: below about {fewest} your rules keep this site from training, or from evaluating"
        yield Finding("warning", "rules", text)
    for doubt in data.warnings:
        yield Finding("warning", "data", str(doubt))
    for note in data.notes:
        yield Finding("ok", "data", note)
    if survey and (bad := survey.rows - samples):
        text = f"{bad:,} of {survey.rows:,} are bad: runs whose bad-images is below {bad / survey.rows:.2g} do without "
        yield Finding("warning", "images", f"{text}this site")
    if data.classes > 2:
        which = f"{data.classes} classes"
        found = Counter(str(int(code)) for code in truth)
        text = (
            f"the label has the values {examples(sorted(found))}, which fit problems that keep all classes "
            "(cross-entropy, fair, robust, maml); for the others a study file says which are positive, under [label]: "
        )
        yield Finding("warning", "labels", text + as_study(own.label, found))
    elif not several:
        yield from _few(int(truth.sum()), samples, policy)
    kind = f"{len(data.features)} features" if data.features else f"{'x'.join(map(str, data.train.shape))} numbers each"
    yield Finding("ok", "data", f"{samples:,} samples, {which}, {kind}; {data.missing:,} values missing")


def _few(positive: int, samples: int, policy: Policy) -> Iterator[Finding]:
    """Warn if there are too few samples of a class to evaluate a model, or none; with a budget it sends noised ones."""
    fewest, (count, name) = policy.fewest_of_each_class, min((positive, "positive"), (samples - positive, "negative"))
    if not count:
        yield Finding("warning", "labels", f"no row is {name}: is the label column right, and are all rows exported?")
    elif not policy.budget and policy.holdout_share and (held_out := count * policy.holdout_share) < fewest:
        text = (
            f"{count} {name}, of which about {held_out:.0f} are held out: with fewer than {fewest} "
            "(fewest-of-each-class in your rules) this site trains, but sends no evaluation"
        )
        yield Finding("warning", "labels", text)


def _scales(data: SiteData, study: Study | None) -> Iterator[Finding]:
    """Say which columns a private run would take at another scale than the rest, as no sums of them are sent."""
    import torch

    typical = study.typical() if study else {}
    if not (left := [place for place, name in enumerate(data.features) if typical.get(name) is None]):
        return
    sizes = torch.nan_to_num(data.train.inputs[data.train.rows][:, left].double(), posinf=0, neginf=0).square().mean(0)
    large = {data.features[left[i]]: size**0.5 for i, size in enumerate(sizes.tolist()) if size**0.5 > LARGE}
    if large:
        named = examples([f"{name!r} (about {size:.1g})" for name, size in sorted(large.items(), key=lambda e: -e[1])])
        text = (
            f"a private run sends no sums to standardise by, so {named} would drown all other columns: give mean and "
            "deviation, or range, of each in a study file, or divide it in the table"
        )
        yield Finding("warning", "scale", text)


def _labels(values: Mapping[str, tuple[int, int, int, int]]) -> Iterator[Finding]:
    """Report the counts of each of several labels; this site lacks a label that is blank in all rows."""
    for name, (positive, negative, uncertain, blank) in values.items():
        if not positive + negative + uncertain:
            yield Finding(
                "ok", "label", f"{name}: blank in all rows, so this site contributes only to the other labels"
            )
            continue
        text = f"{name}: {positive:,} positive, {negative:,} negative, {uncertain:,} uncertain, {blank:,} blank"
        one_class = not (positive and negative)
        yield Finding("warning" if one_class else "ok", "label", f"{text}; is the column right?" if one_class else text)


def _to_read(config: JoinConfig) -> tuple[int, str]:
    """Return how many bytes of memory a table takes to read, before it is read; and a text if these are too many."""
    from edelweiss.client_app.local_data import study_of
    from edelweiss.datasets import DataError
    from edelweiss.datasets.site import file_of
    from edelweiss.datasets.site.formats import takes, too_large

    try:
        study = study_of(config.study)
        file = study.place(config.data_dir) if study else file_of(config.data_dir)
    except DataError:
        return 0, ""  # which reading will explain
    needed = takes(file, study.form if study else None)
    return needed, too_large(file, needed)


def _needed(data: SiteData, read: int) -> Finding:
    """Estimate the memory of a run with the default model, of a table that takes so much to read.

    Images are read from disk.
    """
    from edelweiss.common.memory import free_memory
    from edelweiss.config import RunConfig
    from edelweiss.datasets import DataSummary
    from edelweiss.datasets.site.formats import CELL

    run = RunConfig.parse({})
    setting = run.setting(DataSummary(shape=data.train.shape), "cpu")
    d = len(run.build_problem(setting).initial()["x"])
    table = max(read, CELL * data.train.inputs.numel()) if data.features else 0
    vectors = VECTORS * 4 * d
    needed = PROCESS + table + vectors
    text = (
        f"about {needed / 1e9:.1f} GB for a run: {PROCESS / 1e9:.1f} for the process, {table / 1e9:.1f} to read "
        f"the table, {vectors / 1e9:.1f} for {run.model} with {d:,} parameters; other models and large batches "
        "take more"
    )
    if needed > free_memory():
        return Finding("warning", "needed", f"{text}. Less is free: end other programs")
    return Finding("ok", "needed", text)
