"""Sweeps: many runs in worker processes, and a choice among them on held-out samples."""
