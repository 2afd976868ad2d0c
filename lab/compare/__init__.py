"""Comparisons of finished runs: read from their folders, grouped by what differs, as tables and pictures."""

AGAINST = {"rounds": "round", "bytes": "MB per site", "gradients": "gradients per site", "seconds": "seconds"}
"""What curves may be drawn against, and its axis."""
