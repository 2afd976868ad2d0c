"""docker-compose.yml: it is valid and strict. That its services train: test_containers.py, and others here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.x509 import Certificate, SubjectAlternativeName, load_pem_x509_certificate

from bin.run import REPO
from edelweiss.client_app.connection import read_certificate, read_key
from edelweiss.lab.submission import app_table
from tests.deployment.host import (
    COMPOSE,
    DEPLOYMENT,
    HOSPITALS,
    SERVICES,
    Host,
    make_certificates,
)


@pytest.mark.slow
def test_the_file_is_valid_compose() -> None:
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    check = subprocess.run(checker, capture_output=True, text=True)
    assert check.returncode == 0, check.stdout + check.stderr
    assert "version" not in DEPLOYMENT


def test_the_image_has_every_package_of_the_bundle() -> None:
    ignored = (COMPOSE.parent / ".dockerignore").read_text(encoding="utf-8").splitlines()
    packages = {pattern.partition("/")[0] for pattern in app_table()["fab-include"]}
    assert packages <= {line.removeprefix("!") for line in ignored if line.startswith("!")}


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_can_do_more_than_it_must(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["user"] == "${EDELWEISS_USER:-1000:1000}"
    assert "--insecure" not in service["command"]
    assert service["logging"] == {"driver": "json-file", "options": {"max-size": "10m", "max-file": "5"}}
    assert name == "superlink" or all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


@pytest.mark.parametrize("name", HOSPITALS)
def test_a_hospital_holds_its_own_key_and_only_reads_its_own_data(name: str) -> None:
    own = [{"source": name, "target": "key"}, {"source": f"{name}-certificate", "target": "certificate"}]
    assert SERVICES[name]["secrets"] == ["ca", "study", *own]
    volumes = ["./site.toml:/site.toml:ro", f"./data/{name}:/data:ro", f"{name}-state:/state", f"{name}-page:/page"]
    assert SERVICES[name]["volumes"] == volumes
    assert f"--site={name}" in SERVICES[name]["command"]


@pytest.mark.parametrize("name", HOSPITALS)
def test_a_hospital_shares_a_network_with_the_superlink_only(name: str) -> None:
    """On one machine it is shut in; on a machine of its own, INTERNAL=false lets it out."""
    [network] = SERVICES[name]["networks"]
    assert [other for other in SERVICES if network in SERVICES[other]["networks"]] == ["superlink", name]
    assert DEPLOYMENT["networks"][network]["internal"] == "${INTERNAL:-true}"


@pytest.mark.parametrize("name", HOSPITALS)
def test_a_hospitals_page_is_published_by_a_container_that_has_its_socket_and_nothing_else(name: str) -> None:
    page = SERVICES[name.replace("hospital", "page")]
    assert page["volumes"] == [f"{name}-page:/page:ro"]
    assert page["networks"] == ["pages"]
    assert "secrets" not in page
    assert "environment" not in page
    assert [other for other in HOSPITALS if "pages" in SERVICES[other]["networks"]] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be root")
@pytest.mark.parametrize("allowed", ["", "1"])
def test_no_service_runs_as_root_unless_told(allowed: str) -> None:
    words = [word.replace("$$", "$") for word in SERVICES["hospital-a"]["entrypoint"]]
    told = os.environ | {"EDELWEISS_ALLOW_ROOT": allowed}
    done = subprocess.run([*words, "echo", "it runs"], env=told, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == ((0, "it runs\n") if allowed else (2, ""))
    assert allowed or "EDELWEISS_USER" in done.stderr


def test_jobs_are_taken_in_the_coordinators_own_network_only() -> None:
    networks = SERVICES["superlink"]["networks"]
    assert "--host=control" in SERVICES["superlink"]["command"]
    assert [name for name in networks if "control" in networks[name].get("aliases", [])] == ["control"]
    assert DEPLOYMENT["networks"]["control"] == {"internal": True}


def test_every_secret_is_one_that_make_certs_makes(certificates: Path) -> None:
    for name, secret in DEPLOYMENT["secrets"].items():
        made = certificates / Path(secret["file"]).relative_to("certificates")
        assert made.is_file(), name
        assert made.suffix in (".crt", ".pub") or made.stat().st_mode & 0o077 == 0, f"others can read {made.name}"


@pytest.mark.slow
def test_the_certificate_is_signed_again_for_a_new_host_by_the_same_authority(tmp_path: Path) -> None:
    """Nothing else changes, names that it has are kept, and without the authority's key the script says so."""
    assert "superlink.crt is for" in make_certificates(tmp_path)
    assert "superlink.crt is for" not in make_certificates(tmp_path), "what exists is kept"
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    for host, name in (("coordinator.example.org", "DNS:coordinator.example.org"), ("192.0.2.7", "IP:192.0.2.7")):
        assert name in make_certificates(tmp_path, "--host", host).partition("\n")[0]
    verify = ["openssl", "verify", "-CAfile", "ca.crt", "-verify_hostname", "coordinator.example.org"]
    verify += ["-verify_ip", "192.0.2.7", "superlink.crt"]
    assert subprocess.run(verify, cwd=tmp_path, capture_output=True).returncode == 0
    changed = [path.name for path, content in before.items() if path.read_bytes() != content]
    assert sorted(changed) == ["ca.srl", "superlink.crt"]

    (tmp_path / "ca.key").unlink()  # the coordinator keeps it elsewhere
    make_certificates(tmp_path, "--host", "coordinator.example.org")
    for arguments in (["--host", "another.example.org"], ["hospital-d"]):
        with pytest.raises(subprocess.CalledProcessError) as refusal:
            make_certificates(tmp_path, *arguments)
        assert "bring ca.key back" in refusal.value.stderr


def test_the_script_prints_the_line_for_compose_unless_the_user_is_the_default(certificates: Path) -> None:
    """Under an `id` of its own in the PATH, as another user has it."""
    for user, group, expected in ((1000, 1000, ""), (1234, 5678, 'EDELWEISS_USER="1234:5678"')):
        (tools := certificates / f"of-{user}").mkdir()
        (tools / "id").write_text(f'#!/bin/sh\n[ "$1" = -u ] && echo {user} || echo {group}\n')
        (tools / "id").chmod(0o755)
        environment = os.environ | {"OUT": str(certificates), "PATH": f"{tools}:{os.environ['PATH']}"}
        done = subprocess.run([str(REPO / "bin" / "make_certs.sh")], env=environment, capture_output=True, text=True)
        lines = [line.partition(": ")[2] for line in done.stdout.splitlines() if line.startswith("Add to .env: ")]
        assert lines == ([expected] if expected else [])
        shutil.rmtree(tools)


def test_the_study_key_is_where_a_run_is_signed_and_nowhere_else() -> None:
    has = {name for name in SERVICES for secret in SERVICES[name].get("secrets", []) if secret == "study-key"}
    assert has == {"submit"}


def test_a_hospital_that_brings_its_own_public_key_gets_a_certificate_for_it(tmp_path: Path) -> None:
    """And another one, if it brings another key."""
    (tmp_path / "public").mkdir()
    for number in range(2):
        key = tmp_path / f"{number}.key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(key)], check=True)
        (tmp_path / "public" / "hospital-z.pub").write_bytes((tmp_path / f"{number}.key.pub").read_bytes())
        make_certificates(tmp_path, "hospital-z")
        assert read_certificate(str(tmp_path / "public" / "hospital-z.crt"), read_key(str(key)))
        assert not (tmp_path / "hospital-z.key").exists()


def test_certificates_are_renewed_before_they_end_and_keys_stay(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    text = (REPO / "bin" / "make_certs.sh").read_text()
    (tmp_path / "bin" / "of_ten_days.sh").write_text(text.replace("-days 825", "-days 10"))
    environment = os.environ | {"OUT": str(tmp_path)}
    subprocess.run(["bash", str(tmp_path / "bin" / "of_ten_days.sh")], env=environment, check=True, capture_output=True)
    files = [tmp_path / name for name in ("superlink.crt", "operator.crt", "public/hospital-a.crt")]
    due = [load_pem_x509_certificate(file.read_bytes()) for file in files]
    make_certificates(tmp_path)
    for file, old in zip(files, due, strict=True):
        new = load_pem_x509_certificate(file.read_bytes())
        assert new.not_valid_after_utc - old.not_valid_after_utc > timedelta(days=800), file
        assert new.public_key() == old.public_key()
        if file.name == "superlink.crt":
            assert names(new) == names(old)
    kept = [file.read_bytes() for file in files]
    make_certificates(tmp_path)
    assert [file.read_bytes() for file in files] == kept


def names(certificate: Certificate) -> list[str]:
    named = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
    return sorted(str(name.value) for name in named)


@pytest.mark.deployments
def test_what_the_superlink_remembers_is_for_its_own_user_only(tmp_path: Path, certificates: Path) -> None:
    """Its database holds who is registered, and the messages of runs."""
    host = Host(tmp_path, certificates)
    with host.up("superlink"):
        files = [path for path in host.folder("superlink", "/state").rglob("*") if path.is_file()]
        assert "superlink.db" in {path.name for path in files}
        assert [path.name for path in files if path.stat().st_mode & 0o077] == []
