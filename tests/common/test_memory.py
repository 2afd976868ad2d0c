"""Free memory is what the container leaves, not what the machine has."""

from __future__ import annotations

from pathlib import Path

import pytest

from edelweiss.common import memory

NAMES = {"": ("memory.max", "memory.current", "inactive_file")}
NAMES["memory"] = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


@pytest.mark.parametrize(("version", "own"), [("", "0::/outer/inner"), ("memory", "9:cpu,memory:/outer/inner")])
def test_the_smallest_of_nested_limits_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, own: str
) -> None:
    limit, use, cache = NAMES[version]
    for place, most, used in (("outer", "1000", 700), ("outer/inner", "max", 600)):
        folder = tmp_path / "cgroup" / version / place
        folder.mkdir(parents=True)
        (folder / limit).write_text(most)
        (folder / use).write_text(str(used))
        (folder / "memory.stat").write_text(f"anon 5\n{cache} 200\n")
    (tmp_path / "own").write_text(f"1:name=systemd:/\n{own}\n")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "_OWN", tmp_path / "own")
    assert memory.memory_limit() == 1000
    assert memory.free_memory() == 1000 - 700 + 200
