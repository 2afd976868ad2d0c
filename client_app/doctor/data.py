"""The site's own data and rules, tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from edelweiss.client_app.connection import JoinConfig
from edelweiss.client_app.doctor.finding import Finding
from edelweiss.common import ConfigError, PlugInError

if TYPE_CHECKING:
    from edelweiss.client_app.policy import Policy
    from edelweiss.datasets import SiteData
    from edelweiss.datasets.site.survey import Survey

PROCESS, VECTORS = 0.6e9, 10  # bytes of a site without data; vectors as long as x that it holds at a time, about
SIDE = 224  # of images that differ in size, for the trial
ANY = 1 - 1e-9  # share of images that may be bad in it


def examine_data(config: JoinConfig) -> Iterator[Finding]:
    """Read the site's own data, and hold them against its rules."""
    if not config.data_dir:
        if config.partition_id < 0:
            yield Finding("error", "data", "none: name the folder of this site's data as data-dir")
        return

    from edelweiss.client_app.local_data import image_cache, study_of
    from edelweiss.client_app.policy import Policy
    from edelweiss.datasets import DataConfig, DataError, label_values, load_site
    from edelweiss.datasets.labels import Labels
    from edelweiss.datasets.site.survey import Survey

    try:
        policy = Policy.read(config.policy)
    except ConfigError as error:
        yield Finding("error", "rules", "; ".join(error.problems))
        return
    yield Finding("ok", "rules", f"of {config.policy}" if config.policy else "none of your own: those that protect")
    yield from _plug_ins(policy)
    if not config.names_label:
        text = "no label: each run chooses which column that is; name yours as label"
        yield Finding("error" if policy.strict else "warning", "rules", text)
    own = DataConfig(dataset="site", data_dir=config.data_dir, patient=policy.patient)
    own = replace(own, label=config.label) if config.label else own
    labels = Labels.of(config.label, "zeros", "zeros", "")  # a run says what uncertain and blank stand for
    several = labels.names if labels.several and not config.study else ()
    if several:
        own = replace(own, labels=labels)
    survey = None
    try:
        if not config.study and (survey := Survey.of(config.data_dir, config.follow_links)):
            yield Finding("ok", "images", survey.in_words())
            own = replace(own, follow_links=config.follow_links, image_cache=image_cache(config), bad_images=ANY)
            own = replace(own, image_size=0 if survey.one_size else SIDE)
        own = replace(own, study=study_of(config.study))
        data = load_site(own, 0, 1)
    except DataError as error:
        try:
            data = load_site(replace(own, binary=False), 0, 1)
        except DataError:
            yield Finding("error", "data", str(error))
            return
    if several:
        yield from _labels(label_values(config.data_dir, several))
    yield from _samples(data, len(several), survey, policy)
    yield _needed(data)


def _plug_ins(policy: Policy) -> Iterator[Finding]:
    """Compare the plug-ins that the policy allows with what is installed, and show the lines of those it could."""
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
            yield Finding("ok", "plug-ins", f"{name} is what the policy allows")
        elif line:
            text = f'{name} has changed: runs that use it are refused; look at it, then allow it with "{here}"'
            yield Finding("error", "plug-ins", text)
        else:
            text = f'{name} is installed and not allowed; plug-ins = ["{here}"] would allow it'
            yield Finding("ok", "plug-ins", text)


def _samples(data: SiteData, several: int, survey: Survey | None, policy: Policy) -> Iterator[Finding]:
    """Say what was read: how much of ``several`` labels, or of one, and what may be wrong with it."""
    import torch

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
    if survey and (bad := survey.rows - samples):
        text = f"{bad:,} of {survey.rows:,} are bad: runs whose bad-images is below {bad / survey.rows:.2g} do without "
        yield Finding("warning", "images", f"{text}this site")
    if data.classes > 2:
        which = f"{data.classes} classes"
        text = f"{data.classes} classes fit problems that keep all of them (cross-entropy, fair, robust, maml); for "
        yield Finding("warning", "labels", f"{text}the others name a study file that says which labels are positive")
    kind = f"{len(data.features)} features" if data.features else f"{'x'.join(map(str, data.train.shape))} numbers each"
    yield Finding("ok", "data", f"{samples:,} samples, {which}, {kind}; {data.missing:,} values missing")


def _labels(values: Mapping[str, tuple[int, int, int, int]]) -> Iterator[Finding]:
    """Say what there is of each of several labels; one that is blank in all rows is a label that this site lacks."""
    for name, (positive, negative, uncertain, blank) in values.items():
        if not positive + negative + uncertain:
            yield Finding("ok", "label", f"{name}: blank in all rows, so this site helps with the other labels only")
            continue
        text = f"{name}: {positive:,} positive, {negative:,} negative, {uncertain:,} uncertain, {blank:,} blank"
        one_class = not (positive and negative)
        yield Finding("warning" if one_class else "ok", "label", f"{text}; is the column right?" if one_class else text)


def _needed(data: SiteData) -> Finding:
    """Estimate the memory that a run of the default model takes; images are read from the disk."""
    from edelweiss.common.memory import free_memory
    from edelweiss.config import RunConfig
    from edelweiss.datasets import DataSummary

    run = RunConfig.parse({})
    setting = run.setting(DataSummary(shape=data.train.shape), "cpu")
    d = len(run.build_problem(setting).initial()["x"])
    table = data.train.inputs.nbytes if data.features else 0
    vectors = VECTORS * 4 * d
    needed = PROCESS + table + vectors
    text = (
        f"about {needed / 1e9:.1f} GB for a run: {PROCESS / 1e9:.1f} for the process, {table / 1e9:.1f} for the table, "
        f"{vectors / 1e9:.1f} for {run.model} with {d:,} parameters; other models and large batches take more"
    )
    if needed > free_memory():
        return Finding("warning", "needed", f"{text}. Less is free: end other programs")
    return Finding("ok", "needed", text)
