"""The two configurations: a run's (what everybody does) and a site's (what its operator decides)."""

from config.errors import ConfigError
from config.node import SiteConfig
from config.run import RunConfig, flatten, parse_run_config, read_overrides
from datasets import DataError
from models import ModelError
from problems import ProblemError
from strategies import RunError, StrategyError

MISTAKES = (ConfigError, DataError, ModelError, ProblemError, RunError, StrategyError)
"""Errors whose message is all that a user needs: they are shown without a traceback."""

__all__ = ["MISTAKES", "ConfigError", "RunConfig", "SiteConfig", "flatten", "parse_run_config", "read_overrides"]
