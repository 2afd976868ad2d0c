"""What is kept of the last call: for the same arguments, and for no others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edelweiss.common import latest


@pytest.fixture
def calls() -> list[tuple[object, ...]]:
    return []


@pytest.fixture
def kept(calls: list[tuple[object, ...]]) -> Callable[..., int]:
    @latest
    def count(*arguments: object) -> int:
        calls.append(arguments)
        return len(calls)

    return count


def test_equal_values_and_the_same_objects_are_worked_out_once(
    kept: Callable[..., int], calls: list[tuple[object, ...]]
) -> None:
    changeable = [1.0, 2.0]
    assert kept(1, "round", changeable) == kept(1, "round", changeable) == 1
    assert len(calls) == 1


@pytest.mark.parametrize("other", [(2, [1.0]), (True, [1.0]), (1.0, [1.0]), (1,), (1, [1.0], None)], ids=repr)
def test_others_are_not(kept: Callable[..., int], other: tuple[object, ...]) -> None:
    """Nor equal ones of another type, which a check may judge otherwise, nor an equal list that is another one."""
    assert kept(1, [1.0]) == 1
    assert kept(*other) == 2
    assert kept(1, [1.0]) == 3


@pytest.mark.parametrize("other", [{"a": True, "b": 2}, {"a": 1}, {"a": 1, "c": 2}, {"a": 1, "b": 3}], ids=repr)
def test_dictionaries_are_the_same_item_by_item(kept: Callable[..., int], other: dict[str, object]) -> None:
    assert kept({"a": 1, "b": 2}) == kept({"a": 1, "b": 2}) == 1
    assert kept(other) == 2


@pytest.mark.parametrize("other", [True, 1.0])
def test_an_equal_value_of_another_type_is_another(kept: Callable[..., int], other: object) -> None:
    assert kept(1) == 1
    assert kept(other) == 2


def test_it_is_forgotten_when_told(kept: Callable[..., int]) -> None:
    assert kept(1) == 1
    kept.cache_clear()  # type: ignore[attr-defined]  # behind a Callable
    assert kept(1) == 2


def test_what_failed_is_tried_again() -> None:
    answers = iter([ValueError("once"), 7])

    @latest
    def sometimes() -> int:
        answer = next(answers)
        if isinstance(answer, ValueError):
            raise answer
        return answer

    with pytest.raises(ValueError, match="once"):
        sometimes()
    assert sometimes() == 7


def test_it_is_no_matter_what_others_ask_meanwhile() -> None:
    """As another thread may, between the look at the arguments and that at what was returned for them."""

    @latest
    def doubled(number: object) -> object:
        return 2 * number if isinstance(number, int) else number

    class Equal:
        def __eq__(self, other: object) -> bool:
            doubled(3)
            return True

        __hash__ = object.__hash__

    first = Equal()
    assert doubled(first) is first
    assert doubled(Equal()) is first
