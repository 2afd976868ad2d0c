"""What a model's inputs and labels mean: what its file says, so that it can be used long after the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from edelweiss.datasets.data_summary import FILE_FORMAT
from edelweiss.datasets.facts import columns_hash
from edelweiss.datasets.image_file import Colour, Fit
from edelweiss.datasets.labels import DEVICES, UNKNOWN, VALUES, Labels
from edelweiss.datasets.site.study import Study
from edelweiss.datasets.site.table import LABEL_PAIRS

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from edelweiss.datasets.config import DataConfig
    from edelweiss.datasets.data_summary import DataSummary

_STANDS = {1: "counted as positive", 0: "counted as negative", UNKNOWN: "was left out"}


@dataclass(frozen=True, kw_only=True)
class ModelSchema:
    """What the inputs of a model are, and what it tells apart.

    Attributes
    ----------
    dataset : str
        What it was trained on.
    features : tuple of str
        Names, in the order of the inputs; empty for images, and where the names are not known.
    missing : str
        What a missing value becomes: the mean over the training samples of all sites, or zero.
    study : Study, optional
        Units, ranges, categories and spellings of the features, where a study file says them.
    label : str
        Name of the label column, of several their names, separated by commas; empty for public data.
    labels : Labels, optional
        What the values of label columns stand for, where there are several or they may be uncertain or blank. The names
        are those of the columns where the model was trained; those of the run are the cohort's.
    classes : tuple of tuple of str
        For each label from 0 the texts, or the original classes, that mean it; empty where nobody has said it.
    image_size, image_fit, image_colour : int, str, str
        What images were brought to, see `datasets.image_file.ImageForm`.
    """

    dataset: str = ""
    features: tuple[str, ...] = ()
    missing: Literal["mean", "zero"] = "mean"
    study: Study | None = None
    label: str = ""
    labels: Labels | None = None
    classes: tuple[tuple[str, ...], ...] = ()
    image_size: int = 0
    image_fit: Fit = "crop"
    image_colour: Colour = "auto"

    @classmethod
    def of(
        cls, config: DataConfig, data_summary: DataSummary, features: tuple[str, ...], class_names: Sequence[str] = ()
    ) -> ModelSchema:
        """Sum up what is known of a run's data; features of other names than the sites' are none of theirs.

        ``class_names`` has for each class the value that means it, where that is known; else it is its number.
        """
        study = config.study
        if study:
            label, classes = study.label, study.classes
        elif config.own_table:
            label = config.column
            pairs = (("0", "1"),) if config.labels else LABEL_PAIRS
            classes = tuple(tuple(dict.fromkeys(side)) for side in zip(*pairs, strict=True))
        else:
            label, sides = "", (config.negative_classes, config.positive_classes)
            classes = tuple(tuple(map(str, side)) for side in sides) if all(sides) else ()
        if not config.binary and not study:
            named = len(class_names) == data_summary.classes
            classes = tuple((name,) for name in (class_names if named else map(str, range(data_summary.classes))))
        return cls(
            dataset=config.dataset,
            features=features if columns_hash(features) == data_summary.columns else (),
            missing="mean" if data_summary.shift else "zero",
            study=study,
            label=label,
            labels=config.labels,
            classes=classes,
            image_size=config.images.form.size,
            image_fit=config.images.form.fit,
            image_colour=config.images.form.colour,
        )

    def unusual(self) -> Iterator[str]:
        """Yield what uncertain and blank values of labels stood for, a sentence each; nothing where none may occur."""
        labels = self.labels
        if not labels:
            return
        rules = dict.fromkeys(labels.uncertain)
        said = {
            rule: [name for name, own in zip(labels.names, labels.uncertain, strict=True) if own == rule]
            for rule in rules
            if rule
        }
        for rule, names in said.items():
            of = f" of {', '.join(names)}" * (len(rules) > 1)
            yield f"An uncertain value (-1){of} {_STANDS[VALUES[rule]]}."
        if labels.blank:
            yield f"A blank one {_STANDS[VALUES[labels.blank]]}, unless the site lacks the label."
        if labels.healthy:
            but = f", but {DEVICES!r}" * (DEVICES in labels.names)
            yield f"Where {labels.healthy!r} is 1, all labels are 0{but}."

    def facts(self) -> dict[str, object]:
        """Return the entries of a model's file, with the least format that is read as it is meant."""
        told = _adapter().dump_python(self, mode="json", exclude_defaults=True)
        several = self.labels is not None and self.labels.several
        least = FILE_FORMAT if several or {"image_fit", "image_colour"} & told.keys() else 2
        return {"format": least, "data": {**told, "missing": self.missing}}

    @classmethod
    def of_file(cls, facts: Mapping[str, Any], data_summary: DataSummary) -> ModelSchema:
        """Read what a model's file says; one that is older says nothing.

        Raises
        ------
        ValueError
            In one line, when what it says cannot be, or contradicts the rest of the file.
        """
        from pydantic import ValidationError

        if "data" not in facts:
            return cls(missing="mean" if data_summary.shift else "zero")
        try:
            meaning = _adapter().validate_python(facts["data"])
        except ValidationError as error:
            wrong = [f"data.{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
            raise ValueError("; ".join(wrong[:3])) from None
        study = meaning.study
        named = [column.name for column in study.columns] if study else []
        if meaning.features and columns_hash(meaning.features) != data_summary.columns:
            raise ValueError("data.features are not those of columns, the hash of their names")
        if meaning.features and study and sorted(named) != sorted(meaning.features):
            raise ValueError("data.features are not the columns of data.study")
        if labels := meaning.labels:
            if len(labels.uncertain) != len(labels.names):
                raise ValueError("data.labels.uncertain has not an entry for each of data.labels.names")
            if len(labels.names) != max(1, len(data_summary.labels)):
                told = f"{len(labels.names)} columns, and labels {len(data_summary.labels) or 'none'}"
                raise ValueError(f"data.labels.names has {told}")
        return meaning


@cache
def _adapter() -> TypeAdapter[ModelSchema]:
    """Return what writes and reads a meaning; to make it takes as long as many a site's round."""
    from pydantic import TypeAdapter

    return TypeAdapter(ModelSchema)
