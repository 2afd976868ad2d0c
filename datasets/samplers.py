"""Samplers choose the rows of each batch; they return indices and never see a sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from edelweiss.common import hint
from edelweiss.datasets.errors import DataError
from edelweiss.datasets.labels import any_positive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edelweiss.datasets.source import Ints

Mark = tuple[tuple["Ints", int], ...]
"""The epoch's order and the number of rows drawn, for each kind of rows."""

SAMPLERS = ("uniform", "fixed-positives")
AUTO = "auto"
AHEAD = 512  # rows previewed ahead, approximately


class _Deck:
    """Draws indices without replacement, reshuffled when they run out.

    In NumPy, which is several times as fast as torch for small arrays.
    """

    def __init__(self, positions: Ints, generator: torch.Generator) -> None:
        self._positions = positions
        self._generator = generator
        self.restart()

    def restart(self) -> None:
        """Start a new order."""
        self._order, self._dealt = self._positions[:0], 0

    def mark(self) -> tuple[Ints, int]:
        """Return the order, as places in the indices, and the number drawn of it."""
        return self._order, self._dealt

    def back(self, mark: tuple[Ints, int]) -> None:
        """Return to a mark."""
        self._order, self._dealt = mark

    def full(self, size: int) -> int:
        """Return the number of indices that `deal` returns."""
        return min(size, len(self._positions))

    def deal(self, size: int) -> Ints:
        """Return `size` distinct indices, or all if there are fewer."""
        if size >= len(self._positions):
            return self._positions
        hand = self._order[self._dealt : self._dealt + size]
        self._dealt += size
        if len(hand) < size:
            order = torch.randperm(len(self._positions), generator=self._generator).numpy()
            if len(hand):
                # Rows already in this batch come last in the new epoch, so that no batch holds a row twice.
                held = np.zeros(len(order), np.bool_)
                held[hand] = True
                held = held[order]
                order = np.concatenate([order[~held], order[held]])
            self._order, self._dealt = order, size - len(hand)
            hand = np.concatenate([hand, order[: self._dealt]])
        return self._positions[hand]

    def ahead(self, size: int) -> Ints:
        """Draw indices; return them with the next draws of this size from the current order."""
        hand = self.deal(size)
        if not 0 < size < len(self._positions):
            return np.broadcast_to(hand, (1 + AHEAD // max(1, size), len(hand)))
        count = min(len(self._order) - self._dealt, AHEAD) // size
        rest = self._positions[self._order[self._dealt : self._dealt + count * size]]
        return np.concatenate([hand, rest]).reshape(1 + count, size)

    def skip(self, size: int, count: int) -> None:
        """Advance by ``count`` draws that `ahead` previewed."""
        if size < len(self._positions):
            self._dealt += size * count


class Sampler:
    """An endless stream of batches: of each kind of rows a quota, drawn from a deck of its own."""

    def __init__(self, decks: Sequence[_Deck], size: int, share: float = 0.0, prior: float = 0.0) -> None:
        self._decks, self._size = decks, size
        self._share, self._prior = share, prior  # of positives: in a batch, and among all rows

    def _quotas(self, size: int) -> tuple[int, ...]:
        if len(self._decks) == 1:
            return (size,)
        positives = max(1, round(self._share * size)) if self._prior else 0
        return positives, size - positives

    def draw(self, size: int | None = None) -> Tensor:
        """Return the indices of the next batch, int64; `size` overrides the batch size."""
        quotas = self._quotas(self._size if size is None else size)
        hands = [deck.deal(quota) for deck, quota in zip(self._decks, quotas, strict=True)]
        return torch.from_numpy(hands[0] if len(hands) == 1 else np.concatenate(hands))

    def ahead(self, size: int) -> Ints:
        """Draw a batch; return it with the k batches that will follow it, shape (1 + k, rows of a batch).

        The k others are only previewed: `draw` or `skip` takes them; k may be 0.
        """
        hands = [deck.ahead(quota) for deck, quota in zip(self._decks, self._quotas(size), strict=True)]
        return np.concatenate([hand[: min(map(len, hands))] for hand in hands], axis=1)

    def skip(self, size: int, count: int) -> None:
        """Advance by ``count`` batches that `ahead` previewed."""
        for deck, quota in zip(self._decks, self._quotas(size), strict=True):
            deck.skip(quota, count)

    def full(self, size: int) -> int:
        """Return the number of rows in a draw of this size, limited by the number of rows."""
        return sum(deck.full(quota) for deck, quota in zip(self._decks, self._quotas(size), strict=True))

    @property
    def weighs(self) -> bool:
        """Whether `weights` are not equal."""
        return len(self._decks) > 1

    def weights(self, labels: Tensor) -> Tensor | None:
        """Return weights with mean 1 that make a batch mean an unbiased estimate of the mean over all rows.

        Shape (n,), like the batch's labels; None for equal weights.
        """
        if not self.weighs:
            return None
        positive = any_positive(labels)
        share = positive.double().mean()
        return torch.where(positive, self._prior / share, (1 - self._prior) / (1 - share))

    def restart(self) -> None:
        """Start a new epoch."""
        for deck in self._decks:
            deck.restart()

    def mark(self) -> Mark:
        """Return the current position in the epochs."""
        return tuple(deck.mark() for deck in self._decks)

    def back(self, mark: Mark) -> None:
        """Return to a position; the caller restores the random stream."""
        for deck, place in zip(self._decks, mark, strict=True):
            deck.back(place)


def are_rare(count: int, rows: int, positives: int, batch_size: int) -> bool:
    """Return whether ``"auto"`` fixes the positives of each batch, with `count` among the rows."""
    return 0 < count * batch_size < positives * rows and positives < batch_size


def make_sampler(name: str, labels: Tensor, batch_size: int, positives: int, generator: torch.Generator) -> Sampler:
    """Make a sampler over a set of rows.

    Parameters
    ----------
    name
        ``"uniform"``: every row once per epoch, in an order shuffled per epoch. A batch that crosses the end of an
        epoch is completed from the next one. A set smaller than the batch is returned whole. A run makes a new sampler,
        with new epochs, for each round. ``"fixed-positives"``: `positives` rows of label 1, then ``batch_size -
        positives`` others, each kind with its own epochs. With several labels a row is positive if any is. A kind
        smaller than its quota is returned whole; without any positives a batch is of others. The weights restore both
        kinds' shares among all rows. ``"auto"``: fixed-positives where `positives` are more than a uniform batch holds
        on average, and there are any; else uniform.
    labels
        Shape (n,) or (n, L) int64, the labels of the rows.
    batch_size
        Rows in a batch, at least 1.
    positives
        For ``"fixed-positives"``: 1 to `batch_size`. A draw of another size keeps the share (at least one).
    generator
        The random stream of all draws; its device must be the CPU.

    Returns
    -------
    sampler
        ``sampler.draw()`` returns indices into `labels`, distinct within a batch.

    Raises
    ------
    DataError
        For an unknown name, a size out of range, or no rows.
    """
    if name not in (AUTO, *SAMPLERS):
        text = f"unknown sampler {name!r}; allowed: {', '.join(SAMPLERS)}.{hint(name, SAMPLERS)}"
        raise DataError.plain(text, key="sampler", value=name, allowed=tuple(SAMPLERS))
    if batch_size < 1:
        raise DataError.plain(f"batch size is {batch_size}; it must be at least 1", key="batch-size", value=batch_size)
    if not len(labels):
        raise DataError.plain("this site has no training rows to draw a batch from")
    labels = labels.cpu()
    positive = any_positive(labels)
    if name == "uniform" or (name == AUTO and not are_rare(int(positive.sum()), len(labels), positives, batch_size)):
        return Sampler([_Deck(np.arange(len(labels)), generator)], batch_size)
    if not 1 <= positives <= batch_size:
        text = f"positives per batch is {positives}; it must be from 1 to the batch size, {batch_size}"
        raise DataError.plain(text, key="positives-per-batch", value=positives, allowed=range(1, batch_size + 1))
    decks = [_Deck(np.flatnonzero(rows.numpy()), generator) for rows in (positive, ~positive)]
    return Sampler(decks, batch_size, positives / batch_size, positive.double().mean().item())
