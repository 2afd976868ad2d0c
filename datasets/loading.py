"""From a description of the data to one site's samples: read, map classes, hold out, partition, thin.

Each stage is cached per process, so that 256 sites read the data once and partition it once. Worker
processes forked after the first load share the tensors with their parent. A file that changes later is not
read again by the same process.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from datasets.errors import DataError, suggestion
from datasets.partition import PARTITIONS, Ints, Rows, dealt, dealt_alike, partition, stratified, thinned
from datasets.samples import Samples
from datasets.site import read_site
from datasets.sources import READERS, Source

SITE = "site"
DATASETS = (*READERS, SITE)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which data, and how it is split.

    Parameters
    ----------
    dataset
        One of `DATASETS`.
    data_root
        Folder with downloaded or found files (mnist and the like, heart-disease, harbox). Empty: the cache folder.
    data_dir
        A hospital's own folder, for the data set ``"site"``.
    partition
        One of `PARTITIONS`.
    concentration
        Of the dirichlet partition, above 0. The smaller, the more the sites differ.
    binary
        True maps the classes to labels 0 and 1; False keeps class indices as labels.
    positive_classes, negative_classes
        Original classes that become 1 and 0; classes in neither list are dropped. With one list empty its
        side gets all other classes. Both empty: the second half is positive, the first half negative.
    thin_class
        ``"positive"`` or ``"negative"``: the class that `thin_share` thins.
    thin_share
        In [0, 1). The share of that class among the training rows of all sites together after random rows
        of it were removed. 0 leaves the rows as they are. Held-out and test rows are never thinned.
    test_share
        In [0, 1). Common test rows of a data set without an official test set, stratified by class.
    holdout_share
        In [0, 1). Rows that each site holds out of its own, stratified by class; with the partition ``"by-group"``
        whole groups.
    personal_test
        True: a site holds out none of its training rows, and is given a part of the common test rows in their place: of
        each class the same proportion as of the training rows. With the partitions ``"sites"`` and ``"by-group"`` a
        test row goes where its own hospital or user is. `holdout_share` then plays no part.
    folds, fold
        With 2 or more folds each site deals its rows into so many, stratified by class, and holds out number `fold`,
        from 0: every row is held out in exactly one of the folds. Then `holdout_share` and `test_share` play no part;
        an official test set stays what it is. Neither partition nor folds depend on `fold`. 0 folds: off.
    label
        Label column of a site's table or labels.csv.
    seed
        At least 0. Every split follows from it.
    download
        Whether a data set that is not found may be downloaded.

    Raises
    ------
    DataError
        A field is out of its range; all such fields are named at once.
    """

    dataset: str
    data_root: str = ""
    data_dir: str = ""
    partition: str = "iid"
    concentration: float = 0.5
    binary: bool = True
    positive_classes: tuple[int, ...] = ()
    negative_classes: tuple[int, ...] = ()
    thin_class: str = "positive"
    thin_share: float = 0.0
    test_share: float = 0.25
    holdout_share: float = 0.2
    personal_test: bool = False
    folds: int = 0
    fold: int = 0
    label: str = "label"
    seed: int = 0
    download: bool = True

    def __post_init__(self) -> None:
        problems = []
        for name, allowed in (
            ("dataset", DATASETS),
            ("partition", PARTITIONS),
            ("thin_class", ("positive", "negative")),
        ):
            value = getattr(self, name)
            if value not in allowed:
                hint = suggestion(value, allowed)
                problems.append(f"{name} is {value!r}; allowed: {', '.join(allowed)}{hint}")
        for name in ("thin_share", "test_share", "holdout_share"):
            if not 0 <= getattr(self, name) < 1:
                problems.append(f"{name} is {getattr(self, name)}; it must be at least 0 and below 1")
        if self.folds < 0 or self.folds == 1:
            problems.append(f"folds is {self.folds}; it must be 0 or at least 2")
        elif not 0 <= self.fold < max(1, self.folds):
            highest = max(0, self.folds - 1)
            problems.append(f"fold is {self.fold}; with {self.folds} folds it must be from 0 to {highest}")
        if self.personal_test and self.folds:
            problems.append(
                "personal_test deals out a common test set, which cross-validation has none of; set folds to 0"
            )
        if self.personal_test and self.dataset == SITE:
            problems.append(
                "personal_test needs a common test set, which hospitals do not have: each holds out its own"
            )
        if not 0 < self.concentration < float("inf"):
            problems.append(f"concentration is {self.concentration}; it must be above 0 and finite")
        if self.seed < 0:
            problems.append(f"seed is {self.seed}; it must be at least 0")
        if both := sorted(set(self.positive_classes) & set(self.negative_classes)):
            problems.append(f"positive_classes and negative_classes share {both}; a class has one side")
        if self.thin_share and not self.binary:
            problems.append("thin_share needs binary = true; set thin_share to 0 to keep the classes")
        if problems:
            raise DataError.join([DataError.plain(problem) for problem in problems])


@dataclass(frozen=True, eq=False)
class SiteData:
    """What one site has.

    Parameters
    ----------
    name
        ``"site-3"``, or the natural name (``"cleveland"``).
    train
        Training rows, at least one.
    held_out
        The site's own evaluation rows. A class with a single row is in `train` only, so this may be empty; in
        cross-validation it may, where a site has fewer rows than there are folds; so may a site's part of a common
        test set with fewer rows than there are sites.
    classes
        How many labels there are: 2 in a binary run.
    missing
        How many values of the training rows are missing.
    features
        Column names of a table, in the order of the inputs; empty for images.
    """

    name: str
    train: Samples
    held_out: Samples
    classes: int
    missing: int
    features: tuple[str, ...] = ()


def load_site(config: DataConfig, site: int, sites: int) -> SiteData:
    """Load what one site has.

    Parameters
    ----------
    config
        Which data, and how it is split.
    site
        In [0, sites). For the data set ``"site"`` it only gives the name.
    sites
        How many sites share the data, at least 1. Ignored, as the partition is, for ``"site"``.

    Returns
    -------
    data
        The site's rows; the tensors are shared with every other site of this process.

    Raises
    ------
    DataError
        The data cannot be read, or cannot be split like that.
    """
    if not 0 <= site < sites:
        raise DataError.plain(f"site is {site}; with {sites} sites it must be from 0 to {sites - 1}")
    pool = _pool(config)
    name = f"site-{site}"
    if config.dataset == SITE:
        site, sites = 0, 1
    elif config.partition == "sites":
        name = pool.source.group_names[site] if site < len(pool.source.group_names) else name
    train, held_out = _splits(config, sites)[site]
    if not len(train):
        raise DataError.plain(
            f"the site's only row is held out in fold {config.fold}, which leaves none to train on; take another fold, "
            "folds = 0, or leave the site out"
        )
    inputs = pool.source.inputs
    missing = int(inputs.index_select(0, train).isnan().sum()) if inputs.is_floating_point() else 0
    return SiteData(
        name,
        Samples(inputs, pool.labels, train),
        Samples(inputs, pool.labels, held_out),
        pool.classes,
        missing,
        pool.source.features,
    )


def load_test(config: DataConfig) -> Samples | None:
    """Load the common test rows, which no site has.

    Parameters
    ----------
    config
        Which data, and how it is split.

    Returns
    -------
    samples
        The official test set, or `test_share` of the rows; in a personal test the sites' parts together. None for the
        data set ``"site"``, and when a share of 0 or cross-validation leaves no test rows.

    Raises
    ------
    DataError
        The data cannot be read, or the class lists do not fit it.
    """
    pool = _pool(config)
    return Samples(pool.source.inputs, pool.labels, torch.from_numpy(pool.test)) if len(pool.test) else None


@dataclass(frozen=True, eq=False)
class _Pool:
    """A source with its labels, cut into the rows for the sites and the common test rows."""

    source: Source
    labels: Tensor
    classes: int
    train: Ints
    test: Ints


def _rng(config: DataConfig, purpose: str, *site: int) -> np.random.Generator:
    return np.random.default_rng([config.seed, zlib.crc32(purpose.encode()), *site])


@lru_cache(maxsize=4)
def _source(dataset: str, folder: str, download: bool) -> Source:
    return READERS[dataset](folder, download)


_site_source = lru_cache(maxsize=4)(read_site)


@lru_cache(maxsize=16)
def _pool(config: DataConfig) -> _Pool:
    if config.dataset == SITE:
        source = _site_source(config.data_dir, config.label, config.binary)
    else:
        source = _source(config.dataset, config.data_root, config.download)
    labels = _label_of_class(config, source.class_count)[source.classes]
    kept = np.flatnonzero(labels >= 0)
    if config.dataset == SITE:
        test = np.zeros(len(kept), np.bool_)
    elif source.test is not None:
        test = source.test[kept]
    else:
        # A hospital's share of the test rows should be its share of all rows, so it is part of the stratum.
        groups = source.groups[kept] if source.groups is not None else 0
        strata = labels[kept] + source.class_count * groups
        test = stratified(strata, 0.0 if config.folds else config.test_share, _rng(config, "test"))
    classes = 2 if config.binary else source.class_count
    return _Pool(source, torch.from_numpy(labels), classes, kept[~test], kept[test])


def _label_of_class(config: DataConfig, count: int) -> Ints:
    """Label of each original class; -1 drops it."""
    every = range(count)
    if not config.binary:
        return np.arange(count)
    positive, negative = config.positive_classes, config.negative_classes
    if unknown := sorted({*positive, *negative} - set(every)):
        raise DataError.plain(
            f"positive-classes or negative-classes name {unknown}: {config.dataset} has classes 0 to {count - 1}, so "
            "leave the others out"
        )
    if not positive:
        positive = tuple(c for c in every if (c not in negative if negative else c >= count // 2))
    if not negative:
        negative = tuple(c for c in every if c not in positive)
    if not positive or not negative:
        key, side = ("positive-classes", positive) if positive else ("negative-classes", negative)
        raise DataError.plain(
            f"{key} = {','.join(map(str, side))!r} leaves the other side empty: {config.dataset} has classes 0 to "
            f"{count - 1}, so name fewer"
        )
    labels = np.full(count, -1)
    labels[list(positive)] = 1
    labels[list(negative)] = 0
    return labels


@lru_cache(maxsize=16)
def _splits(config: DataConfig, sites: int) -> list[tuple[Tensor, Tensor]]:
    """Training and held-out rows of every site."""
    pool = _pool(config)
    labels = pool.labels.numpy()[pool.train]
    if config.personal_test and not len(pool.test):
        raise DataError.plain(f"personal-test needs a test set, and {config.dataset} comes without: raise test-share")
    holds_out = not config.personal_test and (config.holdout_share > 0 or config.folds > 0)
    if config.dataset == SITE:
        owner = np.zeros(len(labels), np.int64)
    else:
        source = pool.source
        rows = Rows(
            labels,
            source.classes[pool.train],
            labels if config.binary else np.zeros_like(labels),
            None if source.groups is None else source.groups[pool.train],
            config.concentration,
            least=2 if holds_out else 1,
        )
        owner = partition(config.partition, rows, sites, _rng(config, "partition"))
    held_out = np.zeros(len(labels), np.bool_)
    for site, members in enumerate(_by_owner(owner, sites) if holds_out else ()):
        strata, unit = labels[members], np.arange(len(members))
        if config.partition == "by-group" and pool.source.groups is not None:  # what is dealt whole is held out whole
            groups, unit = np.unique(pool.source.groups[pool.train][members], return_inverse=True)
            strata = np.zeros_like(groups)
        if config.folds:
            chosen = dealt(strata, config.folds, _rng(config, "folds", site)) == config.fold
        else:
            chosen = stratified(strata, config.holdout_share, _rng(config, "held-out", site))
        held_out[members] = chosen[unit]
    train = np.flatnonzero(~held_out)
    if config.thin_share:
        rare = labels[train] == (config.thin_class == "positive")
        train = train[thinned(rare, owner[train], config.thin_share, _rng(config, "thin"))]
    held, held_owner = pool.train[held_out], owner[held_out]
    if config.personal_test:
        strata, theirs = (_strata(config, pool.source, rows) for rows in (pool.train, pool.test))
        held, held_owner = pool.test, dealt_alike(strata, owner, theirs, sites, _rng(config, "personal-test"))
    return [
        (torch.from_numpy(pool.train[train[mine]]), torch.from_numpy(held[theirs]))
        for mine, theirs in zip(_by_owner(owner[train], sites), _by_owner(held_owner, sites), strict=True)
    ]


def _strata(config: DataConfig, source: Source, rows: Ints) -> Ints:
    """Return what makes test rows and training rows alike: the class, and the group where groups are dealt whole."""
    if config.partition not in ("sites", "by-group") or source.groups is None:
        return source.classes[rows]
    return source.classes[rows] + source.class_count * source.groups[rows]


def _by_owner(owner: Ints, sites: int) -> list[Ints]:
    """Positions of each site's rows, in one sort for all sites."""
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.cumsum(np.bincount(owner, minlength=sites))[:-1])
