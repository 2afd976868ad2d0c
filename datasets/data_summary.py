"""The summary of all sites' data, sent to the sites and stored in a model's file."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

import torch
from annotated_types import Interval

from edelweiss.common import from_record, record_errors, schema_of, shown, to_record
from edelweiss.common.options import LARGEST as MOST
from edelweiss.common.schema import List
from edelweiss.datasets.facts import LARGEST, Classes, Hash, Shape, Sum, Text
from edelweiss.datasets.samples import Samples

SMALLEST = 1e-37  # a normal float32
# Of a model's file. 1 had no `ModelSchema`, and 2 none of images' fit and colour.
FILE_FORMAT = 4
Prior = Annotated[Sum, Interval(ge=sys.float_info.min, le=1 - sys.float_info.epsilon)]


@dataclass(frozen=True, kw_only=True)
class DataSummary:
    """The summary of all sites' data, which every site needs to train with the others."""

    shape: Shape = ()  # shape of one input: (features,) or (channels, height, width); empty without data
    classes: Classes = 2  # C, the number of classes
    # p, the average share of positives over sites, with the sites' weights, in (0, 1); 0.5 with more than two classes
    prior: Prior = 0.5
    # p_1 to p_C, each in [0, 1], for multi-class problems; else empty
    shares: Annotated[tuple[Annotated[Sum, Interval(ge=0, le=1)], ...], *List] = ()
    labels: Annotated[tuple[Text, ...], *List] = ()  # names of several labels; else empty
    priors: Annotated[tuple[Prior, ...], *List] = ()  # p of each label, averaged over the sites that have it, in (0, 1)
    # shift, scale: standardisation per feature or channel; empty for none
    shift: Annotated[tuple[Annotated[Sum, Interval(ge=-LARGEST, le=LARGEST)], ...], *List] = ()
    scale: Annotated[tuple[Annotated[Sum, Interval(ge=sys.float_info.min, le=LARGEST)], ...], *List] = ()
    columns: Hash = ""  # hash of the column names

    @classmethod
    def wrong(cls, record: Mapping[str, Any]) -> list[str]:
        """Return the invalid entries of a stored summary."""
        known = {key: record[key] for key in SUMMARY if key in record}
        return record_errors(known, SUMMARY, optional=SUMMARY) or [*from_record(cls, known).contradictions()]

    def contradictions(self) -> Iterator[str]:
        """Yield contradictions between values that are valid by themselves."""
        width = self.shape[0] if self.shape else 0
        if self.shares and len(self.shares) != self.classes:
            yield f"shares = {shown(self.shares)}: must be a share from 0 to 1 for each class"
        if len(self.labels) == 1 or len(set(self.labels)) < len(self.labels):
            yield f"labels = {shown(self.labels)}: must be several names, each another"
        elif len(self.priors) != len(self.labels):
            yield f"priors = {shown(self.priors)}: must be a number between 0 and 1 for each of labels"
        if len(self.shift) not in (0, width) or any(abs(number) > MOST for number in self.shift):
            yield f"shift = {shown(self.shift)}: must be a finite number for each feature or channel"
        if len(self.scale) != len(self.shift) or not all(SMALLEST <= number <= MOST for number in self.scale):
            yield f"scale = {shown(self.scale)}: must be a finite number above 0 for each of shift"

    @classmethod
    def of_file(cls, facts: Mapping[str, Any]) -> DataSummary:
        """Read a model's file, see `facts`; ValueError lists all invalid fields."""
        if type(form := facts.get("format", 1)) is not int or not 1 <= form <= FILE_FORMAT:
            text = f"it has format {shown(form)}, and this release reads 1 to {FILE_FORMAT}"
            raise ValueError(f"{text}: use the release that wrote it, or a newer one")
        wrong = cls.wrong(facts)
        if not facts.get("shape"):
            wrong.insert(0, "shape is missing: it does not describe its inputs")
        if wrong:
            raise ValueError("; ".join(wrong))
        return from_record(cls, facts)

    def facts(self) -> dict[str, object]:
        """Return the fields that are not empty, for a model's file."""
        return {key: value for key, value in to_record(self).items() if value}

    def standardised(self, samples: Samples) -> Samples:
        """Standardise samples as all sites do."""
        if not self.shift:
            return samples
        return samples.standardised(_tensor(self.shift), _tensor(self.scale))


SUMMARY = schema_of(DataSummary)


@lru_cache(maxsize=8)
def _tensor(numbers: tuple[float, ...]) -> torch.Tensor:
    """Return a tensor shared by all sites of a process."""
    return torch.tensor(numbers)


def wrong_summary(
    record: Mapping[str, Any], shape: Sequence[int], classes: int, *, multiclass: bool, labels: Sequence[str] = ()
) -> list[str]:
    """Return what is wrong with the record of a `DataSummary` that a site is sent.

    `shape` and `classes` are of the site's own data, () where the problem needs none; `labels` those of the run, if
    there are several.
    """
    if wrong := record_errors(record, SUMMARY, optional=() if shape else SUMMARY):
        return wrong
    summary = from_record(DataSummary, record)
    if summary.labels != tuple(labels):
        wrong.append(f"labels = {shown(list(summary.labels))}: must be those of the run")
    if summary.shape != tuple(shape):
        wrong.append(f"shape = {shown(list(summary.shape))}: must be that of this site's inputs")
    if summary.classes < classes:
        wrong.append(f"classes = {summary.classes}: this site has more")
    if len(summary.priors) != len(labels):
        wrong.append(f"priors = {shown(list(summary.priors))}: must have one entry for each of several labels")
    for key, numbers in (("shift", summary.shift), ("scale", summary.scale)):
        if len(numbers) not in (0, *shape[:1]) or len(numbers) != len(summary.shift):
            wrong.append(f"{key} = {shown(list(numbers))}: must have one entry for each feature, or none")
    if not multiclass and summary.shares:
        wrong.append(f"shares = {shown(summary.shares)}: the problem has two classes")
    if multiclass and shape and not (len(summary.shares) <= summary.classes and abs(sum(summary.shares) - 1) < 1e-6):
        wrong.append(f"shares = {shown(summary.shares)}: must be of at most {summary.classes} classes, and add up to 1")
    return wrong
