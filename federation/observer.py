"""Who is told how a run goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edelweiss import evidence
    from edelweiss.federation.sites import Site
    from edelweiss.problems import Metrics


class Observer(Protocol):
    """Who is told how a run goes: the server app's report."""

    def trained(self, server_round: int, cost: dict[str, float], work: dict[str, float]) -> None:
        """Note that a round ended, and its cost.

        Parameters
        ----------
        server_round : int
            1 to R.
        cost : dict
            gradients and samples (see `client_app.oracle.SiteOracle`) of all sites together, bytes-down, bytes-up,
            seconds, seconds-waiting; and what the algorithm measures.
        work : dict
            Gradients of each site that took part, by its name.
        """

    def evaluated(self, server_round: int, sites: list[tuple[Site, Metrics]]) -> None:
        """Note how the model that a round ended with does at these sites."""

    def told(self, labels: Mapping[str, Mapping[str, evidence.Site]]) -> None:
        """Note what is known of the scores that the final model gives, by label and site; not told without any.

        Of one label the name is empty.
        """


class Nobody:
    """The observer that does not look."""

    def trained(self, server_round: int, cost: dict[str, float], work: dict[str, float]) -> None:
        """Do nothing."""

    def evaluated(self, server_round: int, sites: list[tuple[Site, Metrics]]) -> None:
        """Do nothing."""

    def told(self, labels: Mapping[str, Mapping[str, evidence.Site]]) -> None:
        """Do nothing."""
