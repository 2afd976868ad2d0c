"""``[extract]`` of a study file: how a hospital with a database gets its table, by a query or by what a study asks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PlainValidator, StrictInt

from edelweiss.common import ConfigError, closest, shorter
from edelweiss.common.files import TEXT, json_in, read_file, reason
from edelweiss.config.keys import Keys

SYSTEMS = {  # of codes, as FHIR writes them
    "loinc": "http://loinc.org",
    "snomed": "http://snomed.info/sct",
    "sct": "http://snomed.info/sct",
    "rxnorm": "http://www.nlm.nih.gov/research/umls/rxnorm",
    "atc": "http://www.whocc.no/atc",
    "icd-10": "http://hl7.org/fhir/sid/icd-10",
    "icd-10-cm": "http://hl7.org/fhir/sid/icd-10-cm",
    "icd-9-cm": "http://hl7.org/fhir/sid/icd-9-cm",
    "icd-10-gm": "http://fhir.de/CodeSystem/bfarm/icd-10-gm",
    "ops": "http://fhir.de/CodeSystem/bfarm/ops",
    "cpt": "http://www.ama-assn.org/go/cpt",
    "ndc": "http://hl7.org/fhir/sid/ndc",
    "ucum": "http://unitsofmeasure.org",
    "v3-actcode": "http://terminology.hl7.org/CodeSystem/v3-ActCode",
}


def concept(value: Any) -> int | str:
    """Check an OMOP concept id, such as 201826, or a FHIR code, such as ``http://loinc.org|2160-0``."""
    if type(value) is int and 0 <= value < 2**63:
        return value
    if not isinstance(value, str) or not value.isprintable() or not re.fullmatch(r"\S[^|]*\|\S(.*\S)?", value):
        raise ValueError("must be an OMOP concept id, as in 201826, or a FHIR code, as in 'http://loinc.org|2160-0'")
    system = value.partition("|")[0]
    if right := misspelt(system):
        raise ValueError(f"its code system must be {right}, as FHIR writes it")
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:\S+$", system):
        raise ValueError(f"its code system must be an address, as in {SYSTEMS['snomed']}")
    return value


def misspelt(system: str) -> str:
    """Return how FHIR writes a well-known code system; empty if this is how, or it is none."""

    def bare(text: str) -> str:
        return re.sub(r"^[a-z]+://(www\.)?|[/#]+$", "", text.lower())

    known = {bare(right): right for right in SYSTEMS.values()}
    right = SYSTEMS.get(system.lower()) or known.get(bare(system), "")
    if not right and ":" not in system and (near := closest(system.lower(), SYSTEMS, 0.7)):
        right = SYSTEMS[near]
    return right if right != system else ""


Concept = Annotated[int | str, PlainValidator(concept)]
Days = Annotated[StrictInt, Field(ge=-40_000, le=40_000)]
Window = tuple[Days, Days]
Kind = Literal["OMOP", "FHIR"]
Domain = Literal["condition", "drug", "measurement", "procedure", "visit"]


class Concepts(Keys, strict=False):
    """Concepts: those of OMOP with their descendants, those of FHIR as they are."""

    concepts: tuple[Concept, ...] = Field(
        (),
        description="for OMOP concept ids, whose descendants count, too; for FHIR codes, as in "
        '"http://loinc.org|2160-0"; each takes its own',
    )
    without: tuple[Concept, ...] = Field((), description="those that do not count; in OMOP with their descendants")
    value_sets: tuple[str, ...] = Field(
        (), description="for FHIR further codes: files with an expanded ValueSet, relative to the study file"
    )

    @property
    def named(self) -> bool:
        """Whether there are any."""
        return bool(self.concepts or self.value_sets)

    def for_omop(self) -> Self:
        """Return this without what is for FHIR."""
        return self.model_copy(
            update={
                "concepts": tuple(one for one in self.concepts if isinstance(one, int)),
                "without": tuple(one for one in self.without if isinstance(one, int)),
                "value_sets": (),
            }
        )

    def for_fhir(self, folder: Path) -> Self:
        """Return this without what is for OMOP, and with the codes of value sets."""
        gone = {one for one in self.without if isinstance(one, str)}
        codes = [one for one in self.concepts if isinstance(one, str)]
        codes += [code for file in self.value_sets for code in read_value_set(folder / file)]
        kept = tuple(one for one in dict.fromkeys(codes) if one not in gone)
        return self.model_copy(update={"concepts": kept, "without": (), "value_sets": ()})


class ConceptSet(Concepts, strict=False):
    """Concepts of one domain."""

    of: Domain = Field(description="condition, drug, measurement, procedure or visit")


class Target(ConceptSet, strict=False):
    """``[extract.target]``: who is studied, from when on."""

    since: date | None = Field(None, description="earliest index date: that of the first such event of a person")
    until: date | None = Field(None, description="latest index date")
    observed: int = Field(365, ge=0, le=40_000, description="days before it for which a person must be observed")


class Outcome(ConceptSet, strict=False):
    """``[extract.outcome]``: what is predicted."""

    window: Window = Field((1, 365), description="time at risk: first and last day after the index date")


class Feature(Concepts, strict=False):
    """``[extract.features.NAME]``."""

    of: Literal["age", "sex", "condition", "drug", "measurement", "procedure", "visit"] = Field(
        description="age in years or sex at the index date, or the domain of `concepts`"
    )
    value: Literal["any", "count", "last"] = Field(
        "any",
        description="any: 1 if there is an event in the window, else 0; count: their number; last: the last "
        "measurement",
    )
    window: Window = Field((-365, 0), description="look-back: first and last day, from the index date on")
    units: dict[str, float] = Field(
        {},
        description="for last: units, and what a value in each is multiplied by; for OMOP concept ids, for FHIR UCUM's "
        "codes; 0: none given",
    )

    def for_omop(self) -> Self:
        """Return this without what is for FHIR."""
        units = {unit: factor for unit, factor in self.units.items() if unit.isdecimal()}
        return super().for_omop().model_copy(update={"units": units})

    def for_fhir(self, folder: Path) -> Self:
        """Return this without what is for OMOP, and with the codes of value sets."""
        units = {unit: factor for unit, factor in self.units.items() if not unit.isdecimal() or unit in ("0", "1")}
        return super().for_fhir(folder).model_copy(update={"units": units})


class ExtractTable(Keys, strict=False):
    """``[extract]``: a query, or target, outcome and features."""

    query: str = Field("", description="one SELECT that returns the table: the columns that the study names")
    query_file: str = Field("", description="instead, a file with it, relative to the study file")
    target: Target | None = Field(None, description="for OMOP and FHIR: who is studied")
    outcome: Outcome | None = Field(None, description="for OMOP and FHIR: what is predicted")
    features: dict[str, Feature] = Field({}, description="for OMOP and FHIR: each feature")

    def sets(self) -> Iterator[tuple[str, Target | Outcome | Feature]]:
        """Yield each part that names concepts, with its key."""
        for key, one in (("extract.target", self.target), ("extract.outcome", self.outcome)):
            if one:
                yield key, one
        for name, feature in self.features.items():
            if feature.of not in ("age", "sex"):
                yield f"extract.features.{name}", feature

    def for_source(self, kind: Kind, folder: Path) -> Self:
        """Return what is asked of a database with OMOP's tables, or of a FHIR export.

        Parameters
        ----------
        folder
            Of the study file, with its value sets.

        Raises
        ------
        ConfigError
            If it names nothing for this kind, or a value set cannot be used.
        """
        asked: dict[str, Any] = {}
        for name in ("target", "outcome"):
            one = getattr(self, name)
            asked[name] = one and (one.for_omop() if kind == "OMOP" else one.for_fhir(folder))
        asked["features"] = {
            name: one.for_omop() if kind == "OMOP" else one.for_fhir(folder) for name, one in self.features.items()
        }
        found = self.model_copy(update=asked)
        example = {"OMOP": "concept ids, as in 201826", "FHIR": "codes, as in 'http://snomed.info/sct|44054006'"}[kind]
        units = {"OMOP": 'concept ids, as in "8840" = 1', "FHIR": 'UCUM\'s codes, as in "mg/dL" = 1'}[kind]
        wrong = [
            f"{key}.concepts: it names none for {kind}: ask the coordinator for a study file with {example}"
            for key, one in found.sets()
            if not one.concepts
        ] + [
            f"{key}.units: it names none for {kind}: ask the coordinator for a study file with {units}"
            for key, one in found.sets()
            if isinstance(one, Feature) and one.value == "last" and not one.units
        ]
        if wrong:
            raise ConfigError("study file", wrong)
        return found

    def contradictions(self, columns: list[str]) -> list[str]:
        """Return a line for each contradiction between keys; ``columns`` are the study's features."""
        asks = bool(self.target or self.outcome or self.features)
        files = {"extract.query-file": [self.query_file]}
        files |= {f"{key}.value-sets": list(one.value_sets) for key, one in self.sets()}
        if outside := [
            f"{key} = {file!r}: it must be a file beside the study file, or in a folder there"
            for key, named in files.items()
            for file in named
            if Path(file).is_absolute() or {"..", "~"} & {*Path(file).parts} or not file.isprintable()
        ]:
            return outside
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
        found += [f"{key}.concepts: name at least one" for key, one in self.sets() if not one.named]
        for name, one in self.features.items():
            key = f"extract.features.{name}"
            if one.named and one.of in ("age", "sex"):
                found.append(f"{key}: it has no concepts")
            if not one.window[0] <= one.window[1] <= 0:
                found.append(f"{key}.window = {list(one.window)}: a first and a last day, at most 0, the index date")
            if (one.value == "last") != bool(one.units):
                found.append(f"{key}.units: they go with value = 'last', as in units = {{ \"8840\" = 1 }}")
            if one.value == "last" and one.of != "measurement":
                found.append(f"{key}.value = 'last': only of measurements")
            if wrong := [unit for unit in one.units if not _is_unit(unit)]:
                found.append(f"{key}.units: {', '.join(map(repr, wrong))} is no concept id of a unit and no UCUM code")
        return found


def _is_unit(text: str) -> bool:
    return re.fullmatch(r"\S{1,100}", text) is not None and text.isprintable() and not re.fullmatch(r"\d{19,}", text)


def read_query(file: Path) -> str:
    """Read a file with one query; ConfigError if it cannot be read."""
    try:
        return read_file(file, TEXT).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise ConfigError("query", [f"{shorter(str(file))} cannot be read: {reason(error)}"]) from None


def read_value_set(file: Path) -> list[str]:
    """Read the codes of a FHIR ValueSet with its expansion, or of one that lists its codes.

    Raises
    ------
    ConfigError
        If it cannot be read, or does not say all its codes.
    """
    name = f"value set {shorter(str(file))}"
    try:
        content = json_in(read_file(file, TEXT))
    except (OSError, ValueError) as error:
        raise ConfigError(name, [f"it cannot be read: {reason(error)}"]) from None
    expand = "save what your terminology server returns for ValueSet/$expand"
    if not isinstance(content, dict) or content.get("resourceType") != "ValueSet":
        raise ConfigError(name, [f"it is no FHIR ValueSet: {expand}"])
    try:
        if expansion := content.get("expansion"):
            entries = list(_entries(expansion.get("contains", [])))
            if (total := expansion.get("total", 0)) > len(entries):
                raise ConfigError(name, [f"it has {len(entries)} of {total} codes: {expand}, whole"])
            found = [(one["system"], one["code"]) for one in entries if "code" in one and not one.get("abstract")]
        else:
            compose = content.get("compose", {})
            if compose.get("exclude") or any(set(part) & {"filter", "valueSet"} for part in compose.get("include", [])):
                raise ConfigError(name, [f"it describes its codes by rules, and has no expansion: {expand}"])
            found = [(part["system"], one["code"]) for part in compose["include"] for one in part["concept"]]
        codes = [str(concept(f"{system}|{code}")) for system, code in found]
    except (LookupError, TypeError, AttributeError):
        raise ConfigError(name, [f"it lists no codes: {expand}"]) from None
    except ValueError as error:
        raise error if isinstance(error, ConfigError) else ConfigError(name, [str(error)]) from None
    if not codes:
        raise ConfigError(name, [f"it lists no codes: {expand}"])
    return codes


def _entries(contains: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for one in contains:
        yield one
        yield from _entries(one.get("contains", []))
