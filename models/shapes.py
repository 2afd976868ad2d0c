"""The shape of one input, as a network is built for it."""

from __future__ import annotations

from edelweiss.models.errors import ModelError

Shape = tuple[int, ...]
"""(features,) or (channels, height, width)."""

SMALLEST_IMAGE = 16  # pixels; divided by eight, 2 x 2 are left: batch norm can train, even on one sample


def image(name: str, shape: Shape, smallest: int) -> Shape:
    """Return the shape if it is that of a large enough image.

    Raises
    ------
    ModelError
        If it is not, for the model of this name.
    """
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise ModelError(
            f"model {name!r} cannot take inputs of shape {shape}: it needs (channels, height, width) "
            f"with height and width of at least {smallest}"
        )
    return shape
