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
    """The data of a run and their splits: keys of the run by the same names (docs/keys.md), and what a site adds.

    Raises
    ------
    DataError
        If a site's label columns do not fit the labels of the run; lists all such problems.
    """

    dataset: str  # one of `DATASETS`
    # the folder with a data set's files. Empty: that of the environment variable EDELWEISS_DATA, if it is set, then the
    # cache folder, to which a download goes
    data_root: str = ""
    data_dir: str = ""  # a hospital's own folder, for the data set "site"
    image_size: int = 0
    image_fit: Fit = "crop"
    image_colour: Colour = "auto"
    views: tuple[str, ...] = ()
    bad_images: float = 0.0
    follow_links: bool = False
    partition: str = "iid"  # one of `datasets.partition.PARTITIONS`
    concentration: float = 0.5
    pooled: bool = False  # every site trains on the rows of all; each evaluates on its own
    binary: bool = True  # maps the classes to labels 0 and 1; False keeps class indices as labels
    # classes that become 1 and 0; those in neither list are dropped, an empty list gets all others, and of two empty
    # lists the second half is positive
    positive_classes: tuple[int, ...] = ()
    negative_classes: tuple[int, ...] = ()
    thin_class: Literal["positive", "negative"] = "positive"
    thin_share: float = 0.0  # of training rows; held-out and test rows are never thinned
    # Every split is stratified by class, and keeps patients whole if they are known, and groups with the partition
    # "by-group".
    test_share: float = 0.25
    holdout_share: float = 0.2
    personal_test: bool = False  # instead of held-out rows; with the partition "sites" a test row goes to its own site
    # With 2 folds or more the shares are ignored; an official test set is kept. Neither partition nor folds depend on
    # `fold`.
    folds: int = 0
    fold: int = 0
    data_file: str = ""  # of the data sets "table" and "arrays"
    group_column: str = ""
    label: str = "label"  # several columns are separated by commas
    labels: Labels | None = None  # if there are several, or they may be uncertain or blank; None: one column of classes
    # Patient column. Empty: each row is one patient, except for equal rows; in "site-folders", and in "table" without a
    # study, it is "patient" if there is one.
    patient: str = ""
    study: Study | None = None  # of a table in its owner's spelling; `label` is then ignored
    # the secret, in hexadecimal digits, by which a site selects its held-out patients, see `datasets.patient_ids`.
    # Empty: the seed selects them
    key: str = ""
    stamp: tuple[int, int] = (0, 0)  # of a site's own file or of `data_file`, see `datasets.site.stamp`
    image_cache: ImageCache | None = None  # of the decoded images of "site"; None: in memory
    seed: int = 0  # at least 0; determines every split
    download: bool = True  # whether a missing data set may be downloaded

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
