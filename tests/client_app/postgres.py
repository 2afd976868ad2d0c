"""A real PostgreSQL of a test's own: a private cluster on a private port, which asks for a password."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from bin.run import free_port

PASSWORD = "correct horse % battery"


@dataclass(frozen=True)
class Server:
    """Where it is; the owner may write, the reader may not."""

    address: str  # without a password
    password: str = PASSWORD

    def execute(self, *statements: str) -> None:
        """Let the owner execute statements."""
        import psycopg

        with psycopg.connect(self.address, password=self.password, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())


def programs() -> Path | None:
    """Return the folder with the server's programs, the newest version's; None if it is not installed."""
    if found := shutil.which("initdb"):
        return Path(found).parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parents[1].name))
    return folders[-1].parent if folders else None


@contextmanager
def cluster() -> Iterator[Server]:
    """Start a cluster, as the user postgres if this is root; skip if PostgreSQL is not installed."""
    bin_folder = programs()
    if bin_folder is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    user = None
    if os.getuid() == 0:
        try:
            user = pwd.getpwnam("postgres").pw_name
        except KeyError:
            pytest.skip("this is root, as which PostgreSQL does not run, and there is no user postgres")
    folder = Path(tempfile.mkdtemp(prefix="edelweiss-postgres-", dir="/tmp"))  # which that user can reach
    secret, port = folder / "password", free_port()
    secret.write_text(PASSWORD)
    if user:
        for path in (folder, secret):
            shutil.chown(path, user, user)

    def call(*command: str) -> None:
        subprocess.run(
            command,
            check=True,
            cwd="/",
            user=user,
            group=user,
            extra_groups=[] if user else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
        )

    data = str(folder / "data")
    control = str(bin_folder / "pg_ctl")
    try:
        call(
            str(bin_folder / "initdb"),
            "-D",
            data,
            "-U",
            "owner",
            "-A",
            "scram-sha-256",
            "-E",
            "UTF8",
            f"--pwfile={secret}",
            "--no-sync",
        )
        options = f"-c listen_addresses=127.0.0.1 -p {port} -c unix_socket_directories= -c fsync=off"
        call(control, "-D", data, "-o", options, "-l", str(folder / "log"), "-w", "-t", "60", "start")
        try:
            yield Server(f"postgresql://owner@127.0.0.1:{port}/postgres")
        finally:
            call(control, "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
