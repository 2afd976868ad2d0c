"""Notifications by a real site, to real servers and programs: each event once, and nothing of it holds a run up."""

from __future__ import annotations

import datetime
import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bin.run import REPO, free_port
from edelweiss.client_app.audit import Audit
from edelweiss.client_app.connection import JoinConfig
from edelweiss.client_app.notify import post, ways
from edelweiss.client_app.notify.beside import notices_beside, settings_of
from edelweiss.client_app.notify.post import Post
from edelweiss.client_app.notify.watch import Watch
from edelweiss.client_app.notify.ways import Notice, UnsureError, UntoldError, ways_in
from edelweiss.client_app.page.beside import Connection
from edelweiss.client_app.policy.advance import advance_of, decide_in_advance
from edelweiss.client_app.policy.records import Records, RunRecord
from edelweiss.client_app.policy.rules import Policy
from edelweiss.common import ConfigError, Value
from edelweiss.common.overrides import toml_value
from edelweiss.config.notify import Notify
from edelweiss.federation.fingerprint import fingerprint
from tests.client_app.mailbox import hook, mailbox
from tests.client_app.policies import WAITS, Hospital, told, train
from tests.said import has
from tests.server_app.sites import table

HOSTILE = "$(touch /tmp/pwned); `id` <b>@here</b> https://evil.example/\r\nBcc: x@evil.example"


def until(reached: Callable[[], bool], seconds: float = 600.0) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def chosen(folder: Path, beside: str = "", **keys: Any) -> JoinConfig:
    """Return a site's settings whose table [notify] has these keys."""
    lines = [beside, "[notify]", *(f"{key.replace('_', '-')} = {toml_value(value)}" for key, value in keys.items())]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "site.toml").write_text("\n".join(lines), encoding="utf-8")
    file, state = str(folder / "site.toml"), str(folder / "state")
    options: dict[str, Value] = {"superlink": "a:1", "insecure": True, "site": "north", "state-dir": state}
    return JoinConfig.read(file, options | {"policy": file})


def settings(**keys: Any) -> dict[str, Any]:
    """Return what the process gets."""
    notify, wrong = Notify.of({key.replace("_", "-"): value for key, value in keys.items()})
    assert notify, wrong
    assert not wrong
    return notify.model_dump(by_alias=True) | {"site": "north", "epsilon": 0.0, "delta": 1e-6}


def notice(text: str = "north: run 7 waits", event: str = "waits", run: str = "7") -> Notice:
    return Notice(event, run, text, time.time())


# ---------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"webhok": "https://a.example/"}, "webhok"),
        ({"webhook": "ftp://a.example/"}, "webhook"),
        ({"webhook": "file:///etc/passwd"}, "webhook"),
        ({"webhook": "https://anna:secret@a.example/"}, "webhook"),
        ({"webhook": "https://a.example/\r\nx: y"}, "webhook"),
        ({"webhook": "http://a.example/", "webhook-token-file": "/token"}, "webhook"),
        ({"command": ["mail -s x"]}, "command"),
        ({"command": "/bin/true"}, "command"),
        ({"command": ["/bin/true", "a\0b"]}, "command"),
        ({"mail-to": ["a@b.example\nBcc: c@d.example"], "smtp": "a:25", "mail-from": "a@b.example"}, "mail-to"),
        ({"mail-to": ["a@b.example"], "smtp": "a:25", "mail-from": "Anna <a@b.example>"}, "mail-from"),
        ({"mail-to": ["a@b.example"]}, "mail-to"),
        ({"mail-to": ["a@b.example"], "mail-from": "a@b.example", "smtp": "a"}, "smtp"),
        ({"mail-to": ["a@b.example"], "mail-from": "a@b.example", "smtp": "a:25", "smtp-user": "a", "smtp-tls": "none"},
         "smtp-tls"),
        ({"when": ["waits", "sometimes"], "command": ["/bin/true"]}, "when"),
        ({"when": ["waits"]}, "command"),
        ({"budget-left": 1.5, "command": ["/bin/true"]}, "budget-left"),
    ],
)  # fmt: skip
def test_a_key_that_cannot_be_used_is_named(given: dict[str, Any], key: str) -> None:
    _, wrong = Notify.of(given)
    assert any(key in text for text in wrong), wrong
    assert "secret" not in " ".join(wrong)


def test_join_says_everything_that_is_wrong_with_its_table(tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text('superlink = "a:1"\ninsecure = true\n[notify]\nsmtp = "a"\nlost-after = 0\n')
    with pytest.raises(ConfigError) as error:
        JoinConfig.read(str(file), {})
    assert {"notify.smtp", "notify.lost-after"} <= {text.split(" ")[0].rstrip(":") for text in error.value.problems}
    file.write_text('superlink = "a:1"\ninsecure = true\n[notify]\ncommand = ["/bin/true"]\n')
    with pytest.raises(ConfigError, check=has("state-dir", keys=["notify"])):
        JoinConfig.read(str(file), {})
    assert Policy.read(str(file)), "the rules leave the table alone"


# ---------------------------------------------------------------------- what is told, and how often


def test_a_site_tells_once_that_a_run_waits_is_refused_and_ends(tmp_path: Path) -> None:
    """By its own process, over the files of a real site that the coordinator asks again and again."""
    hospital = Hospital(tmp_path / "north", *table(200, seed=0), approve="ask")
    with hook() as web:
        config = chosen(tmp_path, webhook=web.url).model_copy(update={"state_dir": str(hospital.state)})
        notify = Notify.read(str(tmp_path / "site.toml"))
        with notices_beside(config, notify):
            until((hospital.state / "notify" / "told.json").exists)
            with hospital.run() as grid:
                for _ in range(3):
                    assert told(grid) == WAITS
                until(lambda: len(web.posts) == 1)
                [record] = Records(str(hospital.state)).runs()
                Records(str(hospital.state)).decide(record, "approved")
                assert told(grid) != WAITS
                assert train(grid) == ""
                assert train(grid, "evaluate") == ""
            with hospital.run(rounds=300) as grid:
                assert "200" in str(told(grid))
                assert "200" in str(told(grid))
            until(lambda: len(web.posts) == 3)
        with notices_beside(config, notify):  # a restart
            time.sleep(6)
    events = {one["event"]: one for one in web.posts}
    assert len(web.posts) == 3
    assert set(events) == {"waits", "ends", "refused"}
    assert events["waits"]["run"] == events["ends"]["run"] == record.run
    assert "rounds = 300" in events["refused"]["text"]
    assert all(one["text"].startswith("north: ") for one in web.posts)


def record(run: str, **more: Any) -> RunRecord:
    return RunRecord(run=run, began=time.time(), asked="x", until=time.time() + 3600, shown={}, **more)


def test_what_is_there_at_the_first_start_is_old_but_a_run_that_waits(tmp_path: Path) -> None:
    records, log = Records(str(tmp_path)), Audit(tmp_path, "3")
    records.note(record("1", open=True, decision="approved", place=[1, 0, False]))
    records.note(record("2"))
    log._append({"way": "out", "run": "3", "refused": "no"})
    watch = Watch(settings(command=["/bin/true"]), tmp_path, None)
    assert [(one.event, one.run) for one in watch.look()] == [("waits", "2")]
    log._append({"way": "out", "run": "4", "refused": "no"})
    records.note(record("1", open=True, decision="refused", place=[1, 0, False]))
    records.note(record("5", open=True, decision="approved", place=[0, 3, 0]))
    os.utime(records.folder / "runs" / "5.json", (time.time() - 90_000,) * 2)
    assert [(one.event, one.run) for one in watch.look()] == [("ends", "5"), ("refused", "4")]
    assert not watch.look()


def test_a_run_that_begins_by_a_decision_in_advance_is_told_with_how_many_are_left(tmp_path: Path) -> None:
    """Of a real site; nothing of what an operator or a run wrote, which may name a patient."""
    hospital = Hospital(tmp_path, *table(200, seed=0), approve="ask", seed="a")
    records = Records(str(hospital.state))
    watch = Watch(settings(command=["/bin/true"]), hospital.state, None)
    watch.look()
    limits = {"algorithm": "codasca", "problem": "auc", "model": "linear", "rounds": "2", "runs": "2"}
    limits |= {"until": time.strftime("%Y-%m-%d"), "release": fingerprint(), "label": "label", "comment": "for p-7"}
    for number in (1, 2):
        assert decide_in_advance(records, advance_of(limits, "approved", "anna", number), "here")
    texts = []
    for _ in range(3):
        assert hospital.described() != WAITS
        [one] = watch.look()
        assert (one.event, one.run) == ("begins", max(records.runs(), key=lambda each: each.began).run)
        texts.append(one.text.partition(one.run)[2])
    assert [re.findall(r"\d+", text) for text in texts] == [["1", "1", "2"], ["1", "0", "2"], ["2", "1", "2"]]
    assert not watch.look()
    assert not Watch(watch.settings, watch.state, watch.seen).look(), "a restart repeats nothing"
    assert "p-7" not in "".join(texts)
    (records.folder / "advance" / "2.json").write_text("[" * 100_000)
    records.note(record("9", open=True, decision="approved", advance=2))
    records.note(record("10", open=True, decision="approved"))
    records.note(record("11", open=True, decision="approved", advance=1, over=True))
    assert [(one.event, one.run) for one in watch.look()] == [("begins", "9")]
    watch.seen.runs["12"] = ["ends"]  # as an earlier release noted it
    records.note(record("12", open=True, decision="approved", advance=1, place=[1, 0, False]))
    assert not watch.look()


def test_an_operator_is_not_told_of_their_own_refusal(tmp_path: Path) -> None:
    records, watch = Records(str(tmp_path)), Watch(settings(command=["/bin/true"]), tmp_path, None)
    watch.look()
    records.note(record("1"))
    records.decide(record("1"), "refused")
    Audit(tmp_path, "1")._append({"way": "out", "run": "1", "refused": "its operator refused the run"})
    assert not watch.look()


def test_a_flood_of_refusals_is_a_few_notices_and_hides_no_run_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that provokes refusals fills no mailbox; one sentence counts the others."""
    watch, log, found = Watch(settings(command=["/bin/true"]), tmp_path, None), Audit(tmp_path), list[Notice]()
    it = Post(tmp_path / "told.json", "north", {"command": found.append})
    it.add(watch.look(), watch.seen)
    with (tmp_path / "audit.jsonl").open("a") as file:
        file.writelines(json.dumps({"way": "out", "run": str(n), "refused": HOSTILE}) + "\n" for n in range(3000))
    Records(str(tmp_path)).note(record("9999"))
    it.add(watch.look(), watch.seen)
    it.tell()
    assert sorted(one.event for one in found) == ["refused"] * post.MOST + ["waits"]
    assert (tmp_path / "told.json").stat().st_size < 100_000
    monkeypatch.setattr(post, "HOUR", -1.0)
    it.add(watch.look(), watch.seen)
    it.tell()
    assert f"{3000 - post.MOST} times more" in found[-1].text
    it.tell()
    assert len(found) == post.MOST + 2
    assert log.folder == tmp_path


def test_what_a_coordinator_writes_is_neither_link_nor_markup(tmp_path: Path) -> None:
    watch = Watch(settings(command=["/bin/true"]), tmp_path, None)
    watch.look()
    Audit(tmp_path)._append({"way": "out", "run": "1", "refused": HOSTILE})
    [one] = watch.look()
    assert not set(one.text) & set('<>@`$/\\|&;\r\n"*[]{}!#') - {";"}
    assert len(one.text) < 400


@pytest.mark.parametrize("studies", [1, 2])
def test_a_budget_that_runs_out_is_told_once(tmp_path: Path, studies: int) -> None:
    """Where a site has several studies, a patient may be trained on in one, and held out in the other."""
    from edelweiss.federation.privacy_account import ORDERS, epsilon

    cost = ORDERS * 0.05
    watch = Watch(settings(command=["/bin/true"]) | {"epsilon": 2 * epsilon(2 * cost, 1e-6)}, tmp_path, None)
    file = tmp_path / "policy" / "ledger.jsonl"
    file.parent.mkdir()
    found = []
    for n in range(12):
        study = n % studies
        part = "held-out" if study else "training"
        line: dict[str, object] = {"part": part, "data": study, "run": "1", "question": str(n), "cost": [*cost]}
        line = {"orders": []} if n == 0 else line
        with file.open("a") as stream:
            stream.write(json.dumps(line) + "\n")
        found += [(n, one) for one in watch.look()]
    [(n, one)] = found
    assert n > 2, "half of it was left then"
    assert epsilon((n - 1) * cost, 1e-6) <= 1.6 * epsilon(2 * cost, 1e-6) < epsilon(n * cost, 1e-6)
    assert one.event == "budget"
    assert 0 <= int(one.text.split("%")[0].split()[-1]) < 20


def test_a_lost_connection_is_told_after_its_time_and_once_more_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = chosen(tmp_path, command=["/bin/true"], lost_after=100.0)
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    watch = Watch(settings_of(config, Notify.read(config.policy)), tmp_path / "state", None)
    connection = Connection(config)

    def looks(seconds: float) -> list[str]:
        clock[0] += seconds
        return [one.text for one in watch.look()]

    connection.joined(7)
    assert looks(1000) == []
    connection.say("nothing listens")
    assert looks(1) == []
    connection.say("the name cannot be resolved")  # another reason is no new beginning
    assert looks(99) == []
    assert "cannot be resolved" in looks(2)[0]
    assert looks(1000) == []
    again = Watch(watch.settings, watch.state, watch.seen)
    assert not again.look(), "a restart repeats nothing"
    clock[0] += 1000
    assert not again.look()
    connection.say("the coordinator answers")
    assert len(looks(1)) == 1
    assert looks(1000) == []


# ---------------------------------------------------------------------- a program


PROGRAM = """#!{python}
import json, os, sys
own = {{key: value for key, value in os.environ.items() if key.startswith("EDELWEISS_")}}
json.dump([sys.stdin.buffer.read().decode(), sys.argv[1:], own], open({out!r}, "a"))
"""


def program(folder: Path, text: str = PROGRAM) -> tuple[str, Path]:
    """Write a program; return it and what it writes."""
    path, out = folder / "tell me", folder / "told"
    path.write_text(text.format(python=sys.executable, out=str(out)))
    path.chmod(0o700)
    return str(path), out


def test_a_program_gets_hostile_text_as_its_input_and_no_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ways.PASSWORD, "swordfish")
    path, out = program(tmp_path)
    given = settings(command=[path, "$HOME; touch x"]) | {"site": "$(touch pwned)"}
    ways_in(given)["command"](notice(f"north: {HOSTILE}"))
    read, words, own = json.loads(out.read_text())
    assert read == f"north: {HOSTILE}\n"
    assert words == ["$HOME; touch x"]
    assert own.items() >= {"EDELWEISS_EVENT": "waits", "EDELWEISS_RUN": "7", "EDELWEISS_SITE": "$(touch pwned)"}.items()
    assert "swordfish" not in str(own)
    assert {one.name for one in tmp_path.iterdir()} == {"tell me", "told"}


def test_a_program_that_hangs_is_killed_with_its_children_and_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ways, "DEADLINE", 1.0)
    path, out = program(tmp_path, '#!/bin/sh\nsleep 1000 &\necho $! >> "{out}"\nwait\n')
    it = Post(tmp_path / "told.json", "", ways_in(settings(command=[path])))
    it.add([notice()], watch_of(tmp_path).seen)
    it.tell()
    [child] = out.read_text().split()
    until(lambda: gone(int(child)))
    it._failing.clear()
    it.tell()
    assert len(out.read_text().split()) == 1


def gone(pid: int) -> bool:
    try:
        return "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True


def watch_of(folder: Path) -> Watch:
    return Watch(settings(command=["/bin/true"]), folder / "nothing", None)


@pytest.mark.parametrize("words", [["/bin/false"], ["/nowhere/at all"], ["/etc/passwd"]])
def test_a_program_that_fails_is_said_once_and_tried_again_later(
    tmp_path: Path, words: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = Post(tmp_path / "told.json", "", ways_in(settings(command=words)))
    it.add([notice(str(n)) for n in range(5)], watch_of(tmp_path).seen)
    with caplog.at_level(logging.WARNING, "edelweiss"):
        for _ in range(4):
            it.tell()
            it._failing = {way: (pause, 0.0) for way, (pause, _) in it._failing.items()}
    assert len(caplog.records) == 1
    path, out = program(tmp_path)
    again = Post(tmp_path / "told.json", "", ways_in(settings(command=[path])))
    again.tell()
    assert out.read_text().count("[[") + out.read_text().count('["') >= 5, "none was lost, over a restart"
    again.tell()
    assert out.read_text().count("EDELWEISS_EVENT") == 5


# ---------------------------------------------------------------------- a webhook


def test_a_webhook_gets_json_and_the_token_of_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("of the file\n")
    monkeypatch.setenv(ways.TOKEN, "of the environment")
    with hook() as web:
        (tmp_path / "address").write_text(f"{web.url}/secret\n")
        ways_in(settings(webhook=web.url))["webhook"](notice(HOSTILE))
        address, file = str(tmp_path / "address"), str(tmp_path / "token")
        ways_in(settings(webhook=address, webhook_token_file=file))["webhook"](notice())
    assert web.tokens == ["Bearer of the environment", "Bearer of the file"]
    assert web.posts[0] == {"text": HOSTILE, "event": "waits", "run": "7", "site": "north"} | {
        "time": web.posts[0]["time"]
    }


def test_a_webhook_that_sends_elsewhere_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ways.TOKEN, "swordfish")
    with hook() as other:
        for status in (301, 302, 303, 307, 308):
            with hook(status=status, location=other.url) as web, pytest.raises(UntoldError, check=has(status)):
                ways_in(settings(webhook=web.url))["webhook"](notice())
            assert len(web.posts) == 1
    assert not other.posts


def test_a_webhook_that_answers_byte_by_byte_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "DEADLINE", 1.0)
    with hook(drips=True) as web, pytest.raises(UnsureError):
        ways_in(settings(webhook=web.url))["webhook"](notice())
    assert len(web.posts) == 1


def test_a_dead_webhook_is_said_once_without_its_secrets_and_told_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ways.TOKEN, "swordfish")
    with hook(status=503) as web, mailbox() as box, caplog.at_level(logging.WARNING, "edelweiss"):
        mail = {"mail_to": ["a@b.example"], "mail_from": "c@d.example", "smtp": box.address, "smtp_tls": "none"}
        it = Post(tmp_path / "told.json", "", ways_in(settings(webhook=f"{web.url}/T0P/S3CRET", **mail)))
        it.add([notice("one"), notice("two")], watch_of(tmp_path).seen)
        for _ in range(3):
            it.tell()
        assert len(box.mails) == 2, "another way is not held up"
        assert len(web.posts) == 1, "it is left alone for a while"
        assert len(caplog.records) == 1
        web.status = 200
        it._failing = {way: (pause, 0.0) for way, (pause, _) in it._failing.items()}
        it.tell()
        it.tell()
        assert [one["text"] for one in web.posts] == ["one", "one", "two"]
        assert len(box.mails) == 2
    assert "swordfish" not in caplog.text
    assert "S3CRET" not in caplog.text
    assert "S3CRET" not in (tmp_path / "told.json").read_text()


@pytest.mark.parametrize("text", ["", "ftp://a.example/", "https://a:b@c.example/", "http://a.example/\nx", "/etc"])
def test_a_file_without_an_address_is_named_and_not_quoted(tmp_path: Path, text: str) -> None:
    (tmp_path / "address").write_text(text)
    with pytest.raises(UntoldError) as error:
        ways_in(settings(webhook=str(tmp_path / "address")))["webhook"](notice())
    assert str(tmp_path / "address") in str(error.value)
    assert "a.example" not in str(error.value)


# ---------------------------------------------------------------------- e-mail


def authority(folder: Path) -> tuple[Path, Path]:
    """Return a certificate for this machine, which is its own authority, and its key."""
    import ipaddress

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    (folder / "mail.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    own = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "mail.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, *own))
    return folder / "mail.crt", folder / "mail.key"


def mail(address: str, **more: Any) -> dict[str, Any]:
    return settings(mail_to=["a@b.example", "c@d.example"], mail_from="site@h.example", smtp=address, **more)


def test_an_email_goes_to_whom_the_operator_named_and_to_nobody_else() -> None:
    with mailbox() as box:
        given = mail(box.address, smtp_tls="none") | {"site": "Klinik Süd"}
        ways_in(given)["mail-to"](notice(f"north: {HOSTILE}\n.\r\nRCPT TO:<x@evil.example>"))
    [one] = box.mails
    assert one["To"] == "a@b.example, c@d.example"
    assert one["Bcc"] is None
    assert one["Subject"] == f"Edelweiss, Klinik Süd: {ways.SUBJECTS['waits']}"
    assert not [line for line in box.recipients if "evil" in line]
    assert "Bcc: x@evil.example" in one.get_content(), "it is text, in the body"


def test_a_name_and_a_password_go_through_tls_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "password").write_text("swordfish\n")
    own = {"smtp_user": "anna", "smtp_password_file": str(tmp_path / "password")}
    with mailbox(certificate=authority(tmp_path)) as box:
        with pytest.raises(UntoldError, check=has("127.0.0.1", "self-signed certificate")):
            ways_in(mail(box.address, **own))["mail-to"](notice())
        assert not [line for line in box.lines if line.startswith("AUTH")]
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "mail.crt"))  # as for a hospital's own authority
        ways_in(mail(box.address, **own))["mail-to"](notice())
        assert box.secure == [True]
        assert [line for line in box.lines if line.startswith("AUTH")]
    with mailbox() as box, pytest.raises(UntoldError):
        ways_in(mail(box.address, **own))["mail-to"](notice())
    assert not [line for line in box.lines if line.startswith(("AUTH", "MAIL"))], "nothing in clear text"


@pytest.mark.parametrize("how", [{"refuses": True}, {"silent": True}])
def test_a_mail_server_that_refuses_or_is_silent_fails_in_time(
    how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ways, "DEADLINE", 1.0)
    with mailbox(**how) as box, pytest.raises(UntoldError) as error:
        ways_in(mail(box.address, smtp_tls="none"))["mail-to"](notice())
    assert not isinstance(error.value, UnsureError)
    assert not box.mails
    with pytest.raises(UntoldError):
        ways_in(mail(f"127.0.0.1:{free_port()}"))["mail-to"](notice())


# ---------------------------------------------------------------------- with join


@pytest.mark.slow
def test_a_site_without_a_coordinator_tells_and_goes_on_when_its_notifier_is_killed(tmp_path: Path) -> None:
    with hook() as web:
        keys = {"webhook": web.url, "lost_after": 1.0}
        chosen(tmp_path, f'superlink = "127.0.0.1:{free_port()}"\ninsecure = true\nsite = "north"', **keys)
        command = [sys.executable, "-m", "edelweiss.client_app.cli", "join", f"--policy={tmp_path}/site.toml"]
        command += [f"--state-dir={tmp_path}/state"]
        with subprocess.Popen(command, cwd=REPO, stderr=subprocess.PIPE, text=True) as process:
            try:
                until(lambda: len(web.posts) == 1)
                assert web.posts[0]["event"] == "lost"
                [child] = notifiers(process.pid)
                os.kill(child, 9)
                until(lambda: notifiers(process.pid) not in ([child], []))  # one look: it may die between two
                assert process.poll() is None
            finally:
                process.terminate()
                _, said = process.communicate(timeout=600)
        assert "notify ended" in said
        time.sleep(1)
        assert len(web.posts) == 1
        assert not notifiers(process.pid)


def notifiers(parent: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
            above = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if above == parent and b"client_app.notify.process" in words:
            found.append(int(folder.name))
    return found


def test_the_command_notify_says_what_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from edelweiss.client_app.cli import main

    with hook() as web:
        chosen(tmp_path, webhook=web.url, command=["/bin/false"])
        assert main(["notify", f"--policy={tmp_path}/site.toml", "--site=north"]) == 1
    said = capsys.readouterr()
    assert "webhook" in said.out
    assert "command" in said.err
    assert [one["event"] for one in web.posts] == ["test"]
    (tmp_path / "site.toml").write_text("")
    assert main(["notify", f"--policy={tmp_path}/site.toml"]) == 2
