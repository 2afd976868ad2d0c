"""The file of a sweep: what is compared, what is tuned, and how."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edelweiss.common import shorter, unknown
from edelweiss.common import shown as quoted
from edelweiss.common.files import read_toml, reason
from edelweiss.config import ConfigError, RunConfig, flatten
from edelweiss.config.plug_ins import load_named
from edelweiss.config.tables import SHARED, tables
from edelweiss.datasets.labels import split_names
from edelweiss.lab.compare.folders import names
from edelweiss.lab.compare.runs import MACHINE
from edelweiss.lab.sweep.select import cannot_select
from edelweiss.lab.sweep.study import Between, Method, Study

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from edelweiss.common import Value
    from edelweiss.lab.compare.runs import Settings

KEYS: dict[str, tuple[Any, int, int]] = {
    "tuning-seed": (100, 0, 10**9),
    "grow": (2, 0, 10),
    "draws": (0, 0, 10**4),
    "halving": (0, 0, 10),
}
"""Numbers of a file: the default, the least and the most."""
SEARCHES = ("grid", "random", "tpe")
PARTS = ("base", "compare", "tune", "seeds", "select", "search", *KEYS)
PLACE = ("data-root", "device", "tracker")  # of [base], for all runs; other keys of the machine are the sweep's own
UNUSED = {
    "seed": "the runs have seeds = [...], and tuning-seed",
    "fold": "every fold is run",
    "resume": "a sweep goes on by itself",
    **dict.fromkeys(sorted(MACHINE - {*PLACE}), "the sweep decides that"),
}
"""Keys that no run of a sweep would have from [base], and why."""
MOST_POINTS, MOST_FOLDS = 10**4, 1000


def read(file: Path) -> tuple[Study, dict[str, Any]]:
    """Read a file; returns the study, and the file's content.

    Raises
    ------
    ConfigError
        For all that is wrong with it.
    """
    try:
        content = read_toml(file)
    except (OSError, ValueError) as error:
        raise ConfigError("sweep", [f"{shorter(str(file))}: {reason(error)}"]) from None
    reader = _Reader(content, file)
    study = reader.study()
    if reader.wrong:
        raise ConfigError(f"sweep {file}", reader.wrong)
    assert study is not None
    return study, content


class _Reader:
    """Reads the file's parts and collects all mistakes."""

    def __init__(self, content: Mapping[str, Any], file: Path) -> None:
        self.content, self.file, self.wrong = content, file, [*_unknown_parts(content)]

    def study(self) -> Study | None:
        """Return the study, or None where something is wrong."""
        base = self.base()
        compare, tune = self.compared(), self.axes("tune")
        numbers = {key: self.number(key) for key in KEYS}
        seeds = self.seeds(numbers["tuning-seed"])
        default = RunConfig.keys()["problem"].default
        problems = dict.fromkeys(str({"problem": default, **base, **each}["problem"]) for each in compare)
        select = str(self.content.get("select", "pooled.auroc"))
        self.wrong += cannot_select(select, tuple(problems), split_names(str(base.get("label", ""))))
        compared = list(dict.fromkeys(key for each in compare for key in each))
        named = {word for key in (*compared, *tune) for word in key.split()}
        self.wrong += _unknown_keys({**dict.fromkeys(named, 0), **base})
        search = self.search(numbers["draws"])
        ranges = [key for key, values in tune.items() if isinstance(values, Between)]
        if ranges and not numbers["draws"]:
            self.wrong.append(f"tune.{ranges[0]} is a range: say how many points to draw from it, such as draws = 20")
        if both := sorted({*compared} & {word for key in tune for word in key.split()}):
            self.wrong.append(
                f"{', '.join(both)}: in [compare] and in [tune]; each value of a key is compared, or the "
                "best one is chosen"
            )
        if numbers["halving"] and "rounds" in tune:
            self.wrong.append("tune.rounds and halving: runs stop after equal shares of the rounds: leave one out")
        if numbers["halving"] == 1:
            self.wrong.append("halving = 1: 0 lets all runs go to their end; 3 lets a third go on")
        if self.wrong:
            return None
        methods = list(self.methods(base, compare, tune, draws=numbers["draws"]))
        repeat: dict[str, tuple[Value, ...]] = {"seed": seeds}
        if folds := self.folds(base):
            repeat["fold"] = tuple(range(folds))
        return Study(
            base={key: value for key, value in base.items() if key not in MACHINE},
            methods=tuple(methods),
            repeat=repeat,
            select=select,
            tuning_seed=numbers["tuning-seed"],
            extend=numbers["grow"],
            trials=numbers["draws"],
            by_model=search == "tpe",
            halving=numbers["halving"],
            rank=len(methods) > 1,
            place={key: value for key, value in base.items() if key in PLACE},
        )

    def base(self) -> dict[str, Value]:
        """Return the run-config that all runs share: a table, or the name of a file beside this one."""
        given = self.content.get("base", {})
        written_for_runs = isinstance(given, str)
        if isinstance(given, str):
            try:
                given = read_toml(self.file.parent / given)
            except (OSError, ValueError) as error:
                self.wrong.append(f"base = {quoted(given)}: {reason(error)}; it is looked for beside {self.file.name}")
                return {}
        if not isinstance(given, dict):
            self.wrong.append(f"base = {quoted(given)}: must be a table of run-config keys, or a TOML file of them")
            return {}
        found, fields = self.loaded(flatten(given)), RunConfig.keys()
        for key in [key for key in found if key in UNUSED]:
            # A run's file says how it was computed, and all defaults; what would be another result is refused there.
            if not written_for_runs or not (key in MACHINE or found[key] == fields[key].default):
                self.wrong.append(f"base.{key} = {quoted(found[key])}: {UNUSED[key]}: leave it out")
        return found

    def loaded(self, settings: dict[str, Value]) -> dict[str, Value]:
        """Import what settings name from outside: whoever wrote the file wants it."""
        try:
            return load_named(settings)
        except ConfigError as error:
            self.wrong += [text for text in error.problems if text not in self.wrong]
            return settings

    def compared(self) -> list[dict[str, Value]]:
        """Return the settings that are compared: all combinations of [compare], or each of several [[compare]]."""
        given = self.content.get("compare", {})
        if not isinstance(given, list):
            axes = self.axes("compare")
            for key in [key for key, values in axes.items() if isinstance(values, Between)]:
                self.wrong.append(f"compare.{key} is a range: what is compared is a list; ranges are for [tune]")
                del axes[key]
            return [
                self.loaded({word: value for keys, value in zip(axes, values, strict=True) for word in keys.split()})
                for values in product(*axes.values())
            ]
        found: list[dict[str, Value]] = []
        for number, each in enumerate(given, start=1):
            flat = flatten(each) if isinstance(each, dict) else {}
            if not flat or not all(isinstance(value, bool | int | float | str) for value in flat.values()):
                self.wrong.append(f"[[compare]] number {number}: must be a table of keys with a value each")
            if flat in found:
                self.wrong.append(f"[[compare]] number {number} is there twice: leave one out")
            for key in flat:
                self.allowed("compare", key, f"compare.{key}")
            found.append(self.loaded(flat))
        return found or [{}]

    def axes(self, part: str) -> dict[str, Any]:
        """Return the keys of [compare] or [tune] with their lists and ranges."""
        given = self.content.get(part, {})
        if not isinstance(given, dict):
            self.wrong.append(f"{part} = {quoted(given)}: must be a table, [{part}]")
            return {}
        found: dict[str, Any] = {}
        for key, values in _leaves(given):
            name = f"{part}.{key}"
            if isinstance(values, dict):
                found[key] = self.range(name, values)
            elif not isinstance(values, list) or not values:
                self.wrong.append(f"{name} = {quoted(values)}: must be a list of values, with one at least")
            elif any(not isinstance(value, bool | int | float | str) for value in values):
                self.wrong.append(f"{name} = {quoted(values)}: its values must be numbers, texts, true or false")
            elif len({str(value) for value in values}) < len(values):
                self.wrong.append(f"{name} = {quoted(values)}: a value is there twice: leave one out")
            else:
                found[key] = tuple(values)
            for word in key.split():
                self.allowed(part, word, name)
        return found

    def allowed(self, part: str, key: str, name: str) -> None:
        """Note keys that cannot be compared or tuned."""
        if key in (*MACHINE, "resume", "state-dir", "evaluate-every"):
            self.wrong.append(f"{name}: it does not change what is computed: leave it out")
        elif key in ("seed", "fold"):
            self.wrong.append(f"{name}: every point is run with all of seeds = [...], and folds: leave it out")
        elif key == "folds":
            self.wrong.append(f"{name}: all runs have the same folds: put it into [base]")
        elif key in ("algorithm", "problem") and part == "tune":
            self.wrong.append(f"{name}: it is compared, with points of its own: put it into [compare]")

    def range(self, name: str, given: dict[str, Any]) -> Between:
        """Return a range."""
        low, high = (given[end] for end in ("low", "high"))
        numbers = all(isinstance(end, int | float) and not isinstance(end, bool) for end in (low, high))
        if not numbers or not 0 < low < high < math.inf:
            why = "low must be above 0, and below high: it is drawn from uniformly in the logarithm"
            self.wrong.append(f"{name} = {quoted(given)}: {why}")
            return Between(1.0, 2.0)
        return Between(low, high, whole=isinstance(low, int) and isinstance(high, int))

    def search(self, draws: int) -> str:
        """Return how points are found."""
        search = self.content.get("search", "random" if draws else "grid")
        if search not in SEARCHES:
            self.wrong.append(f"search: {unknown('search', str(search), SEARCHES)}")
        elif search == "grid" and draws:
            self.wrong.append(f'search = "grid" and draws = {draws}: a grid has all its points: leave one out')
        elif search != "grid" and not draws:
            self.wrong.append(f'search = "{search}": say how many points to draw, such as draws = 20')
        return str(search)

    def folds(self, base: Settings) -> int:
        """Return the number of folds; 0 without cross-validation."""
        folds = base.get("folds", 0)
        if not isinstance(folds, int) or not 0 <= folds <= MOST_FOLDS:
            self.wrong.append(f"base.folds = {quoted(folds)}: each is run: an integer from 0 to {MOST_FOLDS}")
            return 0
        return folds

    def number(self, key: str) -> int:
        """Return a whole number of the file."""
        default, low, high = KEYS[key]
        value = self.content.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            self.wrong.append(f"{key} = {quoted(value)}: must be an integer from {low} to {high}")
            return int(default)
        return value

    def seeds(self, tuning: int) -> tuple[Value, ...]:
        """Return the seeds of the runs that are compared."""
        seeds = self.content.get("seeds", [0, 1, 2])
        whole = isinstance(seeds, list) and all(isinstance(each, int) and not isinstance(each, bool) for each in seeds)
        if not whole or not seeds or len(set(seeds)) < len(seeds):
            self.wrong.append(f"seeds = {quoted(seeds)}: must be a list of different integers, such as [0, 1, 2]")
            return (0,)
        if tuning in seeds:
            self.wrong.append(f"tuning-seed = {tuning} is among the seeds: the runs that choose need one of their own")
        return tuple(seeds)

    def methods(
        self, base: Settings, compare: list[dict[str, Value]], tune: dict[str, Any], *, draws: int
    ) -> Iterator[Method]:
        """Yield a method for each combination of what is compared, with its points."""
        fields = RunConfig.keys()
        used: set[str] = set()
        start = {key: fields[key].default for key in ("algorithm", "problem")} | dict(base)
        labels, _ = names([{"algorithm": start["algorithm"], **combination} for combination in compare])
        algorithms: set[str] = set()
        for label, combination in zip(labels, compare, strict=True):
            whole = {**start, **combination}
            own = ("", str(whole["algorithm"]), str(whole["problem"]))
            algorithms.add(own[1])
            axes: dict[str, Any] = {}
            for key, choices in tune.items():
                if words := [word for word in key.split() if word.rpartition(".")[0] in own]:
                    axes[" ".join(words)] = choices
                    used.add(key)
            count = draws or math.prod(len(choices) for choices in axes.values())
            if count > MOST_POINTS:
                self.wrong.append(f"[tune] has {count:,} points: at most {MOST_POINTS:,}; draws = 20 draws a few")
                return
            rest = {key: value for key, value in combination.items() if key != "algorithm"}
            yield Method(
                label=label,
                algorithm=own[1],
                settings=rest,
                grid=({},) if draws else _points(axes),
                ranges=axes if draws else {},
            )
        for key in tune.keys() - used:
            self.wrong.append(f"tune.{key}: no run has it: the algorithms are {', '.join(sorted(algorithms))}")


def _points(axes: Mapping[str, tuple[Value, ...]]) -> tuple[Settings, ...]:
    """Return a grid's points: all combinations."""
    points = []
    for values in product(*axes.values()):
        point: dict[str, Value] = {}
        for keys, value in zip(axes, values, strict=True):
            point |= dict.fromkeys(keys.split(), value)
        points.append(point)
    return tuple(points)


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys of nested tables, in full, with their values; a table of low and high is a value."""
    for key, value in table.items():
        if isinstance(value, dict) and value.keys() != {"low", "high"}:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield " ".join(f"{prefix}{word}" for word in key.split()), value


def _unknown_parts(content: Mapping[str, Any]) -> Iterator[str]:
    for key in content.keys() - set(PARTS):
        keys = {*RunConfig.keys(), *SHARED, *tables()}
        more = "; keys of the run-config belong into [base], [compare] or [tune]" if key in keys else ""
        yield f"{unknown('key', key, PARTS)}{more}"


def _unknown_keys(named: Mapping[str, Value]) -> list[str]:
    """Return a line for each key that no run has."""
    try:
        RunConfig.parse(named)
    except ConfigError as error:
        return [problem for problem in error.problems if problem.startswith("unknown key")]
    return []
