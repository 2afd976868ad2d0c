"""Is all well at this site? Each thing that a site needs, tried with its real settings, and the fix for what fails."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from client_app.connection import JoinConfig, read_certificates, read_key
from keys import ConfigError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

    from datasets import SiteData

SECONDS = 5.0  # that a connection may take
SOON = 30  # days before its end that a certificate is worth a warning
LITTLE = 2e9  # bytes of disk or memory that are worth one
PROCESS, VECTORS = 0.6e9, 10  # bytes of a site without data; vectors as long as x that it holds at a time, about
SIDE = 224  # of images that differ in size, for the trial
ANY = 1 - 1e-9  # share of images that may be bad in it

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """What was found: how bad it is, about what, and in words, with the fix."""

    level: Level
    about: str
    text: str


def examine(config: JoinConfig) -> Iterator[Finding]:
    """Try one thing after the other; what depends on one that failed is left out."""
    from federation.fingerprint import fingerprint

    yield Finding("ok", "release", fingerprint())
    yield from _connection(config)
    yield from _state(config)
    yield from _device(config)
    yield from _data(config)


# ---------------------------------------------------------------------- the way to the coordinator


def _connection(config: JoinConfig) -> Iterator[Finding]:
    host, _, port = config.superlink.rpartition(":")
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        text = f"{host} cannot be resolved ({error.strerror}): check superlink, and this machine's DNS"
        yield Finding("error", "name", text)
        return
    yield Finding("ok", "name", f"{host} is {found[0][4][0]}")
    try:
        socket.create_connection((host, int(port)), SECONDS).close()
    except OSError as error:
        text = f"{config.superlink} does not take connections ({error}): it is not running, or a firewall is in between"
        yield Finding("error", "port", text)
        return
    yield Finding("ok", "port", f"{config.superlink} takes connections")
    if config.insecure:
        yield Finding("warning", "TLS", "none, for tests on one machine only: name root-certificates and key instead")
        return
    tls = list(_tls(config, host, int(port)))
    yield from tls
    yield from _key(config, connects=all(finding.level != "error" for finding in tls))


def _tls(config: JoinConfig, host: str, port: int) -> Iterator[Finding]:
    from cryptography.x509 import load_der_x509_certificate

    try:
        pem = read_certificates(config.root_certificates)
    except ConfigError as error:
        yield Finding("error", "TLS", "; ".join(error.problems))
        return
    context = ssl.create_default_context(cadata=pem.decode("ascii", errors="replace"))
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host, port), SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host) as wrapped,
        ):
            certificate = load_der_x509_certificate(wrapped.getpeercert(binary_form=True) or b"")
    except ssl.SSLCertVerificationError as error:
        if "hostname" in error.verify_message.lower() or "ip address" in error.verify_message.lower():
            text = f"the coordinator's certificate is not for {host}: connect by a name that is in it, or let the "
            yield Finding("error", "TLS", text + "coordinator issue another one")
        elif "expired" in error.verify_message:
            yield Finding("error", "TLS", "the coordinator's certificate has expired: it must issue a new one")
        else:
            text = f"the coordinator's certificate is not signed by {config.root_certificates} ({error.verify_message})"
            yield Finding("error", "TLS", f"{text}: get the ca.crt of this coordinator")
        return
    except ssl.SSLError as error:
        text = f"{config.superlink} does not speak TLS ({error.reason}): the port is wrong, or it is a coordinator for "
        yield Finding("error", "TLS", text + "tests, which takes insecure")
        return
    except OSError as error:
        yield Finding("error", "TLS", f"the connection was lost: {error}")
        return
    yield _until(certificate)


def _until(certificate: Certificate) -> Finding:
    days = (certificate.not_valid_after_utc - datetime.now(UTC)).days
    text = f"the coordinator's certificate is signed by the authority and is for its name, for {days} days more"
    if days < SOON:
        return Finding("warning", "TLS", f"{text}: the coordinator must issue a new one")
    return Finding("ok", "TLS", text)


def _key(config: JoinConfig, *, connects: bool) -> Iterator[Finding]:
    if not config.key:
        yield Finding("error", "key", "none: name the file of this site's private key as key")
        return
    try:
        key = read_key(config.key)
    except ConfigError as error:
        yield Finding("error", "key", "; ".join(error.problems))
        return
    if Path(config.key).expanduser().stat().st_mode & 0o077:
        yield Finding("warning", "key", f"others on this machine can read {config.key}: chmod 600 {config.key}")
    if not connects:
        return

    from client_app.fleet import introduced
    from client_app.join import Acquainted

    known = Acquainted(config, key)()
    refusal = introduced(config.superlink, read_certificates(config.root_certificates), key, known=known)
    if not refusal:
        yield Finding("ok", "key", "registered at the coordinator, and not in use")
    elif known and "in use" in refusal:
        yield Finding("ok", "key", "registered at the coordinator and in use, by the site if it is running")
    else:
        yield Finding("error", "key", refusal)


# ---------------------------------------------------------------------- this machine


def _state(config: JoinConfig) -> Iterator[Finding]:
    if not config.state_dir:
        text = "none: what the site remembers would not outlive the machine; name a folder as state-dir"
        yield Finding("warning", "state", text)
        return
    folder = Path(config.state_dir).expanduser()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(b"0" * 4096)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        text = f"{folder} cannot be written ({error.strerror}): it must belong to user {os.getuid()}"
        yield Finding("error", "state", text)
        return
    free = shutil.disk_usage(folder).free
    yield _room("state", free, f"{folder} can be written", "make room, or name another folder")
    if Path("/dev/shm").is_dir():
        yield _room("/dev/shm", shutil.disk_usage("/dev/shm").free, "is there", "no site needs it", enough=0)


def _room(about: str, free: float, what: str, fix: str, enough: float = LITTLE) -> Finding:
    text = f"{what}, {free / 1e9:,.1f} GB are free"
    return Finding("ok", about, text) if free >= enough else Finding("warning", about, f"{text}: {fix}")


def _device(config: JoinConfig) -> Iterator[Finding]:
    import torch

    from keys.memory import free_memory
    from models import resolve_device

    yield _room("memory", free_memory(), "of this machine", "end other programs")
    try:
        device = resolve_device(config.device or "auto")
    except ConfigError as error:
        yield Finding("error", "device", "; ".join(error.problems))
        return
    if device.startswith("cuda"):
        name, (free, _) = torch.cuda.get_device_name(device), torch.cuda.mem_get_info(device)
        yield _room("device", free, f"{device}, {name}", "end other programs on this GPU")
    elif shutil.which("nvidia-smi"):
        text = f"{device}, though this machine has an NVIDIA driver: torch {torch.__version__} sees no GPU. Give the "
        yield Finding("warning", "device", text + "container its GPU, and build the image with CUDA")
    else:
        yield Finding("ok", "device", f"{device}, torch {torch.__version__}")


def _data(config: JoinConfig) -> Iterator[Finding]:
    if not config.data_dir:
        if config.partition_id < 0:
            yield Finding("error", "data", "none: name the folder of this site's data as data-dir")
        return

    import torch

    from client_app.policy import Policy
    from client_app.site import image_cache, study_of
    from datasets import DataConfig, DataError, label_values, load_site
    from datasets.labels import Labels
    from datasets.site.survey import Survey

    try:
        policy = Policy.read(config.policy)
    except ConfigError as error:
        yield Finding("error", "rules", "; ".join(error.problems))
        return
    yield Finding("ok", "rules", f"of {config.policy}" if config.policy else "none of your own: those that protect")
    if not config.names_label:
        text = "no label: each run chooses which column that is; name yours as label"
        yield Finding("error" if policy.strict else "warning", "rules", text)
    own = DataConfig(dataset="site", data_dir=config.data_dir, patient=policy.patient)
    own = replace(own, label=config.label) if config.label else own
    labels = Labels.of(config.label, "zeros", "zeros", "")  # a run says what uncertain and blank stand for
    several = labels.names if labels.several and not config.study else ()
    if several:
        own = replace(own, labels=labels)
    survey = None
    try:
        if not config.study and (survey := Survey.of(config.data_dir, config.follow_links)):
            yield Finding("ok", "images", survey.in_words())
            own = replace(own, follow_links=config.follow_links, image_cache=image_cache(config), bad_images=ANY)
            own = replace(own, image_size=0 if survey.one_size else SIDE)
        own = replace(own, study=study_of(config.study))
        data = load_site(own, 0, 1)
    except DataError as error:
        try:
            data = load_site(replace(own, binary=False), 0, 1)
        except DataError:
            yield Finding("error", "data", str(error))
            return
    truth = torch.cat([data.train.targets(), data.held_out.targets()])
    samples, which = len(truth), f"{int(truth.sum()):,} positive"
    if several:
        which = f"{len(several)} labels"
        yield from _labels(label_values(config.data_dir, several))
    fewest = policy.fewest_training + policy.fewest_held_out
    if samples < fewest:
        text = f"{samples} samples: below about {fewest} your rules keep this site from training, or from evaluating"
        yield Finding("warning", "rules", text)
    for doubt in data.doubts:
        yield Finding("warning", "data", str(doubt))
    if survey and (bad := survey.rows - samples):
        text = f"{bad:,} of {survey.rows:,} are bad: runs whose bad-images is below {bad / survey.rows:.2g} do without "
        yield Finding("warning", "images", f"{text}this site")
    if data.classes > 2:
        which = f"{data.classes} classes"
        text = f"{data.classes} classes fit problems that keep all of them (cross-entropy, fair, robust, maml); for "
        yield Finding("warning", "labels", f"{text}the others name a study file that says which labels are positive")
    kind = f"{len(data.features)} features" if data.features else f"{'x'.join(map(str, data.train.shape))} numbers each"
    yield Finding("ok", "data", f"{samples:,} samples, {which}, {kind}; {data.missing:,} values missing")
    yield _needed(data)


def _labels(values: Mapping[str, tuple[int, int, int, int]]) -> Iterator[Finding]:
    """Say what there is of each of several labels; one that is blank in all rows is a label that this site lacks."""
    for name, (positive, negative, uncertain, blank) in values.items():
        if not positive + negative + uncertain:
            yield Finding("ok", "label", f"{name}: blank in all rows, so this site helps with the other labels only")
            continue
        text = f"{name}: {positive:,} positive, {negative:,} negative, {uncertain:,} uncertain, {blank:,} blank"
        one_class = not (positive and negative)
        yield Finding("warning" if one_class else "ok", "label", f"{text}; is the column right?" if one_class else text)


def _needed(data: SiteData) -> Finding:
    """Estimate the memory that a run of the default model takes; images are read from the disk."""
    from config import RunConfig
    from datasets import Cohort
    from keys.memory import free_memory

    run = RunConfig.parse({})
    setting = run.setting(Cohort(shape=data.train.shape), "cpu")
    d = len(run.build_problem(setting).initial()["x"])
    table = data.train.inputs.nbytes if data.features else 0
    vectors = VECTORS * 4 * d
    needed = PROCESS + table + vectors
    text = (
        f"about {needed / 1e9:.1f} GB for a run: {PROCESS / 1e9:.1f} for the process, {table / 1e9:.1f} for the table, "
        f"{vectors / 1e9:.1f} for {run.model} with {d:,} parameters; other models and large batches take more"
    )
    if needed > free_memory():
        return Finding("warning", "needed", f"{text}. Less is free: end other programs")
    return Finding("ok", "needed", text)


def report(findings: Iterator[Finding], say: Callable[[str], None]) -> int:
    """Say each finding as it comes; returns the exit code, 1 with any error."""
    worst = 0
    for finding in findings:
        say(f"{finding.level:8} {finding.about:10} {finding.text}")
        worst = max(worst, int(finding.level == "error"))
    return worst
