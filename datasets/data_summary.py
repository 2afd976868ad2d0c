"""What holds for all sites together, made of what each tells; a message and a model's file say it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from edelweiss.common import Number, Schema, Several, Text, from_record, shown, to_record
from edelweiss.common.options import MOST, is_number
from edelweiss.datasets.facts import HASH, LARGEST
from edelweiss.datasets.samples import Samples

SMALLEST = 1e-37  # a normal float32
# Of a model's file. 1 did not say what inputs and labels mean, 2 not which fit and colour images have: see `Meaning`.
FILE_FORMAT = 3


@dataclass(frozen=True, kw_only=True)
class DataSummary:
    """What holds for the patients of all sites together, and every site must know to train with the others.

    Attributes
    ----------
    shape : tuple of int
        Of one input: (features,) or (channels, height, width); empty where there are no data.
    classes : int
        C, how many labels there are.
    prior : float
        p, the share of positives that averages over the sites see, with the sites' weights, in (0, 1); 0.5 where there
        are more than two classes.
    shares : tuple of float
        p_1 to p_C where all classes are kept, each in [0, 1]; else empty.
    labels : tuple of str
        Names of the labels where there are several; else empty.
    priors : tuple of float
        p of each of these: the share of positives that averages over the sites which know the label see, in (0, 1).
    shift, scale : tuple of float
        What standardises inputs, per feature or channel; empty for none.
    columns : str
        A hash of the column names.
    """

    shape: tuple[int, ...] = ()
    classes: int = 2
    prior: float = 0.5
    shares: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()
    priors: tuple[float, ...] = ()
    shift: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    columns: str = ""

    def wrong(self) -> Iterator[str]:
        """Yield what cannot be: what others wrote has any type and value."""
        width = self.shape[0] if isinstance(self.shape, tuple) and self.shape else 0
        if not (isinstance(self.shape, tuple) and len(self.shape) in (0, 1, 3) and all(map(_counts, self.shape))):
            yield f"shape = {shown(self.shape)}: must be [features] or [channels, height, width]"
        if not (_counts(self.classes) and self.classes >= 2):
            yield f"classes = {shown(self.classes)}: must be an integer from 2"
        if not (_numbers((self.prior,)) and 0 < self.prior < 1):
            yield f"prior = {shown(self.prior)}: must be between 0 and 1"
        if self.shares != () and not (_numbers(self.shares, self.classes) and all(0 <= p <= 1 for p in self.shares)):
            yield f"shares = {shown(self.shares)}: must be a share from 0 to 1 for each class"
        if not (isinstance(self.labels, tuple) and all(type(name) is str for name in self.labels)):
            yield f"labels = {shown(self.labels)}: must be names"
        elif len(self.labels) == 1 or len(set(self.labels)) < len(self.labels):
            yield f"labels = {shown(self.labels)}: must be several names, each another"
        elif not (_numbers(self.priors, len(self.labels)) and all(0 < p < 1 for p in self.priors)):
            yield f"priors = {shown(self.priors)}: must be a number between 0 and 1 for each of labels"
        if self.shift != () and not _numbers(self.shift, width):
            yield f"shift = {shown(self.shift)}: must be a finite number for each feature or channel"
        if not (_numbers(self.scale, width if self.shift else 0) and all(s >= SMALLEST for s in self.scale)):
            yield f"scale = {shown(self.scale)}: must be a finite number above 0 for each of shift"
        if type(self.columns) is not str:
            yield f"columns = {shown(self.columns)}: must be text"

    @classmethod
    def of_file(cls, facts: Mapping[str, Any]) -> DataSummary:
        """Read what a model's file says, see `facts`; ValueError lists all that cannot be."""
        if type(form := facts.get("format", 1)) is not int or not 1 <= form <= FILE_FORMAT:
            text = f"it has format {shown(form)}, and this release reads 1 to {FILE_FORMAT}"
            raise ValueError(f"{text}: take the release that wrote it, or a newer one")
        data_summary = from_record(cls, facts)
        wrong = list(data_summary.wrong())
        if not data_summary.shape:
            wrong.insert(0, "shape is missing: it does not describe its inputs")
        if wrong:
            raise ValueError("; ".join(wrong))
        return data_summary

    def facts(self) -> dict[str, object]:
        """Return what there is, as JSON has it: what a model's file says of the data that it was trained on."""
        return {key: value for key, value in to_record(self).items() if value}

    def standardised(self, samples: Samples) -> Samples:
        """Return samples standardised as all sites standardise theirs."""
        if not self.shift:
            return samples
        return samples.standardised(_tensor(self.shift), _tensor(self.scale))


@lru_cache(maxsize=8)
def _tensor(numbers: tuple[float, ...]) -> torch.Tensor:
    """Return one tensor for all sites of a process."""
    return torch.tensor(numbers)


def _counts(value: object) -> bool:
    """Whether it is a number of something, 1 or more."""
    return type(value) is int and 1 <= value <= MOST


def _numbers(values: object, count: int | None = None) -> bool:
    """Whether these are numbers, as many as that, that a float32 holds."""
    return isinstance(values, tuple) and (count is None or len(values) == count) and all(map(is_number, values))


@lru_cache(maxsize=64)
def cohort_schema(shape: tuple[int, ...], *, multiclass: bool, labels: int = 1) -> Schema:
    """Describe a record of a `DataSummary`, at a site whose inputs have this shape, in a run of so many labels."""
    several = labels if labels > 1 else 0
    share = Number(sys.float_info.min, 1 - sys.float_info.epsilon)
    features = tuple(shape[:1])
    return {
        "shape": Several(Number(1, 10**7, whole=True), (len(shape),)),
        "classes": Number(2, 10**6, whole=True),
        "prior": share,
        "shares": Several(Number(0, 1)) if multiclass else Several(Number(), (0,)),  # length: see `wrong_cohort`
        "labels": Several(Text(100), (several,)),
        "priors": Several(share, (several,)),
        "shift": Several(Number(-LARGEST, LARGEST), (0, *features)),
        "scale": Several(Number(sys.float_info.min, LARGEST), (0, *features)),
        "columns": HASH,
    }


def wrong_cohort(
    record: Mapping[str, Any], shape: Sequence[int], classes: int, *, multiclass: bool, labels: Sequence[str] = ()
) -> list[str]:
    """Return what in a record of a `DataSummary`, which is as `cohort_schema` says, cannot be of this site's data.

    ``labels`` are the run's, where there are several.
    """
    wrong = []
    if list(record["labels"]) != list(labels):
        wrong.append(f"labels = {shown(record['labels'])}: must be those of the run")
    if list(record["shape"]) != list(shape):
        wrong.append(f"shape = {shown(record['shape'])}: must be that of this site's inputs")
    if record["classes"] < classes:
        wrong.append(f"classes = {record['classes']}: this site has more")
    if len(record["shift"]) != len(record["scale"]):
        wrong.append(f"scale has {len(record['scale'])} entries: must have as many as shift, {len(record['shift'])}")
    if multiclass and not (len(shares := record["shares"]) <= record["classes"] and abs(sum(shares) - 1) < 1e-6):
        wrong.append(f"shares = {shown(shares)}: must be of at most {record['classes']} classes, and add up to 1")
    return wrong
