"""What vectors become on the wire, and what is read there: 16 bits, and 8 with error feedback."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from edelweiss.federation import Encoding, pack, unpack
from edelweiss.federation.encoding import BLOCK, SCALE, decode, dequantised, quantised, unfit
from edelweiss.federation.schema import misfits, shapes_of
from edelweiss.federation.wire import magnitudes
from edelweiss.problems import Arrays

LONG = 3 * BLOCK + 7
ENCODINGS = [Encoding(wire, names) for wire in ("float32", "bf16", "float16") for names in (frozenset[str](), {"u"})]


def vectors(seed: int = 0, scale: float = 1.0) -> Arrays:
    """Return one of each kind; what is called u is an estimator."""
    random = torch.Generator().manual_seed(seed)
    floats = {name: scale * torch.randn(LONG, generator=random) for name in ("x", "u")}
    floats["shortest"] = scale * torch.randn(BLOCK, generator=random)
    short = {"y": torch.randn(BLOCK - 1, generator=random), "none": torch.zeros(0)}
    others = {"rounds": torch.arange(LONG), "mask": floats["x"] > 0, "weights": floats["x"].double()}
    return floats | short | others | {"table": torch.randn(2, BLOCK, generator=random)}


def received(encoding: Encoding, arrays: Arrays, residual: Arrays, phase: str = "train") -> tuple[Arrays, Arrays]:
    """Return what arrives over the wire, and the next residual."""
    written, residual = encoding.encode(arrays, residual, phase)
    return decode(unpack(pack(written))), residual


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
def test_long_float32_vectors_are_rounded_and_nothing_else(encoding: Encoding) -> None:
    sent = vectors()
    came, _ = received(encoding, sent, {})
    assert list(came) == list(sent)
    for name, vector in sent.items():
        assert (came[name].dtype, came[name].shape) == (vector.dtype, vector.shape)
        short = encoding.wire != "float32"
        rounded = {"x": short, "shortest": short, "u": not encoding.exact}.get(name, False)
        assert torch.equal(came[name], vector) == (not rounded), name
    digits = {"float32": 0.0, "bf16": 2.0**-8, "float16": 2.0**-11}[encoding.wire]  # bf16: 8 of them, one implied
    assert ((came["x"] - sent["x"]).abs() <= digits * sent["x"].abs()).all()


@pytest.mark.parametrize("wire", ["bf16", "float16"])
def test_what_was_received_is_sent_on_to_the_bit(wire: str) -> None:
    once, _ = received(Encoding(wire), vectors(), {})
    twice, _ = received(Encoding(wire), once, {})
    assert all(torch.equal(twice[name], vector) for name, vector in once.items())


def test_exactly_means_the_same_objects() -> None:
    sent = vectors()
    written, residual = Encoding().encode(sent, {}, "train")
    assert written is sent
    assert residual == {}


def test_bf16_is_read_with_numpy_as_the_upper_half_of_float32() -> None:
    x = torch.randn(LONG)
    bits = pack(Encoding("bf16").encode({"x": x}, {}, "train")[0])["x"].numpy()
    assert bits.dtype == np.uint16
    read = (bits.astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(read, x.bfloat16().float().numpy())


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
def test_the_table_is_that_of_what_is_written(encoding: Encoding) -> None:
    written, _ = encoding.encode(vectors(), {}, "train")
    assert encoding.shapes(shapes_of(vectors())) == shapes_of(written)
    assert misfits(pack(written), [encoding.shapes(shapes_of(vectors()))]) == ""
    assert bool(misfits(pack(vectors()), [encoding.shapes(shapes_of(vectors()))])) == (not encoding.exact)


# ---------------------------------------------------------------------- 8 bits


@pytest.mark.parametrize("scale", [1e-40, 1e-31, 1e-20, 1.0, 1e15])
def test_a_number_in_8_bits_is_off_by_half_a_quantum_at_most(scale: float) -> None:
    u = vectors(3, scale)["u"]
    u[BLOCK : 2 * BLOCK] *= 1e-3  # a block of its own size has a quantum of its own
    codes, quanta = quantised(u)
    assert (codes.dtype, codes.shape, quanta.shape) == (torch.int8, u.shape, (4,))
    assert unfit({"u": codes, "u" + SCALE: quanta}) == ""
    off = (dequantised(codes, quanta) - u).abs()
    for block in range(4):
        here = slice(block * BLOCK, (block + 1) * BLOCK)
        largest = u[here].abs().max()
        assert off[here].max() <= max(0.5001 * largest / 127, 1e-30)
        assert codes[here].abs().max() == (127 if largest >= 1e-30 else 0)


@pytest.mark.slow
def test_the_sum_of_what_is_received_stays_within_one_quantum_of_what_was_meant() -> None:
    """Without feedback the errors add up."""
    encoding, residual = Encoding("bf16", frozenset({"u"})), dict[str, torch.Tensor]()
    base = vectors(9)["u"]
    meant, came, deaf, quantum = (torch.zeros(LONG, dtype=torch.float64) for _ in range(4))
    for message in range(200):
        u = base + 0.001 * vectors(message)["u"]
        got, residual = received(encoding, {"u": u}, residual)
        alone, _ = received(encoding, {"u": u}, {})
        meant, came, deaf = meant + u, came + got["u"], deaf + alone["u"]
        quantum = torch.maximum(quantum, quantised(u)[1].double().repeat_interleave(BLOCK)[:LONG])
        assert ((came - meant).abs() <= quantum).all(), message
        assert torch.allclose(meant - came, residual["train/u"].double(), atol=1e-4)
    assert ((deaf - meant).abs() / quantum).max() > 20


def test_rounding_errors_of_two_phases_do_not_mix() -> None:
    encoding, u = Encoding(coarse=frozenset({"u"})), vectors()["u"]
    _, residual = received(encoding, {"u": u}, {}, "first")
    alone, _ = received(encoding, {"u": u}, {}, "second")
    after, residual = received(encoding, {"u": u}, residual, "second")
    assert torch.equal(after["u"], alone["u"])
    assert residual.keys() == {"first/u", "second/u"}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
def test_what_is_not_finite_does_not_become_finite(encoding: Encoding, bad: float) -> None:
    sent = vectors()
    sent["x"][5] = sent["u"][5] = bad
    came, _ = received(encoding, sent, {})
    assert not came["x"][5].isfinite()
    assert not came["u"][5].isfinite()


@pytest.mark.parametrize("value", [65504.0, 65505.0, 1e5, -1e38, math.inf, math.nan])
def test_what_float16_cannot_hold_is_named_with_a_way_out(value: float) -> None:
    sent = vectors()
    sent["x"][-1] = sent["u"][-1] = value
    over = 65504 < abs(value) < math.inf
    most = magnitudes(sent)
    said = Encoding("float16").overflow(sent, most)
    assert bool(said) == over
    assert not over or ("'x' (up to" in said and "'u'" in said and 'take wire = "bf16"' in said)
    assert "'u'" not in Encoding("float16", frozenset({"u"})).overflow(sent, most), "8 bits have a scale"
    assert Encoding("bf16").overflow(sent, most) == Encoding().overflow(sent, most) == ""


@pytest.mark.parametrize(
    ("codes", "scale"),
    [(-128, 1.0), (126, 1.0), (127, 0.0), (0, 1.0), (127, -1.0), (127, math.nan), (127, 1e30), (127, math.inf)],
)
def test_codes_and_scales_that_nobody_writes_are_told(codes: int, scale: float) -> None:
    u = {"u": torch.full((BLOCK,), codes, dtype=torch.int8), "u" + SCALE: torch.tensor([scale])}
    assert "arrays 'u' and 'u.scale' do not belong together" in unfit(u)
