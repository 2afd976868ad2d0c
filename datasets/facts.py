"""What leaves a site of its data before a run, and what follows from it for all sites together."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from datasets.loading import SiteData
from datasets.samples import Samples, moments
from keys import to_record


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
    classes : int
        How many labels there are.
    shape : tuple of int
        Of one input.
    columns : str
        A hash of the column names, see `columns_hash`.
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
    classes: int = 2
    shape: tuple[int, ...] = ()
    columns: str = ""
    count: tuple[float, ...] = ()
    total: tuple[float, ...] = ()
    squares: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: SiteData, *, name: str, partition_id: int, multiclass: bool, standardise: bool) -> Facts:
        """Sum up a site's data; ``multiclass`` counts each class, else the positives."""
        labels = data.train.targets()
        sums = [tuple(column) for column in moments(data.train)] if standardise else [()] * 3
        counts = {
            "class_counts": tuple(labels.bincount(minlength=data.classes).tolist()),
            "held_out_counts": tuple(data.held_out.targets().bincount(minlength=data.classes).tolist()),
        }
        return cls(
            name=name,
            partition_id=partition_id,
            examples=len(data.train),
            held_out=len(data.held_out),
            missing=data.missing,
            positives=None if multiclass else int(labels.sum()),
            **(counts if multiclass else {}),
            classes=data.classes,
            shape=tuple(data.train.shape),
            columns=columns_hash(data.features),
            count=sums[0],
            total=sums[1],
            squares=sums[2],
        )


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
    shift, scale : tuple of float
        What standardises inputs, per feature or channel; empty for none.
    columns : str
        A hash of the column names.
    """

    shape: tuple[int, ...] = ()
    classes: int = 2
    prior: float = 0.5
    shares: tuple[float, ...] = ()
    shift: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    columns: str = ""

    def facts(self) -> dict[str, object]:
        """Return what there is, as JSON has it: what a model's file says of the data that it was trained on."""
        return {key: value for key, value in to_record(self).items() if value}

    def standardised(self, samples: Samples) -> Samples:
        """Return samples standardised as all sites standardise theirs."""
        if not self.shift:
            return samples
        return samples.standardised(torch.tensor(self.shift), torch.tensor(self.scale))


def columns_hash(features: Sequence[str]) -> str:
    """Return what leaves a site of its column names: whether they agree is all that others must know."""
    return hashlib.sha256("\n".join(features).encode()).hexdigest()[:8]
