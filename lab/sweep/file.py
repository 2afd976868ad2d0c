"""The file of a sweep: what to compare, what to tune, and how."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from edelweiss.common import Value, shorter
from edelweiss.common import shown as quoted
from edelweiss.common.files import read_toml, reason
from edelweiss.common.options import is_number
from edelweiss.common.schema import must_be
from edelweiss.config import ConfigError, RunConfig, flatten
from edelweiss.config.keys import Keys
from edelweiss.config.plug_ins import as_known, load_named
from edelweiss.config.tables import SHARED, tables
from edelweiss.datasets.labels import split_names
from edelweiss.lab.compare.folders import names
from edelweiss.lab.compare.runs import MACHINE
from edelweiss.lab.sweep.select import cannot_select
from edelweiss.lab.sweep.study import Between, Method, Study

if TYPE_CHECKING:
    from collections.abc import Iterator


PLACE = ("data-root", "device", "tracker")  # of [base], for all runs; the sweep decides the other keys of the machine
UNUSED = {
    "seed": "the runs have seeds = [...], and tuning-seed",
    "fold": "every fold is run",
    "resume": "a sweep resumes by itself",
    **dict.fromkeys(sorted(MACHINE - {*PLACE}), "the sweep decides that"),
}
"""Keys that [base] may not have, and why."""
FIXED = {
    **dict.fromkeys(
        [*MACHINE, "resume", "state-dir", "evaluate-every"], "it does not change what is computed: leave it out"
    ),
    **dict.fromkeys(["seed", "fold"], "every point is run with all of seeds = [...], and folds: leave it out"),
    "folds": "all runs have the same folds: put it into [base]",
}
"""Keys that are neither compared nor tuned, and why."""
NOT_TUNED = FIXED | dict.fromkeys(["algorithm", "problem"], "each has its own points: put it into [compare]")
MOST_POINTS, MOST_FOLDS = 10**4, 1000


def _leaves(given: Any, prefix: str = "") -> Any:
    """Return nested tables as one, with full keys; a table of low and high is a value."""
    if not isinstance(given, dict):
        return given  # which is refused
    found: dict[str, Any] = {}
    for key, value in given.items():
        if isinstance(value, dict) and value.keys() != {"low", "high"}:
            found |= _leaves(value, f"{prefix}{key}.")
        else:
            found[" ".join(f"{prefix}{word}" for word in key.split())] = value
    return found


def _choices(given: Any) -> tuple[Value, ...]:
    if not isinstance(given, list) or not _distinct(given) or not all(isinstance(each, Value) for each in given):
        raise ValueError("must be a list of different numbers, texts, true or false, with one at least")
    return tuple(given)


def _range_or_choices(given: Any) -> Between | tuple[Value, ...]:
    if not isinstance(given, dict):
        return _choices(given)
    low, high = given["low"], given["high"]
    if not is_number(low) or not is_number(high) or not 0 < low < high:
        raise ValueError("low must be above 0, and below high: values are drawn uniformly in the logarithm")
    return Between(low, high, whole=isinstance(low, int) and isinstance(high, int))


def _distinct(items: list[Any]) -> bool:
    return bool(items) and len(set(map(str, items))) == len(items)


def _settings(table: dict[str, Any]) -> bool:
    return bool(table) and all(isinstance(value, Value) for value in table.values())


Flat = BeforeValidator(lambda given: flatten(given) if isinstance(given, dict) else given)
Leaves = BeforeValidator(_leaves)
Row = Annotated[dict[str, Any], Flat, must_be("a table of keys with a value each", _settings)]


class SweepFile(Keys):
    """The keys of a file."""

    base: Annotated[dict[str, Any], Flat] = Field(
        {}, description="run-config of all runs: a table, or the name of a file"
    )
    compare: Annotated[dict[str, Annotated[Any, AfterValidator(_choices)]], Leaves] = Field(
        {}, description="lists of values, all of whose combinations are compared; or several tables of keys"
    )
    tune: Annotated[dict[str, Annotated[Any, AfterValidator(_range_or_choices)]], Leaves] = Field(
        {}, description="lists of values or ranges, of which the best is chosen"
    )
    seeds: Annotated[list[int], must_be("a list of different integers, such as [0, 1, 2]", _distinct)] = Field(
        [0, 1, 2], description="of the runs that are compared"
    )
    select: str = Field("pooled.auroc", description="the metric for choosing a point")
    search: Literal["grid", "random", "tpe"] | None = Field(
        None, description="how points are found; without it random where points are drawn, else grid"
    )
    tuning_seed: int = Field(100, ge=0, le=10**9, description="of the runs that choose")
    grow: int = Field(2, ge=0, le=10, description="extra values tried when the best one lies on the edge of its grid")
    draws: int = Field(0, ge=0, le=10**4, description="points that are drawn; 0: all of the grid")
    halving: int = Field(0, ge=0, le=10, description="1 in N points continues after each rung; 0: all")

    def compared(self) -> list[dict[str, Value]]:
        """Return the settings that are compared."""
        return [as_known(row) for row in _points(self.compare)]

    def contradictions(self) -> Iterator[str]:
        """Yield what is wrong between keys, and with the keys of tables."""
        rows = self.compared()
        compared = dict.fromkeys(key for row in rows for key in row)
        tuned = dict.fromkeys(word for key in self.tune for word in key.split())
        for part, keys, fixed in (("compare", compared, FIXED), ("tune", tuned, NOT_TUNED)):
            yield from (f"{part}.{key}: {fixed[key]}" for key in keys if key in fixed)
        if both := sorted(compared.keys() & tuned.keys()):
            why = "each value of a key is compared, or the best one is chosen"
            yield f"{', '.join(both)}: in [compare] and in [tune]; {why}"
        try:
            RunConfig.parse({**dict.fromkeys([*compared, *tuned], 0), **self.base})
        except ConfigError as error:
            yield from (problem for problem in error.problems if problem.startswith("unknown key"))
        defaults = {"problem": RunConfig.keys()["problem"].default, **self.base}
        problems = dict.fromkeys(str({**defaults, **row}["problem"]) for row in rows)
        yield from cannot_select(self.select, tuple(problems), split_names(str(self.base.get("label", ""))))
        if self.draws and self.search == "grid":
            yield f'search = "grid" and draws = {self.draws}: a grid has all its points: leave one out'
        if not self.draws and self.search in ("random", "tpe"):
            yield f'search = "{self.search}": say how many points to draw, such as draws = 20'
        for key in [key for key, values in self.tune.items() if isinstance(values, Between) and not self.draws][:1]:
            yield f"tune.{key} is a range: say how many points to draw from it, such as draws = 20"
        if self.halving and "rounds" in tuned:
            yield "tune.rounds and halving: runs stop after equal shares of the rounds: leave one out"
        if self.halving == 1:
            yield "halving = 1: 0 lets all runs go to their end; 3 lets a third go on"
        if self.tuning_seed in self.seeds:
            yield f"tuning-seed = {self.tuning_seed} is among the seeds: the runs that choose need one of their own"
        folds = self.base.get("folds", 0)
        if not isinstance(folds, int) or not 0 <= folds <= MOST_FOLDS:
            yield f"base.folds = {quoted(folds)}: each is run: an integer from 0 to {MOST_FOLDS}"

    def methods(self) -> Iterator[Method]:
        """Yield a method with its points for each combination that is compared.

        Raises
        ------
        ConfigError
            When there are too many points, or no run has a key that is tuned.
        """
        start = {key: RunConfig.keys()[key].default for key in ("algorithm", "problem")} | self.base
        rows = self.compared()
        labels, _ = names([{"algorithm": start["algorithm"], **row} for row in rows])
        used: set[str] = set()
        for label, row in zip(labels, rows, strict=True):
            own = ("", *(str({**start, **row}[key]) for key in ("algorithm", "problem")))
            axes: dict[str, Any] = {}
            for key, choices in self.tune.items():
                if words := [word for word in key.split() if word.rpartition(".")[0] in own]:
                    axes[" ".join(words)] = choices
                    used.add(key)
            count = self.draws or math.prod(map(len, axes.values()))
            if count > MOST_POINTS:
                text = f"[tune] has {count:,} points: at most {MOST_POINTS:,}; draws = 20 draws a few"
                raise ConfigError("sweep", [text])
            yield Method(
                label=label,
                algorithm=own[1],
                settings={key: value for key, value in row.items() if key != "algorithm"},
                grid=({},) if self.draws else tuple(_points(axes)),
                ranges=axes if self.draws else {},
            )
        if unused := self.tune.keys() - used:
            algorithms = ", ".join(sorted({str({**start, **row}["algorithm"]) for row in rows}))
            raise ConfigError(
                "sweep", [f"tune.{key}: no run has it: the algorithms are {algorithms}" for key in unused]
            )

    def study(self) -> Study:
        """Return the study; raises as `methods`."""
        methods = tuple(self.methods())
        folds = self.base.get("folds", 0)
        return Study(
            base={key: value for key, value in self.base.items() if key not in MACHINE},
            methods=methods,
            repeat={"seed": tuple(self.seeds), **({"fold": tuple(range(folds))} if folds else {})},
            select=self.select,
            tuning_seed=self.tuning_seed,
            extend=self.grow,
            trials=self.draws,
            by_model=self.search == "tpe",
            halving=self.halving,
            rank=len(methods) > 1,
            place={key: value for key, value in self.base.items() if key in PLACE},
        )


class ListedFile(SweepFile):
    """A file with several [[compare]]."""

    compare: Annotated[
        list[Row], must_be("tables of which none is there twice", lambda rows: not rows or _distinct(rows))
    ] = Field([])  # type: ignore[assignment]

    def compared(self) -> list[dict[str, Value]]:
        """Return the settings that are compared."""
        return [as_known(row) for row in self.compare] or [{}]


def _points(axes: Mapping[str, Sequence[Value]]) -> list[dict[str, Value]]:
    """Return a grid's points: all combinations; each word of a key has its value."""
    return [
        {word: value for keys, value in zip(axes, values, strict=True) for word in keys.split()}
        for values in product(*axes.values())
    ]


def parse(given: Mapping[str, Any], file: Path) -> Study:
    """Return the study that a file's content describes.

    Raises
    ------
    ConfigError
        For all that is wrong with it.
    """
    content, wrong = dict(given), list[str]()
    if written := isinstance(name := content.get("base"), str):
        content["base"] = {}
        try:
            content["base"] = read_toml(file.parent / name)
        except (OSError, ValueError) as error:
            wrong.append(f"base = {quoted(name)}: {reason(error)}; it is looked for beside {file.name}")
    kind = ListedFile if isinstance(content.get("compare"), list) else SweepFile
    keys, found = kind.checked(content)
    if keys is None:  # the valid keys are checked further
        keys, _ = kind.checked({k: v for k, v in content.items() if kind.checked({k: v})[0] is not None})
        assert keys is not None
    run_keys = RunConfig.keys()
    known = {*run_keys, *SHARED, *tables()} - {*kind.keys()}
    misplaced = tuple(f"unknown key {key!r}." for key in content if key in known)
    more = "; keys of the run-config belong in [base], [compare] or [tune]"
    wrong += [f"{text}{more}" if text.startswith(misplaced) else text for text in found]
    for key, value in keys.base.items():
        # A run's own file has all keys: those of its machine and defaults are left out, all others are refused.
        if key in UNUSED and not (written and (key in MACHINE or value == run_keys[key].default)):
            wrong.append(f"base.{key} = {quoted(value)}: {UNUSED[key]}: leave it out")
    for settings in (keys.base, *keys.compared()):  # imports the plug-ins that the file names
        try:
            load_named(settings)
        except ConfigError as error:
            wrong += [text for text in error.problems if text not in wrong]
    keys = keys.model_copy(update={"base": as_known(keys.base)})
    if wrong := [*wrong, *keys.contradictions()]:
        raise ConfigError(f"sweep {file}", wrong)
    return keys.study()


def read(file: Path) -> tuple[Study, dict[str, Any]]:
    """Read a file; returns the study, and the file's content; ConfigError for all that is wrong with it."""
    try:
        content = read_toml(file)
    except (OSError, ValueError) as error:
        raise ConfigError("sweep", [f"{shorter(str(file))}: {reason(error)}"]) from None
    return parse(content, file), content
