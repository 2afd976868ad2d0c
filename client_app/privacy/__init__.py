"""Differential privacy at the site: its oracle, and where its randomness is from."""
