"""Every algorithm as a Flower ``Strategy``: the public base class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from flwr.serverapp.strategy import Result, Strategy

from edelweiss.federation.algorithm import Algorithm
from edelweiss.federation.errors import StrategyError
from edelweiss.federation.exchange import Exchange
from edelweiss.federation.rounds import Rounds
from edelweiss.federation.sites import Site
from edelweiss.federation.wire import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable

    from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
    from flwr.serverapp import Grid


@dataclass(frozen=True, kw_only=True)
class FederatedStrategy(Algorithm, Strategy):
    """The base of all algorithms: an `Algorithm` with a ``start`` that any Flower ServerApp can call."""

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        *,
        exchange: Exchange | None = None,
        **options: Any,
    ) -> Result:
        """Run all rounds; the parameters up to ``evaluate_fn`` are Flower's.

        Parameters
        ----------
        grid : Grid
            Any engine's.
        initial_arrays : ArrayRecord
            The starting model as flat vectors (`federation.pack`): x, and y and buffers if the problem has them.
        num_rounds : int
            R.
        timeout : float
            Seconds to wait for the sites in one exchange, if no ``exchange`` is given.
        train_config, evaluate_config : ConfigRecord, optional
            Sent with every message: the fields of a `datasets.DataSummary`. A site rejects unknown keys.
        evaluate_fn : callable, optional
            Evaluates a model at the server, after each round.
        exchange : Exchange, optional
            Default: all nodes of the grid, all of which must reply within ``timeout``.
        **options
            Further attributes of `Rounds`, such as ``observer`` and ``checkpoints``.

        Returns
        -------
        Result
            Flower's; ``arrays`` is the model chosen by ``output``.

        Raises
        ------
        RunError
            If the run cannot continue; all earlier rounds have been reported to the observer.
        """
        if exchange is None:
            sites = [Site(i, str(node), node) for i, node in enumerate(sorted(grid.get_node_ids()))]
            exchange = Exchange(grid, timeout, sites, advice=f"Lower {self.step_sizes}")
        return Rounds(
            algorithm=self,
            exchange=exchange,
            start=unpack(initial_arrays),
            count=num_rounds,
            train_config=train_config or {},
            evaluate_config=evaluate_config or {},
            evaluate=None if evaluate_fn is None else lambda r, model: evaluate_fn(r, pack(model)),
            **options,
        ).play()

    # Flower's own loop would call these, but the state of a run belongs to its `Rounds`.

    def _only_start(self, *arguments: object, **keywords: object) -> NoReturn:
        raise StrategyError(f"{self.name} has no run in progress: call start(), which runs all rounds")

    configure_train = aggregate_train = configure_evaluate = aggregate_evaluate = _only_start

    def summary(self) -> None:
        """Log the algorithm and its hyper-parameters; Flower's name for it."""
        self.log_hyper_parameters()
