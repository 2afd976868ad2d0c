"""Differential privacy at the site: what it costs, how gradients become private, where the randomness is from."""
