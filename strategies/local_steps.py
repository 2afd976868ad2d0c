"""Local steps of the personalised algorithms: of descent on x, or on a part of it, and of ascent on y, if any."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from federation import Oracle
    from keys import Value
    from problems import Arrays, Batch


def step(
    x: Tensor,
    y: Tensor | None,
    oracle: Oracle,
    lr: float,
    lr_dual: float,
    *,
    part: slice = slice(None),
    mask: Tensor | None = None,
    decay: float = 0.0,
    towards: Tensor | None = None,
    batch: Batch | None = None,
) -> Tensor | None:
    """x ← x - ηx (gx + decay (x - towards)) in place, with both gradients from the old point; return P(y + ηy gy).

    Parameters
    ----------
    x : Tensor
        Primal variable, shape (d,); changed.
    y : Tensor or None
        Dual variable, shape (p,); None for a minimisation, and then so is what is returned.
    oracle : Oracle
        Of this site.
    lr, lr_dual : float
        ηx and ηy. With ηy = 0 y stays where it is.
    part : slice
        What of x moves.
    mask : Tensor, optional
        What of that moves, True or False for each entry.
    decay : float
        ≥ 0, weight decay, or of a proximal term.
    towards : Tensor, optional
        Where x decays to, shape (d,); default: to zero.
    batch : Batch, optional
        To take the gradients on; default: a fresh one.
    """
    gx, gy = oracle.gradient(x, y, batch)
    moving, by = x[part], gx[part]  # views: a step on one is a step on x
    if decay:
        by.add_(moving, alpha=decay)
        if towards is not None:
            by.sub_(towards[part], alpha=decay)
    if mask is not None:
        by.mul_(mask[part])
    moving.sub_(by, alpha=lr)
    return y if y is None or not lr_dual else oracle.project(y + lr_dual * gy)


def existing(**vectors: Tensor | None) -> Arrays:
    """Return the vectors that there are, by name, for a memory or a reply."""
    return {name: vector for name, vector in vectors.items() if vector is not None}


def with_head(sent: Arrays, memory: Arrays, fresh: Arrays) -> Arrays:
    """Return the model of a body that was sent and the site's own head and y; of those that all start with, if lost."""
    own = fresh | memory
    return {"x": torch.cat([sent["body"], own["head"]])} | existing(y=own.get("y"))


def given_head(name: str, keys: Mapping[str, Value]) -> list[str]:
    """Return, for `Algorithm.misfits`, why sites that draw their own heads cannot start with that of a file."""
    if not keys["init-from"] or keys["init-head"] == "fresh":
        return []
    return [
        f"init-head = {keys['init-head']!r}: with algorithm = {name!r} a site draws its own head by the seed and is "
        'sent the body only, so take init-head = "fresh"'
    ]
