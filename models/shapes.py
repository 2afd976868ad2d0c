"""Input shapes of networks."""

from __future__ import annotations

from edelweiss.models.errors import ModelError

Shape = tuple[int, ...]
"""(features,) or (channels, height, width)."""

SMALLEST_IMAGE = 16  # pixels; leaves 2 x 2 after division by eight, so that batch norm can train on one sample


def image(name: str, shape: Shape, smallest: int) -> Shape:
    """Return the shape if it is that of an image of at least ``smallest`` pixels.

    Raises
    ------
    ModelError
        If it is not; the message names the model.
    """
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise ModelError(
            f"model {name!r} cannot take inputs of shape {shape}: it needs (channels, height, width) "
            f"with height and width of at least {smallest}",
            key="shape",
            value=shape,
            allowed=smallest,
        )
    return shape
