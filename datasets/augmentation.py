"""Random changes of training images: mirrored, turned, cropped, brighter or darker, each image of a batch otherwise."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

_NUMBERS = 6  # that are drawn for each image, whatever is switched on, so that one change is no reason for another


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """What may happen to an image; by default nothing.

    The functions of ``torchvision.transforms.v2`` change all images of a batch alike, by one angle or one factor. Here
    each image has its own: one `grid_sample` turns and crops the whole batch, which costs less than a call per image.

    Parameters
    ----------
    flip
        Whether every other image, by chance, is mirrored left-right.
    crop
        In [0, 0.5]. A part of the image, each side shorter by a share of up to this, is drawn anywhere in it, and
        enlarged to the size of the image.
    rotate
        In [0, 180]. Degrees that an image is turned by at most, either way, about its middle.
    brightness
        In [0, 1]. Values, from 0 to 255, are multiplied by 1 ± this at most, and stay within that range.
    """

    flip: bool = False
    crop: float = 0.0
    rotate: float = 0.0
    brightness: float = 0.0

    def __bool__(self) -> bool:
        return any(vars(self).values())  # asked for each batch

    def keys(self) -> dict[str, float]:
        """Return the run-config's keys of what is switched on."""
        return {f"augment-{f.name}": value for f in fields(self) if (value := getattr(self, f.name))}

    def draw(self, count: int, generator: torch.Generator) -> Changes:
        """Draw what happens to each of so many images, from a random stream on the CPU."""
        return Changes(self, torch.rand(count, _NUMBERS, generator=generator))


@dataclass(frozen=True, eq=False)
class Changes:
    """What happens to each image of one batch.

    Parameters
    ----------
    kinds
        What may happen.
    chances
        Shape (n, 6): uniform in [0, 1).
    """

    kinds: Augmentation
    chances: Tensor

    def lit(self, images: Tensor) -> Tensor:
        """Return the images, (n, C, H, W) with values from 0 to 255, brighter or darker; they may be changed in place.

        The factor is uniform in [1 - brightness, 1 + brightness].
        """
        if not self.kinds.brightness:
            return images
        factor = 1 + self.kinds.brightness * (2 * self.chances[:, 0] - 1)
        return images.mul_(factor.to(images)[:, None, None, None]).clamp_(0, 255)

    def moved(self, images: Tensor) -> Tensor:
        """Return the images, (n, C, H, W), mirrored, turned and cropped.

        Values between pixels are bilinear. What a turn brings in from outside is 0: after standardisation the training
        mean.
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
        """Return where in the image each place of the result is from: maps of x and y in [-1, 1], shape (n, 2, 3).

        A place p of the result is c = z p + t in the crop and R c in the image: z in [1 - crop, 1] is the crop's side,
        t its middle, and the centres of its outermost pixels lie within those of the image.
        """
        chances = self.chances.double()
        angle = math.radians(self.kinds.rotate) * (2 * chances[:, 2] - 1)
        side = 1 - self.kinds.crop * chances[:, 3]
        inner = chances.new_tensor([1 - 1 / width, 1 - 1 / height])
        middle = (1 - side)[:, None] * (2 * chances[:, 4:] - 1) * inner
        cos, sin = angle.cos(), angle.sin()
        ratio = height / width  # of the units of y and x: a turn leaves distances in pixels as they are
        context = torch.stack([cos, -sin * ratio, sin / ratio, cos], 1).view(-1, 2, 2)
        return torch.cat([context * side[:, None, None], context @ middle[:, :, None]], 2)
