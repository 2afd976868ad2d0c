"""Loading of a site's samples: read, partition, hold out, thin.

A process reads and partitions the data once, for any number of sites. Worker processes forked after the first load
share the tensors with their parent.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch

from edelweiss.common import PROCESS_CACHE, shown
from edelweiss.common.schema import is_file_name
from edelweiss.datasets.config import FOLDERS, SITE, TABLE, DataConfig
from edelweiss.datasets.errors import DataError
from edelweiss.datasets.files import SearchPath
from edelweiss.datasets.labels import stratum
from edelweiss.datasets.memory_mapped import in_blocks
from edelweiss.datasets.partition import NATURAL, Rows, partition
from edelweiss.datasets.patient_ids import keyed_holdout
from edelweiss.datasets.reading import PATIENTS, Pool, outside_source, pool_of
from edelweiss.datasets.samples import Samples
from edelweiss.datasets.source import Change, Digests, Ints, Mask, Source
from edelweiss.datasets.sources import SOURCES
from edelweiss.datasets.splits import (
    AllRows,
    SiteRows,
    Units,
    assign_folds,
    deal_proportionally,
    random_stream,
    stratified,
    thinned,
)

INSTEAD = (
    ". Rows of a group stay together, unless partition sites or split-sites makes sites of groups, or a column "
    "'patient' or a study file gives the patient of each row: then iid, dirichlet and by-class assign patients"
)


@dataclass(frozen=True, eq=False)
class SiteData:
    """The data of one site."""

    name: str  # "site-3", or the natural name ("cleveland")
    train: Samples  # training rows, at least one
    # the site's evaluation rows; possibly empty: a class with a single row is in `train` only, a site may have fewer
    # rows than folds, and a common test set fewer rows than sites
    held_out: Samples
    classes: int  # number of classes: 2 in a binary run
    missing: int  # number of missing values in the training rows
    features: tuple[str, ...] = ()  # column names of a table, in the order of the inputs; empty for images
    # patient_ids, row_ids: of all rows of the source, see `datasets.source.Source`; in a simulation, the patient or
    # group by which a row is assigned to a site. None without patient ids
    patient_ids: Digests | None = None
    row_ids: Digests | None = None
    by_patient: bool = False  # whether a column has the patient of each row
    # warnings, notes: likely mistakes in a hospital's own table, and its rows that were left out
    warnings: tuple[DataError, ...] = ()
    notes: tuple[str, ...] = ()
    # the changes between the files and the samples of all sites, a line each, with counts
    change_log: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()  # the label value of each class, for a table with a label column


def load_site(config: DataConfig, site: int, sites: int) -> SiteData:
    """Load the data of one site.

    `site` is in [0, sites). For the data set "site" it is only part of the name, and the partition is ignored. All
    sites of a process share the tensors.

    Raises
    ------
    DataError
        If the data cannot be read, or cannot be split like this.
    """
    if not 0 <= site < sites:
        text = f"site is {site}; with {sites} sites it must be from 0 to {sites - 1}"
        raise DataError.plain(text, key="site", value=site, allowed=range(sites))
    name, own = f"site-{site}", config.dataset == SITE
    if own:
        site, sites = 0, 1
    pool, (splits, change_log) = _parts(config, SearchPath.of(config.data_root, config.download), sites)
    if config.partition == "sites" and not own:
        name = pool.source.group_names[site] if site < len(pool.source.group_names) else name
    train, held_out = (torch.from_numpy(rows[site]) for rows in splits)
    if config.partition == "split-sites" and pool.source.groups is not None and len(train):
        name = f"{pool.source.group_names[pool.source.groups[int(train[0])]]}-{site}"
    if not is_file_name(name):
        text = (
            f"site {shown(name)}: a site's name must be one that a file can have, without / and at most 255 bytes long"
        )
        raise DataError.plain(text)
    if not len(train) and (config.key or not config.folds or len(held_out) > 1):
        raise DataError.plain("all rows of the site are held out, which leaves none to train on: it needs more")
    if not len(train):
        raise DataError.plain(
            f"the site's only row is held out in fold {config.fold}, which leaves none to train on; take another fold, "
            "folds = 0, or leave the site out",
            key="fold",
            value=config.fold,
        )
    inputs, dealt_whole = pool.source.inputs, bool(pool.whole) and not own
    missing = 0
    if inputs.is_floating_point():
        missing = sum(int(block.isnan().sum()) for block in in_blocks(inputs, train))
    return SiteData(
        name,
        Samples(inputs, pool.labels, train),
        Samples(inputs, pool.labels, held_out),
        pool.classes,
        missing,
        pool.source.features,
        pool.unit.view(np.uint64) if dealt_whole else pool.source.patient_ids,
        pool.source.row_ids,
        dealt_whole or pool.source.by_patient,
        pool.source.warnings,
        pool.source.notes,
        change_log,
        pool.source.class_names,
    )


def load_test(config: DataConfig) -> Samples | None:
    """Load the common test rows, which belong to no site.

    They are the official test set, or `test_share` of the rows; in a personal test the sites' parts together. None for
    the data set "site", and when a share of 0 or cross-validation leaves no test rows.

    Raises
    ------
    DataError
        The data cannot be read, or the class lists do not fit it.
    """
    pool = pool_of(config, SearchPath.of(config.data_root, config.download))
    return Samples(pool.source.inputs, pool.labels, torch.from_numpy(pool.test)) if len(pool.test) else None


def common_test_patients(config: DataConfig) -> Ints | None:
    """Return the patient or group of each common test row, as numbers; None if unknown."""
    pool = pool_of(config, SearchPath.of(config.data_root, config.download))
    return Units.among(pool.unit[pool.test]).of if pool.whole else None


def features_of(config: DataConfig) -> tuple[str, ...]:
    """Return the feature names of a table, in the order of the inputs, if the coordinator knows them.

    The names of a hospital's own table are known only from a study file.

    Raises
    ------
    DataError
        If the table cannot be read.
    """
    if config.dataset == SITE:
        return tuple(sorted(config.study.features())) if config.study else ()
    if config.dataset in (TABLE, FOLDERS):
        return pool_of(config, SearchPath.of(config.data_root, config.download)).source.features
    if config.dataset in SOURCES.given:
        with suppress(Exception):  # of the caller's function: a coordinator may lack what its sites have
            return outside_source(config.dataset).features
    return SOURCES[config.dataset].features if config.dataset in SOURCES else ()


def class_names_of(config: DataConfig) -> tuple[str, ...]:
    """Return the label value of each class, for a table on this machine; else nothing."""
    if config.dataset not in (TABLE, FOLDERS):
        return ()
    return pool_of(config, SearchPath.of(config.data_root, config.download)).source.class_names


Splits = tuple[tuple[SiteRows, SiteRows], tuple[str, ...]]


@PROCESS_CACHE.latest
def _parts(config: DataConfig, search_path: SearchPath, sites: int) -> tuple[Pool, Splits]:
    """Return pool and splits, shared by the sites."""
    return pool_of(config, search_path), _splits(config, search_path, sites)


@PROCESS_CACHE.keeps(16)
def _splits(config: DataConfig, search_path: SearchPath, sites: int) -> Splits:
    """Return the training and held-out rows of every site, and the log of changes."""
    pool = pool_of(config, search_path)
    labels, unit = stratum(pool.labels.numpy()[pool.train]), pool.unit[pool.train]
    if config.personal_test and not len(pool.test):
        text = f"personal-test needs a test set, and {config.dataset} comes without: raise test-share"
        raise DataError.plain(text, key="personal-test")
    holds_out = not config.personal_test and (config.holdout_share > 0 or config.folds > 0)
    if config.dataset == SITE:
        owner = np.zeros(len(labels), np.int64)
    else:
        source, groups = pool.source, _sites_of(config, pool.source, pool.train)
        parts = Units.among(unit, groups)
        strata = parts.highest(labels)
        rows = Rows(
            strata,
            parts.highest(stratum(source.classes[pool.train])),
            np.minimum(strata, 1) if config.binary else np.zeros_like(strata),
            None if groups is None else groups[parts.first],
            config.concentration,
            least=2 if holds_out and config.partition != "by-group" else 1,
            what=f"{pool.whole} to train on" if pool.whole else "training rows",
            instead=INSTEAD if config.dataset == TABLE and pool.whole not in ("", PATIENTS) else "",
        )
        owner = partition(config.partition, rows, sites, random_stream(config.seed, "partition"))[parts.of]
    units = Units.among(unit)
    home = owner[units.first][units.of]  # a patient of two hospitals is held out at both or at neither
    members = SiteRows(np.arange(len(home)), home, sites)
    if config.folds > (largest := int(np.bincount(owner[units.first]).max())) and config.dataset != SITE:
        raise DataError.plain(
            f"folds = {config.folds}: no site has so many {pool.whole or 'rows'}, the largest has {largest}; take at "
            f"most {largest}",
            key="folds",
            value=config.folds,
            allowed=largest,
        )
    held_out = np.zeros(len(labels), np.bool_)
    for site in range(sites if holds_out else 0):
        held_out[members[site]] = _held_out(config, pool, site, members[site])
    train = np.flatnonzero(~held_out)
    change_log = [*pool.change_log]
    if config.thin_share:
        rare = labels[train] == (config.thin_class == "positive")
        stays = thinned(rare, owner[train], config.thin_share, random_stream(config.seed, "thin"))
        train, removed = train[stays], int(np.sum(~stays))
        what = f"{config.thin_class} training samples are removed: thin-share = {config.thin_share:g}"
        change_log.append(str(Change(removed, int(rare.sum()), what)))
    held, held_owner = pool.train[held_out], owner[held_out]
    if config.personal_test:
        held, held_owner = pool.test, _personal_test(config, pool, owner, sites)
        change_log.append(f"the {len(held):,} samples of the common test set are split across the sites: personal-test")
    trained = AllRows(pool.train[train]) if config.pooled else SiteRows(pool.train[train], owner[train], sites)
    return (trained, SiteRows(held, held_owner, sites)), tuple(change_log)


def _held_out(config: DataConfig, pool: Pool, site: int, members: Ints) -> Mask:
    """Select the held-out rows of a site; the members are indices into the sites' rows."""
    rows = pool.train[members]
    if config.key and pool.source.patient_ids is not None:
        return keyed_holdout(pool.source.patient_ids[rows], config.key, config.holdout_share, config.folds, config.fold)
    units = Units.among(pool.unit[rows])
    strata = units.strata(stratum(pool.labels.numpy()[rows]))
    chosen: Mask
    if config.folds:
        chosen = assign_folds(strata, config.folds, random_stream(config.seed, "folds", site)) == config.fold
    else:
        chosen = stratified(strata, config.holdout_share, random_stream(config.seed, "held-out", site))
    return chosen[units.of]


def _personal_test(config: DataConfig, pool: Pool, owner: Ints, sites: int) -> Ints:
    """Assign common test rows to sites in proportion to their training rows, shape (m,).

    Units are stratified by class, and by natural site if there are any.
    """
    source, every = pool.source, np.concatenate([pool.train, pool.test])
    groups, classes = _sites_of(config, source, every), stratum(source.classes[every])
    if groups is not None:
        classes = classes + max(source.class_count, 1 + source.classes[0].size) * groups
    tested = np.arange(len(every)) >= len(pool.train)
    train, test = (
        Units.among(pool.unit[every][part], None if groups is None else groups[part]) for part in (~tested, tested)
    )
    strata, theirs = train.highest(classes[~tested]), test.highest(classes[tested])
    rng = random_stream(config.seed, "personal-test")
    return deal_proportionally(strata, owner[train.first], theirs, sites, rng)[test.of]


def _sites_of(config: DataConfig, source: Source, rows: Ints) -> Ints | None:
    """Return the natural site of each row, if the partition uses natural sites; else None."""
    return source.groups[rows] if config.partition in NATURAL and source.groups is not None else None
