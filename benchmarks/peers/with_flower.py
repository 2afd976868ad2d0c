"""The job in Flower's own simulation: its FedAvg, its Ray backend with two CPUs, one for each client at work."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedProx
from flwr.simulation import run_simulation

from benchmarks.peers.job import (
    MU,
    SERVER_LR,
    TAU,
    Clock,
    Job,
    Trained,
    answer,
    batches,
    layers_of,
    mnist,
    torch_network,
)

STRATEGIES = {
    "fedavg": (FedAvg, {}),
    "fedprox": (FedProx, {"proximal_mu": MU}),
    "fedadam": (FedAdam, {"eta": SERVER_LR, "beta_1": 0.9, "beta_2": 0.99, "tau": TAU}),
}


def train(job: Job, clock: Clock) -> Trained:
    """Run it."""
    server, client, results = ServerApp(), ClientApp(), []
    model, clients, rounds = job.model, job.clients, job.rounds

    @client.train()
    def fit(message: Message, context: Context) -> Message:
        import torch

        torch.set_num_threads(1)
        network = torch_network(model, job.seed)
        network.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(network.parameters(), lr=job.lr)
        inputs, labels = map(torch.from_numpy, mnist())
        rows, steps = torch.from_numpy(job.rows(int(context.node_config["partition-id"]))), 0
        mu, sent = message.content.config_records["config"].get("proximal-mu", 0.0), []
        if mu:
            sent = [parameter.detach().clone() for parameter in network.parameters()]
        for positions in torch.from_numpy(batches(len(rows))):
            batch = rows[positions]
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(network(inputs[batch]), labels[batch])
            for parameter, before in zip(network.parameters(), sent, strict=False):
                loss = loss + mu / 2 * (parameter - before).square().sum()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            optimizer.step()
            steps += 1
        metrics = MetricRecord({"num-examples": len(rows), "steps": steps})
        content = RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    def ended(server_round: int, arrays: ArrayRecord) -> None:
        if server_round:  # it is asked about the starting point, too
            clock()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        kind, keys = STRATEGIES[job.algorithm]
        strategy = kind(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients, **keys)
        start = ArrayRecord(torch_network(model, job.seed).state_dict())
        results.append(strategy.start(grid, start, num_rounds=rounds, evaluate_fn=ended))

    run_simulation(
        server,
        client,
        num_supernodes=clients,
        backend_config={"init_args": {"num_cpus": job.cores}, "client_resources": {"num_cpus": 1, "num_gpus": 0}},
    )
    (result,) = results
    steps = result.train_metrics_clientapp[rounds]["steps"]
    assert isinstance(steps, float), "a mean over the clients"
    return Trained(layers_of(list(result.arrays.to_torch_state_dict().values())), steps)


if __name__ == "__main__":
    answer(train, ("flwr", "ray", "torch", "numpy"))
