"""The local engine beside other simulators of federated learning, on one job and one machine: seconds per round."""
