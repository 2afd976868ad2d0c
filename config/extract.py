"""``[extract]`` of a study file: how a hospital with a database gets its table, by a query or by what a study asks."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StrictInt

from edelweiss.common import ConfigError, shorter
from edelweiss.common.files import TEXT, read_file, reason
from edelweiss.config.keys import Keys

Concept = Annotated[StrictInt, Field(ge=0, lt=2**63)]
Days = Annotated[StrictInt, Field(ge=-40_000, le=40_000)]
Window = tuple[Days, Days]
Domain = Literal["condition", "drug", "measurement", "procedure", "visit"]


class ConceptSet(Keys, strict=False):
    """Concepts of one domain, each with its descendants."""

    of: Domain = Field(description="condition, drug, measurement, procedure or visit")
    concepts: tuple[Concept, ...] = Field(min_length=1, description="concept ids; their descendants count, too")
    without: tuple[Concept, ...] = Field((), description="concept ids that do not count, with their descendants")


class Target(ConceptSet, strict=False):
    """``[extract.target]``: who is studied, from when on."""

    since: date | None = Field(None, description="earliest index date: that of the first such event of a person")
    until: date | None = Field(None, description="latest index date")
    observed: int = Field(365, ge=0, le=40_000, description="days before it for which a person must be observed")


class Outcome(ConceptSet, strict=False):
    """``[extract.outcome]``: what is predicted."""

    window: Window = Field((1, 365), description="time at risk: first and last day after the index date")


class Feature(Keys, strict=False):
    """``[extract.features.NAME]``."""

    of: Literal["age", "sex", "condition", "drug", "measurement", "procedure", "visit"] = Field(
        description="age in years or sex at the index date, or the domain of `concepts`"
    )
    concepts: tuple[Concept, ...] = Field((), description="as of the target")
    without: tuple[Concept, ...] = Field((), description="as of the target")
    value: Literal["any", "count", "last"] = Field(
        "any",
        description="any: 1 if there is an event in the window, else 0; count: their number; last: the last "
        "measurement",
    )
    window: Window = Field((-365, 0), description="look-back: first and last day, from the index date on")
    units: dict[str, float] = Field(
        {}, description="for last: unit concept ids (0: none given), and what a value in each is multiplied by"
    )


class ExtractTable(Keys, strict=False):
    """``[extract]``: a query, or target, outcome and features."""

    query: str = Field("", description="one SELECT that returns the table: the columns that the study names")
    query_file: str = Field("", description="instead, a file with it, relative to the study file")
    target: Target | None = Field(None, description="for OMOP: who is studied")
    outcome: Outcome | None = Field(None, description="for OMOP: what is predicted")
    features: dict[str, Feature] = Field({}, description="for OMOP: each feature")

    def contradictions(self, columns: list[str]) -> list[str]:
        """Return a line for each contradiction between keys; ``columns`` are the study's features."""
        asks = bool(self.target or self.outcome or self.features)
        if bool(self.query) + bool(self.query_file) + asks != 1:
            return ["extract: give query, or query-file, or target, outcome and features; one of these"]
        if not asks:
            return []
        if self.target is None or self.outcome is None:
            return ["extract: target and outcome are both needed"]
        found = []
        if absent := [name for name in columns if name not in self.features]:
            found.append(f"extract.features: it lacks {', '.join(map(repr, absent))}, which columns names")
        if more := [name for name in self.features if name not in columns]:
            found.append(f"extract.features: {', '.join(map(repr, more))} is not among the columns: describe it there")
        start = self.outcome.window[0]
        if not start <= self.outcome.window[1]:
            found.append(f"extract.outcome.window = {list(self.outcome.window)}: its first day is after its last")
        if start < 1:
            found.append(f"extract.outcome.window = {list(self.outcome.window)}: time at risk begins on day 1 or later")
        for name, one in self.features.items():
            key = f"extract.features.{name}"
            if bool(one.concepts) == (one.of in ("age", "sex")):
                found.append(f"{key}.concepts: name at least one" if not one.concepts else f"{key}: it has no concepts")
            if not one.window[0] <= one.window[1] <= 0:
                found.append(f"{key}.window = {list(one.window)}: a first and a last day, at most 0, the index date")
            if (one.value == "last") != bool(one.units):
                found.append(f"{key}.units: they go with value = 'last', as in units = {{ \"8840\" = 1 }}")
            if one.value == "last" and one.of != "measurement":
                found.append(f"{key}.value = 'last': only of measurements")
            if wrong := [unit for unit in one.units if not (unit.isascii() and unit.isdecimal() and len(unit) < 19)]:
                found.append(f"{key}.units: {', '.join(map(repr, wrong))} is no concept id of a unit")
        return found


def read_query(file: Path) -> str:
    """Read a file with one query; ConfigError if it cannot be read."""
    try:
        return read_file(file, TEXT).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise ConfigError("query", [f"{shorter(str(file))} cannot be read: {reason(error)}"]) from None
