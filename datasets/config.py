"""The configuration of a run's data and their splits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edelweiss.common import repeated
from edelweiss.datasets.errors import DataError, examples
from edelweiss.datasets.image_cache import ImageCache
from edelweiss.datasets.image_file import Colour, Fit, ImageForm
from edelweiss.datasets.labels import Labels, split_names
from edelweiss.datasets.site.images import ImageRules
from edelweiss.datasets.site.study import Study
from edelweiss.datasets.sources import SOURCES

SITE = "site"  # a hospital's own folder
TABLE = "table"  # a table of one's own, dealt to simulated sites
ARRAYS = "arrays"  # inputs and labels given in Python, see `datasets.given`
FOLDERS = "site-folders"  # hospitals' folders on one machine, for simulated sites
FILES = (TABLE, ARRAYS, FOLDERS, SITE)
DATASETS = (*SOURCES, *FILES)
LOCAL = (TABLE, ARRAYS, FOLDERS)  # files of the machine that simulates: no hospital reads them
OWN = (TABLE, FOLDERS, SITE)  # with label columns
SIZED = (*(name for name, row in SOURCES.items() if row.sized), FOLDERS, SITE)  # images of any size


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The data of a run and their splits.

    Parameters
    ----------
    dataset
        One of `DATASETS`.
    data_root
        Folder with the files of a data set. Empty: the folder that the environment variable EDELWEISS_DATA names, if
        it is set, then the cache folder, to which a download goes.
    data_dir
        A hospital's own folder, for the data set ``"site"``.
    image_size
        At least 0. The side to which the images of ``"image-folder"`` and ``"site"`` are scaled; 0: unscaled.
    image_fit, image_colour
        How images are scaled, and their channels: see `datasets.image_file.ImageForm`.
    views, bad_images, follow_links
        The views of ``"site"`` that are read, the share of unreadable images that may be left out, and whether symlinks
        are followed: see `datasets.site.images.ImageRules`.
    partition
        One of `datasets.partition.PARTITIONS`.
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
        In [0, 1). The share of that class among the training rows of all sites after random rows of it are removed.
        0 removes none. Held-out and test rows are never thinned.
    test_share
        In [0, 1). Share of common test rows of a data set without an official test set, stratified by class. This and
        every other split keeps patients whole if they are known, and groups with the partition ``"by-group"``.
    holdout_share
        In [0, 1). Share of rows that each site holds out, stratified by class.
    personal_test
        True: instead of held-out rows each site gets a part of the common test rows, with the class proportions of its
        training rows. With the partition ``"sites"`` a test row goes to its own hospital or user. `holdout_share` is
        ignored.
    folds, fold
        With 2 or more folds each site splits its rows into folds, stratified by class, and holds out fold number
        `fold`, from 0. `holdout_share` and `test_share` are ignored; an official test set is kept. Neither partition
        nor folds depend on `fold`. 0: no cross-validation.
    data_file
        The file of the data sets ``"table"`` and ``"arrays"``.
    group_column
        Its column of groups, not a feature. The partitions ``"sites"`` and ``"split-sites"`` turn groups into sites;
        ``"by-group"`` keeps them whole, and so do the others if there are no patients. Empty: no groups.
    label
        Label column of a site's table or labels.csv, or of `data_file`; several are separated by commas.
    labels
        The meaning of the values of label columns, if there are several or they may be uncertain or blank. None: one
        column of classes.
    patient
        Patient column of a site's table or labels.csv, not a feature. Empty: each row is one patient, except for equal
        rows. In ``"site-folders"``, and in ``"table"`` without a study, the column is ``"patient"`` if there is one.
    study
        The study file of a table in its owner's spelling; `label` is then ignored.
    key
        The secret, in hexadecimal digits, by which a site selects its held-out patients, see `datasets.patient_ids`.
        Empty: the seed selects them.
    stamp
        Stamp of a site's own file or of `data_file`, see `datasets.site.stamp`: a changed file is read again.
    image_cache
        Cache of the decoded images of ``"site"``; None: in memory.
    seed
        At least 0. Determines every split.
    download
        Whether a missing data set may be downloaded.

    Raises
    ------
    DataError
        If a site's label columns do not fit the labels of the run; lists all such problems.
    """

    dataset: str
    data_root: str = ""
    data_dir: str = ""
    image_size: int = 0
    image_fit: Fit = "crop"
    image_colour: Colour = "auto"
    views: tuple[str, ...] = ()
    bad_images: float = 0.0
    follow_links: bool = False
    partition: str = "iid"
    concentration: float = 0.5
    binary: bool = True
    positive_classes: tuple[int, ...] = ()
    negative_classes: tuple[int, ...] = ()
    thin_class: Literal["positive", "negative"] = "positive"
    thin_share: float = 0.0
    test_share: float = 0.25
    holdout_share: float = 0.2
    personal_test: bool = False
    folds: int = 0
    fold: int = 0
    data_file: str = ""
    group_column: str = ""
    label: str = "label"
    labels: Labels | None = None
    patient: str = ""
    study: Study | None = None
    key: str = ""
    stamp: tuple[int, int] = (0, 0)
    image_cache: ImageCache | None = None
    seed: int = 0
    download: bool = True

    def __post_init__(self) -> None:
        """Check what a site may change; a `RunConfig` has checked the rest."""
        found = []
        if self.labels and self.study:
            found.append("a study file describes one label, and the run has labels that may be uncertain or blank")
        if self.labels:
            columns, count = split_names(self.label), len(self.labels.names)
            if len(columns) != count:
                found.append(f"label names {len(columns)} columns, and the run has {count} labels: name one for each")
            if twice := repeated(columns):
                found.append(f"label names {examples(twice)} more than once")
        if found:
            raise DataError.join([DataError.plain(problem, key="label") for problem in found])

    @property
    def own_table(self) -> bool:
        """Whether the data are private, with a label column."""
        return self.dataset in OWN

    @property
    def column(self) -> str:
        """The name of the label column, if any."""
        names = split_names(self.label)
        return names[0] if len(names) == 1 else self.label

    @property
    def images(self) -> ImageRules:
        """The rules for reading images."""
        form = ImageForm(self.image_size, self.image_fit, self.image_colour)
        return ImageRules(form, self.views, self.bad_images, self.follow_links, self.image_cache)
