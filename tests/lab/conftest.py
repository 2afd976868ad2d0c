"""Runs leave nothing behind but their folders."""

from __future__ import annotations

from tests.server_app.conftest import nothing_left_behind

__all__ = ["nothing_left_behind"]
