"""Configurations: `RunConfig` of a run, `SiteConfig` of a site's operator."""

from edelweiss.common import ConfigError, flatten, read_overrides
from edelweiss.config.node import SiteConfig, parse_node_config
from edelweiss.config.run import RunConfig, parse_run_config
from edelweiss.datasets import DataError
from edelweiss.federation import RunError, StrategyError
from edelweiss.models import ModelError
from edelweiss.problems import ProblemError

MISTAKES = (ConfigError, DataError, ModelError, ProblemError, RunError, StrategyError)
"""Errors that are shown without a traceback: their message says all."""
