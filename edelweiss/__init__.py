"""Federated learning for rare outcomes, on Flower: algorithms, problems and engines under one name.

Each folder at the top of the repository is a package of this one: ``strategies`` is ``strategies/``. In a
checkout a symbolic link leads there, in a wheel it is a folder. Where links are lost (Flower's bundle, a checkout on
Windows), the folders beside this one are on its path.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).resolve().parent
if not (_HERE / "strategies").is_dir():
    # Only then: otherwise everything beside this folder, such as torch in site-packages, would be a module of it.
    __path__.append(str(_HERE.parent))
