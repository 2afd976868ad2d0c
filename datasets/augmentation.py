"""Random augmentation of training images: flip, rotation, crop and brightness, drawn for each image of a batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

_NUMBERS = 6  # numbers drawn per image, always, so that enabling one change does not affect another


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Options of image augmentation; by default none.

    ``torchvision.transforms.v2`` applies one angle or factor to a whole batch. Here each image has its own: one
    `grid_sample` rotates and crops the whole batch, which is cheaper than a call per image.
    """

    flip: bool = False  # whether images are mirrored left-right with probability 1/2
    # in [0, 0.5]. The largest share by which the sides of a random crop are shorter; it is resized to the image
    crop: float = 0.0
    rotate: float = 0.0  # in [0, 180]. The largest rotation about the centre, in degrees, in either direction
    brightness: float = 0.0  # in [0, 1]. The largest relative change of values, which stay within 0 to 255

    def __bool__(self) -> bool:
        return any(vars(self).values())  # called for each batch

    def keys(self) -> dict[str, float]:
        """Return the run-config keys of the enabled options."""
        return {f"augment-{f.name}": value for f in fields(self) if (value := getattr(self, f.name))}

    def draw(self, count: int, generator: torch.Generator) -> Changes:
        """Draw the changes of ``count`` images from a random stream on the CPU."""
        return Changes(self, torch.rand(count, _NUMBERS, generator=generator))


@dataclass(frozen=True, eq=False)
class Changes:
    """The changes of each image of a batch."""

    kinds: Augmentation  # the options
    chances: Tensor  # shape (n, 6): uniform in [0, 1)

    def brighten(self, images: Tensor) -> Tensor:
        """Change the brightness of images (n, C, H, W) with values from 0 to 255, possibly in place.

        The factor is uniform in [1 - brightness, 1 + brightness].
        """
        if not self.kinds.brightness:
            return images
        factor = 1 + self.kinds.brightness * (2 * self.chances[:, 0] - 1)
        return images.mul_(factor.to(images)[:, None, None, None]).clamp_(0, 255)

    def warp(self, images: Tensor) -> Tensor:
        """Flip, rotate and crop images (n, C, H, W).

        Interpolation is bilinear. Pixels from outside the image are 0: the training mean after standardisation.
        """
        if self.kinds.flip:
            mirrored = (self.chances[:, 1] < 0.5).to(images.device)[:, None, None, None]
            images = torch.where(mirrored, images.flip(-1), images)
        if not (self.kinds.rotate or self.kinds.crop):
            return images
        maps = self._maps(*images.shape[-2:]).to(images)
        grid = affine_grid(maps, list(images.shape), align_corners=False)
        return grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)

    def _maps(self, height: int, width: int) -> Tensor:
        """Return the affine maps from the result to the image, in coordinates in [-1, 1], shape (n, 2, 3).

        A point p of the result is c = z p + t in the crop and R c in the image: z in [1 - crop, 1] is the crop's side
        and t its centre, with the centres of its outermost pixels inside those of the image.
        """
        chances = self.chances.double()
        angle = math.radians(self.kinds.rotate) * (2 * chances[:, 2] - 1)
        side = 1 - self.kinds.crop * chances[:, 3]
        inner = chances.new_tensor([1 - 1 / width, 1 - 1 / height])
        middle = (1 - side)[:, None] * (2 * chances[:, 4:] - 1) * inner
        cos, sin = angle.cos(), angle.sin()
        ratio = height / width  # of the units of y and x, so that rotation preserves distances in pixels
        context = torch.stack([cos, -sin * ratio, sin / ratio, cos], 1).view(-1, 2, 2)
        return torch.cat([context * side[:, None, None], context @ middle[:, :, None]], 2)
