"""Images that stay in their file: the same numbers as in memory, and none of the memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from edelweiss.datasets import DataError, Samples
from edelweiss.datasets.memory_mapped import BLOCK_BYTES, file_of, gather, in_blocks, release_pages, tensor_of
from edelweiss.datasets.samples import moments
from tests.said import has

SHAPE = (3, 20, 30)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "images.npy"
    np.save(place, np.random.default_rng(0).integers(0, 256, (50, *SHAPE), np.uint8))
    return place


def stored(place: Path) -> Tensor:
    return tensor_of(np.load(place, mmap_mode="r"))


def samples(inputs: Tensor) -> Samples:
    return Samples(inputs, torch.arange(50) % 2, torch.arange(49, 9, -1))


def resident() -> int:
    """Bytes of files that are in this process's memory."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssFile:")]
    return 1024 * int(line.split()[1])


def test_a_stored_tensor_knows_its_file_and_one_in_memory_none(place: Path) -> None:
    inputs = stored(place)
    assert file_of(inputs) == str(place)
    assert np.array_equal(inputs.numpy(), np.load(place))
    assert file_of(inputs.clone()) is None
    assert file_of(tensor_of(np.load(place))) is None
    floats = np.lib.format.open_memmap(place.with_name("floats.npy"), "w+", np.float32, (3, 2))
    assert file_of(tensor_of(floats)) is None  # a table


def test_the_first_images_of_a_file_and_those_of_one_that_is_gone(place: Path) -> None:
    images = np.load(place, mmap_mode="r")
    first = tensor_of(images[:7])
    assert file_of(first) == str(place)
    assert torch.equal(gather(first, torch.tensor([6])), torch.from_numpy(np.array(images[6:7])))
    place.unlink()
    assert np.array_equal(tensor_of(images).numpy(), images)
    assert not place.exists()


def test_batches_and_moments_are_those_in_memory(place: Path) -> None:
    ours, theirs = samples(stored(place)), samples(torch.from_numpy(np.load(place)))
    index = torch.tensor([3, 0, 39])
    for one, other in zip(ours.batch(index), theirs.batch(index), strict=True):
        assert torch.equal(one, other)
    assert moments(ours) == moments(theirs)
    assert torch.equal(gather(ours.inputs[10:], index), theirs.inputs[10:][index])
    assert not len(gather(ours.inputs, index[:0]))


def test_a_batch_is_a_copy(place: Path) -> None:
    inputs = stored(place)
    gather(inputs, torch.arange(2)).zero_()
    assert np.array_equal(inputs.numpy(), np.load(place))


def test_a_file_that_made_room_for_others_is_read_on_and_one_cut_short_is_told(place: Path) -> None:
    inputs, rows = stored(place), torch.tensor([7, 49])
    wanted = gather(inputs, rows)
    content = place.read_bytes()
    place.unlink()
    assert torch.equal(gather(inputs, rows), wanted)
    place.write_bytes(content[:-1])
    with pytest.raises(DataError, check=has(place)) as error:
        gather(inputs, rows)
    assert str(place) not in error.value.public


def test_blocks_of_images_are_small_and_hold_all_rows() -> None:
    images, rows = torch.zeros(9, 1, 2048, 1024, dtype=torch.uint8), torch.arange(9)
    blocks = list(in_blocks(images, rows))
    assert max(block.nbytes for block in blocks) <= BLOCK_BYTES
    assert sum(map(len, blocks)) == 9
    assert len(next(in_blocks(torch.zeros(3, 5000), torch.zeros(8000, dtype=torch.int64)))) == 8000  # tables: as ever


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not say")
def test_what_is_read_or_written_does_not_stay_in_memory(tmp_path: Path) -> None:
    """100 MB through the file."""
    place, count = tmp_path / "images.npy", 50
    draft = np.lib.format.open_memmap(place, "w+", np.uint8, (count, 1, 1000, 2000))
    before = resident()
    for row in range(count):
        draft[row] = row
        release_pages(draft)
    assert resident() - before < 20e6
    draft.flush()
    inputs = stored(place)
    many = replace(samples(inputs), rows=torch.arange(count))
    moments(many)
    assert [int(many.batch(torch.tensor([row]))[0].mean()) for row in range(count)] == [*range(count)]
    assert resident() - before < 20e6
