"""What the tests of deployments share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bin.run import free_port
from edelweiss.lab.submission import flower_environment, started
from tests.deployment.host import make_certificates
from tests.deployment.processes import Guarded, until


@pytest.fixture(scope="package")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A SuperLink with TLS that takes registered sites only."""
    folder = tmp_path_factory.mktemp("guarded")
    for name in ("certificates", "others"):
        make_certificates(folder / name)
    made = folder / "certificates"
    fleet, control = free_port(), free_port()
    command = ["flower-superlink", f"--ssl-ca-certfile={made}/ca.crt", f"--ssl-certfile={made}/superlink.crt"]
    command += [f"--ssl-keyfile={made}/superlink.key", "--enable-supernode-auth", "--isolation=process"]
    command += [f"--superexec-auth-secret-file={made}/superexec.secret", "--host=127.0.0.1", f"--port={control}"]
    command += ["--fleet-api-type=grpc-rere", f"--fleet-api-address=0.0.0.0:{fleet}"]
    with (
        (folder / "superlink.log").open("w") as log,
        started(command, flower_environment(folder), stdout=log, stderr=log),
    ):
        until(lambda: "Uvicorn running" in (folder / "superlink.log").read_text())
        yield Guarded(folder, fleet, control)


@pytest.fixture(scope="package")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What bin/make_certs.sh makes."""
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    return folder
