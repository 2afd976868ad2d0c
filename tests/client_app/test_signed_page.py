"""A page of the audit log that the site has signed: whoever has its public key can tell whether a byte was changed."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from edelweiss.client_app.cli import main
from edelweiss.client_app.connection import read_key
from edelweiss.client_app.policy.advance import advance_of, decide_in_advance
from edelweiss.client_app.policy.records import Records
from edelweiss.datasets import Facts
from edelweiss.federation.fingerprint import fingerprint
from edelweiss.federation.seals import key_hash
from edelweiss.federation.signature import CLOSE, OPEN, SignatureError, signed, verified
from tests.client_app.policies import Hospital
from tests.server_app.sites import table
from tests.server_app.studies import new_key

PAGE = b"<!doctype html>\n<html>\n</html>\n"
KEYS = {
    name: ec.generate_private_key(curve)
    for name, curve in (("256", ec.SECP256R1()), ("384", ec.SECP384R1()), ("521", ec.SECP521R1()))
}
FILES = {name: signed(PAGE, key) for name, key in KEYS.items()}
HASHES = {name: key_hash(key.public_key()) for name, key in KEYS.items()}


@pytest.mark.parametrize("name", KEYS)
def test_a_page_is_as_it_was_signed(name: str) -> None:
    assert verified(FILES[name], HASHES[name]) == PAGE
    empty = signed(b"", KEYS[name])
    assert verified(empty, HASHES[name]) == b""


@pytest.mark.parametrize("name", KEYS)
def test_every_changed_byte_is_noticed(name: str) -> None:
    whole = FILES[name]
    for place in range(len(whole)):
        for bit in (1, 2, 32, 128):
            other = bytearray(whole)
            other[place] ^= bit
            with pytest.raises(SignatureError):
                verified(bytes(other), HASHES[name])


@given(st.integers(0, len(FILES["384"])), st.integers(0, len(FILES["384"])), st.binary(max_size=200))
def test_bytes_that_are_cut_added_or_replaced_are_noticed(first: int, last: int, by: bytes) -> None:
    whole = FILES["384"]
    other = whole[:first] + by + whole[max(first, last) :]
    if other == whole:
        return
    with pytest.raises(SignatureError):
        verified(other, HASHES["384"])


def test_another_key_and_another_page_are_noticed() -> None:
    other = signed(b"<html>other</html>\n", KEYS["384"])
    tail = FILES["384"][len(PAGE) :]
    for file, key in (
        (FILES["384"], HASHES["521"]),
        (other[: other.index(OPEN)] + tail, HASHES["384"]),
        (FILES["384"] + tail, HASHES["384"]),
        (signed(FILES["384"], KEYS["521"]), HASHES["384"]),
        (PAGE, HASHES["384"]),
        (b"", HASHES["384"]),
    ):
        with pytest.raises(SignatureError):
            verified(file, key)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> tuple[Hospital, Path]:
    """A hospital with a key, and a run that was approved in advance; its key's file."""
    folder = tmp_path_factory.mktemp("signing")
    hospital = Hospital(folder, *table(200, seed=0), approve="ask", seed="a")
    records = Records(str(hospital.state))
    limits = {"algorithm": "codasca", "problem": "auc", "model": "linear", "rounds": "2", "runs": "1"}
    limits |= {"release": fingerprint(), "label": "label", "comment": "<script>alert(1)</script>"}
    limits["until"] = time.strftime("%Y-%m-%d")
    assert decide_in_advance(records, advance_of(limits, "approved", "<b>anna</b>", 1), "here")
    assert isinstance(hospital.described(), Facts)
    key = folder / "site.key"
    key.with_suffix(".key.pub").write_text(new_key(key))
    return hospital, key


def test_the_signed_page_says_what_leaves_and_who_decided(site: tuple[Hospital, Path], tmp_path: Path) -> None:
    hospital, key = site
    [record] = Records(str(hospital.state)).runs()
    file, public = tmp_path / "run.html", f"{key}.pub"
    state = ["--state-dir", str(hospital.state)]
    assert main(["audit", *state, "--run", record.run, "--html", str(file), "--sign", str(key)]) == 0
    text = file.read_text()
    for said in (record.run, record.shown["sends in a round"].split("(")[0], "&lt;b&gt;anna", "decision 1 in advance"):
        assert said in text, said
    assert "<script" not in text
    assert "<b>" not in text
    own = key_hash(read_key(str(key)).public_key())
    assert [main(["audit", "--verify", str(file), "--by", by]) for by in (public, own, "0" * 64)] == [0, 0, 1]
    file.write_text(text.replace("anna", "anne"))
    assert main(["audit", "--verify", str(file), "--by", public]) == 1
    assert main(["audit", "--verify", str(tmp_path / "none"), "--by", public]) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--verify", "x.html"],
        ["--verify", "x.html", "--by", "nobody.pub"],
        [],
        ["--state-dir", ".", "--sign", "x"],
    ],
)
def test_what_is_missing_is_said(words: list[str]) -> None:
    assert main(["audit", *words]) == 2


def test_a_key_that_is_none_signs_nothing(site: tuple[Hospital, Path], tmp_path: Path) -> None:
    file, state = tmp_path / "page.html", ["--state-dir", str(site[0].state)]
    assert main(["audit", *state, "--html", str(file), "--sign", str(tmp_path / "none")]) == 2
    assert not file.exists()


@pytest.mark.slow
def test_openssh_verifies_it_without_this_app(site: tuple[Hospital, Path], tmp_path: Path) -> None:
    """As docs/run-at-a-hospital.md says."""
    hospital, key = site
    file = tmp_path / "audit.html"
    assert main(["audit", "--state-dir", str(hospital.state), "--html", str(file), "--sign", str(key)]) == 0
    (tmp_path / "north.pub").write_text(Path(f"{key}.pub").read_text())
    script = r"""
sed '/^<!--$/,$d' audit.html > page
sed -n '/BEGIN SSH/,/END SSH/p' audit.html > page.sig
echo "north $(cat north.pub)" > signers
ssh-keygen -Y verify -f signers -I north -n edelweiss-audit -s page.sig < page
"""
    for change, code in ((b"", 0), (b"linear", 255)):
        file.write_bytes(file.read_bytes().replace(change, b"mlp") if change else file.read_bytes())
        done = subprocess.run(["bash", "-ec", script], cwd=tmp_path, capture_output=True)
        assert done.returncode == code, done
    assert CLOSE in file.read_bytes()
