"""Random numbers of a site: they follow from its secret and the whole question, and from nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from PIL import Image
from scipy import stats

from edelweiss.client_app.privacy import randomness
from edelweiss.client_app.privacy.randomness import KeyedStream, derived, digest_of, question
from edelweiss.client_app.process_cache import data_hash
from edelweiss.config import RunConfig
from edelweiss.datasets import DataConfig, load_site
from edelweiss.federation import fingerprint as fingerprints
from tests.server_app.sites import images

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEY = "0badc0de" * 8


def test_the_stream_is_aes_in_counter_mode() -> None:
    key = bytes(range(32))
    block = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()
    wanted = b"".join(block.update(i.to_bytes(16, "big")) for i in range(4))
    stream = KeyedStream(key)
    assert stream.words(3).tobytes() + stream.words(5).tobytes() == wanted


def test_each_is_chosen_with_the_probability_that_is_asked() -> None:
    stream, count = KeyedStream(bytes(32)), 20_000
    for rate in (0.01, 0.5, 0.99):
        chosen = stream.chosen(count, rate).numpy()
        assert (np.diff(chosen) > 0).all()
        assert stats.binomtest(len(chosen), count, rate).pvalue > 1e-3
        assert stats.kstest(chosen / count, "uniform").pvalue > 1e-3
    assert len(stream.chosen(count, 1.0)) == count
    assert len(stream.chosen(count, 0.0)) == 0


def test_numbers_are_normal_out_to_their_tails() -> None:
    normal = KeyedStream(bytes(32)).normal(200_001).numpy()
    assert stats.kstest(normal, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(normal[:100_000], normal[100_000:200_000])[0, 1]) < 0.02
    for sign in (-1, 1):  # of 200,001 about 270 lie beyond three
        assert stats.binomtest(int((sign * normal > 3).sum()), len(normal), stats.norm.sf(3)).pvalue > 1e-3


class _Words(KeyedStream):
    """Words that are given."""

    given: tuple[int, ...]

    def words(self, count: int) -> NDArray[np.uint64]:
        return np.array(self.given[:count], dtype=np.uint64)


@pytest.mark.parametrize("radius", [2**24, 2**34, 2**44])
def test_normal_numbers_lie_close_far_out_too(radius: int) -> None:
    """Else a noised sum, which lies on a grid, could have values that one patient more or less makes impossible."""
    stream, found = _Words(bytes(32)), []
    for angle in (2**60, 2**60 + 2**11):  # the next one that there is
        stream.given = radius, angle
        found.append(float(stream.normal(1)))
    assert min(found) > 4
    assert 0 < abs(found[0] - found[1]) < 1e-12


def test_the_ends_of_the_normal_numbers_are_finite() -> None:
    stream = _Words(bytes(32))
    for word in (0, 2**64 - 1):
        stream.given = word, word
        assert torch.isfinite(stream.normal(2)).all()


def test_a_generator_has_more_state_than_its_seed() -> None:
    """PyTorch's own have 32 bits of it on a processor, which can be searched."""
    one, other = (KeyedStream(bytes([k]) * 32).generator("batches") for k in (0, 1))
    again = KeyedStream(bytes(32)).generator("batches")
    drawn = torch.randperm(1000, generator=one)
    assert torch.equal(drawn, torch.randperm(1000, generator=again))
    assert not torch.equal(drawn, torch.randperm(1000, generator=other))
    seeded = torch.Generator().manual_seed(again.initial_seed())
    assert not torch.equal(drawn, torch.randperm(1000, generator=seeded))
    assert not torch.equal(drawn, torch.randperm(1000, generator=KeyedStream(bytes(32)).generator("algorithm")))


def test_everything_that_an_answer_depends_on_is_part_of_its_key() -> None:
    run = RunConfig.parse({})
    context, later = (run.strategy.context(r, 10, "train", 2) for r in (1, 2))
    vectors = {"x": torch.zeros(3)}
    asked = [
        question(run, (0, "summary"), "data", context, vectors, {}),
        question(run, (1, "summary"), "data", context, vectors, {}),
        question(run, (0, "other"), "data", context, vectors, {}),
        question(run, (0, "summary"), "others", context, vectors, {}),
        question(run, (0, "summary"), "data", later, vectors, {}),
        question(run, (0, "summary"), "data", context, {"x": torch.tensor([0.0, 0.0, 1e-30])}, {}),
        question(run, (0, "summary"), "data", context, {"y": torch.zeros(3)}, {}),
        question(run, (0, "summary"), "data", context, {}, vectors),
    ]
    for key, value in (("threads", 2), ("matmul-precision", "high"), ("dp.epsilon", 3.0), ("codasca.lr", 0.2)):
        asked.append(question(RunConfig.parse({key: value}), (0, "summary"), "data", context, vectors, {}))
    keys = [derived(b"secret", "answer", one) for one in asked] + [derived(b"other", "answer", asked[0])]
    assert len(set(keys)) == len(keys)
    free = RunConfig.parse({"workers": 3, "runs-dir": "elsewhere", "engine": "local"})
    assert question(free, (0, "summary"), "data", context, vectors, {}) == asked[0]


def test_another_version_of_a_plug_in_answers_with_other_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two functions of the same noise would have a difference without."""
    monkeypatch.syspath_prepend(tmp_path)
    run = RunConfig.parse({})
    monkeypatch.setattr(randomness, "packages_of", lambda flat: ("outside_of_this_app",))
    asked = []
    for version in (1, 2):
        (tmp_path / "outside_of_this_app.py").write_text(f"VERSION = {version}\n", encoding="utf-8")
        asked.append(question(run, (), "data", run.strategy.context(1, 10, "train", 2), {}, {}))
        fingerprints._HASHES.clear()
    assert asked[0] != asked[1]


def test_whose_the_rows_are_is_part_of_what_the_data_are(tmp_path: Path) -> None:
    place = Path(str(images(tmp_path, 0, 100)["data-dir"]))
    lines = (place / "labels.csv").read_text(encoding="utf-8").splitlines()
    hashes = set()
    for patients in (1, 2):  # samples of each
        rows = [f"{line},{number // patients}" for number, line in enumerate(lines[1:])]
        (place / "labels.csv").write_text("\n".join([f"{lines[0]},who", *rows]), encoding="utf-8")
        config = DataConfig(dataset="site", data_dir=str(place), key=KEY, patient="who", holdout_share=0.0)
        hashes.add(data_hash(load_site(replace(config, stamp=str(patients)), 0, 1)))
    assert len(hashes) == 2


def test_one_value_and_one_label_are_part_of_what_the_data_are(tmp_path: Path) -> None:
    place = Path(str(images(tmp_path, 0, 100)["data-dir"]))
    config = DataConfig(dataset="site", data_dir=str(place), key=KEY, holdout_share=0.0)
    hashes = [data_hash(load_site(replace(config, stamp="as it was"), 0, 1))]
    header, first, *others = (place / "labels.csv").read_text(encoding="utf-8").splitlines()
    name, label = first.split(",")
    pixels = np.array(Image.open(place / name))
    pixels[0, 0] ^= 1
    Image.fromarray(pixels).save(place / name)
    hashes.append(data_hash(load_site(replace(config, stamp="one pixel"), 0, 1)))
    changed = f"{name},{1 - int(label)}"
    (place / "labels.csv").write_text("\n".join([header, changed, *others]), encoding="utf-8")
    hashes.append(data_hash(load_site(replace(config, stamp="one label"), 0, 1)))
    assert len(set(hashes)) == 3


def test_parts_do_not_run_into_each_other() -> None:
    assert derived(b"s", "p", [b"ab", b"c"]) != derived(b"s", "p", [b"a", b"bc"])
    assert digest_of({"a": torch.zeros(2)}) != digest_of({"a": torch.zeros(2, dtype=torch.float64)})
    assert digest_of({"a": torch.zeros(2)}) != digest_of({"a": torch.zeros(1, 2)})
