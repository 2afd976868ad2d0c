"""A study with keys of its own and two hospitals whose rules pin it, for tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from edelweiss.client_app.connection import read_key
from edelweiss.common import Value
from edelweiss.config import RunConfig
from edelweiss.federation.seals import Seals, key_hash
from edelweiss.federation.ticket import private_key, read, ticket_hash
from edelweiss.lab.cli import main
from edelweiss.lab.signing import ticket_for
from tests.client_app.policies import site_toml
from tests.server_app.sites import site_job, table, write_table

NAMES = ("east", "north")


def new_key(file: Path) -> str:
    """Make a site's key; return its public half in OpenSSH's format."""
    key = ec.generate_private_key(ec.SECP384R1())
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


@dataclass
class Study:
    """A study's keys and its hospitals, whose rules pin its key, and with ``peers`` each other."""

    folder: Path
    names: tuple[str, ...] = NAMES
    peers: bool = False
    nodes: list[dict[str, Value]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make all keys and the hospitals' data."""
        self.folder.mkdir(exist_ok=True)
        for name in ("study.key", "executor.key", "stranger.key"):
            assert main(["study", "key", str(self.folder / name)]) == 0
        (self.folder / "public").mkdir()
        for name in self.names:
            (self.folder / name).mkdir()
            (self.folder / "public" / f"{name}.pub").write_text(new_key(self.folder / name / "key"))
        for place, name in enumerate(self.names):
            folder = self.folder / name
            self.nodes.append(
                {
                    "site": name,
                    "data-dir": str(write_table(folder / "data", *table(120, place))),
                    "state-dir": str(folder / "state"),
                    "policy": self.rules(name),
                    "key": str(folder / "key"),
                    "label": "label",
                }
            )

    def rules(self, name: str, **more: Any) -> str:
        """Write a hospital's rules, and more of them; return their file."""
        rules: dict[str, Any] = {"study_keys": [str(self.folder / "study.key.pub")], "seed": "tests", **more}
        if self.peers:
            others = [other for other in self.names if other != name]
            rules |= {"peers": {other: self.hash_of(other) for other in others}, "secure_aggregation": "required"}
        return site_toml(self.folder / name, **rules)

    def unpinned(self) -> list[dict[str, Value]]:
        """Return the hospitals with rules that pin no study key."""
        return [
            {**node, "policy": site_toml(self.folder / str(node["site"]) / "open", seed="tests")} for node in self.nodes
        ]

    def job(self, **keys: Value) -> RunConfig:
        """Return a run of both hospitals, unsigned."""
        return site_job(
            self.folder, **{"sites": len(self.names), "rounds": 2, "workers": 1, "round_timeout": 5.0, **keys}
        )

    def ticket(self, job: RunConfig, *, by: str = "study.key", executor: str = "executor.key") -> str:
        """Sign a run."""
        files = (self.folder / by, self.folder / "public", self.folder / f"{executor}.pub")
        return ticket_for(job.written(), *map(str, files), 1.0)

    def signed(self, **keys: Value) -> RunConfig:
        """Return a run with its ticket."""
        job = self.job(**keys)
        return changed(job, ticket=self.ticket(job))

    def hash_of(self, name: str) -> str:
        """Return the hash of a hospital's public key."""
        return key_hash(read_key(str(self.folder / name / "key")).public_key())

    def digits(self, name: str) -> str:
        """Return the public half of a study's or executor's key, as rules pin it."""
        return private_key(str(self.folder / name)).public_key().public_bytes_raw().hex()

    def seals(self, job: RunConfig, executor: str = "executor.key") -> Seals:
        """Return what an executor seals the questions of a run with."""
        return Seals(read(job.ticket), ticket_hash(job.ticket), private_key(str(self.folder / executor)))


def changed(job: RunConfig, **keys: Value) -> RunConfig:
    """Return the run with other values of some keys."""
    return RunConfig.parse({**job.written(), **{key.replace("_", "-"): value for key, value in keys.items()}})
