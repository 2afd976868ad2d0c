"""The facts of all sites as the sums tell them."""

from __future__ import annotations

import numpy as np

from edelweiss.datasets import Facts
from edelweiss.federation.summed import facts_layout, facts_of, of_facts
from edelweiss.problems import PROBLEMS


def test_counts_that_one_site_keeps_back_are_those_of_none() -> None:
    """A sum without them would be taken for that of all."""
    problem = PROBLEMS["fair"]
    every = [
        Facts(
            name="a", classes=3, shape=(2,), examples=6, class_counts=(1, 2, 3), held_out=3, held_out_counts=(1, 1, 1)
        ),
        Facts(name="b", classes=3, shape=(2,), examples=9, class_counts=(), held_out=2, held_out_counts=(0, 1, 1)),
    ]
    layout = facts_layout(2, problem, 3, 0)
    total = np.zeros(layout.length, np.uint64)
    for facts in every:
        total += layout.encode(of_facts(facts, 1.0, problem, 3, 0))
    found = facts_of(layout.decode(total), problem, 3, Facts(name="a", classes=3, shape=(2,))).facts
    assert found.class_counts == ()
    assert found.held_out_counts == (1, 2, 2)
    assert found.examples == 15
