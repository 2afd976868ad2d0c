"""The versions of control variates: of which round those are that a client remembers, and those in the server's sum.

What a client computed in one phase of a round for another phase of it is of no use later (`of_this_round`).

With a share of the sites in each round the server keeps c = Σ_k w_k ck / Σ_k w_k up to date by adding the changes of
the ck. That goes wrong for good when a site has lost its ck (what it had put into c stays there), or when an answer got
lost (the site then remembers what c lacks). So a reply says from which round the ck is that its change starts from, and
the server knows which answer of each site counted last. Where the two differ nobody can tell what to take out of c: all
control variates start anew in the next round, which is sent along as ``since``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from edelweiss.federation import COUNT, SOME_SITES, When
from edelweiss.federation.table import Row

if TYPE_CHECKING:
    from edelweiss.federation import Reply, RoundContext
    from edelweiss.problems import Arrays

ROUND, FROM, SINCE, COUNTED = "round", "from", "since", "counted"
"""In a memory: the round that it is from. In a reply: the round that its change starts from, 0 for zero. Sent, where
control variates started anew within a stage: the round in which they did. At the server: the round of each site's last
answer that counted, 0 for none."""

MAY_RESTART = When("past the second round of a stage", lambda algorithm, context: context.round_in_stage > 2)


def versions(*when: When) -> tuple[Row, Row]:
    """Return the rows of an algorithm's table that these versions need, under some conditions."""
    return (
        Row("down", {}, when=(*when, MAY_RESTART), lost=({SINCE: COUNT},)),
        Row("up", {FROM: COUNT}, when=when, use="in the clear", of="the round that their change starts from"),
    )


VERSIONS = versions(SOME_SITES)
"""The same of an algorithm whose control variates are sent whole where all sites take part."""


def still_valid(memory: Arrays, sent: Arrays, context: RoundContext) -> Arrays:
    """Return a client's memory; empty if control variates have started anew since it was written."""
    since = int(sent[SINCE]) if SINCE in sent else context.round - context.round_in_stage + 1
    return memory if memory and int(memory[ROUND]) >= since else {}


def of_this_round(memory: Arrays, context: RoundContext) -> Arrays:
    """Return a client's memory if an earlier phase of this round wrote it, with its ``ROUND``; else an empty one."""
    return memory if memory and int(memory[ROUND]) == context.round else {}


def origin(memory: Arrays) -> Arrays:
    """Return what a reply says of the memory that its changes start from."""
    return {FROM: memory[ROUND] if memory else torch.tensor([0])}


class VariateVersions:
    """The versions that the server has counted, in one round.

    Parameters
    ----------
    state : Arrays
        The server's; has what `saved` added to it, but in the first round of a stage.
    context : RoundContext
        Round, and whether it starts a stage: then everything is new.

    Attributes
    ----------
    consistent : bool
        Whether every reply so far starts from what the server has counted of its site.
    """

    def __init__(self, state: Arrays, context: RoundContext) -> None:
        new = context.starts_stage
        self._round = context.round
        self._counted = torch.zeros(context.sites, dtype=torch.int64) if new else state[COUNTED].clone()
        self._since = {} if new or SINCE not in state else {SINCE: state[SINCE]}
        self.consistent = True

    def count(self, reply: Reply) -> Arrays:
        """Count a reply; return its vectors without the origin."""
        arrays = dict(reply.arrays)
        if FROM in arrays:
            k = reply.site.index
            self.consistent &= int(arrays.pop(FROM)) == int(self._counted[k])
            self._counted[k] = self._round
        return arrays

    def saved(self, state: Arrays) -> Arrays:
        """Return the server's next state with these versions in it; all start anew if they were not consistent."""
        own: Arrays = {COUNTED: self._counted} | self._since
        if not self.consistent:
            own = {COUNTED: torch.zeros_like(self._counted), SINCE: torch.tensor([self._round + 1])}
        return {name: vector for name, vector in state.items() if name != SINCE} | own
