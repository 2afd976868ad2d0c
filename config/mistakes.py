"""Which errors are a user's own."""

from __future__ import annotations

from edelweiss.common import ConfigError
from edelweiss.datasets import DataError
from edelweiss.federation import RunError, StrategyError
from edelweiss.models import ModelError
from edelweiss.problems import ProblemError

MISTAKES = (ConfigError, DataError, ModelError, ProblemError, RunError, StrategyError)
"""Errors that are shown without a traceback: their message says all."""
