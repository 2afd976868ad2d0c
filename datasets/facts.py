"""What leaves a site of its data before a run, and what follows from it for all sites together."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from datasets.identity import keyed
from datasets.loading import SiteData
from datasets.samples import Samples, moments
from keys import Number, Schema, Several, Text, from_record, mistakes, shown, to_record
from keys.fields import MOST, is_number

SMALLEST = 1e-37  # a normal float32
# Of a model's file. 1 did not say what inputs and labels mean, 2 not which fit and colour images have: see `Meaning`.
FILE_FORMAT = 3


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a site tells of itself: counts, a shape, and sums over its training samples; never a sample.

    Attributes
    ----------
    name : str
        What its operator calls it; empty where nobody has named it.
    partition_id : int
        Its place where public data are dealt out; -1 for none.
    examples, held_out : int
        Samples to train on and to evaluate on; None where a problem needs no data, as all that follows is then empty.
    missing : int
        Missing values in the training samples.
    positives : int
        Of the training samples, for problems of two classes; None for others.
    class_counts, held_out_counts : tuple of int
        Samples of each class, for problems that keep all classes.
    label_counts, label_positives : tuple of int
        Of several labels: of how many training samples each is known, and of how many of these it is positive.
    classes : int
        How many labels there are.
    shape : tuple of int
        Of one input.
    columns : str
        A hash of the column names, see `columns_hash`.
    patients : tuple of int
        Hashes of whose the rows are, ascending, where the site's own rules say so; see `patient_hashes`.
    count, total, squares : tuple of float
        See `datasets.moments`; empty where inputs are not standardised.
    notes : tuple of str
        What the site does otherwise than the run asked, by its own rules; in words.
    """

    name: str = ""
    partition_id: int = -1
    examples: int | None = None
    held_out: int | None = None
    missing: int = 0
    positives: int | None = None
    class_counts: tuple[int, ...] = ()
    held_out_counts: tuple[int, ...] = ()
    label_counts: tuple[int, ...] = ()
    label_positives: tuple[int, ...] = ()
    classes: int = 2
    shape: tuple[int, ...] = ()
    columns: str = ""
    patients: tuple[int, ...] = ()
    count: tuple[float, ...] = ()
    total: tuple[float, ...] = ()
    squares: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: SiteData, *, name: str, partition_id: int, multiclass: bool, standardise: bool) -> Facts:
        """Sum up a site's data; ``multiclass`` counts each class, else the positives."""
        labels = data.train.targets()
        sums = [tuple(column) for column in moments(data.train)] if standardise else [()] * 3
        counts: dict[str, Any] = {"positives": None}
        if labels.ndim > 1:
            counts |= {
                "label_counts": tuple((labels >= 0).sum(0).tolist()),
                "label_positives": tuple((labels == 1).sum(0).tolist()),
            }
        elif multiclass:
            counts |= {
                "class_counts": tuple(labels.bincount(minlength=data.classes).tolist()),
                "held_out_counts": tuple(data.held_out.targets().bincount(minlength=data.classes).tolist()),
            }
        else:
            counts["positives"] = int(labels.sum())
        return cls(
            name=name,
            partition_id=partition_id,
            examples=len(data.train),
            held_out=len(data.held_out),
            missing=data.missing,
            **counts,
            classes=data.classes,
            shape=tuple(data.train.shape),
            columns=columns_hash(data.features),
            count=sums[0],
            total=sums[1],
            squares=sums[2],
        )


PATIENT_BITS = 60  # of a hash
COUNT = Number(0, 2**53, whole=True)
HASH, NAME = Text(64, plain=True), Text(name=True)
LARGEST = 3.4e38  # of an input, a float32
FACTS: Schema = {  # what a record of `Facts` may hold; see `wrong_facts` for what goes beyond one key
    "name": Text(),
    "partition-id": Number(-1, 2**31, whole=True),
    "examples": COUNT,
    "held-out": COUNT,
    "missing": COUNT,
    "positives": COUNT,
    "class-counts": Several(COUNT),
    "held-out-counts": Several(COUNT),
    "label-counts": Several(COUNT),
    "label-positives": Several(COUNT),
    "classes": Number(2, 10**6, whole=True),
    "shape": Several(Number(1, 10**7, whole=True), (0, 1, 3)),
    "columns": HASH,
    "patients": Several(Number(0, 2**PATIENT_BITS - 1, whole=True)),
    "count": Several(Number(0, 2**53)),
    "total": Several(Number()),
    "squares": Several(Number(0)),
    "notes": Several(Text(500), most=20),
}


def wrong_facts(
    record: Mapping[str, Any], sites: int, *, needs_data: bool, multiclass: bool, labels: int = 1
) -> list[str]:
    """Return what is wrong with the record of a site's `Facts`, in a run of so many sites on a problem of this kind."""
    single = needs_data and not multiclass and labels == 1
    counted = ["examples", "held-out"] * needs_data + ["positives"] * single
    optional = {"examples", "held-out", "positives"} - set(counted)
    if wrong := mistakes(record, FACTS, optional):
        return wrong
    if record["name"] and not NAME.fits(record["name"]):
        wrong.append(f"name = {shown(record['name'])}: must be {NAME}")
    if record["partition-id"] >= sites:
        wrong.append(f"partition-id = {record['partition-id']}: must be below sites = {sites}")
    if not needs_data:
        told = [key for key in FACTS if key in record and key not in ("name", "partition-id", "classes")]
        return wrong + [f"{key} is told, and the problem needs no data" for key in told if record[key]]
    examples, size = record["examples"], math.prod(record["shape"])
    if not record["shape"]:
        wrong.append("shape = []: must be that of one input")
    for key, parts, most in (
        ("positives", [record.get("positives", 0)], examples),
        ("missing", [record["missing"]], examples * size),
        ("class-counts", record["class-counts"], examples),
        ("held-out-counts", record["held-out-counts"], record["held-out"]),
    ):
        if sum(parts) > most or (parts and key.endswith("counts") and sum(parts) != most):
            wrong.append(f"{key} = {shown(record[key])}: adds up to {sum(parts)}, of {most}")
        if key.endswith("counts") and parts and not (multiclass and len(parts) == record["classes"]):
            wrong.append(f"{key} has {len(parts)} classes: must have {record['classes'] if multiclass else 'none'}")
    if (hashes := len(record["patients"])) > (rows := examples + record["held-out"]):
        wrong.append(f"patients has {hashes} entries: it has {rows} samples")
    known, positive = record["label-counts"], record["label-positives"]
    for key, counts in (("label-counts", known), ("label-positives", positive)):
        if len(counts) != (needed := labels if labels > 1 else 0):
            wrong.append(f"{key} has {len(counts)} entries: must have {needed}, one for each of several labels")
    for some, all_ in zip(positive, known, strict=False):
        if not some <= all_ <= examples:
            wrong.append(f"label-positives has {some}, of {all_} in label-counts, of {examples} examples")
    return wrong + _wrong_moments(record, size)


def _wrong_moments(record: Mapping[str, Any], size: int) -> list[str]:
    """Return what no samples can add up to."""
    count, total, squares = (record[key] for key in ("count", "total", "squares"))
    features = record["shape"][0] if record["shape"] else 0
    for key in ("count", "total", "squares"):
        if len(record[key]) not in (0, features) or len(record[key]) != len(count):
            return [f"{key} has {len(record[key])} entries: must have one for each of {features} features, or none"]
    most = record["examples"] * size / max(1, features)
    for place, (n, s, q) in enumerate(zip(count, total, squares, strict=True)):
        if n > most:
            return [f"count of feature {place} = {n:g}: there are {most:g} values"]
        # Cauchy-Schwarz, with room for rounding; and a square must be a float32.
        if abs(s) > n * LARGEST**0.5 or q > n * LARGEST or s * s > n * q * (1 + 1e-3) + 1e-9:
            return [f"feature {place} has count {n:g}, total {s:g} and squares {q:g}, as no values add up to"]
    return []


@dataclass(frozen=True, kw_only=True)
class Cohort:
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
    def of_file(cls, facts: Mapping[str, Any]) -> Cohort:
        """Read what a model's file says, see `facts`; ValueError lists all that cannot be."""
        if type(form := facts.get("format", 1)) is not int or not 1 <= form <= FILE_FORMAT:
            text = f"it has format {shown(form)}, and this release reads 1 to {FILE_FORMAT}"
            raise ValueError(f"{text}: take the release that wrote it, or a newer one")
        cohort = from_record(cls, facts)
        wrong = list(cohort.wrong())
        if not cohort.shape:
            wrong.insert(0, "shape is missing: it does not say what the inputs are like")
        if wrong:
            raise ValueError("; ".join(wrong))
        return cohort

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
    """Describe a record of a `Cohort`, at a site whose inputs have this shape, in a run of so many labels."""
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
    """Return what in a record of a `Cohort`, which is as `cohort_schema` says, cannot be of this site's data.

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


def patient_hashes(data: SiteData, secret: str) -> tuple[int, ...]:
    """Return what shows whether sites have patients in common, if all have the same secret and name them alike.

    Whoever knows the secret can try out whether somebody is among them.
    """
    assert data.whose is not None, "a patient column says whose each row is"
    rows = torch.cat([data.train.rows, data.held_out.rows]).numpy()
    key = hashlib.sha256(f"patients {secret}".encode()).hexdigest()
    hashes = np.unique(keyed(data.whose[rows], key) >> np.uint64(64 - PATIENT_BITS))
    return tuple(hashes.tolist())


def columns_hash(features: Sequence[str]) -> str:
    """Return what leaves a site of its column names: whether they agree is all that others must know."""
    return hashlib.sha256("\n".join(features).encode()).hexdigest()[:8]
