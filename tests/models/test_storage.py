"""Files of tensors with a checksum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from safetensors.torch import load_file, save_file

from edelweiss.models.storage import StoredTensors, write_tensors

VALUES = st.integers() | st.floats(allow_nan=False) | st.text() | st.lists(st.integers())
FACTS = st.dictionaries(st.text(min_size=1, max_size=5), VALUES, max_size=4)
TENSORS = {"x": torch.arange(20.0), "count": torch.tensor(3), "half": torch.ones(2, 3, dtype=torch.bfloat16)}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stored") / "it.safetensors"


@pytest.mark.slow
@given(facts=FACTS)
def test_a_written_file_is_intact(file: Path, facts: dict[str, Any]) -> None:
    write_tensors(file, TENSORS, facts)
    stored = StoredTensors.read(file)
    assert stored.intact
    assert stored.facts == facts
    assert all(torch.equal(stored.tensors[name], tensor) for name, tensor in TENSORS.items())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.floats(0, 1, exclude_max=True), change=st.integers(1, 255))
def test_any_changed_byte_is_noticed(file: Path, where: float, change: int) -> None:
    write_tensors(file, TENSORS, {"round": 3, "sites": ["a", "b"]})
    data = bytearray(file.read_bytes())
    data[int(where * len(data))] ^= change
    try:
        stored = StoredTensors.of(bytes(data))
    except ValueError:
        return
    as_written = StoredTensors.read(file)
    same = stored.facts == as_written.facts and stored.tensors.keys() == as_written.tensors.keys()
    assert not stored.intact or (same and all(torch.equal(stored.tensors[n], t) for n, t in as_written.tensors.items()))


def test_replaced_tensors_are_noticed(file: Path) -> None:
    from safetensors import safe_open

    write_tensors(file, TENSORS, {"round": 3})
    with safe_open(file, "pt") as opened:
        facts = opened.metadata()
    save_file(load_file(file) | {"x": torch.zeros(20)}, file, facts)
    assert not StoredTensors.read(file).intact
