"""Which data a run is on, and how it is split."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from edelweiss.common import hint, repeated
from edelweiss.datasets.errors import DataError, examples
from edelweiss.datasets.image_cache import ImageCache
from edelweiss.datasets.image_file import COLOURS, FITS, as_form
from edelweiss.datasets.labels import Labels, split_names
from edelweiss.datasets.partition import NATURAL, PARTITIONS
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
    """Which data, and how it is split.

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
        At least 0. The side that the images of ``"image-folder"`` and ``"site"`` are scaled to; 0 leaves them.
    image_fit, image_colour
        How they come to that side, and which channels they have: see `datasets.image_file.ImageForm`.
    views, bad_images, follow_links
        Which images of ``"site"`` are looked at, how many may be left out as unreadable, and whether links may lead to
        them: see `datasets.site.images.ImageRules`.
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
        In [0, 1). Common test rows of a data set without an official test set, stratified by class. This and
        every other split deals whole patients where it is known whose each row is, and with the partition
        ``"by-group"`` whole groups.
    holdout_share
        In [0, 1). Rows that each site holds out of its own, stratified by class.
    personal_test
        True: a site holds out none of its training rows, and is given a part of the common test rows instead: of each
        class the same proportion as of the training rows. With the partition ``"sites"`` a test row goes where its own
        hospital or user is. `holdout_share` then plays no part.
    folds, fold
        With 2 or more folds each site deals its rows into so many, stratified by class, and holds out number `fold`,
        from 0: every row is held out in exactly one of the folds. Then `holdout_share` and `test_share` play no part;
        an official test set stays what it is. Neither partition nor folds depend on `fold`. 0 folds: off.
    data_file
        The file of the data sets ``"table"`` and ``"arrays"``.
    group_column
        Its column that says what a row belongs to; no feature. The partitions ``"sites"`` and ``"split-sites"`` make
        sites of its groups, ``"by-group"`` keeps them whole, and so do all others where nothing else says whose a row
        is. Empty: none does.
    label
        Label column of a site's table or labels.csv, or of `data_file`; of several their names, separated by commas.
    labels
        What the values of label columns stand for, where there are several or they may be uncertain or blank. None: one
        column of classes.
    patient
        Column of a site's table or labels.csv that says whose a row is; no feature. Empty: each row is another's, but
        for equal ones. In ``"site-folders"``, of which each has numbers of its own, and in ``"table"`` without a study
        it is called ``"patient"``, where there is one.
    study
        What the table means, where it is in its owner's spelling; `label` then plays no part.
    key
        In hexadecimal digits: the secret by which a site chooses whom it holds out, patient by patient, see
        `datasets.patient_ids`. Empty: the seed chooses.
    stamp
        Of a site's own file or of `data_file`, see `datasets.site.stamp`: one that has changed is read again.
    image_cache
        Where the decoded images of ``"site"`` are kept; None: in memory.
    seed
        At least 0. Every split follows from it.
    download
        Whether a data set that is not found may be downloaded.

    Raises
    ------
    DataError
        A field is out of its range or contradicts another; all such fields are named at once.
    """

    dataset: str
    data_root: str = ""
    data_dir: str = ""
    image_size: int = 0
    image_fit: str = "crop"
    image_colour: str = "auto"
    views: tuple[str, ...] = ()
    bad_images: float = 0.0
    follow_links: bool = False
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
        if problems := [*self._out_of_range(), *self._contradictions()]:
            raise DataError.join([DataError.plain(problem) for problem in problems])

    @property
    def own_table(self) -> bool:
        """Whether the data are somebody's own, with a label column, and not public."""
        return self.dataset in OWN

    @property
    def column(self) -> str:
        """The name of the label column, where there is one."""
        names = split_names(self.label)
        return names[0] if len(names) == 1 else self.label

    @property
    def images(self) -> ImageRules:
        """How images are read."""
        form = as_form(self.image_size, self.image_fit, self.image_colour)
        return ImageRules(form, self.views, self.bad_images, self.follow_links, self.image_cache)

    def _out_of_range(self) -> Iterator[str]:
        """Say which fields are wrong by themselves."""
        for name, allowed in (
            ("dataset", DATASETS),
            ("partition", PARTITIONS),
            ("thin_class", ("positive", "negative")),
            ("image_fit", FITS),
            ("image_colour", COLOURS),
        ):
            value = getattr(self, name)
            if value not in allowed and not (name == "dataset" and value in SOURCES):
                yield f"{name} is {value!r}; allowed: {', '.join(allowed)}.{hint(value, allowed)}"
        for name in ("thin_share", "test_share", "holdout_share", "bad_images"):
            if not 0 <= getattr(self, name) < 1:
                yield f"{name} is {getattr(self, name)}; it must be at least 0 and below 1"
        if not 0 < self.concentration < float("inf"):
            yield f"concentration is {self.concentration}; it must be above 0 and finite"
        for name in ("seed", "image_size"):
            if getattr(self, name) < 0:
                yield f"{name} is {getattr(self, name)}; it must be at least 0"

    def _contradictions(self) -> Iterator[str]:
        """Say which fields do not go together."""
        if self.labels and self.study:
            yield "a study file describes one label of two classes or more, and the run has labels that may be unknown"
        if self.labels:
            columns, count = split_names(self.label), len(self.labels.names)
            if len(columns) != count:
                yield f"label names {len(columns)} columns, and the run has {count} labels: name one for each of them"
            if twice := repeated(columns):
                yield f"label names {examples(twice)} more than once"
        if self.folds < 0 or self.folds == 1:
            yield f"folds is {self.folds}; it must be 0 or at least 2"
        elif not 0 <= self.fold < max(1, self.folds):
            highest = max(0, self.folds - 1)
            yield f"fold is {self.fold}; with {self.folds} folds it must be from 0 to {highest}"
        if self.personal_test and self.folds:
            yield "personal_test deals out a common test set, which cross-validation has none of; set folds to 0"
        if self.personal_test and self.dataset == SITE:
            yield "personal_test needs a common test set, which hospitals do not have: each holds out its own"
        if both := sorted(set(self.positive_classes) & set(self.negative_classes)):
            yield f"positive_classes and negative_classes share {both}; a class has one side"
        if self.thin_share and not self.binary:
            yield "thin_share needs binary = true; set thin_share to 0 to keep the classes"
        if self.dataset == TABLE and self.partition in (*NATURAL, "by-group") and not self.group_column:
            yield f"partition {self.partition!r} needs group_column, the column that says what each row belongs to"
        if self.dataset in SOURCES:
            row, others = SOURCES[self.dataset], "use iid, dirichlet or by-class"
            if self.image_size and not row.sized:
                yield f"image_size is for the images of {', '.join(SIZED)}, not {self.dataset}; set it to 0"
            if self.partition in NATURAL and not row.sites:
                able = ", ".join(name for name, other in SOURCES.items() if other.sites)
                needed = f"needs a data set with natural sites ({able}), not {self.dataset}; {others}"
                yield f"partition {self.partition!r} {needed}"
            if self.partition == "by-group" and not row.groups:
                able = ", ".join(f"{name}: {other.groups}" for name, other in SOURCES.items() if other.groups)
                yield f"partition 'by-group' needs a data set with groups ({able}), not {self.dataset}; {others}"
