"""Local updates, sequential or vectorised over clients.

Vectorised, `Algorithm.local_update` is called once for K clients with vectors of K rows. Each client draws the same
batches as alone; shorter ones are padded with samples of weight zero.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from torch import Tensor

from edelweiss.client_app.stacked_oracle import StackedOracle, UnevenError, rows_of, stacked
from edelweiss.common import PROCESS_CACHE
from edelweiss.federation import StrategyError
from edelweiss.problems import Problem

if TYPE_CHECKING:
    from edelweiss.client_app.oracle import SiteOracle
    from edelweiss.client_app.privacy.oracle import PrivateOracle
    from edelweiss.federation import FederatedStrategy, Oracle, RoundContext
    from edelweiss.problems import Arrays


class Updated(NamedTuple):
    """The result of a local update: reply, memory, and work."""

    reply: Arrays
    memory: Arrays
    gradients: int
    samples: int


class Update(NamedTuple):
    """A local update, ready to run.

    Attributes
    ----------
    strategy, problem, sent, memory, context
        The arguments of `Algorithm.local_update`.
    oracle : callable
        Returns a new oracle of the client at the beginning of the round.
    """

    strategy: FederatedStrategy
    problem: Problem
    sent: Arrays
    memory: Arrays
    oracle: Callable[[], SiteOracle | PrivateOracle]
    context: RoundContext
    private: bool = False  # its oracle is one patient's gradient after the other, so nothing is gained side by side

    def alone(self) -> Updated:
        """Do it."""
        oracle = self.oracle()
        try:
            reply, memory = _updated(self.strategy, self.sent, self.memory, oracle, self.context)
        finally:
            oracle.close()
        return Updated(reply, memory, oracle.gradients, oracle.differentiated)

    @property
    def stacks(self) -> bool:
        """Whether it may be vectorised with others."""
        return not self.private and not why_alone(self.strategy, self.problem)

    def kind(self, oracle: SiteOracle) -> Hashable:
        """Return a key that is equal for updates that can be vectorised: everything but the values of float vectors."""
        size = 0 if stacked(self.problem).supports_masking else oracle.full
        return self.problem, self.context, _shapes(self.sent), _shapes(self.memory), size


@PROCESS_CACHE.keeps(32)
def why_alone(strategy: FederatedStrategy, problem: Problem) -> str:
    """Say why clients must be trained sequentially, regardless of ``stack``; empty if they need not."""
    if not strategy.stacks:
        return f"algorithm = {strategy.name!r} takes one client at a time"
    if problem.differs_by_site(strategy.own_dual):
        return f"with algorithm = {strategy.name!r} each site has a problem = {problem.name!r} of its own"
    return problem.unstackable_reason()


def updated(updates: Sequence[Update]) -> list[Callable[[], Updated]]:
    """Vectorise updates of the same kind; return a function for each that returns or computes its result."""
    results = [update.alone for update in updates]
    oracles: dict[int, SiteOracle] = {}
    groups: dict[Hashable, list[int]] = {}
    for i, update in enumerate(updates):
        with suppress(Exception):  # a site that cannot draw fails later, by itself
            oracles[i] = cast("SiteOracle", update.oracle())
            groups.setdefault(update.kind(oracles[i]), []).append(i)
    waiting = list(groups.values())
    while waiting:
        if len(group := waiting.pop()) == 1:
            continue
        try:
            for i, done in zip(group, _together([updates[i] for i in group], [oracles[i] for i in group]), strict=True):
                results[i] = partial(_given, done)
        except UnevenError:
            by_batches: dict[int, list[int]] = {}  # in an epoch
            for i in group:
                by_batches.setdefault(oracles[i].batches, []).append(i)
                oracles[i].close()
                oracles[i] = cast("SiteOracle", updates[i].oracle())
            waiting += by_batches.values() if len(by_batches) > 1 else ()  # else each is done alone
        except Exception as error:
            for i in group:
                results[i] = partial(_given, error)
    for oracle in oracles.values():
        oracle.close()
    return results


def _given(result: Updated | Exception) -> Updated:
    if isinstance(result, Exception):
        raise result
    return result


def _together(updates: Sequence[Update], oracles: Sequence[SiteOracle]) -> list[Updated]:
    first, oracle = updates[0], StackedOracle(updates[0].problem, oracles)
    sent, memory = rows_of([update.sent for update in updates]), rows_of([update.memory for update in updates])
    reply, memory = _updated(first.strategy, sent, memory, oracle, first.context)
    reply, memory = ({name: rows.cpu() for name, rows in part.items()} for part in (reply, memory))  # once for all
    return [
        Updated(_row(reply, k), _row(memory, k), oracle.gradients, samples)
        for k, samples in enumerate(oracle.differentiated)
    ]


def _updated(
    strategy: FederatedStrategy,
    sent: Arrays,
    memory: Arrays,
    oracle: SiteOracle | PrivateOracle | StackedOracle,  # each provides everything that a strategy uses there
    context: RoundContext,
) -> tuple[Arrays, Arrays]:
    """Do the algorithm's local update.

    Raises
    ------
    StrategyError
        If it writes to ``sent``, which the sites of a process share, or returns anything but two dicts of tensors.
    """
    # PyTorch counts the writes to a tensor.
    versions = {name: vector._version for name, vector in sent.items()}
    returned: Any = strategy.local_update(sent, memory, cast("Oracle", oracle), context)
    if changed := [name for name, vector in sent.items() if vector._version != versions.get(name)]:
        raise StrategyError(
            f"algorithm = {strategy.name!r}: `local_update` of class {type(strategy).__name__} writes to "
            f"sent[{changed[0]!r}], which other sites read too: work on sent[{changed[0]!r}].clone()"
        )
    match returned:
        case ({**reply}, {**kept}) if all(isinstance(vector, Tensor) for vector in (*reply.values(), *kept.values())):
            return cast("tuple[Arrays, Arrays]", returned)
    kinds = [type(part).__name__ for part in returned] if isinstance(returned, tuple) else []
    found = f"a tuple of {' and '.join(kinds)}" if kinds else f"one {type(returned).__name__}"
    raise StrategyError(
        f"algorithm = {strategy.name!r}: `local_update` of class {type(strategy).__name__} returned {found}: must be a "
        "tuple of two dicts of tensors, (reply, memory), such as ({'x': x}, {})"
    )


def _shapes(arrays: Arrays) -> Hashable:
    """Return names and shapes of vectors, and the values of integer ones."""
    return tuple(
        (name, vector.shape, () if vector.is_floating_point() else tuple(vector.flatten().tolist()))
        for name, vector in sorted(arrays.items())
    )


def _row(stack: Arrays, k: int) -> Arrays:
    """Return one client's vectors; vectors without rows are shared."""
    return {name: rows[k] if rows.is_floating_point() else rows for name, rows in stack.items()}
