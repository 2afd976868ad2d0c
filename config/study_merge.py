"""Drafts of a study file from several hospitals, merged into one: what differs is said in its comments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from itertools import combinations
from math import inf
from typing import Any

from edelweiss.common import CLOSE, ConfigError, closest, shorter
from edelweiss.common.files import toml_in
from edelweiss.common.overrides import toml_value
from edelweiss.config.conversions import suspected
from edelweiss.config.study import ColumnTable, StudyFile, parse_file
from edelweiss.datasets.errors import examples
from edelweiss.datasets.numbers import MISSING, canonical, is_number
from edelweiss.datasets.site.draft import FILL_IN, HARMLESS

DECIDE = "DECIDE"
FAR = 3.0  # ranges whose both ends differ by such a factor may be in different units
_TABLE = re.compile(r"^\[(columns\..+)\]\s*(#.*)?$")
_SEEN = re.compile(r"^# (range|words) = (\[[^]]*\]|\{.*\})")
_DROPPED = re.compile(r'^\s*("(?:[^"\\]|\\.)*"),\s*#\s*(.*)$')
_FOUND = ("delimiter", "decimal", "encoding")  # where they are not said
_SAME = ("sheet", "header-row", "header", "one-row", "index-date", "date-format")


@dataclass(frozen=True)
class Draft:
    """One hospital's file, with what only its comments say."""

    name: str
    file: StudyFile
    values: Mapping[str, Any]  # as written
    seen: Mapping[tuple[str, str], Any]  # by column and key: the ranges and words that `draft` found
    dropped: Mapping[str, str]  # columns and why

    @classmethod
    def of(cls, name: str, content: bytes) -> Draft:
        """Read a draft; ConfigError with everything that is wrong with it."""
        try:
            values = toml_in(content)
        except ValueError as error:
            raise ConfigError(f"study file {name}", [f"it cannot be read: {error}"]) from None
        file = parse_file(name, values)
        lines = content.decode("utf-8-sig").splitlines()
        seen: dict[tuple[str, str], Any] = {}
        column, reasons = "", dict[str, str]()
        for line in lines:
            if found := _TABLE.match(line):
                column = next(iter(_toml(f"[{found[1]}]").get("columns", {"": {}})), "")
            elif (found := _SEEN.match(line)) and (given := _toml(f"value = {found[2]}")):
                seen[column, found[1]] = given["value"]
            elif (found := _DROPPED.match(line)) and (given := _toml(f"value = {found[1]}")):
                reasons[given["value"]] = found[2].strip()
        numeric = {key: one for key, one in seen.items() if key[1] == "words" or _is_range(one)}
        return cls(name, file, values, numeric, {each: reasons.get(each, "") for each in file.drop})

    @property
    def needed(self) -> set[str]:
        """The columns that are read, but not as features."""
        file = self.file
        return {file.label.column, file.patient, file.index_date, *(rule.column for rule in file.leave_out)} - {""}

    def range(self, column: str) -> tuple[float, float] | None:
        """Return a column's range, as confirmed, or as it was seen."""
        own = self.file.columns.get(column)
        found = (own.range if own else None) or self.seen.get((column, "range"))
        return (float(found[0]), float(found[1])) if found else None


@dataclass
class Merged:
    """The file that comes of drafts, and what a person must decide in it."""

    lines: list[str] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The content of the file."""
        return "\n".join(self.lines) + "\n"

    def say(self, text: str) -> None:
        """Add a comment."""
        self.lines.append(f"# {text}")

    def decide(self, where: str, text: str) -> None:
        """Add a comment about a contradiction."""
        self.lines.append(f"# {DECIDE}: {text}")
        self.decisions.append(f"{where}: {text}")

    def key(self, name: str, value: object, said: str = "") -> None:
        """Add a key."""
        self.lines.append(f"{name} = {written(value)}{f'  # {said}' * bool(said)}")

    def agreed(self, where: str, key: str, given: Mapping[str, Any]) -> Any:
        """Return the value that all have, or the first; say where they differ. None and empty ones are left open."""
        stated = {name: value for name, value in given.items() if value not in (None, "", (), {})}
        first: Any = next(iter(stated.values()), None)
        if any(value != first for value in stated.values()):
            said = "; ".join(f"{name}: {written(value)}" for name, value in stated.items())
            self.decide(where, f"{key} differs. {said}. The first is taken")
        elif 0 < len(stated) < len(given):
            self.say(f"{key}: only in {_listed(stated)}")
        return first


def merge(contents: Mapping[str, bytes]) -> Merged:
    """Merge drafts, by the names of their files, into one study file.

    Returns
    -------
    merged
        A file of all columns that every hospital has, or a person must decide about; ``DECIDE`` marks contradictions.

    Raises
    ------
    ConfigError
        With everything that is wrong with the drafts, or if no column is a feature in all of them.
    """
    drafts, wrong = [], list[str]()
    for name, content in zip(map(shorter, contents), contents.values(), strict=True):
        try:
            drafts.append(Draft.of(name, content))
        except ConfigError as error:
            wrong += [f"{name}: {problem}" for problem in error.problems]
    if wrong:
        raise ConfigError("study files", wrong)
    out = Merged()
    _top(out, drafts)
    label = Merged()
    _label(label, drafts)
    columns = Merged()
    kept, dropped = _columns(columns, drafts, str(_first(drafts, "label").column))
    if not kept:
        raise ConfigError("study files", ["columns: none is a feature in all of them; are they of one study?"])
    out.lines += dropped.lines
    named = [name for draft in drafts for name in draft.file.subgroups if name in kept]
    if named:
        out.key("subgroups", [*dict.fromkeys(named)])
    rules = Merged()
    _rules(rules, drafts)
    extract = Merged()
    _extract(extract, drafts)
    out.lines += ["", *label.lines, "", *columns.lines]
    out.lines += [*([""] if rules.lines else []), *rules.lines, *([""] if extract.lines else []), *extract.lines]
    decisions = [each for part in (out, dropped, label, columns, rules, extract) for each in part.decisions]
    head = Merged()
    file, problems = StudyFile.checked(toml_in(out.text.encode()), any_text=True)
    for problem in [*problems, *(file.contradictions() if file else [])]:
        head.decide("the merged file", problem)
    decisions = head.decisions + decisions
    what = f"Search for {DECIDE}: {len(decisions)}" if decisions else "Nothing in them contradicts"
    title = f"# Merged from {len(drafts)} study files: {', '.join(draft.name for draft in drafts)}. {what}."
    return Merged(
        [title, "# Check it with `edelweiss study check` before you send it.", *head.lines, *out.lines], decisions
    )


def written(value: object) -> str:
    """Return a value in TOML."""
    match value:
        case dict():
            return f"{{ {', '.join(f'{toml_value(key)} = {written(one)}' for key, one in value.items())} }}"
        case list() | tuple():
            return f"[{', '.join(map(written, value))}]"
        case float():
            return f"{int(value)}" if value.is_integer() and abs(value) < 2**53 else repr(value)
        case date():
            return value.isoformat()
        case bool() | int() | str():
            return toml_value(value)
    raise TypeError(f"{value!r} is not of TOML")


# ---------------------------------------------------------------------- the parts of a file


def _top(out: Merged, drafts: list[Draft]) -> None:
    names = [draft.file.name for draft in drafts if draft.file.name]
    if names:
        out.key("name", names[0])
    files = {draft.name: draft.file.file for draft in drafts}
    if len({*files.values()}) > 1:
        out.say("; ".join(f"{name}: {toml_value(file)}" for name, file in files.items()))
        out.key("file", _pattern([*files.values()]), "exactly one file of a hospital's folder must match")
    else:
        out.key("file", drafts[0].file.file)
    for key in _FOUND:
        given = {draft.name: getattr(draft.file, key) for draft in drafts}
        stated = {name: value for name, value in given.items() if value}
        if len(stated) == len(drafts) and len({*stated.values()}) == 1:
            out.key(key, next(iter(stated.values())))
        elif stated:
            said = "; ".join(f"{name}: {written(value)}" for name, value in stated.items())
            out.say(f"{key} is found at each hospital, which may set its own in its copy. {said}")
    for key in _SAME:
        attribute = key.replace("-", "_")
        given = {draft.name: getattr(draft.file, attribute) for draft in drafts}
        default = StudyFile.model_fields[attribute].default
        value = next(iter(given.values()))
        if any(one != value for one in given.values()):
            said = "; ".join(f"{name}: {written(one)}" for name, one in given.items())
            out.decide(key, f"{key} differs. {said}. A hospital may set its own in its copy")
        if value != default:
            out.key(key, value)
    missing = [text for draft in drafts for text in draft.file.missing]
    if (all_of := _distinct(missing)) != [*MISSING[1:]]:
        _only_at(out, {draft.name: draft.file.missing for draft in drafts})
        out.key("missing", all_of)
    patients = {draft.name: draft.file.patient for draft in drafts}
    if without := [name for name, column in patients.items() if not column]:
        text = f"no patient column in {_listed(without)}" + ": each row there counts as a patient" * (
            len(without) == len(drafts)
        )
        if len(without) == len(drafts):
            out.say(text)
        else:
            out.decide("patient", f"{text}: name the one that the others have, or add it there")
    if patient := out.agreed("patient", "patient", {name: one for name, one in patients.items() if one}):
        out.key("patient", patient)


def _label(out: Merged, drafts: list[Draft]) -> None:
    out.lines.append("[label]")
    labels = {draft.name: draft.file.label for draft in drafts}
    columns = {name: "" if label.column == FILL_IN else label.column for name, label in labels.items()}
    out.key("column", out.agreed("label", "column", columns) or FILL_IN)
    if any(label.classes for label in labels.values()):
        classes = {name: label.classes or (label.negative, label.positive) for name, label in labels.items()}
        groups = _grouped(out, "label", classes)
        out.key("classes", [[*group] for group in groups])
        return
    sides = {
        side: {name: _said(getattr(label, side)) for name, label in labels.items()} for side in ("negative", "positive")
    }
    taken: dict[str, str] = {}
    for draft in drafts:
        for side, given in sides.items():
            for text in given[draft.name]:
                if taken.setdefault(canonical(text), side) != side:
                    there = f"{draft.name} takes {toml_value(text)} for {side}"
                    others = f"the others before it for {taken[canonical(text)]}"
                    out.decide("label", f"{there}, {others}: the first is taken")
    for side, given in sides.items():
        _only_at(out, given)
        texts = _distinct(text for one in given.values() for text in one if taken[canonical(text)] == side)
        if not texts:
            out.decide("label", f"none says which texts are {side}")
        out.key(side, texts or [f"{FILL_IN}{' TOO' * (side == 'positive')}"])


def _columns(out: Merged, drafts: list[Draft], label: str) -> tuple[list[str], Merged]:
    """Write the features; return them, and what is dropped."""
    dropped = Merged()
    needed = {_first(drafts, "patient"), _first(drafts, "index_date"), label}
    needed |= {rule.column for draft in drafts for rule in draft.file.leave_out}
    order = dict.fromkeys(name for draft in drafts for name in draft.file.columns)
    kept: list[str] = []
    drop: dict[str, str] = {}
    for name in order:
        having = {draft.name: draft.file.columns[name] for draft in drafts if name in draft.file.columns}
        without = [draft for draft in drafts if name not in draft.file.columns]
        if name in needed:
            continue
        drops = {draft.name: draft.dropped[name] for draft in without if name in draft.dropped}
        first_columns = next(draft for draft in drafts if draft.name in having).file.columns
        absent = [draft for draft in without if name not in draft.dropped and name not in draft.needed]
        used = [draft for draft in without if name in draft.needed]
        grave = [
            f"{each} drops it ({why or 'no reason is given'})" for each, why in drops.items() if why not in HARMLESS
        ]
        for draft in absent:
            near = _near(name, [one for one in draft.file.columns if one not in first_columns])
            grave.append(f"{draft.name} has no such column{f', but {toml_value(near)}' * bool(near)}")
        grave += [f"{draft.name} reads it as the label, patient or date" for draft in used]
        if grave:
            also = ": the others may add it, empty" * bool(absent)
            dropped.decide(
                f"columns.{shorter(name)}",
                f"{toml_value(name)} is a feature in {_listed(having)}, but {'; '.join(grave)}{also}",
            )
            drop[name] = ""
            continue
        kept.append(name)
        _column(out, name, [draft for draft in drafts if draft.name in having], drops)
    for draft in drafts:
        for name, why in draft.dropped.items():
            if name not in kept and name not in needed and not drop.get(name):
                drop[name] = f"{draft.name}: {why}" if why else ""
    if drop:
        dropped.lines.append("drop = [")
        dropped.lines += [f"    {toml_value(name)},{f'  # {why}' * bool(why)}" for name, why in drop.items()]
        dropped.lines.append("]")
    return kept, dropped


def _column(out: Merged, name: str, drafts: list[Draft], drops: Mapping[str, str]) -> None:
    """Write a feature that is in these drafts; others have the column and drop it for a harmless reason."""
    where = f"columns.{shorter(name)}"
    out.lines.append(f"[columns.{toml_value(name)}]")
    for each, why in drops.items():
        out.say(f"{each}: {why}")
    tables = {draft.name: draft.file.columns[name] for draft in drafts}
    kinds = {each: _kind(table) for each, table in tables.items()}
    first = next(iter(kinds.values()))
    if {*kinds.values()} != {first}:
        said = "; ".join(f"{each}: {_words_of(tables[each], kind)}" for each, kind in kinds.items())
        out.decide(where, f"it is not of one kind. {said}. The first is taken")
        drafts = [draft for draft in drafts if kinds[draft.name] == first]
        tables = {draft.name: draft.file.columns[name] for draft in drafts}

    def same(key: str) -> dict[str, Any]:
        return {each: getattr(table, key) for each, table in tables.items()}

    words: list[str] = []
    if first == "category":
        words = _codes(out, name, drafts)
        if len({*same("ordinal").values()}) > 1:
            said = _listed([each for each, ordinal in same("ordinal").items() if ordinal])
            out.decide(where, f"only {said} says that its words are an order")
        if next(iter(same("ordinal").values())):
            out.key("ordinal", True)
    elif first == "date":
        out.key("before-index", out.agreed(where, "before-index", same("before_index")))
    if first != "category":
        unit = out.agreed(where, "unit", same("unit"))
        if unit:
            out.key("unit", unit)
        elif first == "number":
            out.key("unit", "", "fill in")
        _ranges(out, name, drafts)
    if first == "number":
        _number_words(out, name, drafts)
    _missing(out, name, drafts, words)
    for key in ("bands", "mean", "deviation"):
        if (value := out.agreed(where, key, same(key))) not in (None, ()):
            out.key(key, value)
    out.lines.append("")


def _codes(out: Merged, name: str, drafts: list[Draft]) -> list[str]:
    """Write the words of a category, and return them."""
    where = f"columns.{shorter(name)}"
    codes = {draft.name: draft.file.columns[name].codes for draft in drafts}
    counted = all(isinstance(draft.values["columns"][name].get("codes"), list) for draft in drafts)
    if counted:
        given = {
            each: tuple(tuple(word for word in own if own[word] == code) for code in sorted({*own.values()}))
            for each, own in codes.items()
        }
        ordinal = any(draft.file.columns[name].ordinal for draft in drafts)
        groups = _grouped(out, where, given, ordered=ordinal)
        if not ordinal and len({*given.values()}) > 1:
            groups.sort(key=lambda group: canonical(group[0]))
        out.key("codes", [group[0] if len(group) == 1 else group for group in groups])
        return [word for group in groups for word in group]
    taken: dict[str, tuple[str, float]] = {}
    for each, own in codes.items():
        for word, code in own.items():
            before = taken.setdefault(canonical(word), (word, code))
            if before[1] != code:
                text = f"{each} has {written(code)} for {toml_value(word)}, another {written(before[1])}"
                out.decide(where, f"{text}: the first is taken")
    _only_at(out, codes, where)
    out.key("codes", dict(taken.values()))
    return [word for word, _ in taken.values()]


def _grouped(
    out: Merged, where: str, given: Mapping[str, Iterable[Iterable[str]]], *, ordered: bool = True
) -> list[list[str]]:
    """Return groups of texts of one meaning, of all files."""
    groups: list[list[str]] = []
    place: dict[str, int] = {}
    for each, own in given.items():
        reached: list[int] = []
        for group in map(list, own):
            known = list(dict.fromkeys(place[canonical(text)] for text in group if canonical(text) in place))
            if len(known) > 1 or (known and known[0] in reached):
                out.decide(where, f"{each} and others before it do not agree which texts of {written(group)} are one")
            if not known:
                known = [len(groups)]
                groups.append([])
            reached.append(known[0])
            for text in group:
                if place.setdefault(canonical(text), known[0]) == known[0] and canonical(text) not in map(
                    canonical, groups[known[0]]
                ):
                    groups[known[0]].append(text)
        if ordered and reached != sorted(reached):
            out.decide(where, f"{each} has them in another order: {written([*map(list, own)])}")
    flat = {each: [text for group in own for text in group] for each, own in given.items()}
    if ordered and len({frozenset(map(canonical, own)) for own in flat.values()}) > 1:
        out.decide(where, f"not all have the same texts: {'; '.join(f'{k}: {written(v)}' for k, v in flat.items())}")
    else:
        _only_at(out, flat, where)
    return groups


def _ranges(out: Merged, name: str, drafts: list[Draft]) -> None:
    where = f"columns.{shorter(name)}"
    ranges = {draft.name: found for draft in drafts if (found := draft.range(name))}
    if not ranges:
        return
    said = "; ".join(f"{each} {written(found)}" for each, found in ranges.items())
    hull = [min(low for low, _ in ranges.values()), max(high for _, high in ranges.values())]
    conversions = [
        f"{first} and {second} differ as {how}"
        for (first, one), (second, other) in combinations(ranges.items(), 2)
        if (how := suspected(one, other))
    ]
    if conversions or _apart([*ranges.values()]):
        out.decide(where, f"are they in one unit? {'; '.join([said, *conversions])}")
    elif len({*ranges.values()}) > 1:
        out.say(f"ranges: {said}")
    confirmed = {draft.name: found for draft in drafts if (found := draft.file.columns[name].range)}
    if not confirmed:
        out.lines.append(f"# range = {written(hull)}  # most are within; set what is valid")
        return
    if len({*confirmed.values()}) > 1:
        out.decide(where, "their ranges differ: what is valid must hold for all; the widest is taken")
    low, high = min(one[0] for one in confirmed.values()), max(one[1] for one in confirmed.values())
    out.key("range", [low, high])
    beyond = [each for each, one in ranges.items() if each not in confirmed and (one[0] < low or one[1] > high)]
    if beyond:
        out.decide(where, f"{_listed(beyond)} has values outside this range, which would be refused")


def _number_words(out: Merged, name: str, drafts: list[Draft]) -> None:
    where = f"columns.{shorter(name)}"
    taken: dict[str, tuple[str, float]] = {}
    for draft in drafts:
        for word, value in draft.file.columns[name].words.items():
            if taken.setdefault(canonical(word), (word, value))[1] != value:
                text = f"{toml_value(word)} is {written(value)} in {draft.name}, in another"
                out.decide(where, f"{text} {written(taken[canonical(word)][1])}: the first is taken")
    seen = [word for draft in drafts for word in draft.seen.get((name, "words"), {}) if canonical(word) not in taken]
    if seen:
        open_ = written(dict.fromkeys(_distinct(seen), 0))
        out.lines.append(f"# words = {open_}  # say which number each means")
    if taken:
        out.key("words", dict(taken.values()))


def _missing(out: Merged, name: str, drafts: list[Draft], words: list[str]) -> None:
    """Write the texts for a missing value; say which of them are values elsewhere."""
    where = f"columns.{shorter(name)}"
    given = {draft.name: draft.file.columns[name].missing for draft in drafts}
    both = [text for own in given.values() for text in own if canonical(text) in map(canonical, words)]
    for text in _distinct(both):
        said = _listed([each for each, own in given.items() if text in own])
        out.decide(where, f"{toml_value(text)} is missing in {said}, and a word of the category in others")
    for draft in drafts:
        for text in (*draft.file.columns[name].missing, *draft.file.missing):
            others = [
                one for one in drafts if canonical(text) not in map(canonical, (*given[one.name], *one.file.missing))
            ]
            inside = [
                one.name for one in others if (r := one.range(name)) and is_number(text) and r[0] <= float(text) <= r[1]
            ]
            if inside:
                said = f"{toml_value(text)} is missing in {draft.name}, and within the values of {_listed(inside)}"
                out.decide(where, said)
    texts = _distinct(text for own in given.values() for text in own if text not in both)
    if texts:
        _only_at(out, given)
        out.key("missing", texts, "suspected")


def _rules(out: Merged, drafts: list[Draft]) -> None:
    rules = dict.fromkeys(rule for draft in drafts for rule in draft.file.leave_out)
    for rule in rules:
        having = [draft.name for draft in drafts if rule in draft.file.leave_out]
        if len(having) < len(drafts):
            out.decide("leave-out", f"only {_listed(having)} has this rule, and it would hold for all")
        out.lines.append("[[leave-out]]")
        out.key("column", rule.column)
        if rule.values:
            out.key("values", rule.values)
        if rule.below > -inf:
            out.key("below", rule.below)
        if rule.above < inf:
            out.key("above", rule.above)


def _extract(out: Merged, drafts: list[Draft]) -> None:
    given = {draft.name: draft.values["extract"] for draft in drafts if "extract" in draft.values}
    if not given:
        return
    first = next(iter(given))
    if any(one != given[first] for one in given.values()):
        out.decide("extract", f"{_listed(given)} differ: that of {first} is taken")
    _table(out, "extract", given[first])


def _table(out: Merged, name: str, values: Mapping[str, Any]) -> None:
    out.lines.append(f"[{name}]")
    for key, value in values.items():
        if not isinstance(value, dict):
            out.key(toml_value(key), value)
    for key, value in values.items():
        if isinstance(value, dict):
            _table(out, f"{name}.{toml_value(key)}", value)


# ---------------------------------------------------------------------- small things


def _toml(text: str) -> dict[str, Any]:
    try:
        return toml_in(text.encode())
    except ValueError:
        return {}


def _is_range(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(one, int | float) for one in value)


def _first(drafts: list[Draft], attribute: str) -> Any:
    """Return the first value that a draft states."""
    stated = [getattr(draft.file, attribute) for draft in drafts]
    if attribute == "label":
        return next((one for one in stated if one.column != FILL_IN), stated[0])
    return next((one for one in stated if one), stated[0])


def _listed(names: Iterable[str]) -> str:
    return " and ".join(names)


def _said(texts: Iterable[str]) -> list[str]:
    """Return texts without what a draft leaves to fill in."""
    return [text for text in texts if not text.startswith(FILL_IN)]


def _distinct(texts: Iterable[str]) -> list[str]:
    """Return the texts that differ in more than their spelling."""
    return list({canonical(text): text for text in reversed([*texts])}.values())[::-1]


def _near(name: str, others: list[str]) -> str:
    """Return the name that is closest to one; empty if none is."""
    lower = {other.casefold(): other for other in others}
    return lower.get(closest(name.casefold(), lower, CLOSE), "")


def _kind(column: ColumnTable) -> str:
    return "category" if column.codes else "date" if column.before_index else "number"


def _words_of(column: ColumnTable, kind: str) -> str:
    return f"a category of {examples([*map(toml_value, column.codes)])}" if column.codes else f"a {kind}"


def _only_at(out: Merged, given: Mapping[str, Iterable[str]], where: str = "") -> None:
    """Say which texts some files lack; if two have none in common, it may be spelling."""
    texts = {each: {canonical(text): text for text in own} for each, own in given.items()}
    every = dict.fromkeys(text for own in texts.values() for text in own)
    for each, own in texts.items():
        only = [
            toml_value(text) for key, text in own.items() if not any(key in o for n, o in texts.items() if n != each)
        ]
        if only:
            out.say(f"only {each}: {examples(only, 20)}")
    alone = [
        each
        for each, own in texts.items()
        if own and not any(own.keys() & o.keys() for n, o in texts.items() if n != each)
    ]
    if where and alone and len(texts) > 1 and every:
        said = (
            "they have no word in common"
            if len(alone) == len(texts)
            else f"{_listed(alone)} shares no word with others"
        )
        out.decide(
            where, f'{said}: spellings of the same? Then write them together, as in codes = [["m", "male"], "f"]'
        )


def _pattern(files: list[str]) -> str:
    """Return a pattern that all files match."""
    stems, ends = {file.partition(".")[0] for file in files}, {file.partition(".")[2] for file in files}
    if len(stems) == 1:
        return f"{stems.pop()}.*"
    return f"*.{ends.pop()}" if len(ends) == 1 else "*"


def _apart(ranges: list[tuple[float, float]]) -> bool:
    """Whether ranges do not overlap, or differ at both ends by a factor."""
    for place, (low, high) in enumerate(ranges):
        for below, above in ranges[:place]:
            if high < below or low > above:
                return True
            if min(low, high, below, above) > 0 and (
                (low > FAR * below and high > FAR * above) or (below > FAR * low and above > FAR * high)
            ):
                return True
    return False
