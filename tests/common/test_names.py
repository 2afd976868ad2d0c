"""Names that look the same."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import given

from edelweiss.common import alike
from edelweiss.common.names import LOOK, looks


@pytest.mark.parametrize(
    "other",
    [
        "site-1 ",
        "Site-1",
        "s\u0456te-1",
        "S\u0406TE-1",
        "site\u20101",
        "s\u00edte-1",
        "\uff53ite-1",
        "site-\u00b9",
        "site-1\u3164",
        "si te-1",
        "site-1",
    ],
    ids=ascii,
)
def test_what_looks_like_a_name_is_found(other: str) -> None:
    assert alike(["north", "site-1", other]) == [["site-1", other]]


@given(st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1), st.data())
def test_letters_of_other_scripts_change_nothing(name: str, data: st.DataObject) -> None:
    others = {ours: [chr(code) for code, letter in LOOK.items() if letter == ours] for ours in LOOK.values()}
    written = [
        data.draw(st.sampled_from([c, c.upper(), *others.get(c, []), *map(str.upper, others.get(c, []))])) for c in name
    ]
    assert looks("".join(written)) == looks(name) == name


def test_names_that_people_give_are_told_apart() -> None:
    names = [f"site-{number}" for number in range(1000)] + [
        f"hospital {letter}" for letter in "abcdefghijklmnopqrstuvwxyz"
    ]
    names += [
        "K\u00f6ln",
        "Bonn",
        "\u041c\u043e\u0441\u043a\u0432\u0430",
        "\u5317\u4eac",
        "\u4e0a\u6d77",
        "site_1",
        "1",
        "a",
    ]
    assert alike(names) == []
    assert all(looks(one) for one in itertools.islice(names, None))
