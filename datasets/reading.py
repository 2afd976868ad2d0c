"""Reading of a data set: classes are mapped to labels, common test rows are separated from the sites' rows.

Each stage is cached per process, so that any number of sites reads the data once. Changed files are not read again by
the same process, except for a hospital's own, see `DataConfig.stamp`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ParamSpec

import numpy as np
import torch
from torch import Tensor

from edelweiss.common import PROCESS_CACHE, shown
from edelweiss.datasets.config import ARRAYS, FOLDERS, SITE, TABLE, DataConfig
from edelweiss.datasets.errors import DataError, examples
from edelweiss.datasets.files import SearchPath
from edelweiss.datasets.image_file import ImageForm
from edelweiss.datasets.labels import Labels, stratum
from edelweiss.datasets.partition import NATURAL
from edelweiss.datasets.site import read_site
from edelweiss.datasets.site.images import ImageRules
from edelweiss.datasets.source import Change, Ints, Source
from edelweiss.datasets.sources import SOURCES
from edelweiss.datasets.sources.arrays import read_arrays
from edelweiss.datasets.sources.folders import read_folders
from edelweiss.datasets.sources.table import read_grouped
from edelweiss.datasets.splits import Units, merge_units, random_stream, stratified

P = ParamSpec("P")
PATIENTS = "patients"
NO_STAMP = (0, 0)  # of files that are not read again when they change


@dataclass(frozen=True, eq=False)
class Pool:
    """A source with its labels, split into the sites' rows and the common test rows."""

    # source, labels, classes: all rows, their labels, and the number of classes
    source: Source
    labels: Tensor
    classes: int
    unit: Ints  # shape (N,): the unit of each row that every split keeps whole, see `_unit`
    whole: str  # the kind of unit, such as "patients"; empty: single rows
    # train, test: the sites' rows, and common test rows
    train: Ints
    test: Ints
    change_log: tuple[str, ...]  # what was done to the rows so far, a line each, in numbers


# The search path of a data set depends on the environment, so it is part of each stage's cache key.


@PROCESS_CACHE.keeps(1)
def outside_source(dataset: str) -> Source:
    """Call the function of a data set from outside, once per process and run; see `SOURCES`."""
    return SOURCES[dataset].read(None)


@PROCESS_CACHE.keeps(4)
def _source(read: Callable[P, Source], stamp: tuple[int, int], *given: P.args, **named: P.kwargs) -> Source:
    return read(*given, **named)


def _read_named(dataset: str, search_path: SearchPath, form: ImageForm) -> Source:
    row = SOURCES[dataset]
    if dataset not in SOURCES.built_in:
        return outside_source(dataset)
    return row.read(search_path, form) if row.sized else row.read(search_path)


def _read_folders(
    search_path: SearchPath, label: str, binary: bool, images: ImageRules, labels: Labels | None
) -> Source:
    return read_folders(search_path, lambda folder: read_site(folder, label, binary, images, None, labels=labels))


@PROCESS_CACHE.keeps(16)
def pool_of(config: DataConfig, search_path: SearchPath) -> Pool:
    """Read a data set, once per process; see `datasets.load_site` for the errors."""
    label, how = (config.column, config.binary), (config.study, config.labels)
    if config.dataset == SITE:
        source = _source(read_site, config.stamp, config.data_dir, *label, config.images, config.patient, *how)
    elif config.dataset == TABLE:
        source = _source(read_grouped, config.stamp, config.data_file, *label, config.group_column, *how)
    elif config.dataset == ARRAYS:
        source = _source(read_arrays, config.stamp, config.data_file)
    elif config.dataset == FOLDERS:
        source = _source(_read_folders, NO_STAMP, search_path, *label, config.images, config.labels)
    else:
        source = _source(_read_named, NO_STAMP, config.dataset, search_path, config.images.form)
    if config.dataset == FOLDERS and not (config.binary or config.labels):
        _require_no_gap(source.classes)
    # For labels that may be unknown, the classes are the labels.
    labels = source.classes if config.labels else _label_of_class(config, source.class_count)[source.classes]
    kept = np.flatnonzero((labels >= 0).reshape(len(labels), -1).any(1))
    unit, whole = _unit(config, source)
    if config.dataset == SITE:
        test = np.zeros(len(kept), np.bool_)
    elif source.test is not None:
        test = source.test[kept]
    else:
        # Test rows are stratified by hospital as well.
        groups = 0 if source.groups is None or _deals_groups(config, source) else source.groups[kept]
        strata = stratum(labels[kept]) + max(source.class_count, 1 + labels[0].size) * groups
        units = Units.among(unit[kept])
        share = 0.0 if config.folds else config.test_share
        test = stratified(units.strata(strata), share, random_stream(config.seed, "test"))[units.of]
    classes = 2 if config.binary else source.class_count
    change_log = tuple(_change_log(config, source, unit[kept], whole))
    return Pool(source, torch.from_numpy(labels), classes, unit, whole, kept[~test], kept[test], change_log)


def _require_no_gap(classes: Ints) -> None:
    """Refuse a class without a sample at any hospital."""
    found = np.unique(classes)
    if len(found) <= found[-1]:
        lacks = min({*range(len(found))} - {*found.tolist()})
        numbered = examples([f"{own} becomes {number}" for number, own in enumerate(found.tolist())])
        raise DataError.plain(
            f"site-folders: no folder has a row of class {lacks}, and the highest is {found[-1]}: number the classes "
            f"from 0 without a gap, in all folders alike ({numbered}). Hospitals map such labels with a study file, "
            'under [label]: classes = [["1"], ["2"], ["3"]], say'
        )


def _change_log(config: DataConfig, source: Source, unit: Ints, whole: str) -> Iterator[str]:
    """Yield the log of changes to the rows of a source; these units remain."""
    yield from map(str, source.changes)
    if not config.binary and source.class_names and source.class_names != tuple(map(str, range(source.class_count))):
        counts = np.bincount(source.classes, minlength=source.class_count)
        numbered = (
            f"{name!r} ({count:,} rows) is class {number}"
            for number, (name, count) in enumerate(zip(source.class_names, counts, strict=True))
        )
        yield f"the values of the label were numbered in their order: {', '.join(numbered)}"
    if left := len(source.classes) - len(unit):
        why = "no label of them is known" if config.labels else "they are of classes that the class lists leave out"
        yield str(Change(left, len(source.classes), f"samples are left out: {why}"))
    if whole and config.dataset != SITE:
        yield f"{len(unit):,} samples belong to {len(np.unique(unit)):,} {whole}; every split keeps these whole"


def _unit(config: DataConfig, source: Source) -> tuple[Ints, str]:
    """Return the unit of each row that every split keeps whole, as a number, and the kind of unit; empty: single rows.

    Units are patients if these are known, and groups with the partition by-group, or if a table has a group column but
    no patients and the partition does not turn groups into sites.
    """
    patients = source.patient_ids if source.by_patient else None
    if source.groups is not None and _deals_groups(config, source):
        named = f"groups of {shown(config.group_column)}" if config.group_column else "groups"
        return (source.groups if patients is None else merge_units(source.groups, patients)), named
    if patients is None:
        return np.arange(len(source.classes)), ""
    return np.unique(patients, return_inverse=True)[1].reshape(-1).astype(np.int64), PATIENTS


def _deals_groups(config: DataConfig, source: Source) -> bool:
    """Whether groups, if any, are kept whole."""
    by_column = config.dataset == TABLE and not source.by_patient
    return config.partition == "by-group" or (by_column and config.partition not in NATURAL)


def _label_of_class(config: DataConfig, count: int) -> Ints:
    """Return the label of each original class; -1 drops it."""
    every = range(count)
    if not config.binary:
        return np.arange(count)
    positive, negative = config.positive_classes, config.negative_classes
    if unknown := sorted({*positive, *negative} - set(every)):
        raise DataError.plain(
            f"positive-classes or negative-classes name {examples(unknown)}: {config.dataset} has classes 0 to "
            f"{count - 1}, so leave the others out",
            key="negative-classes" if {*positive} <= {*every} else "positive-classes",
            value=unknown,
            allowed=every,
        )
    if count > 2 and not positive and not negative and config.dataset not in SOURCES.built_in:
        raise DataError.plain(
            f"the data have classes 0 to {count - 1}, and the problem takes two: say which are positive, such as "
            f'positive-classes = "{count - 1}"',
            key="positive-classes",
        )
    if not positive:
        positive = tuple(c for c in every if (c not in negative if negative else c >= count // 2))
    if not negative:
        negative = tuple(c for c in every if c not in positive)
    if not positive or not negative:
        key, side = ("positive-classes", positive) if positive else ("negative-classes", negative)
        raise DataError.plain(
            f"{key} = {','.join(map(str, side))!r} leaves the other side empty: {config.dataset} has classes 0 to "
            f"{count - 1}, so name fewer",
            key=key,
            value=side,
        )
    labels = np.full(count, -1)
    labels[list(positive)] = 1
    labels[list(negative)] = 0
    return labels


def table_warnings(config: DataConfig) -> tuple[DataError, ...]:
    """Return possible mistakes in the table, or the folders, of a simulation; hospitals report their own.

    Raises
    ------
    DataError
        If the data cannot be read.
    """
    if config.dataset not in (TABLE, FOLDERS):
        return ()
    return pool_of(config, SearchPath.of(config.data_root, config.download)).source.warnings
