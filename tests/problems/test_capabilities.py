"""What a problem may offer beyond gradients: it inherits the capability, and has what that promises."""

from __future__ import annotations

import pytest

from edelweiss.problems import PROBLEMS
from edelweiss.problems.capabilities import BalancedLoss, ClosedFormDual, InnerFunction, Layers, readable
from edelweiss.strategies import ALGORITHMS, can_solve

PROMISED: dict[type, set[str]] = {
    ClosedFormDual: {"dual_terms"},
    InnerFunction: {"inner", "compositional_gradient"},
    Layers: {"layers", "head"},
    BalancedLoss: {"balanced"},
}


@pytest.mark.parametrize("capability", PROMISED, ids=readable)
def test_a_problem_has_it_if_and_only_if_it_inherits_it(capability: type) -> None:
    for problem in PROBLEMS.values():
        inherits = capability in problem.__mro__
        for name in PROMISED[capability]:
            assert hasattr(problem, name) == inherits, problem.name
            own = getattr(problem, name, None) is not getattr(capability, name)
            assert own == inherits or not inherits, f"{problem.name} inherits an empty {name}"
    assert {True, False} == {capability in problem.__mro__ for problem in PROBLEMS.values()}


def test_what_algorithms_need_decides_which_problems_they_solve() -> None:
    """Beside the kind; and every capability is needed by somebody."""
    assert set().union(*(algorithm.needs for algorithm in ALGORITHMS.values())) == set(PROMISED)
    for algorithm in ALGORITHMS.values():
        for problem in PROBLEMS.values():
            fits = problem.kind in algorithm.solves and algorithm.needs <= set(problem.__mro__)
            assert can_solve(algorithm, problem) == fits


def test_in_words() -> None:
    assert [readable(capability) for capability in PROMISED] == [
        "closed form dual",
        "inner function",
        "layers",
        "balanced loss",
    ]
