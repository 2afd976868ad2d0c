"""The run-config: pyproject.toml and RunConfig agree, and whatever is wrong is said at once."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from pydantic.fields import FieldInfo

from edelweiss.common import Value, shown
from edelweiss.config import ConfigError, RunConfig, flatten, parse_node_config, parse_run_config
from edelweiss.config.tables import MOVED, SHARED, own_options, tables
from edelweiss.datasets import PARTITIONS, SAMPLERS
from edelweiss.datasets.config import DATASETS
from edelweiss.models import MODELS
from edelweiss.problems import PROBLEMS
from edelweiss.strategies import ALGORITHMS, can_solve
from tests.config.known import IN_TABLES, KNOWN, options_of
from tests.fitting import fitting
from tests.said import has

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def declared() -> dict[str, Value]:
    """Keys and defaults of pyproject.toml, flat."""
    return flatten(tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"])


def problems_of(values: dict[str, Value]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        RunConfig.parse(values)
    return caught.value.problems


# ---------------------------------------------------------------------- pyproject.toml


def test_pyproject_declares_exactly_the_keys_of_the_code() -> None:
    # Flower refuses an override of a key that is not here, so a missing key could not be set at all.
    assert sorted(declared()) == sorted(KNOWN)


def test_pyproject_and_code_have_equal_defaults() -> None:
    different = {k: (v, KNOWN[k]) for k, v in declared().items() if (v, type(v)) != (KNOWN[k], type(KNOWN[k]))}
    assert different == {}


def test_every_key_in_pyproject_has_a_comment() -> None:
    text = PYPROJECT.read_text(encoding="utf-8")
    lines = text[text.index("[tool.flwr.app.config]") :].splitlines()
    keys = [line for line in lines if re.match(r"[a-z0-9.-]+ *=", line)]
    assert len(keys) == len(declared())
    assert [line for line in keys if not re.search(r"# .*\w", line.split("=", 1)[1])] == []


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("algorithm", ALGORITHMS),
        ("problem", PROBLEMS),
        ("model", MODELS),
        ("dataset", DATASETS),
        ("partition", PARTITIONS),
        ("sampler", SAMPLERS),
    ],
)
def test_the_comment_of_a_choice_lists_every_choice(key: str, names: object) -> None:
    [line] = re.findall(rf"^{key} = .*$", PYPROJECT.read_text(encoding="utf-8"), re.MULTILINE)
    own = getattr(names, "built_in", names)  # another test may have registered more
    assert [name for name in own if name not in line.partition("#")[2]] == []


def test_the_defaults_are_a_run() -> None:
    config = RunConfig.parse(declared())
    assert (config.algorithm, config.problem, config.dataset) == ("codasca", "auc", "breast-cancer")
    assert config.strategy == RunConfig.parse({}).strategy
    assert options_of(config) == options_of(RunConfig.parse({}))
    plain = {"hyper": {}, "options": {}}
    assert config.model_copy(update=plain) == RunConfig.parse({}).model_copy(update=plain)


STEPS = [
    ({}, 0.3),
    ({"codasca.lr": 0.0}, 0.3),
    ({"codasca.lr": 0.05}, 0.05),
    ({"problem": "auc-margin"}, 0.3),
    ({"auc.score": "identity"}, 0.1),
    ({"problem": "saddle"}, 0.1),
    ({"algorithm": "fedavg", "problem": "bce"}, 0.1),
]


@pytest.mark.parametrize(("keys", "step"), STEPS, ids=str)
def test_a_step_size_of_0_is_the_problems_own_and_a_run_writes_it_down(keys: dict[str, Any], step: float) -> None:
    config = RunConfig.parse(keys)
    key = f"{config.algorithm}.lr"
    assert config.flat()[key] == config.written()[key] == step
    assert vars(config.strategy)["lr"] == step
    assert RunConfig.parse(config.flat()) == config


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_algorithm_stands_still_by_default(name: str) -> None:
    for problem in PROBLEMS.values():
        if can_solve(ALGORITHMS[name], problem):
            config = RunConfig.parse({"algorithm": name, "problem": problem.name, **fitting(name)})
            sizes = {key: value for key, value in vars(config.strategy).items() if key.split("_")[0] == "lr"}
            assert sizes
            assert min(sizes.values()) > 0


# ---------------------------------------------------------------------- one thing wrong


@pytest.mark.parametrize(
    ("key", "wrong", "meant"),
    [
        ("algorithm", "codsaca", "codasca"),
        ("problem", "acu", "auc"),
        ("model", "resnet81", "resnet18"),
        ("dataset", "breast_cancer", "breast-cancer"),
        ("partition", "dirchlet", "dirichlet"),
        ("sampler", "unifrom", "uniform"),
    ],
)
def test_an_unknown_name_gets_a_suggestion_and_the_list(key: str, wrong: str, meant: str) -> None:
    [problem] = problems_of({key: wrong})
    assert f"unknown {key} '{wrong}'" in problem
    assert f"Did you mean '{meant}'?" in problem


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("round", "rounds"),
        ("batch_size", "batch-size"),
        ("local-step", "local-steps"),
        ("codasca.lrr", "codasca.lr"),
        ("codaska.gamma", "codasca.gamma"),
        ("auc.scor", "auc.score"),
        ("maml.way", "maml.ways"),
        ("gamma", "codasca.gamma"),
        ("criterion", "robust.criterion"),  # of a problem that this run does not have
    ],
)
def test_an_unknown_key_gets_a_suggestion(wrong: str, meant: str) -> None:
    [problem] = problems_of({wrong: 1})
    assert problem.startswith(f"unknown key '{wrong}'")
    assert f". Did you mean '{meant}'?" in problem


@pytest.mark.parametrize("table", sorted(tables()))
@pytest.mark.parametrize("key", ["lr", "beta", "score", "local-steps", "rounds", "nothing-like-it"])
def test_a_key_in_the_wrong_table_is_told_what_that_has_and_sent_to_one_that_the_run_has(table: str, key: str) -> None:
    if key in (own := tables()[table]) or f"{table}.{key}" in MOVED:
        return
    [problem] = problems_of({f"{table}.{key}": "x"})
    assert f"unknown key '{table}.{key}': {table} has {', '.join(own) or 'no keys of its own'}" in problem
    for meant in re.findall("Did you mean '(.*)'", problem):
        assert meant in KNOWN
        assert meant.partition(".")[0] in (table, meant, "codasca", "auc")  # those of this run
    if key == "lr":
        assert table not in PROBLEMS or "Did you mean 'codasca.lr'?" in problem


def test_of_many_mistakes_the_first_are_listed_and_the_rest_counted() -> None:
    with pytest.raises(ConfigError) as caught:
        RunConfig.parse({f"key{number}": 1 for number in range(10_000)})
    assert len(caught.value.problems) == 10_000
    first, *lines, last = str(caught.value).splitlines()
    assert (first, last) == ("10,000 problems in the run-config:", "  - and 9,990 more")
    assert len(lines) == 10


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_step_size_without_its_table_is_taken_for_the_chosen_algorithms(algorithm: str) -> None:
    problem = next(name for name in PROBLEMS if can_solve(ALGORITHMS[algorithm], PROBLEMS[name]))
    chosen: dict[str, Value] = {"algorithm": algorithm, "problem": problem} | fitting(algorithm)
    keys = {"lr", "lr-dual"} & own_options(ALGORITHMS[algorithm]).keys()
    assert keys
    for key in sorted(keys):
        [text] = problems_of({**chosen, key: 0.1})
        assert text.startswith(f"unknown key {key!r}. Did you mean '{algorithm}.{key}'? ")


EARLIER = [
    "prior",
    "score",
    "margin",
    "radius",
    "robust-loss",
    "ways",
    "shots",
    "queries",
    "inner-lr",
    "inner-steps",
    "test-inner-steps",
    "test-tasks",
    "inner-samples",
    "sigma-ratio",
    "dimension",
    "heterogeneity",
    "saddle-file",
    "fgda.alpha",
    "fmgda.beta",
]


@pytest.mark.parametrize("key", sorted({*EARLIER, *MOVED}))
def test_a_key_of_an_earlier_release_is_told_its_new_name(key: str) -> None:
    assert key not in KNOWN
    [problem] = problems_of({key: 1})
    assert problem == f"unknown key {key!r}: it is now {' or '.join(map(repr, MOVED[key]))}"
    assert MOVED[key]
    for new in MOVED[key]:
        assert new in IN_TABLES
        RunConfig.parse({new: IN_TABLES[new].default})


@pytest.mark.parametrize("key", ["data-dir", "site", "partition-id", "num-partitions"])
def test_a_key_of_a_sites_operator_is_sent_to_its_place(key: str) -> None:
    [problem] = problems_of({key: 1})
    assert problem == f"unknown key {key!r}: it is for a site's operator to set, in --node-config"


@settings(max_examples=20, deadline=None)  # each is compared with every key
@given(st.text(max_size=20) | st.sampled_from(sorted(KNOWN)).map(lambda key: key[1:] + key[0]))
def test_a_key_that_does_not_exist_is_answered_in_a_line_not_with_a_list(key: str) -> None:
    if key in KNOWN:
        return
    [problem] = problems_of({key: 1})
    assert problem.startswith(f"unknown key {key!r}")
    assert len(problem.splitlines()) == 1
    named = set(re.findall(r"'([^']*)'", problem.removeprefix(f"unknown key {key!r}"))) & KNOWN.keys()
    assert len(named) <= len(MOVED.get(key, "1"))


@pytest.mark.parametrize("field", ["hyper", "options"])
def test_what_is_collected_from_the_tables_is_no_key(field: str) -> None:
    assert f"unknown key '{field}'" in problems_of({field: 1})[0]


def test_a_name_like_nothing_gets_the_list_and_no_suggestion() -> None:
    [problem] = problems_of({"algorithm": "zzzzzz"})
    assert "Did you mean" not in problem
    assert all(name in problem for name in ALGORITHMS)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rounds", "many"),
        ("rounds", 2.5),
        ("rounds", True),
        ("rounds", 0),
        ("sites", 0),
        ("sites", -3),
        ("batch-size", 0),
        ("hidden", 0),
        ("workers", -1),
        ("min-replies", -1),
        ("thin-share", 1.0),
        ("thin-share", -0.1),
        ("holdout-share", 1.5),
        ("test-share", "half"),
        ("concentration", 0.0),
        ("concentration", float("inf")),
        ("concentration", float("nan")),
        ("round-timeout", 0.0),
        ("round-timeout", float("inf")),
        ("wait-timeout", -1.0),
        ("standardise", 1),
        ("standardise", "yes"),
        ("central-test", "true"),
        ("engine", "lokal"),
        ("thin-class", "rare"),
        ("on-bad-update", "ignore"),
        ("bn", "global"),
        ("amp", "fp16"),
        ("data-root", 3),
        ("device", "gpu"),
        ("device", "cuda:x"),
    ],
)
def test_a_wrong_type_or_range_names_key_and_value(key: str, value: Value) -> None:
    [problem] = problems_of({key: value})
    assert problem.startswith(f"{key} = {value!r}: ")


def bounds(f: FieldInfo) -> dict[str, float]:
    """The ends of an option's range by pydantic's names for them."""
    return {end: getattr(each, end) for each in f.metadata for end in ("ge", "gt", "le", "lt") if hasattr(each, end)}


def out_of_range(f: FieldInfo) -> Iterator[Value]:
    """Values that an option must refuse: of another type, and right beyond each end of its range."""
    if isinstance(f.default, str | bool):
        yield from ("text", 1)
        return
    yield from ("text", True, math.nan, math.inf, 10**400)
    whole, ends = type(f.default) is int, bounds(f)
    if whole:
        yield f.default + 0.5
    if "le" not in ends and "lt" not in ends:
        yield 10**9 + 1 if whole else 1.0001e38
    for end, outwards in (("ge", -1), ("le", 1)):
        if end in ends:
            yield int(ends[end]) + outwards if whole else math.nextafter(ends[end], outwards * math.inf)
    for end in ("gt", "lt"):
        if end in ends:
            yield type(f.default)(ends[end])


@pytest.mark.parametrize("table", ["", *(name for name, options in tables().items() if options)])
def test_every_option_is_refused_out_of_its_range_and_named_in_full(table: str) -> None:
    """Whichever algorithm and problem the run has."""
    for key, f in (SHARED if not table else tables()[table]).items():
        full = f"{table}.{key}" if table else key
        for value in out_of_range(f):
            [problem] = problems_of({full: value})
            assert problem.startswith(f"{full} = {shown(value)}: ")
        for end in {"ge", "le"} & bounds(f).keys():
            RunConfig.parse({full: type(f.default)(bounds(f)[end])})


def test_an_integer_is_a_number() -> None:
    config = RunConfig.parse({"codasca.lr": 1, "round-timeout": 5, "fraction": 1})
    assert config.strategy.lr == 1  # type: ignore[attr-defined]
    assert config.round_timeout == 5


# ---------------------------------------------------------------------- things that do not go together


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_algorithm_takes_exactly_the_problems_that_it_can_solve(algorithm: str) -> None:
    solved = {name for name, p in PROBLEMS.items() if can_solve(ALGORITHMS[algorithm], p)}
    for problem in solved:
        RunConfig.parse({"algorithm": algorithm, "problem": problem} | fitting(algorithm))
    for problem in PROBLEMS.keys() - solved:
        [message] = problems_of({"algorithm": algorithm, "problem": problem} | fitting(algorithm))
        assert f"algorithm = '{algorithm}' cannot solve problem = '{problem}'" in message
        # Both ways out: an algorithm for this problem, or a problem for this algorithm.
        algorithms, _, problems = message.partition(": take ")[2].partition(", or problem ")
        able = {name for name, a in ALGORITHMS.items() if can_solve(a, PROBLEMS[problem])}
        assert set(algorithms.removeprefix("algorithm ").split(" or ")) == able
        assert set(problems.split(" or ")) == solved


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"min-replies": 9}, ["min-replies = 9", "sites = 8"]),
        ({"sampler": "fixed-positives", "positives-per-batch": 16}, ["positives-per-batch = 16", "batch-size = 16"]),
        ({"positive-classes": "1-3", "negative-classes": "3,4"}, ["positive-classes", "negative-classes", "3"]),
        ({"init-from": "runs/a", "pretrained": "b.pth", "model": "resnet18"}, ["init-from", "pretrained", "one model"]),
        ({"pretrained": "b.pth", "model": "mlp"}, ["pretrained = 'b.pth'", "'mlp'", "resnet18 or resnet50"]),
        ({"init-from": "runs/a", "problem": "saddle"}, ["init-from = 'runs/a'", "'saddle' has no network"]),
        ({"pretrained": "b.pth", "problem": "saddle"}, ["pretrained = 'b.pth'", "'saddle' has no network"]),
        ({"init-head": "fresh"}, ["init-head = 'fresh'", "init-from, which is empty"]),
        *(
            ({"algorithm": name, "problem": "bce", "init-from": "runs/a"}, [name, 'take init-head = "fresh"'])
            for name in ("fedrep", "deprl")
        ),
        ({"partition": "sites"}, ["partition", "breast-cancer"]),
        ({"augment-rotate": 5.0}, ["augment-rotate = 5.0", "for images", "'breast-cancer' is a table"]),
        ({"augment-flip": True, "problem": "saddle"}, ["augment-flip = True", "'saddle' has no data"]),
        ({"augment-crop": 0.6, "dataset": "digits"}, ["augment-crop", "0.6", "0.5"]),
        ({"label": "outcome"}, ["label = 'outcome'", "'breast-cancer'", "leave it 'label'"]),
        ({"image-size": 32}, ["image-size = 32", "'breast-cancer'", "take image-size = 0"]),
        *(
            ({"dataset": "table", "data-file": "a.csv", "partition": how}, [f"partition = '{how}'", "group-column"])
            for how in ("by-group", "sites", "split-sites")
        ),
    ],
)
def test_contradictions_name_both_keys(values: dict[str, Value], named: list[str]) -> None:
    [problem] = problems_of(values)
    assert [part for part in named if part not in problem] == []


@pytest.mark.parametrize(("other", "reason"), [({"folds": 3}, "folds = 3"), ({"dataset": "site"}, 'dataset = "site"')])
def test_a_personal_test_needs_a_common_test_set(other: dict[str, Value], reason: str) -> None:
    assert RunConfig.parse({"personal-test": True}).data().personal_test
    [problem] = problems_of({"personal-test": True, **other})
    assert problem.startswith("personal-test = true")
    assert [part for part in (reason, "personal-test = false") if part not in problem] == []


def test_users_of_harbox_are_sites_and_groups() -> None:
    for partition in ("sites", "by-group"):
        assert RunConfig.parse({"dataset": "harbox", "partition": partition}).data().partition == partition
        [problem] = problems_of({"dataset": "digits", "partition": partition})
        assert "harbox" in problem


def test_everything_wrong_is_said_at_once() -> None:
    wrong: dict[str, Value] = {
        "algorithm": "codsaca",
        "dataset": "minst",
        "rounds": 0,
        "batch-size": "big",
        "fraction": 2.0,
        "codasca.lr": -1.0,
        "nonsense": 1,
    }
    with pytest.raises(ConfigError) as caught:
        RunConfig.parse(wrong)
    text = str(caught.value)
    assert len(caught.value.problems) == len(wrong)
    assert text.startswith("7 problems in the run-config:\n")
    assert [key for key in wrong if key not in text] == []


def test_contradictions_come_with_the_other_problems() -> None:
    problems = problems_of({"min-replies": 9, "fraction": 2.0, "nonsense": 1, "problem": "bce"})
    assert len(problems) == 4


# ---------------------------------------------------------------------- class lists


@pytest.mark.parametrize(
    ("text", "classes"),
    [("", ()), ("3", (3,)), ("0,1,5-9", (0, 1, 5, 6, 7, 8, 9)), (" 2 , 4 - 5 ", (2, 4, 5)), ("7-7", (7,))],
)
def test_class_lists(text: str, classes: tuple[int, ...]) -> None:
    assert RunConfig.parse({"positive-classes": text}).data().positive_classes == classes


@pytest.mark.parametrize("text", ["five", "1-", "-3", "1-2-3", "1.5", "1;2", "9-5", "²"])
def test_what_is_no_class_list_is_refused(text: str) -> None:
    [problem] = problems_of({"negative-classes": text})
    assert problem.startswith(f"negative-classes = {text!r}: ")


def test_nothing_is_looked_for_in_a_text_without_end() -> None:
    """To compare a hundred thousand names of labels with each other, or to count so many classes, takes minutes."""
    names = ",".join(f"outcome-{number}" for number in range(10**5))
    classes = "0-9999," * 10**5
    with pytest.raises(ConfigError) as caught:
        RunConfig.parse({"dataset": "site", "label": names, "uncertain": names, "positive-classes": classes})
    assert str(caught.value).count("at most 4,096") == 3


def test_all_sites_may_be_needed_and_no_more() -> None:
    assert RunConfig.parse({"sites": 3, "min-replies": 3}).min_replies == 3
    assert any("min-replies = 4" in problem for problem in problems_of({"sites": 3, "min-replies": 4}))


def test_a_sampler_of_two_classes_is_refused_where_all_are_kept() -> None:
    found = problems_of({"problem": "fair", "algorithm": "local-sgda", "sampler": "fixed-positives"})
    assert any(problem.startswith("sampler = 'fixed-positives'") for problem in found)


@pytest.mark.parametrize(("parse", "key"), [(parse_run_config, "evidence"), (parse_node_config, "follow-links")])
def test_what_was_parsed_before_does_not_let_another_type_pass(parse: Any, key: str) -> None:
    parse({key: True})
    with pytest.raises(ConfigError, check=has(keys=[key])):
        parse({key: 1})
