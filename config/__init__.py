"""Configurations: `RunConfig` of a run, `SiteConfig` of a site's operator.

Importing this package costs nothing: a run's keys need torch, which takes seconds, and a site's page does without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edelweiss.common.lazy import first_used

if TYPE_CHECKING:
    from edelweiss.common import ConfigError, flatten, read_overrides
    from edelweiss.config.mistakes import MISTAKES
    from edelweiss.config.node import SiteConfig, parse_node_config
    from edelweiss.config.run import RunConfig, parse_run_config

__getattr__ = first_used(
    globals(),
    {
        "edelweiss.common": "ConfigError flatten read_overrides",
        "edelweiss.config.mistakes": "MISTAKES",
        "edelweiss.config.node": "SiteConfig parse_node_config",
        "edelweiss.config.run": "RunConfig parse_run_config",
    },
)
