"""The coordinator's page: hospitals, runs, and what may be done with them."""

ROLES = ("look", "run")
