"""Grids of step sizes, and their edges."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edelweiss.lab.compare.runs import Settings

FACTOR = 3.0  # by which a grid of step sizes grows


def steps(point: Settings) -> dict[str, float]:
    """Return the step sizes of a point: what a grid is extended by."""
    return {key: float(value) for key, value in point.items() if key.rpartition(".")[2].startswith("lr")}


def tied(points: Sequence[Settings]) -> list[list[str]]:
    """Return the step sizes of a grid, in lists of those that have the same ratio in all points."""
    found: list[list[str]] = []
    for key in dict.fromkeys(key for point in points for key in steps(point)):
        for others in found:
            both = [steps(point) for point in points if {key, others[0]} <= point.keys()]
            if both and len({f"{point[key] / point[others[0]]:.6g}" for point in both if point[others[0]]}) == 1:
                others.append(key)
                break
        else:
            found.append([key])
    return found


def beyond(points: Sequence[Settings], best: Settings) -> Settings | None:
    """Return the point past the edge of a grid that the best point lies on, three times as far; None inside.

    Its neighbours are the points that differ in a step size only, or in several that have the same ratio in all points.
    """
    for group in tied(points):
        moved = {key: value for key, value in steps(best).items() if key in group}
        others = {key: value for key, value in best.items() if key not in moved}
        line = [
            float(point[next(iter(moved))])
            for point in points
            if moved and others.items() <= point.items() and moved.keys() <= point.keys()
        ]
        if len(set(line)) < 2 or min(line) < (here := float(best[next(iter(moved))])) < max(line):
            continue
        factor = 1 / FACTOR if here == min(line) else FACTOR
        return {**best, **{key: float(f"{value * factor:.1g}") for key, value in moved.items()}}
    return None
