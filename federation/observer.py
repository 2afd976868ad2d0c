"""How a run reports its progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edelweiss import evidence
    from edelweiss.evidence.noised import Noised
    from edelweiss.federation.sites import Site
    from edelweiss.problems import Metrics


class Observer:
    """Receives the progress of a run; this base class ignores it."""

    def trained(self, server_round: int, cost: dict[str, float], work: dict[str, float]) -> None:
        """A round's training has ended.

        Parameters
        ----------
        server_round : int
            1 to R.
        cost : dict
            gradients and samples (see `client_app.oracle.SiteOracle`) summed over sites, bytes-down, bytes-up, seconds,
            seconds-waiting, and the algorithm's `measures`.
        work : dict
            Gradients of each participating site, by name.
        """

    def outlying(self, sites: Mapping[str, float]) -> None:
        """Sites' replies were far longer than usual: the largest norm over the median one, by name.

        Called after `trained`, in rounds that have such a site; see `robust`.
        """

    def evaluated(self, server_round: int, sites: list[tuple[Site, Metrics]]) -> None:
        """Sites have evaluated the model at the end of a round."""

    def noised(self, labels: Mapping[str, Sequence[Noised]]) -> None:
        """Sites with differential privacy have sent noised histograms, by label; called before `evaluated`."""

    def reported(self, labels: Mapping[str, Mapping[str, evidence.Site]]) -> None:
        """Sites have reported statistics of the final model's scores, by label (empty if single) and site."""
