"""The run-config: pyproject.toml and RunConfig agree, and whatever is wrong is said at once."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from config import ConfigError, RunConfig, SiteConfig, flatten, parse_run_config
from config.run import SHARED, SITES_OWN, Value
from datasets import DATASETS, PARTITIONS, SAMPLERS
from models import MODELS
from problems import PROBLEMS
from strategies import ALGORITHMS, can_solve, own_fields

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def declared() -> dict[str, Value]:
    """Keys and defaults of pyproject.toml, flat."""
    return flatten(tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"])


def known() -> dict[str, Value]:
    """Keys and defaults that the code has."""
    run = {f.alias or name: f.default for name, f in RunConfig.model_fields.items() if name != "hyper"}
    shared = {key: f.default for key, f in SHARED.items()}
    tables = {f"{name}.{key}": v for name, a in ALGORITHMS.items() for key, v in own_fields(a).items()}
    return run | shared | tables


def problems_of(values: dict[str, Value]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        RunConfig.parse(values)
    return caught.value.problems


# ---------------------------------------------------------------------- pyproject.toml


def test_pyproject_declares_exactly_the_keys_of_the_code() -> None:
    # Flower refuses an override of a key that is not here, so a missing key could not be set at all.
    assert sorted(declared()) == sorted(known())


def test_pyproject_and_code_have_equal_defaults() -> None:
    code = known()
    different = {k: (v, code[k]) for k, v in declared().items() if (v, type(v)) != (code[k], type(code[k]))}
    assert different == {}


def test_every_key_in_pyproject_has_a_comment() -> None:
    text = PYPROJECT.read_text(encoding="utf-8")
    lines = text[text.index("[tool.flwr.app.config]") :].splitlines()
    keys = [line for line in lines if re.match(r"[a-z-]+ *=", line)]
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
    assert [name for name in names if name not in line.partition("#")[2]] == []  # type: ignore[attr-defined]


def test_the_defaults_are_a_run() -> None:
    config = RunConfig.parse(declared())
    assert (config.algorithm, config.problem, config.dataset) == ("codasca", "auc", "breast-cancer")
    assert config.strategy() == RunConfig.parse({}).strategy()
    assert config.model_copy(update={"hyper": {}}) == RunConfig.parse({})


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
    ],
)
def test_an_unknown_key_gets_a_suggestion(wrong: str, meant: str) -> None:
    [problem] = problems_of({wrong: 1})
    assert f"unknown key '{wrong}'" in problem
    assert f"Did you mean '{meant}'?" in problem


@pytest.mark.parametrize(
    ("flat", "said"),
    [
        ({"lr": 0.05}, "Did you mean 'codasca.lr'?"),  # the default algorithm
        ({"lr": 0.05, "algorithm": "ditto"}, "Did you mean 'ditto.lr'?"),
        ({"lr_dual": 0.05, "algorithm": "ditto"}, "Did you mean 'ditto.lr-dual'?"),
        ({"graph-file": "g.toml"}, "It is one of d-psgd, deprl, dispfl: write 'd-psgd.graph-file'"),
        ({"codasca.rounds": 3}, "Did you mean 'rounds'?"),
        ({"codasca.zzzzzz": 3}, "'codasca' has gamma, lr, server-lr"),
        ({"zzzzzz": 3}, "pyproject.toml lists all keys, under [tool.flwr.app.config]"),
        ({"zzzzzz.zzzzzz": 3}, "pyproject.toml lists all keys, under [tool.flwr.app.config]"),
        ({"data-dir": "data"}, "Each site's operator sets it, in --node-config"),
    ],
)
def test_an_unknown_key_is_looked_for_behind_the_dots_and_in_few_words(flat: dict[str, Value], said: str) -> None:
    [problem] = problems_of(flat)
    assert problem.endswith(said)
    assert len(problem) < 150


def test_a_key_of_a_site_is_known_as_one() -> None:
    assert {name.replace("_", "-") for name in SiteConfig.model_fields} - known().keys() == set(SITES_OWN)


def test_hyper_is_no_key() -> None:
    assert "unknown key 'hyper'" in problems_of({"hyper": 1})[0]


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
        ("score", "softmax"),
        ("margin", 0.0),
        ("prior", 1.0),
        ("data-root", 3),
        ("device", "gpu"),
        ("device", "cuda:x"),
        ("seed", -1),
        ("seed", 1.5),
        ("local-steps", 0),
        ("local-steps", 2.0),
        ("fraction", 0.0),
        ("fraction", 1.01),
        ("weighting", "samples"),
        ("output", "best"),
        ("stage-decay", 0.5),
        ("stage-iterations", -1),
        ("codasca.lr", 0.0),
        ("codasca.lr", -0.1),
        ("codasca.lr", float("nan")),
        ("codasca.lr", float("inf")),
        ("codasca.lr", "0.1"),
        ("codasca.lr", True),
        ("codasca.gamma", -1.0),
        ("fedavg.lr", 0),  # also of an algorithm that this run does not use
        ("local-sgda.lr-dual", -1),
    ],
)
def test_a_wrong_type_or_range_names_key_and_value(key: str, value: Value) -> None:
    [problem] = problems_of({key: value})
    assert problem.startswith(f"{key} = {value!r}: ")


def test_every_hyper_parameter_refuses_text_and_its_own_lower_bound() -> None:
    for name, algorithm in ALGORITHMS.items():
        own = own_fields(algorithm)
        for f in fields(algorithm):
            if not f.init or "options" in f.metadata:
                continue
            key = f.name.replace("_", "-")
            full = f"{name}.{key}" if key in own else key
            assert full in problems_of({full: "text"})[0]
            below = min(f.metadata["low"], f.metadata["above"]) - 1
            if below > float("-inf"):
                assert full in problems_of({full: type(f.default)(below)})[0]


def test_an_integer_is_a_number() -> None:
    config = RunConfig.parse({"codasca.lr": 1, "round-timeout": 5, "fraction": 1})
    assert config.strategy().lr == 1  # type: ignore[attr-defined]
    assert config.round_timeout == 5


# ---------------------------------------------------------------------- things that do not go together


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
@pytest.mark.parametrize("problem", sorted(PROBLEMS))
def test_an_algorithm_takes_exactly_the_kinds_of_problems_that_it_solves(algorithm: str, problem: str) -> None:
    if can_solve(ALGORITHMS[algorithm], PROBLEMS[problem]):
        RunConfig.parse({"algorithm": algorithm, "problem": problem})
        return
    [message] = problems_of({"algorithm": algorithm, "problem": problem})
    assert f"algorithm = '{algorithm}' cannot solve problem = '{problem}'" in message
    # Both ways out: an algorithm for this problem, or a problem for this algorithm.
    ways = message.partition(": take ")[2]
    algorithms, _, problems = ways.partition(", or problem ")
    assert set(algorithms.removeprefix("algorithm ").split(" or ")) == {
        name for name, a in ALGORITHMS.items() if can_solve(a, PROBLEMS[problem])
    }
    assert set(problems.split(" or ")) == {name for name, p in PROBLEMS.items() if can_solve(ALGORITHMS[algorithm], p)}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"min-replies": 9}, ["min-replies = 9", "sites = 8"]),
        ({"sampler": "fixed-positives", "positives-per-batch": 16}, ["positives-per-batch = 16", "batch-size = 16"]),
        ({"positive-classes": "1-3", "negative-classes": "3,4"}, ["positive-classes", "negative-classes", "3"]),
        ({"partition": "sites"}, ["partition", "breast-cancer"]),
    ],
)
def test_contradictions_name_both_keys(values: dict[str, Value], named: list[str]) -> None:
    [problem] = problems_of(values)
    assert [part for part in named if part not in problem] == []


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
    assert problem.startswith(f"negative-classes = {text!r}: must list classes")


# ---------------------------------------------------------------------- to and from a file


ODD: list[dict[str, Value]] = [
    {},
    {"algorithm": "fedavg", "problem": "bce", "fedavg.lr": 1e-7, "fraction": 0.3, "seed": 12345678901},
    {"algorithm": "local-sgda", "local-sgda.lr-dual": 1e22, "local-sgda.lr": 0.1 + 0.2},
    {"algorithm": "coda-plus", "coda-plus.gamma": 0, "stage-iterations": 100, "output": "average"},
    {"run-name": 'a "quoted" \\ name\twith\nlines', "data-root": "/tmp/Spital Zürich/🏥", "positive-classes": "1-3"},
    {"run-name": "\x7f\x00\u2028"},
    {"codasca.lr": 1, "fedavg.lr": 0.5},  # a table of another algorithm has no effect, and is not kept
]


@pytest.mark.parametrize("values", ODD)
def test_to_toml_is_the_same_run(values: dict[str, Value]) -> None:
    config = RunConfig.parse(values)
    again = RunConfig.parse(flatten(tomllib.loads(config.to_toml())))
    assert again.strategy() == config.strategy()
    assert again.model_copy(update={"hyper": {}}) == config.model_copy(update={"hyper": {}})
    assert again.seed == config.seed
    assert again.to_toml() == config.to_toml()  # nothing is lost on a second way either


@pytest.mark.parametrize("values", ODD)
def test_flat_is_the_same_run(values: dict[str, Value]) -> None:
    config = RunConfig.parse(values)
    assert RunConfig.parse(config.flat()) == config
    assert parse_run_config(config.flat()) == config


def test_to_toml_names_every_key_that_matters() -> None:
    for name in ALGORITHMS:
        problem = next(p for p in PROBLEMS if can_solve(ALGORITHMS[name], PROBLEMS[p]))
        written = flatten(tomllib.loads(RunConfig.parse({"algorithm": name, "problem": problem}).to_toml()))
        other_tables = {key for key in known() if "." in key and not key.startswith(f"{name}.")}
        assert sorted(written) == sorted(set(known()) - other_tables)


def test_flatten_keeps_dotted_keys() -> None:
    assert flatten({"a": {"b": {"c": 1}, "d": 2}, "e.f": 3}) == {"a.b.c": 1, "a.d": 2, "e.f": 3}


def test_a_table_nested_or_flat_is_the_same() -> None:
    nested = RunConfig.parse(flatten({"codasca": {"lr": 0.5}}))
    assert nested == RunConfig.parse({"codasca.lr": 0.5})
    assert nested.strategy().lr == 0.5  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("other", "reason"),
    [({"folds": 3}, "folds = 3 leave none"), ({"dataset": "site"}, 'dataset = "site" has none')],
)
def test_a_personal_test_needs_a_common_test_set(other: dict[str, Value], reason: str) -> None:
    assert RunConfig.parse({"personal-test": True}).data().personal_test
    [problem] = problems_of({"personal-test": True, **other})
    assert problem.startswith("personal-test = true")
    assert reason in problem
    assert "take personal-test = false" in problem


def test_users_of_harbox_are_sites_and_groups() -> None:
    for partition in ("sites", "by-group"):
        assert RunConfig.parse({"dataset": "harbox", "partition": partition}).data().partition == partition
        [problem] = problems_of({"dataset": "digits", "partition": partition})
        assert "harbox" in problem
