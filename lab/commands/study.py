"""``study``: draft, merge and check a study file; make the key with which a study's person signs runs."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from edelweiss.client_app.commands import study as site

if TYPE_CHECKING:
    import argparse

SUMMARY = "draft, merge and check study files; make the key of a study, which signs its runs"
DESCRIPTION = "The study file says what the columns of hospitals' tables mean; the study key signs its runs."
KEY = (
    "Make a private key (Ed25519) that signs the runs of a study, see `edelweiss submit --study-key`, and print the "
    "rule for the hospitals that take part. Keep the file off the coordinator's servers."
)
MERGE = (
    "Merge hospitals' drafts into one study file. Its comments say what differs, and DECIDE marks what a person must "
    "settle."
)

CHECK = (
    "Check a study file before it is sent out: what contradicts, what is still open, what is doubtful, and what each "
    "hospital's doctor will ask for. Exit code 2 if the file cannot be used, 1 if data do not fit it."
)


def takes(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="key | draft | merge | check")
    own = actions.add_parser("key", help="make the key of a study", description=KEY, allow_abbrev=False)
    own.add_argument("file", metavar="FILE", help="where; the public half goes beside it, as FILE.pub")
    site.takes(actions.add_parser("draft", help="from a table", description=site.DESCRIPTION, allow_abbrev=False))
    own = actions.add_parser("merge", help="hospitals' drafts into one", description=MERGE, allow_abbrev=False)
    own.add_argument("files", nargs="+", metavar="DRAFT", help="study files of two hospitals or more")
    site.takes_out(own)
    own = actions.add_parser("check", help="before it is sent out", description=CHECK, allow_abbrev=False)
    own.add_argument("file", metavar="STUDY", help="the study file")
    own.add_argument("data", nargs="*", metavar="DATA", help="tables, or folders that hold one, to read by it")


def main(options: argparse.Namespace) -> int:
    """Do it; returns the exit code, 2 for a study file that cannot be used."""
    if options.action == "key":
        return make_key(options.file)
    from edelweiss.client_app.extract import ExtractError
    from edelweiss.config import MISTAKES, ConfigError

    try:
        if options.action == "check":
            return check_file(options.file, options.data)
        return site.run(options) if options.action == "draft" else merge_files(options.files, options.out)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except (*MISTAKES, ExtractError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def merge_files(files: list[str], out: str) -> int:
    """Merge study files."""
    from edelweiss.common import ConfigError, repeated
    from edelweiss.common.files import TEXT, read_file, reason
    from edelweiss.config.study_merge import merge

    contents, wrong = {}, list[str]()
    if len(files) < 2:
        wrong.append("name the files of two hospitals or more")
    wrong += [f"{file} is named twice" for file in repeated(files)]
    for file in files:
        try:
            contents[file] = read_file(file, TEXT)
        except OSError as error:
            wrong.append(f"{file} cannot be read: {reason(error)}")
    if wrong:
        raise ConfigError("command", wrong)
    bases = [os.path.basename(file) for file in files]
    short = dict(zip(files, files if repeated(bases) else bases, strict=True))
    merged = merge({short[file]: content for file, content in contents.items()})
    if code := site.put(merged.text, out):
        return code
    for each in merged.decisions:
        print(f"decide: {each}", file=sys.stderr)
    return 0


def check_file(file: str, data: list[str]) -> int:
    """Check a study file, and tables by it."""
    from edelweiss.common import ConfigError, shorter
    from edelweiss.common.files import TEXT, read_file, reason
    from edelweiss.config.study_check import check, check_data

    try:
        content = read_file(file, TEXT)
    except OSError as error:
        raise ConfigError("command", [f"{shorter(file)} cannot be read: {reason(error)}"]) from None
    found, study = check(content)
    for line in found:
        print(f"{line.level:8} {line.about:10} {line.text}")
    if study is None:
        return 2
    worst = 0
    for place in data:
        for line in check_data(study, place):
            print(f"{line.level:8} {line.about:10} {line.text}")
            worst = max(worst, int(line.level == "error"))
    return worst


def make_key(place: str) -> int:
    """Make a key; returns the exit code."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = Ed25519PrivateKey.generate()
    public = key.public_key()
    try:
        with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        with open(f"{place}.pub", "xb") as file:
            file.write(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    except OSError as error:
        mend = ": a key is not replaced, remove it first" if isinstance(error, FileExistsError) else ""
        print(f"error: {error.filename} cannot be written: {error.strerror}{mend}", file=sys.stderr)
        return 1
    print(f"{place}: keep it to yourself. Each hospital adds to its table [policy]:")
    print(f'study-keys = ["{public.public_bytes_raw().hex()}"]')
    return 0
