"""What the values of run-config keys may be: numbers within bounds, and names out of registries."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from pydantic import AfterValidator, Field

from edelweiss.common import Registry, unknown
from edelweiss.config.classes import class_list
from edelweiss.config.words import word_list
from edelweiss.datasets import PARTITIONS, SAMPLERS, SOURCES
from edelweiss.datasets.config import FILES
from edelweiss.models import MODELS
from edelweiss.problems import PROBLEMS
from edelweiss.strategies import ALGORITHMS


class OneOf:
    """A name out of a registry; a wrong one gets a suggestion and the list."""

    def __init__(self, kind: str, names: Collection[str], more: Collection[str] = ()) -> None:
        self.kind, self.names, self.more = kind, names, more

    def __call__(self, name: str) -> str:
        """Return the name if there is such."""
        if name not in self.more and name not in self.names:
            if isinstance(self.names, Registry) and ":" in name:
                raise ValueError(self.names.missing(name))
            raise ValueError(unknown(self.kind, name, [*self.names, *self.more]))
        return name


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
Above0 = Annotated[float, Field(gt=0, le=1e38)]
Classes = Annotated[str, AfterValidator(class_list)]
Words = Annotated[str, AfterValidator(word_list)]
AlgorithmName = Annotated[str, AfterValidator(OneOf("algorithm", ALGORITHMS))]
ProblemName = Annotated[str, AfterValidator(OneOf("problem", PROBLEMS))]
ModelName = Annotated[str, AfterValidator(OneOf("model", MODELS))]
DatasetName = Annotated[str, AfterValidator(OneOf("dataset", SOURCES, FILES))]
PartitionName = Annotated[str, AfterValidator(OneOf("partition", PARTITIONS))]
SamplerName = Annotated[str, AfterValidator(OneOf("sampler", ("auto", *SAMPLERS)))]
