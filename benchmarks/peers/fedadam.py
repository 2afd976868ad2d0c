"""Why Flower's FedAdam and FedOpt's Algorithm 2 differ: the job of `benchmarks.peers` with each of the two differences.

    EDELWEISS_DATA=folder/with/mnist python -m benchmarks.peers.fedadam

The clients are the same throughout, in a plain loop of PyTorch; only the server's rule changes. Prints the rows of a
table in docs/results/peers-baselines.md (a minute of one core).
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import torch

from benchmarks.peers.job import SERVER_LR, TAU, Job, batches, judged, layers_of, mnist, torch_network

CLIENTS, ROUNDS, SEEDS, LR, BETA, BETA_SQUARES = 20, 20, 3, 0.03, 0.9, 0.99


def accuracy(seed: int, first: float, corrected: bool) -> float:
    """Return the test accuracy with v = ``first`` at the start, with or without Flower's correction of the bias."""
    np.random.seed(seed)
    job = Job(model="mlp", clients=CLIENTS, rounds=ROUNDS, algorithm="fedadam", seed=seed, lr=LR)
    network = torch_network("mlp", seed)
    parameters, (inputs, labels) = list(network.parameters()), map(torch.from_numpy, mnist())
    x = [one.detach().clone() for one in parameters]
    m, v = [torch.zeros_like(one) for one in x], [torch.full_like(one, first) for one in x]
    for t in range(1, ROUNDS + 1):
        delta = [torch.zeros_like(one) for one in x]
        for client in range(CLIENTS):
            rows, optimizer = torch.from_numpy(job.rows(client)), torch.optim.SGD(parameters, lr=LR)
            for own, sent in zip(parameters, x, strict=True):
                own.data.copy_(sent)
            for positions in torch.from_numpy(batches(len(rows))):
                batch = rows[positions]
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(network(inputs[batch]), labels[batch])
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                optimizer.step()
            for mean, own, sent in zip(delta, parameters, x, strict=True):
                mean.add_((own.detach() - sent) / CLIENTS)
        # Flower counts its rounds from 1 and adds another 1.
        bias = math.sqrt(1 - BETA_SQUARES ** (t + 1)) / (1 - BETA ** (t + 1)) if corrected else 1.0
        for one, mean, first_moment, second_moment in zip(x, delta, m, v, strict=True):
            first_moment.lerp_(mean, 1 - BETA)
            second_moment.lerp_(mean.square(), 1 - BETA_SQUARES)
            one.addcdiv_(first_moment, second_moment.sqrt() + TAU, value=SERVER_LR * bias)
    return judged(layers_of(x))["accuracy"]


def main() -> None:
    """Print a row for each rule."""
    torch.set_num_threads(1)
    names = {(TAU**2, False): "Algorithm 2, Edelweiss", (0.0, True): "Flower"}
    for first, corrected in product((TAU**2, 0.0), (False, True)):
        found = [accuracy(seed, first, corrected) for seed in range(SEEDS)]
        cells = ("τ²" if first else "0", "yes" if corrected else "no", names.get((first, corrected), ""))
        print("|", " | ".join([*cells, *(f"{one:.3f}" for one in found)]), "|", flush=True)


if __name__ == "__main__":
    main()
