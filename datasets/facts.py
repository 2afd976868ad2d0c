"""The facts that a site reports about its data before a run."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Interval, MaxLen
from pydantic import AllowInfNan, Strict, StringConstraints

from edelweiss.common import record_errors, schema_of, shown
from edelweiss.common.schema import FirstError, List, Printable, is_file_name, must_be
from edelweiss.datasets.loading import SiteData
from edelweiss.datasets.patient_ids import keyed
from edelweiss.datasets.samples import moments

PATIENT_BITS = 60  # of a hash
LARGEST = 3.4e38  # largest input, a float32
LONGEST_NOTE, MOST_NOTES = 500, 20  # characters; notes of a site

Count = Annotated[int, Strict(), Interval(ge=0, le=2**31)]  # of samples: more than any hospital has
Counts = Annotated[tuple[Count, ...], *List]
Sum = Annotated[float, Strict(), AllowInfNan(False)]
Text = Annotated[str, StringConstraints(strict=True, max_length=100), Printable]
Hash = Annotated[str, StringConstraints(strict=True, max_length=64, pattern="^[0-9A-Za-z_-]*$")]
Note = Annotated[str, StringConstraints(strict=True, max_length=LONGEST_NOTE), Printable]
Notes = Annotated[tuple[Note, ...], MaxLen(MOST_NOTES), FirstError()]
Side = Annotated[int, Strict(), Interval(ge=1, le=10**7)]
Shape = Annotated[tuple[Side, ...], *List, must_be("of 0, 1 or 3 numbers", lambda shape: len(shape) in (0, 1, 3))]
Classes = Annotated[int, Strict(), Interval(ge=2, le=10**6)]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A site's report: counts, shape, and sums over its training samples; never a sample."""

    name: Text = ""  # what its operator calls it; empty where nobody has named it
    # its place where public data are dealt out; -1 for none
    partition_id: Annotated[int, Strict(), Interval(ge=-1, le=2**31)] = -1
    # examples, held_out: samples to train on and to evaluate on; None where a problem needs no data, as all that
    # follows is then empty
    examples: Count | None = None
    held_out: Count | None = None
    missing: Annotated[int, Strict(), Interval(ge=0, le=2**53)] = 0  # missing values in the training samples
    positives: Count | None = None  # of the training samples, for problems of two classes; None for others
    # class_counts, held_out_counts: samples of each class, for problems that keep all classes
    class_counts: Counts = ()
    held_out_counts: Counts = ()
    # label_counts, label_positives: of several labels: of how many training samples each is known, and of how many of
    # these it is positive
    label_counts: Counts = ()
    label_positives: Counts = ()
    classes: Classes = 2  # how many labels there are
    shape: Shape = ()  # of one input
    columns: Hash = ""  # a hash of the column names, see `columns_hash`
    # hashes of whose the rows are, ascending, where the site's own rules say so; see `patient_hashes`
    patients: Annotated[tuple[Annotated[int, Strict(), Interval(ge=0, lt=2**PATIENT_BITS)], ...], *List] = ()
    # count, total, squares: see `datasets.moments`; empty where inputs are not standardised
    count: Annotated[tuple[Annotated[Sum, Interval(ge=0, le=2**53)], ...], *List] = ()
    total: Annotated[tuple[Sum, ...], *List] = ()
    squares: Annotated[tuple[Annotated[Sum, Ge(0)], ...], *List] = ()
    # what a hospital does otherwise than the run asked, by its own rules; in words. Of data that a run splits itself
    # what was done to all of them, see `SiteData.change_log`: the same at each site
    notes: Notes = ()
    warnings: Notes = ()  # what may be wrong with a hospital's own data; in words, and counts

    @classmethod
    def of(cls, data: SiteData, *, name: str, partition_id: int, multiclass: bool, standardise: bool) -> Facts:
        """Summarise a site's data; ``multiclass`` counts each class, else the positives."""
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


FACTS = schema_of(Facts)


def missing_classes(facts: Mapping[str, Facts]) -> str:
    """Describe the classes without a sample at any site, such as 0 for labels 1, 2 and 3; empty without any.

    Also empty if a site reports no counts.
    """
    every = facts.values()
    counts = (counts for one in every for counts in (one.class_counts, one.held_out_counts))
    there = {label for own in counts for label, count in enumerate(own) if count}
    absent = sorted({*range(max(one.classes for one in every))} - there)
    if not absent or not all(one.class_counts for one in every):
        return ""
    return (
        f"no site has samples of class {', '.join(map(str, absent))}, and the highest is {max(there)}: number the "
        "classes from 0 without a gap, at all sites alike, or map them in a study file that all sites and the run "
        'name, under [label]: classes = [["1"], ["2"], ["3"]], say'
    )


def wrong_facts(
    record: Mapping[str, Any],
    sites: int,
    *,
    needs_data: bool,
    multiclass: bool,
    labels: int = 1,
    summed: bool = False,
) -> list[str]:
    """List the problems of a record of `Facts` in a run with this number of sites and kind of problem.

    ``summed``: the record has the form of the inputs alone, since counts only enter sums over all sites.
    """
    single = needs_data and not multiclass and labels == 1
    counted = ["examples", "held-out"] * needs_data + ["positives"] * single if not summed else []
    optional = {"examples", "held-out", "positives"} - set(counted)
    if wrong := record_errors(record, FACTS, optional):
        return wrong
    if record["name"] and not is_file_name(record["name"]):
        wrong.append(f"name = {shown(record['name'])}: must be a name that a file can have")
    if record["partition-id"] >= sites:
        wrong.append(f"partition-id = {record['partition-id']}: must be below sites = {sites}")
    if summed and needs_data:
        told = ("name", "partition-id", "classes", "shape", "columns")
        wrong += [
            f"{key} is reported, and only sums are asked for" for key in FACTS if key not in told and record.get(key)
        ]
        return wrong + ["shape = []: must be that of one input"] * (not record["shape"])
    if not needs_data:
        reported = [key for key in FACTS if key in record and key not in ("name", "partition-id", "classes")]
        return wrong + [f"{key} is reported, but the problem needs no data" for key in reported if record[key]]
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
    """List moments that no samples can have."""
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


def patient_hashes(data: SiteData, secret: str) -> tuple[int, ...]:
    """Return hashes that reveal patients in common between sites with the same secret and patient ids.

    With the secret one can test whether a given person is among them.
    """
    assert data.patient_ids is not None, "the data have a patient column"
    rows = torch.cat([data.train.rows, data.held_out.rows]).numpy()
    key = hashlib.sha256(f"patients {secret}".encode()).hexdigest()
    hashes = np.unique(keyed(data.patient_ids[rows], key) >> np.uint64(64 - PATIENT_BITS))
    return tuple(hashes.tolist())


def columns_hash(features: Sequence[str]) -> str:
    """Return a hash of the column names, to check that sites agree without revealing them."""
    return hashlib.sha256("\n".join(features).encode()).hexdigest()[:8]
