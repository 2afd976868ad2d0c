"""Masks and sums by themselves: keys that nobody may use, and what a sum hides."""

from __future__ import annotations

import os
from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from edelweiss.federation import BadReplyError
from edelweiss.federation.masks import Chains, KeyShare, MaskError, exchange_of
from edelweiss.federation.seals import key_hash
from edelweiss.federation.sums import BINS, Layout, Part, SumError, as_histogram, counted
from edelweiss.federation.ticket import Ticket
from edelweiss.problems.histogram import Histogram, bins_of, scores_of

NAMES = ("a", "b", "c")
HASH = b"\x01" * 32


def keys() -> tuple[Ticket, dict[str, tuple[bytes, KeyShare]], dict[str, ec.EllipticCurvePrivateKey]]:
    """Return a ticket of three sites, and each one's private half and share."""
    identities = {name: ec.generate_private_key(ec.SECP384R1()) for name in NAMES}
    sites = {name: key_hash(key.public_key()) for name, key in identities.items()}
    executor = Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex()
    ticket = Ticket(serial=1, ends=2**40, release="0" * 12, config="0" * 64, sites=sites, executor=executor)
    return ticket, {name: KeyShare.made(HASH, name, key) for name, key in identities.items()}, identities


def test_each_pair_of_sites_has_one_secret_of_its_own() -> None:
    _, made, _ = keys()
    shares = [share for _, share in made.values()]
    chains = {name: Chains.agreed(private, share, shares).keys for name, (private, share) in made.items()}
    secrets = [chains[one][other] for one in NAMES for other in NAMES if one < other]
    assert [chains[other][one] for one in NAMES for other in NAMES if one < other] == secrets
    assert len({*secrets}) == 3


def test_two_sites_that_got_different_keys_of_a_third_have_no_common_secret() -> None:
    """The coordinator tells b another key of c than a."""
    _, made, identities = keys()
    other = KeyShare.made(HASH, "c", identities["c"])[1]
    (a, of_a), (b, of_b), (_, of_c) = (made[name] for name in NAMES)
    one, two = Chains.agreed(a, of_a, [of_a, of_b, of_c]), Chains.agreed(b, of_b, [of_a, of_b, other])
    assert one.keys["b"] != two.keys["a"]


@pytest.mark.parametrize("point", [bytes(32), b"\x01" + bytes(31)])
def test_a_key_of_low_order_is_refused(point: bytes) -> None:
    ticket, made, identities = keys()
    _, share = made["b"]
    from edelweiss.federation import masks

    signed = identities["b"].sign(masks._statement(HASH, "b", point, bytes.fromhex(share.nonce)), masks.SIGNATURE)
    low = KeyShare("b", share.key, point.hex(), share.nonce, signed.hex())
    assert KeyShare.signed(low.pack(), ticket, HASH) == low
    private, own = made["a"]
    with pytest.raises(MaskError):
        Chains.agreed(private, own, [own, low, made["c"][1]])


def test_a_key_is_of_one_ticket_and_one_site() -> None:
    ticket, made, _ = keys()
    share = made["a"][1]
    assert KeyShare.signed(share.pack(), ticket, HASH) == share
    with pytest.raises(MaskError):
        KeyShare.signed(share.pack(), ticket, b"\x02" * 32)
    stolen = ticket.model_copy(update={"sites": {**ticket.sites, "a": ticket.sites["b"], "b": ticket.sites["a"]}})
    with pytest.raises(MaskError):
        KeyShare.signed(share.pack(), stolen, HASH)


def test_masks_cancel_in_the_sum_of_the_same_exchange_alone() -> None:
    _, made, _ = keys()
    shares = [share for _, share in made.values()]
    chains = [Chains.agreed(private, share, shares) for private, share in made.values()]
    e, other = exchange_of(3, b"q", b"l"), exchange_of(3, b"another", b"l")
    rows = [np.arange(1000, dtype=np.uint64) * np.uint64(place + 1) for place in range(3)]
    masked = [chain.mask(row.copy(), e) for chain, row in zip(chains, rows, strict=True)]
    assert (sum(masked) == sum(rows)).all()
    mixed = [*masked[:2], chains[2].mask(rows[2].copy(), other)]
    assert (sum(mixed) != sum(rows)).mean() > 0.99
    after = [chain.stepped(e) for chain in chains]
    assert all(one.keys != two.keys for one, two in zip(chains, after, strict=True))
    again = [chain.mask(row.copy(), e) for chain, row in zip(after, rows, strict=True)]
    assert (sum(again) == sum(rows)).all()
    assert all((one != two).mean() > 0.99 for one, two in zip(masked, again, strict=True))


def test_two_sites_inputs_swapped_at_an_equal_sum_have_one_transcript_under_some_pad() -> None:
    """So with the pad unknown the third site and the coordinator cannot tell which of the two sent which."""
    rng = np.random.default_rng(0)
    x, y, pad = (rng.integers(0, 2**64, 50, dtype=np.uint64) for _ in range(3))
    sent = x + pad, y - pad
    other = pad + x - y
    assert ((y + other) == sent[0]).all()
    assert ((x - other) == sent[1]).all()


NUMBERS = st.lists(st.lists(st.floats(-1000, 1000, width=32), min_size=3, max_size=3), min_size=2, max_size=6)


@given(NUMBERS)
def test_sums_are_exact_to_half_a_step_of_each_site(rows: list[list[float]]) -> None:
    part = Part("v", (3,), 1024.0)
    layout = Layout(len(rows), (part,))
    total = sum(layout.encode({"v": (np.array(row), 1.0)}) for row in rows)
    found = layout.decode(total)["v"]  # type: ignore[arg-type]
    step = Fraction(1) / Fraction(layout.scale(part))
    for column, number in zip(zip(*rows, strict=True), found.tolist(), strict=True):
        exact = sum(map(Fraction, column))
        assert abs(Fraction(number) - exact) <= len(rows) * step / 2 + abs(exact) / 2**52


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1025.0])
def test_what_is_no_number_of_a_sum_is_not_encoded(bad: float) -> None:
    layout = Layout(3, (Part("v", (2,), 1024.0),))
    with pytest.raises(BadReplyError):
        layout.encode({"v": (np.array([0.0, bad]), 1.0)})


def test_a_sum_with_anything_else_than_an_answer_is_not_read() -> None:
    layout = Layout(3, (Part("v", (2,), 1024.0), Part("n")))
    rows = [layout.encode({"v": (np.ones(2), 1.0), "n": (5, 1.0)}) for _ in range(3)]
    assert layout.decode(sum(rows))["n"] == 15  # type: ignore[arg-type]
    for noise in (np.frombuffer(os.urandom(8 * layout.length), "<u8"), rows[0] * np.uint64(2)):
        with pytest.raises(SumError):
            layout.decode(rows[0] + rows[1] + noise)


@given(st.lists(st.floats(-1e4, 1e4, width=32), max_size=50))
def test_a_score_and_its_bin_are_within_a_32nd(scores: list[float]) -> None:
    own = Histogram(*np.unique(bins_of(np.array(scores, np.float64)), return_counts=True))
    counts = counted(own.packed())
    assert counts.shape == (BINS,)
    assert counts.sum() == len(scores)
    middles = np.repeat(scores_of(as_histogram(counts).bins), as_histogram(counts).counts)
    for score, middle in zip(sorted(scores), middles.tolist(), strict=True):
        if 2**-14 <= abs(score) < 2**10:
            assert abs(score - middle) <= abs(score) / 32
