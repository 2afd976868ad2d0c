"""The job in FedJAX: one process, in which XLA may use both cores, with the backend that it takes on a CPU (jit)."""

# mypy: disable-error-code="import-not-found"
from __future__ import annotations

import fedjax
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers.job import BATCH, LR, STEPS, Clock, Job, Trained, answer, dealt, initial, mnist


def train(job: Job, clock: Clock) -> Trained:
    """Run it."""

    def loss(layers: list[tuple[jax.Array, jax.Array]], batch: dict[str, jax.Array], _: jax.Array) -> jax.Array:
        hidden = batch["x"]
        for i, (weight, bias) in enumerate(layers):
            hidden = jax.nn.relu(hidden) if i else hidden
            hidden = hidden @ weight.T + bias
        return -jnp.take_along_axis(jax.nn.log_softmax(hidden), batch["y"][:, None], 1).mean()

    inputs, labels = mnist()
    rows = [dealt(client, job.clients) for client in range(job.clients)]
    clients = [fedjax.ClientDataset({"x": inputs[own], "y": labels[own].astype(np.int32)}) for own in rows]
    hands = fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=None, num_steps=STEPS)
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss), fedjax.optimizers.sgd(LR), fedjax.optimizers.sgd(1.0), hands
    )
    state = algorithm.init(jax.tree_util.tree_map(jnp.asarray, initial(job.model)))
    key = jax.random.PRNGKey(0)
    for _ in range(job.rounds):
        key, own = jax.random.split(key)
        keys = jax.random.split(own, job.clients)
        state, _ = algorithm.apply(state, [(str(i), data, keys[i]) for i, data in enumerate(clients)])
        jax.block_until_ready(state.params)
        clock()
    layers = [(np.asarray(weight), np.asarray(bias)) for weight, bias in state.params]
    return Trained(layers, sum(len(batch["y"]) == BATCH for batch in clients[0].shuffle_repeat_batch(hands)))


if __name__ == "__main__":
    answer(train, ("fedjax", "jax", "jaxlib", "numpy"))
