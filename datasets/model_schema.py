"""The schema of a model's inputs and labels, stored in its file."""

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
    """The meaning of a model's inputs and classes."""

    dataset: str = ""  # the training data set
    features: tuple[str, ...] = ()  # names in the order of the inputs; empty for images, and if unknown
    # the replacement of missing values: the mean over the training samples of all sites, or zero
    missing: Literal["mean", "zero"] = "mean"
    study: Study | None = None  # units, ranges, categories and spellings of the features, from a study file
    label: str = ""  # name of the label column; several are separated by commas; empty for public data
    # the meaning of label values, if there are several labels or they may be uncertain or blank. The names are those of
    # the columns where the model was trained; the run's names are in the data summary
    labels: Labels | None = None
    # the texts, or the original classes, of each class from 0; empty if unknown
    classes: tuple[tuple[str, ...], ...] = ()
    # image_size, image_fit, image_colour: the form of images, see `datasets.image_file.ImageForm`
    image_size: int = 0
    image_fit: Fit = "crop"
    image_colour: Colour = "auto"

    @classmethod
    def of(
        cls, config: DataConfig, data_summary: DataSummary, features: tuple[str, ...], class_names: Sequence[str] = ()
    ) -> ModelSchema:
        """Build the schema of a run's data; feature names are dropped if they do not match the sites' hash.

        ``class_names`` are the label values of the classes, if known; else their numbers are used.
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
        """Yield the interpretation of uncertain and blank labels, a sentence each."""
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
        """Return the entries of a model's file, with the lowest format that preserves the schema."""
        entries = _adapter().dump_python(self, mode="json", exclude_defaults=True)
        several = self.labels is not None and self.labels.several
        least = 3 if several or {"image_fit", "image_colour"} & entries.keys() else 2
        if self.study and any(_newer(one) for one in (entries["study"], *entries["study"]["columns"])):
            least = FILE_FORMAT
        return {"format": least, "data": {**entries, "missing": self.missing}}

    @classmethod
    def of_file(cls, facts: Mapping[str, Any], data_summary: DataSummary) -> ModelSchema:
        """Read a model's file; older files have no schema.

        Raises
        ------
        ValueError
            If an entry is invalid, or contradicts the rest of the file.
        """
        from pydantic import ValidationError

        if "data" not in facts:
            return cls(missing="mean" if data_summary.shift else "zero")
        try:
            schema = _adapter().validate_python(facts["data"])
        except ValidationError as error:
            wrong = [f"data.{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
            raise ValueError("; ".join(wrong[:3])) from None
        study = schema.study
        named = study.features() if study else []
        if schema.features and columns_hash(schema.features) != data_summary.columns:
            raise ValueError("data.features are not those of columns, the hash of their names")
        if schema.features and study and sorted(named) != sorted(schema.features):
            raise ValueError("data.features are not the columns of data.study")
        if labels := schema.labels:
            if len(labels.uncertain) != len(labels.names):
                raise ValueError("data.labels.uncertain has not an entry for each of data.labels.names")
            if len(labels.names) != max(1, len(data_summary.labels)):
                found = f"{len(labels.names)} columns, and labels {len(data_summary.labels) or 'none'}"
                raise ValueError(f"data.labels.names has {found}")
        return schema


def _newer(study: Mapping[str, object]) -> bool:
    """Whether a release before format 4 would read a study, or a column of one, differently."""
    return bool(
        study.keys() & {"words", "one_hot", "before_index", "leave_out", "one_row", "index_date", "date_format"}
    )


@cache
def _adapter() -> TypeAdapter[ModelSchema]:
    """Return the serialiser of schemas; cached because it is slow to build."""
    from pydantic import TypeAdapter

    return TypeAdapter(ModelSchema)
