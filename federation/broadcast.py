"""The server's messages of a phase, and the sites that they go to."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from operator import is_
from typing import TYPE_CHECKING, Any

import numpy as np

from edelweiss.common import Stream
from edelweiss.federation.errors import DivergedError, RunError
from edelweiss.federation.messages import message
from edelweiss.federation.wire import LARGEST, magnitude, pack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flwr.app import ArrayRecord, Message
    from torch import Tensor

    from edelweiss.federation.algorithm import Algorithm
    from edelweiss.federation.run_messages import RunMessages
    from edelweiss.federation.sites import Site
    from edelweiss.federation.stages import RoundContext
    from edelweiss.problems import Arrays


@dataclass
class Broadcast:
    """Writes the server's messages to the sites."""

    declared: RunMessages  # the declared messages of the run
    sites: Sequence[Site]  # all sites of the run
    residual: Arrays = field(default_factory=dict)  # rounding errors of sent vectors, added to the next ones
    algorithm: Algorithm = field(init=False)
    # shuffles the messages if the algorithm drops stragglers; see `Exchange`
    shuffle: np.random.Generator | None = field(init=False)

    def __post_init__(self) -> None:
        self.algorithm, self.encoding = self.declared.algorithm, self.declared.encoding
        order = np.random.default_rng([self.algorithm.seed, Stream.SENDING_ORDER])
        self.shuffle = order if self.algorithm.drops_stragglers else None

    @property
    def shuffle_state(self) -> Any:
        """The state of ``shuffle`` as JSON, or None."""
        return self.shuffle and self.shuffle.bit_generator.state

    @shuffle_state.setter
    def shuffle_state(self, state: Any) -> None:
        if self.shuffle:
            self.shuffle.bit_generator.state = state

    def messages(
        self,
        state: Arrays,
        buffers: Arrays,
        context: RoundContext,
        common: Mapping[str, object],
        known: Mapping[int, float],
    ) -> list[Message]:
        """Write a phase's messages to the round's participants; shared vectors are serialised once.

        Parameters
        ----------
        state, buffers : Arrays
            The server's state, and the averaged batch-norm statistics, which go to every site.
        context : RoundContext
            The phase and round.
        common : mapping
            Fields common to all sites, see `federation.messages.common_fields`.
        known : mapping of int to float
            Known magnitudes of vectors, by their ``id``.

        Raises
        ------
        StrategyError
            For vectors that the algorithm's table lacks.
        RunError
            For a state that overflows, or exceeds the encoding's range.
        """
        vectors: list[Tensor] | None = None
        packed: ArrayRecord | None = None
        before = self.residual  # of this phase; an estimator is the same for all sites
        messages = []
        for site in self.participants(context.round):
            own = self.algorithm.broadcast(state, context, site)
            sent = own | buffers
            found = list(sent.values())
            if packed is None or vectors is None or len(vectors) != len(found) or not all(map(is_, vectors, found)):
                self.declared.require_declared("down", own, context, site.index)
                self._require_representable(sent, known)
                written, self.residual = self.encoding.encode(sent, before, context.phase)
                vectors, packed = found, pack(written)
            messages.append(message(packed, common, site, "train"))
        return messages

    def _require_representable(self, sent: Arrays, known: Mapping[int, float]) -> None:
        """Raise RunError for vectors that sites would reject."""
        floats = {name: v for name, v in sent.items() if v.is_floating_point() and v.numel()}
        most = {name: known[id(v)] if id(v) in known else magnitude(v) for name, v in floats.items()}
        if bad := [name for name, m in most.items() if not m <= LARGEST]:
            names = ", ".join(map(repr, bad))
            text = f"the run diverges: the server's {names} overflows. Lower {self.algorithm.step_sizes}"
            raise DivergedError(text, key=bad[0])
        if text := self.encoding.overflow(sent, most):
            raise RunError(f"the server's {text}", key="wire")

    def participants(self, server_round: int) -> Sequence[Site]:
        """Return the sites of all phases of a round, drawn from (seed, round) among those with a weight."""
        count = self.algorithm.clients_per_round(len(self.sites))
        if count == len(self.sites):
            return self.sites
        random = np.random.default_rng([self.algorithm.seed, Stream.PARTICIPANTS, server_round])
        able = self._able
        return [able[i] for i in sorted(random.choice(len(able), min(count, len(able)), replace=False))]

    @cached_property
    def _able(self) -> list[Site]:
        """The sites with a weight."""
        return [site for site in self.sites if site.weight]
