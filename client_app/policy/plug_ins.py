"""Plug-ins at a hospital: what a run names from outside the package runs if the policy allows it by name and hash."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from edelweiss.client_app.errors import RefusedError
from edelweiss.common import PlugInError, shown
from edelweiss.common.files import read_toml
from edelweiss.common.overrides import toml_value
from edelweiss.common.registry import offered
from edelweiss.config.plug_ins import KINDS, load_named, named_outside, package_of
from edelweiss.federation.fingerprint import installed_hash, package_hash
from edelweiss.models.storage import StoredTensors

if TYPE_CHECKING:
    from edelweiss.client_app.policy.rules import Policy
    from edelweiss.common import Value


def line_of(name: str, found: str) -> str:
    """Return the line of a policy that allows a plug-in as it is installed here; ``found`` is its ``module:name``.

    Raises
    ------
    PlugInError
        When it is not installed.
    """
    return f"{name} sha256:{package_hash(package_of(found))}"


def installed() -> dict[str, str]:
    """Return the entry points of installed packages: names, and the ``module:name`` of each."""
    return {name: found.value for registry in KINDS.values() for name, found in offered(registry.kind).items()}


def load_allowed(run_config: Mapping[str, Value], policy: Policy) -> None:
    """Import what a run names from outside, if the policy allows all of it; nothing is imported before that.

    Raises
    ------
    RefusedError
        Naming what is not allowed; its text for the site's own log has the lines that would allow it.
    """
    outside, lacks = named_outside(run_config), dict[str, str]()
    for name, found in outside.items():
        try:
            if (line := line_of(name, found)) in policy.plug_ins:
                continue
            lacks[name] = f"its policy's plug-ins lack {toml_value(line)}"
            if f"{name} sha256:{installed_hash(package_of(found))}" in policy.plug_ins:
                lacks[name] = "it was installed anew, and this process still has the former code: restart it"
        except PlugInError as error:
            lacks[name] = "; ".join(error.problems)
    if lacks:
        named = ", ".join(name if name.isprintable() else "?" for name in lacks)[:200]
        public = f"this site allows no plug-in {named}: its operator allows plug-ins by name and hash"
        raise RefusedError(f"{public}; " + "; ".join(f"{shown(name)}: {why}" for name, why in lacks.items()), public)
    if outside:
        load_named(run_config)


def load_for(model: str | Path, policy: str) -> None:
    """Import what a finished run's files name from outside, if the policy allows it.

    Parameters
    ----------
    model : str or Path
        A run folder or a model file; what is wrong with it is said by who reads it.
    policy : str
        The file with the policy; empty: there is none, and it allows nothing.

    Raises
    ------
    RefusedError, PolicyError
        Naming what is not allowed, or what is wrong with the policy.
    """
    from edelweiss.client_app.policy.rules import Policy

    named: dict[str, Value] = {}
    place = Path(model)
    with suppress(OSError, ValueError):
        if place.is_dir():
            named |= {key: value for key, value in read_toml(place / "config.toml").items() if isinstance(value, str)}
        facts = StoredTensors.read(place / "model.safetensors" if place.is_dir() else place).facts
        named |= {key: value for key, value in facts.items() if key in ("problem", "model") and isinstance(value, str)}
    used = {key: value for key, value in named.items() if key in KINDS and key != "dataset"}
    if named_outside(used):
        load_allowed(used, Policy.read(policy))
