"""Named vectors on the wire."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from edelweiss.federation.wire import not_finite, pack, size, unpack

DTYPES = [torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool]


def sample(dtype: torch.dtype, count: int) -> torch.Tensor:
    values = torch.linspace(-3, 99.7, count, dtype=torch.float64)
    return (values > 20) if dtype == torch.bool else values.abs().to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_round_trip(dtype: torch.dtype) -> None:
    sent = {"x": sample(dtype, 1000), "one": sample(dtype, 1), "none": sample(dtype, 0), "y": sample(torch.float32, 3)}
    received = unpack(pack(sent))
    assert list(received) == list(sent)
    for name, vector in sent.items():
        assert received[name].dtype == vector.dtype
        assert received[name].shape == vector.shape
        assert torch.equal(received[name], vector)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [0, 5])
def test_flower_reads_what_was_packed_and_we_read_what_flower_packed(dtype: torch.dtype, count: int) -> None:
    vector = sample(dtype, count)
    array = pack({"x": vector})["x"]
    by_flower = array.numpy()
    assert by_flower.dtype == vector.numpy().dtype
    np.testing.assert_array_equal(by_flower, vector.numpy())
    assert torch.equal(unpack(ArrayRecord({"x": Array(vector.numpy())}))["x"], vector)


def test_special_values_survive_to_the_bit() -> None:
    vector = torch.tensor([np.nan, np.inf, -np.inf, -0.0, 1e-45, 3.4e38])
    received = unpack(pack({"x": vector}))["x"]
    np.testing.assert_array_equal(received.numpy().view(np.uint32), vector.numpy().view(np.uint32))


def test_unpacking_on_the_cpu_makes_no_copy() -> None:
    record = pack({"x": torch.arange(1000.0), "y": torch.ones(3)})
    for name, vector in unpack(record).items():
        whole = np.frombuffer(record[name].data, np.uint8)
        start, end = whole.ctypes.data, whole.ctypes.data + whole.nbytes
        assert start < vector.data_ptr() < end
        assert vector.data_ptr() + vector.nbytes == end


def test_packing_copies_so_that_the_sender_may_go_on() -> None:
    vector = torch.arange(10.0)
    record = pack({"x": vector})
    vector.zero_()
    assert torch.equal(unpack(record)["x"], torch.arange(10.0))


def test_views_strides_and_gradients_are_packed_as_plain_values() -> None:
    base = torch.arange(10.0, requires_grad=True)
    received = unpack(pack({"strided": base[::3], "slice": base[4:7]}))
    assert received["strided"].tolist() == [0, 3, 6, 9]
    assert received["slice"].tolist() == [4, 5, 6]
    assert not received["slice"].requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_size_counts_the_vectors_alone(dtype: torch.dtype) -> None:
    arrays = {"x": sample(dtype, 17), "nothing": sample(dtype, 0)}
    record = pack(arrays)
    assert size(record) == 17 * dtype.itemsize
    overhead = sum(len(array.data) for array in record.values()) - size(record)
    assert 0 < overhead <= 2 * 128, "NumPy's header, and nothing else"


def test_an_empty_record_is_an_empty_dictionary() -> None:
    assert unpack(pack({})) == {}


def test_numbers_whose_sum_overflows_are_no_infinities() -> None:
    large, broken = torch.full((4,), 3e38), torch.tensor([3e38, math.nan])
    assert not large.sum().isfinite()
    assert not_finite({"large": large, "broken": broken, "far": -torch.full((1,), math.inf)}) == ["broken", "far"]
