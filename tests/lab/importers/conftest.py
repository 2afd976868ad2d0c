"""Folders that the tests read and write."""

from tests.datasets.conftest import cache, data_root

__all__ = ["cache", "data_root"]
