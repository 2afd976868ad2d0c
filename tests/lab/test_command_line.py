"""Words of a command line that would have no effect: refused, with the line that was meant."""

from __future__ import annotations

import shlex

import pytest

from edelweiss.common import Value, read_overrides
from edelweiss.lab.cli import COMMANDS, main
from tests.said import lines

SUBMIT = ["submit", "--superlink", "127.0.0.1:1", "--insecure"]


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return what is said of words that are refused."""
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said.splitlines()[-1].partition("error: ")[2]


@pytest.mark.parametrize("before", [[], SUBMIT])
@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (["--rounds", "5"], {"rounds": 5}),
        (["--rounds=5", "--algorithm", "fedavg"], {"rounds": 5, "algorithm": "fedavg"}),
        (["--seed", "-1", "--no-report"], {"seed": -1, "no-report": True}),
        (["--codasca.lr", "1e-3", "--run-name", "two words"], {"codasca.lr": 1e-3, "run-name": "two words"}),
        (["--report", "false", "--label", "it's"], {"report": False, "label": "it's"}),
        (["rounds=5", 'algorithm="fedavg"'], {"rounds": 5, "algorithm": "fedavg"}),
        (["--run", "5"], {"run": 5}),  # no short form of another option
    ],
)
def test_keys_of_a_run_that_are_given_as_options_are_answered_with_the_line_that_gives_them(
    before: list[str], words: list[str], keys: dict[str, Value], capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused([*before, *words], capsys)
    option, meant = shlex.split(said.partition("like this: ")[2])
    assert (option, read_overrides([meant])) == ("--run-config", keys)


def test_a_file_without_its_option_is_told_which(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(["x.toml", "rounds=5"], capsys).endswith("like this: --run-config x.toml --run-config rounds=5")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_run_config_before_a_command_is_never_ignored(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for option in (["--run-config", "rounds=3"], ["--run-config=rounds=3"]):
        assert f"--run-config before {name} has no effect" in refused([*option, name, "x", "y"], capsys)


@pytest.mark.parametrize("words", [["compair", "a"], ["--run-config", "rounds=3", "compair", "a"], ["5"]])
def test_an_unknown_command_is_answered_with_those_there_are(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(words, capsys)
    assert said.startswith("unknown command")
    assert ("Did you mean 'compare'?" in said) == ("compair" in words)


def test_curves_that_go_nowhere_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "runs/x", "--against", "rounds"]) == 2
    assert lines(capsys.readouterr().err, "--against")
