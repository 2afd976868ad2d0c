"""The job in pfl, with two processes that reduce by torch.distributed, each with one thread."""

# mypy: disable-error-code="import-not-found"
from __future__ import annotations

import os
import socket
import subprocess
import sys

from benchmarks.peers.job import (
    BATCH,
    MU,
    STEPS,
    Clock,
    Job,
    Trained,
    answer,
    batches,
    layers_of,
    mnist,
    torch_network,
)

RANK, ADDRESSES = "PFL_WORKER_RANK", "PFL_WORKER_ADDRESSES"  # pfl reads them when it is imported


def train(job: Job, clock: Clock, mended: bool = False) -> Trained:
    """Run it here and, for FedAvg, in a second process, which is this one's command again."""
    if mended:
        mend()
    if RANK in os.environ or job.cores == 1:
        return _run(job, clock)
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    os.environ |= {ADDRESSES: f"localhost:{port},localhost:{port + 1}"}
    command = [sys.executable, "-m", "benchmarks.peers.with_pfl", *sys.argv[1:]]
    with subprocess.Popen(command, env=os.environ | {RANK: "1"}, stdout=subprocess.DEVNULL) as other:
        os.environ[RANK] = "0"
        try:
            return _run(job, clock)
        except BaseException:
            other.kill()  # it would wait for this one
            raise


def mend() -> None:
    """Give SCAFFOLD's local steps the control variates in each other's place.

    pfl 0.6.0 makes them of the way from x to w, where the paper has that from w to x: they are its own with the sign
    turned, and so is their difference in a step.
    """
    from pfl.internal.bridge.pytorch.scaffold import PyTorchSCAFFOLDBridge as Bridge

    original = Bridge.do_control_variate_sgd

    def swapped(*model: object, local_c: object, server_c: object) -> None:
        original(*model, local_c=server_c, server_c=local_c)

    Bridge.do_control_variate_sgd = staticmethod(swapped)


def _run(job: Job, clock: Clock) -> Trained:
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.algorithm.fedprox import FedProx, FedProxParams
    from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.data.user_state import InMemoryUserStateStorage
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    torch.set_num_threads(1)
    visits = steps = 0

    class Shuffled(Dataset):  # type: ignore[misc]  # pfl has no types
        """pfl's own has the same batches in every round, and ends with the epoch."""

        def iter(self, batch_size: int | None) -> object:
            nonlocal visits, steps
            visits += 1
            inputs, labels = self.raw_data
            for positions in torch.from_numpy(batches(len(labels))):
                steps += 1
                yield inputs[positions], labels[positions]

    class Classifier(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = torch_network(job.model, job.seed)

        def loss(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(self.network(inputs), labels)

        def metrics(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, object]:
            return {}

    class Ends(TrainingProcessCallback):  # type: ignore[misc]  # pfl has no types
        def after_central_iteration(self, *_: object, **__: object) -> tuple[bool, Metrics]:
            clock()
            return False, Metrics()

    inputs, labels = map(torch.from_numpy, mnist())
    rows = [torch.from_numpy(job.rows(client)) for client in range(job.clients)]
    users = {client: Shuffled((inputs[own], labels[own]), user_id=str(client)) for client, own in enumerate(rows)}
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
    classifier = Classifier()
    model = PyTorchModel(classifier, torch.optim.SGD, torch.optim.SGD(classifier.parameters(), lr=1.0))
    counts = {
        "central_num_iterations": job.rounds,
        "evaluation_frequency": job.rounds + 1,
        "train_cohort_size": job.clients,
        "val_cohort_size": 0,
    }
    algorithm, parameters = FederatedAveraging(), NNAlgorithmParams(**counts)
    if job.algorithm == "scaffold":
        store = {"user_state_storage": InMemoryUserStateStorage(), "population": job.clients}
        algorithm, parameters = SCAFFOLD(), SCAFFOLDParams(use_gradient_as_control_variate=False, **store, **counts)
    elif job.algorithm == "fedprox":
        algorithm, parameters = FedProx(), FedProxParams(mu=MU, **counts)
    # SCAFFOLD counts epochs; the clients that it is tried on have as many samples as a round takes.
    length = {"local_num_epochs": None, "local_num_steps": STEPS}
    if not job.alike:
        length = {"local_num_epochs": 1, "local_num_steps": None}
    algorithm.run(
        parameters,
        SimulatedBackend(training_data=data, val_data=None),
        model,
        NNTrainHyperParams(local_learning_rate=job.lr, local_batch_size=BATCH, **length),
        callbacks=[Ends()],
    )
    return Trained(layers_of(list(classifier.parameters())), steps / visits)


if __name__ == "__main__":
    answer(train, ("pfl", "torch", "numpy"), mended={"action": "store_true"})
