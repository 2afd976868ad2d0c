"""What tests of a hospital's side share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client_app.postgres import Server, cluster


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL that is empty at first; a test names its tables by itself."""
    with cluster() as server:
        yield server
