"""Local steps of the personalised algorithms: descent on x, or on a part of it, and ascent on y where there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from problems import Arrays, Batch
    from strategies.base import Oracle


def descend(
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


def kept(**vectors: Tensor | None) -> Arrays:
    """Return the vectors that there are, by name, for a memory or a reply."""
    return {name: vector for name, vector in vectors.items() if vector is not None}


def with_head(sent: Arrays, memory: Arrays, fresh: Arrays) -> Arrays:
    """Return the model of a body that was sent and the site's own head and y; of those that all start with, if lost."""
    own = fresh | memory
    return {"x": torch.cat([sent["body"], own["head"]])} | kept(y=own.get("y"))


def head_then_body(
    own: Arrays,
    oracle: Oracle,
    head_steps: int,
    body_steps: int,
    lrs: tuple[float, float, float],
    weight_decay: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Do steps on the head and on y with the body fixed, then steps on the body with these fixed.

    Parameters
    ----------
    own : Arrays
        The site's model, x and y; its x is changed.
    oracle : Oracle
        Of this site.
    head_steps, body_steps : int
        How many.
    lrs : tuple of float
        Step sizes of head, body and y.
    weight_decay : float
        ≥ 0, of head and body.

    Returns
    -------
    tuple
        Body, head, and y where there is one.
    """
    x, y, (lr_head, lr_body, lr_dual) = own["x"], own.get("y"), lrs
    body, head = slice(oracle.head), slice(oracle.head, None)
    for _ in range(head_steps):
        y = descend(x, y, oracle, lr_head, lr_dual, part=head, decay=weight_decay)
    for _ in range(body_steps):
        descend(x, y, oracle, lr_body, 0.0, part=body, decay=weight_decay)
    return x[body], x[head], y
