"""Types of run-config values: numbers with bounds, names of registries, lists of classes and words."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from edelweiss.common import Registry, unknown
from edelweiss.datasets import PARTITIONS, SAMPLERS, SOURCES
from edelweiss.datasets.config import FILES
from edelweiss.datasets.samplers import AUTO
from edelweiss.models import MODELS
from edelweiss.problems import PROBLEMS
from edelweiss.strategies import ALGORITHMS


class OneOf:
    """A name in a registry; the error has the list and a suggestion."""

    def __init__(self, kind: str, names: Collection[str], more: Collection[str] = ()) -> None:
        self.kind, self.names, self.more = kind, names, more

    def __call__(self, name: str) -> str:
        """Return a name that exists."""
        if name not in self.more and name not in self.names:
            if isinstance(self.names, Registry) and ":" in name:
                raise ValueError(self.names.missing(name))
            raise ValueError(unknown(self.kind, name, [*self.names, *self.more]))
        return name


def parse_classes(text: str) -> tuple[int, ...]:
    """Parse a list of classes: ``"0,1,5-9"`` is (0, 1, 5, 6, 7, 8, 9); empty is ().

    Raises
    ------
    ValueError
        For anything else.
    """
    classes: dict[int, None] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        first, dash, last = part.partition("-")
        numbers = (first.strip(), last.strip() if dash else first.strip())
        if not all(re.fullmatch("[0-9]{1,4}", number) for number in numbers) or int(numbers[0]) > int(numbers[1]):
            raise ValueError('must list classes by number, up to 9999, as in "5,6,7" or "5-9"')
        classes |= dict.fromkeys(range(int(numbers[0]), int(numbers[1]) + 1))
    return tuple(classes)


def parse_words(text: str) -> tuple[str, ...]:
    """Parse a list of words: ``"AP, PA"`` is ("AP", "PA"); empty is ().

    Raises
    ------
    ValueError
        When one is empty or repeated, whatever its case.
    """
    words = tuple(word.strip() for word in text.split(",")) if text.strip() else ()
    if not all(words) or len({word.casefold() for word in words}) < len(words):
        raise ValueError('must list different words, as in "AP,PA"')
    return words


def list_of(parse: Callable[[str], Any]) -> AfterValidator:
    """Annotate a text that must be parsable; the text itself is kept."""

    def check(text: str) -> str:
        parse(text)
        return text

    return AfterValidator(check)


Share = Annotated[float, Field(ge=0, lt=1)]
Crop = Annotated[float, Field(ge=0, le=0.5)]
Degrees = Annotated[float, Field(ge=0, le=180)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(ge=1, le=10**9)]
Seed = Annotated[int, Field(ge=-1, le=10**9)]
Natural = Annotated[int, Field(ge=0, le=10**9)]
Width = Annotated[int, Field(ge=1, le=10**6)]
Side = Annotated[int, Field(ge=0, le=10**5)]
Folds = Annotated[int, Field(ge=0, le=10**6)]
Sites = Annotated[int, Field(ge=1, le=10**5)]
Workers = Annotated[int, Field(ge=0, le=1024)]
Threads = Annotated[int, Field(ge=1, le=1024)]
Seconds = Annotated[float, Field(gt=0, le=1e9)]
Gigabytes = Annotated[float, Field(ge=0, le=1e6)]
Multiple = Annotated[float, Field(ge=1, le=1e9)]
Trimmed = Annotated[float, Field(ge=0, lt=0.5)]
Rate = Annotated[float, Field(ge=0, le=1e38)]
Above0 = Annotated[float, Field(gt=0, le=1e38)]
Epsilon = Annotated[float, Field(ge=0, le=1000)]
Delta = Annotated[float, Field(gt=0, lt=1)]
SMALLEST_CLIP, LARGEST_CLIP = 1e-6, 1e6
Clip = Annotated[float, Field(ge=0, le=LARGEST_CLIP)]
Classes = Annotated[str, list_of(parse_classes)]
Words = Annotated[str, list_of(parse_words)]
AlgorithmName = Annotated[str, AfterValidator(OneOf("algorithm", ALGORITHMS))]
ProblemName = Annotated[str, AfterValidator(OneOf("problem", PROBLEMS))]
ModelName = Annotated[str, AfterValidator(OneOf("model", MODELS))]
DatasetName = Annotated[str, AfterValidator(OneOf("dataset", SOURCES, FILES))]
PartitionName = Annotated[str, AfterValidator(OneOf("partition", PARTITIONS))]
SamplerName = Annotated[str, AfterValidator(OneOf("sampler", (AUTO, *SAMPLERS)))]
