"""Random changes of training images: what each kind does, to each image its own, and to nothing but images."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from edelweiss.datasets import Augmentation, Samples
from edelweiss.datasets.augmentation import Changes

ALL = Augmentation(flip=True, crop=0.3, rotate=20.0, brightness=0.4)


def changes(count: int = 6, seed: int = 0, **kinds: Any) -> Changes:
    return Augmentation(**kinds).draw(count, torch.Generator().manual_seed(seed))


def images(count: int = 6, channels: int = 1, height: int = 24, width: int = 32) -> Tensor:
    """Smooth ones, so that values between pixels say something."""
    y, x = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
    numbers = torch.arange(1, 1 + count * channels).view(count, channels, 1, 1)
    return 120 + 60 * torch.sin(numbers * x) + 50 * torch.cos(numbers * y + x)


def turned(degrees: float) -> Changes:
    """A turn of every image by so much, to whatever side."""
    return Changes(Augmentation(rotate=abs(degrees)), torch.full((6, 6), 0.0 if degrees < 0 else 1.0))


def test_an_image_that_is_mirrored_twice_is_itself() -> None:
    before, mirror = images(40), changes(40, flip=True)
    once = mirror.warp(before)
    assert torch.equal(mirror.warp(once), before)
    flipped = [not torch.equal(*pair) for pair in zip(before, once, strict=True)]
    assert 8 < sum(flipped) < 32
    assert all(
        torch.equal(new, old.flip(-1) if flip else old) for new, old, flip in zip(once, before, flipped, strict=True)
    )


def test_no_turn_leaves_an_image_and_a_turn_back_returns_its_middle() -> None:
    before = images()
    still = Changes(Augmentation(rotate=90.0), torch.full((6, 6), 0.5))
    assert still.warp(before) == pytest.approx(before, abs=1e-3)
    there = turned(30.0).warp(before)
    back = turned(-30.0).warp(there)
    middle = (..., slice(8, 16), slice(12, 20))
    assert (there - before)[middle].abs().max() > 20
    assert (back - before)[middle].abs().max() < 8


def test_a_quarter_turn_is_exact_also_of_an_image_that_is_no_square() -> None:
    before = images()
    inner = slice(4, 28)  # of the width, as much as the height
    assert turned(90.0).warp(before)[..., inner] == pytest.approx(before[..., inner].rot90(1, (2, 3)), abs=0.01)
    assert turned(180.0).warp(before) == pytest.approx(before.rot90(2, (2, 3)), abs=0.01)


def test_what_a_turn_brings_in_is_the_mean() -> None:
    raw = torch.full((4, 3, 16, 16), 200, dtype=torch.uint8)
    samples = Samples(raw, torch.zeros(4, dtype=torch.int64), torch.arange(4))
    samples = samples.standardised(torch.tensor([90.0, 100.0, 110.0]), torch.full((3,), 10.0))
    samples = replace(samples, augment=partial(ALL.draw, generator=torch.Generator().manual_seed(1)))
    kept = replace(samples, augment=lambda count: Changes(Augmentation(rotate=45.0), torch.ones(count, 6)))
    corners = kept.batch(torch.arange(4))[0][..., [0, 0, -1, -1], [0, -1, 0, -1]]
    assert torch.equal(corners, torch.zeros(4, 3, 4))
    assert kept.batch(torch.arange(4))[0][..., 8, 8] == pytest.approx(torch.tensor([11.0, 10.0, 9.0]).expand(4, 3))
    assert samples.batch(torch.arange(4))[0].isfinite().all()


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_crop_is_a_part_of_the_image_enlarged(share: float) -> None:
    height, width = 24, 32
    y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    places = torch.stack([y, x]).expand(200, 2, height, width)
    cropped = changes(200, crop=share).warp(places)
    sides = []
    for channel, size in enumerate((height, width)):
        low, high = cropped[:, channel].amin((1, 2)), cropped[:, channel].amax((1, 2))
        assert low.min() >= 0.5 - 1e-4  # nothing from outside is mixed in
        assert high.max() <= size - 0.5 + 1e-4
        sides.append((high - low) / (size - 1))
        assert low.max() > 0.5 * share * size, "a crop lies anywhere"
    assert sides[0] == pytest.approx(sides[1], abs=1e-4)  # nothing is stretched
    assert 1 - share - 1e-4 <= sides[0].min() < 1 - 0.9 * share
    assert 1 - 0.1 * share < sides[0].max() <= 1 + 1e-4


def test_brightness_keeps_its_bounds() -> None:
    white, grey = torch.full((300, 1, 2, 2), 255.0), torch.full((300, 1, 2, 2), 100.0)
    brighten = changes(300, brightness=0.4).brighten(grey)[:, 0, 0, 0]
    assert brighten.min() == pytest.approx(60, abs=1)
    assert brighten.max() == pytest.approx(140, abs=1)
    assert changes(300, brightness=0.4).brighten(white).max() == 255
    assert changes(300, brightness=1.0).brighten(images(300)).min() >= 0


@pytest.mark.parametrize("kind", [{"crop": 0.5}, {"rotate": 90.0}, {"brightness": 0.5}])
def test_each_image_is_changed_otherwise_and_all_its_channels_alike(kind: dict[str, float]) -> None:
    drawn, same = changes(5, **kind), images(1, 1).expand(5, 3, -1, -1).clone()
    after = drawn.warp(drawn.brighten(same))
    assert all((one - other).abs().max() > 1 for i, one in enumerate(after) for other in after[:i])
    assert torch.equal(after[:, 0], after[:, 1])


def test_one_kind_is_no_reason_for_another() -> None:
    """What is drawn for one does not depend on which others are switched on."""
    before = images()
    assert torch.equal(
        changes(brightness=0.4).brighten(before.clone()),
        changes(flip=True, rotate=9.0, brightness=0.4).brighten(before.clone()),
    )
    chances = [changes(**kinds).chances for kinds in ({"flip": True}, {"crop": 0.2, "flip": True})]
    assert torch.equal(*chances)


def test_nothing_is_switched_on_by_itself() -> None:
    assert not Augmentation()
    assert ALL.keys() == {"augment-flip": True, "augment-crop": 0.3, "augment-rotate": 20.0, "augment-brightness": 0.4}
    assert math.isclose(sum(Augmentation().keys().values()), 0)
