"""Topics on a broker, and verify of an export in which somebody changed one byte."""

from __future__ import annotations

import asyncio
import re
import shlex
import socket

import numpy as np
import pytest
import yaml
from aiokafka import AIOKafkaProducer
from aiokafka.admin import NewPartitions, NewTopic

from hushstream.agents.kafka.administration import lacking
from hushstream.agents.security import Cluster
from hushstream.agents.worker.deployment import load, parse_config, prepare
from hushstream.ops.connection import Connection
from hushstream.ops.export import export_copy
from hushstream.ops.log_copy import LogCopy, PartitionCopy
from hushstream.privacy.keys import seeded_key
from hushstream.replay.catalogue import make_world
from hushstream.replay.runners.playing import Place, play
from hushstream.replay.studies.p2b.run import ClosedLoop, Plan
from hushstream.schemas.codec import encode

SEED = 5
PLAYED = """\
deployment: played
items: {capacity: 4}
features: {dimension: 4, digits: 1}
expected_slots: 20
encoder: {codes: 4}
slot: {after_interactions: 2}
feedback: {settle_seconds: 1.0e+7}
"""
COUNTRY = {"country": {"kind": "category", "vocabulary": ["de", "fr"]}}
SHOWN = {"deployment": "shown", "items": {"capacity": 4}, "features": COUNTRY, "expected_slots": 300}
"""A deployment whose models can be shown."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A prepared deployment; made by the function behind the command, once."""
    from hushstream.agents.worker.deployment import prepare, read_config

    folder = tmp_path_factory.mktemp("played")
    (folder / "played.yaml").write_text(PLAYED, encoding="utf-8")
    prepare(folder / "deployment", read_config(folder / "played.yaml"), public_dataset="synthetic")
    return folder / "deployment"


@pytest.fixture(scope="module")
def logs(folder) -> LogCopy:
    """What a small population left on the topics."""
    world = make_world("synthetic", users=30, rounds=2, dimension=4, arms=4, seed=SEED)
    player = ClosedLoop(world, Plan(20, 10)).run
    return asyncio.run(play(load(folder), Place("direct", folder, None, SEED), player)).logs


def test_each_command_that_a_check_prints_works_as_it_is_printed(cli, bootstrap, folder, tmp_path, monkeypatch):
    """They lacked the deployment, and the second copy of a topic did not fit into the folder of the first."""
    monkeypatch.chdir(tmp_path)
    place = ("--deployment", folder, "--bootstrap", bootstrap, "--prefix", "added.")
    cli("topics", "apply", *place)

    async def widen():
        async with Connection(bootstrap, "added.").admin("add partitions") as admin:
            await admin.create_partitions({f"added.{name}": NewPartitions(9) for name in ("contexts", "window-sums")})

    asyncio.run(widen())
    printed = re.findall("`hushstream ([^`]+)`", cli("topics", "check", *place).out)
    assert len(printed) == 2
    for command in printed:
        assert cli(*shlex.split(command)).code == 0, command
    assert cli("topics", "check", *place).code == 0


def test_an_apply_leaves_settings_that_drifted_names_them_and_exits_1(cli, bootstrap, folder):
    async def make():
        async with Connection(bootstrap, "drifted.").admin("create a topic") as admin:
            await admin.create_topics([NewTopic("drifted.ledger", 1, 1)])

    asyncio.run(make())
    place = ("--deployment", folder, "--bootstrap", bootstrap, "--prefix", "drifted.")
    for again in range(2):
        applied = cli("topics", "apply", *place)
        assert applied.code == 1, again
        assert re.search(r"drifted\.ledger: .*retention\.ms", applied.out), applied.out


def test_too_few_copies_are_warned_of_beside_the_answer(cli, bootstrap, folder, monkeypatch):
    monkeypatch.setenv("HUSHSTREAM_SECURITY__ALLOW_PLAINTEXT", "true")
    beyond = bootstrap.replace("127.0.0.1", "0.0.0.0")
    place = ("--deployment", folder, "--bootstrap", beyond, "--prefix", "copies.")
    applied = cli("topics", "apply", *place, "--replication", 1, "--min-insync", 1)
    checked = cli("topics", "check", *place, "--json")
    assert (applied.code, checked.code, checked.json) == (0, 0, [])
    for answer in (applied, checked):
        (warning,) = (line for line in answer.err.splitlines() if line.startswith("warning: "))
        assert warning.startswith("warning: topics copies.decisions, ")
        assert "found 1 and 1" in warning


def test_an_empty_deployment_has_no_letters_no_debits_and_can_be_exported(cli, bootstrap, folder, tmp_path):
    place = ("--deployment", folder, "--bootstrap", bootstrap, "--prefix", "empty.")
    cli("topics", "apply", *place)
    assert cli("dead-letters", "list", "edge", *place, "--json").json == []
    assert cli("dead-letters", "list", "server", *place).out == "no dead letters\n"
    budget = cli("budget", *place, "--json")
    assert budget.code == 0
    assert budget.json
    exported = cli("topics", "export", tmp_path / "out", *place, "--json").json
    assert exported["deployment"] == "played"
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o700


def test_a_role_whose_key_is_not_at_hand_is_named_and_is_exit_code_two(cli, folder, logs, tmp_path):
    export_copy(logs, load(folder), tmp_path / "export")
    place = ("verify", "--deployment", folder, "--log", tmp_path / "export", "--keys", tmp_path / "none")
    answer = cli(*place, "--role", "learner")
    assert (answer.code, answer.out.splitlines()[0][:35]) == (2, "verify played: NOT CHECKED: learner")
    answer = cli(*place)
    assert answer.code == 2
    assert answer.out.startswith("verify played: NOT CHECKED: learner, shuffler (")
    assert cli(*place, "--role", "aggregator").code == 0


def test_a_journal_without_its_beginning_is_checked_with_its_archive_or_not(cli, folder, logs, tmp_path):
    source, system = ("decisions", 0), load(folder)
    part = logs.part(source)
    export_copy(LogCopy({source: PartitionCopy(0, 2, part.read(0, 2))}), system, tmp_path / "archive")
    left = LogCopy({**logs.parts, source: PartitionCopy(2, part.high, part.read(2, part.high))})
    export_copy(left, system, tmp_path / "left")
    verify = ("verify", "--deployment", folder, "--seed", SEED)
    alone = cli(*verify, "--log", tmp_path / "left", "--role", "learner")
    assert alone.code == 2
    assert (
        "decisions/0: the journal begins at offset 2: its first records were deleted; `hushstream verify " in alone.out
    )
    begun = cli(*verify, "--log", tmp_path / "left", "--role", "learner", "--from", "checkpoint")
    assert (begun.code, "no state to begin with" in begun.out) == (2, True)
    assert cli(*verify, "--log", tmp_path / "archive", "--log", tmp_path / "left").code == 0


def test_a_trim_says_what_it_would_delete_and_deletes_nothing_unasked(cli, refused, bootstrap, folder, tmp_path):
    place = ("--deployment", folder, "--bootstrap", bootstrap, "--prefix", "trim.")
    cli("topics", "apply", *place)
    told = cli("logs", "trim", *place, "--seed", SEED)
    kept = "kept models: these have folded nothing yet, and need its first record: learner/0\n"
    assert (told.code, told.out) == (0, f"{kept}Nothing is to be done.\n")
    done = cli("logs", "trim", *place, "--seed", SEED, "--role", "shuffler", "--write", "--json")
    assert done.json == {"changes": [], "remarks": [], "written": True}
    archived = cli("topics", "export", tmp_path / "out", *place, "--until", "checkpoint", "--seed", SEED, "--json")
    assert archived.json["partitions"] == []
    assert "key" in refused("logs", "trim", *place, "--keys", tmp_path / "none")


@pytest.mark.parametrize("topic", ["decisions", "reports", "journal-shuffler", "window-sums", "ledger", "models"])
def test_one_changed_byte_in_a_topic_is_exit_code_one(cli, folder, logs, tmp_path, topic):
    source = next(s for s, part in sorted(logs.parts.items()) if s[0] == topic and len(part.records) > 0)
    part = logs.part(source)
    records = list(part.records)
    index = len(records) - 1
    value = bytearray(records[index].value)
    value[len(value) // 2] ^= 1
    records[index] = records[index]._replace(value=bytes(value))
    changed = LogCopy({**logs.parts, source: PartitionCopy(part.low, part.high, records)}, logs.consistent)
    export_copy(changed, load(folder), tmp_path / "export")
    answer = cli("verify", "--deployment", folder, "--log", tmp_path / "export", "--seed", SEED)
    assert answer.code == 1
    assert "changed" in answer.out
    assert topic in answer.out


@pytest.mark.parametrize(
    "command",
    [
        ("topics", "plan"),
        ("topics", "apply"),
        ("topics", "check"),
        ("verify", "--seed", "1"),
        ("budget",),
        ("dead-letters", "list", "edge"),
        ("topics", "export", "nowhere"),
    ],
    ids=" ".join,
)
def test_an_absent_broker_is_one_line(refused, folder, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    line = refused(*command, "--deployment", folder, "--bootstrap", "127.0.0.1:1")
    assert "no broker at 127.0.0.1:1" in line
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("command", "duty"),
    [
        (["budget"], "operator"),
        (["model", "show"], "operator"),
        (["items", "list"], "client"),
        (["forget", "ann"], "client"),
        (["dead-letters", "list", "edge"], "letters-edge"),
        (["logs", "repair", "letter", "edge", "contexts", "0", "1"], "requeue-edge"),
        (["logs", "repair", "marks", "--role", "learner"], "learner"),
        (["logs", "check", "--role", "learner"], "verify-learner"),
        (["verify", "--role", "shuffler"], "verify-shuffler"),
        (["verify"], "export"),
        (["topics", "export", "copy"], "export"),
        (["topics", "check"], ""),
    ],
)
def test_a_refusal_for_want_of_a_right_prints_the_rule_of_the_account_that_lacks_it(
    cli, folder, tmp_path, monkeypatch, command, duty
):
    """On a secured Kafka each is run as printed (tests/kafka/secured/test_command.py)."""
    if command[0] == "model":
        folder = tmp_path / "shown"
        prepare(folder, parse_config(SHOWN))

    def denied(cluster):
        raise lacking(cluster, "topic x", "Read")

    monkeypatch.setattr(Cluster, "client_options", denied)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "word").write_text("secret", encoding="utf-8")
    security = tmp_path / "me.yaml"
    security.write_text("{protocol: SASL_SSL, username: me, password_file: word}", encoding="utf-8")
    told = cli(*command, "--deployment", folder, "--security", security).err
    rule = f"--principals {duty}=User:me " if duty else ""
    assert f"for User:me, got none; `hushstream topics apply {rule}--deployment {folder}" in told


def test_missing_topics_a_missing_folder_and_wrong_security_are_one_line(refused, bootstrap, folder, tmp_path):
    place = ("--deployment", folder, "--bootstrap", bootstrap)
    assert "topic" in refused("budget", *place, "--prefix", "nobody.")
    assert "expected a configuration file, got none" in refused("topics", "plan", "-d", tmp_path / "absent")
    assert "expected the fitted encoder, got none" in refused("topics", "plan", "-d", _bare(tmp_path))
    security = tmp_path / "broker.yaml"
    security.write_text("pasword: hunter2\n", encoding="utf-8")
    line = refused("topics", "plan", *place, "--security", security)
    assert "pasword" in line
    assert "hunter2" not in line


def _bare(tmp_path):
    (tmp_path / "deployment.yaml").write_text(PLAYED, encoding="utf-8")
    return tmp_path


def test_a_broker_whose_port_is_taken_is_one_line_and_exit_code_two(cli):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        answer = cli("broker", "--port", str(port))
    assert answer.code == 2
    assert answer.err == (
        f"hushstream broker: port {port} on 127.0.0.1 is in use by another process; name another one (--port)\n"
    )


def test_a_port_beyond_all_ports_is_refused(cli):
    answer = cli("broker", "--port", "99999999")
    assert (answer.code, answer.err) == (2, "hushstream broker: port: expected 0 to 65535, got 99999999\n")


def test_a_refused_record_is_listed_shown_and_requeued_once(cli, refused, bootstrap, folder):
    place = ("--deployment", folder, "--bootstrap", bootstrap, "--prefix", "letters.")
    assert cli("topics", "apply", *place).code == 0
    value = b"not a record"
    letter = {"zone": "edge", "role": "learner", "reason": "not_single_object", "topic": "contexts", "partition": 0}
    digest = seeded_key(SEED, "edge").digest("dead-letter", value)
    _append(bootstrap, "letters.contexts", value)
    _append(
        bootstrap,
        "letters.dead-letters-edge",
        encode("DeadLetter", {**letter, "offset": 0, "row": -1, "digest": digest}),
    )
    listed = cli("dead-letters", "list", "edge", *place).out
    assert listed.split() == ["1", "not_single_object", "contexts/0", "offset", "0"]
    assert f"digest: {digest.hex()}" in cli("dead-letters", "show", "edge", "contexts", "0", "0", *place).out
    again = ("logs", "repair", "letter", "edge", "contexts", "0", "0", *place, "--write", "--seed", SEED)
    assert cli(*again).out == "put contexts/0 offset 0 again, 12 bytes\nDone: 1 change.\n"
    assert cli(*again).out == "contexts/0 offset 0: it is there again already, at offset 1\nNothing is to be done.\n"
    assert cli(*again, "--json").json["changes"] == []
    assert "expected one of contexts/0 offset 9" in refused(
        "dead-letters", "show", "edge", "contexts", "0", "9", *place
    )
    assert "another digest" in refused(*again[:-1], SEED + 1)


LIFTED = {
    "release_id": bytes(16),
    "counter": bytes(16),
    "leaf": 1,
    "levels": 1,
    "variance": 4.0,
    "epsilon_micro": 500_000,
    "delta_units": b"",
    "private_as_stated": True,
}


@pytest.mark.parametrize(
    ("sums", "code", "said"),
    [
        ([3000, 6000, 100, 400, 200, 800], 0, "The shared private model over the application's own choice: +0.1333 a"),
        ([3, 1, 1, 0, 1, 0], 1, "needed to tell a rate from the noise"),
    ],
)
def test_a_lift_that_cannot_be_told_from_the_noise_is_exit_code_one(cli, bootstrap, tmp_path, sums, code, said):

    values = yaml.safe_load(PLAYED) | {"deployment": f"lifted{code}", "measurement": {"baseline": 0.1, "own": 0.1}}
    system = prepare(tmp_path / "lifted", parse_config(values))
    place = ("--deployment", tmp_path / "lifted", "--bootstrap", bootstrap)
    assert cli("topics", "apply", *place).code == 0
    fields = LIFTED | {"config_digest": system.digest, "sums": np.array(sums, "<i8").tobytes()}
    _append(bootstrap, f"lifted{code}.lift", encode("Lift", fields))
    answer = cli("lift", *place)
    assert answer.code == code
    assert said in answer.out
    found = cli("lift", *place, "--json")
    over = found.json["shared_private_model_over"]
    assert (found.code, over["own"] is None, over["baseline"] is None) == (code, bool(code), bool(code))


@pytest.mark.parametrize(
    ("sums", "code", "said"),
    [
        ([900, 300, 100, 20, 900, 100, 90, 100], 0, "If the assumption below holds, the answers would bring more than"),
        ([60, 140, 50, 150] * 2, 1, "decisions more until the interval excludes 0"),
        ([1, 1, 1, 1] * 2, 1, "Too little was shown"),
    ],
)
def test_a_lift_in_the_shadow_is_read_from_what_was_released(cli, refused, bootstrap, tmp_path, sums, code, said):
    name = f"shadowed{sum(sums)}"
    values = yaml.safe_load(PLAYED) | {"deployment": name, "mode": "shadow", "items": {"capacity": 2}}
    values["measurement"] = {"of": "answers", "decisions_per_user": 1}
    system = prepare(tmp_path / "shadowed", parse_config(values))
    place = ("--deployment", tmp_path / "shadowed", "--bootstrap", bootstrap)
    assert cli("topics", "apply", *place).code == 0
    assert "expected at least one release, got none" in refused("lift", *place)
    fields = LIFTED | {"config_digest": system.digest, "sums": np.array(sums, "<i8").tobytes()}
    _append(bootstrap, f"{name}.lift", encode("Lift", fields))
    answer = cli("lift", *place)
    assert answer.code == code
    assert said in answer.out
    assert "The answers over what was shown (SNIPS)" in answer.out or said == "Too little was shown"
    assert "one that suits each visit makes the answers look better than they are" in answer.out
    assert cli("lift", *place, "--json").json["certain"] == (not code)


def test_a_released_model_is_shown_and_compared_without_any_key(cli, refused, rigs, bootstrap, tmp_path):
    system = prepare(tmp_path / "shown", parse_config(SHOWN))
    place = ("--deployment", tmp_path / "shown", "--bootstrap", bootstrap)
    assert cli("topics", "apply", *place).code == 0
    assert "expected a released model on topic models, got none" in refused("model", "show", *place)
    for window in range(2):
        _append(bootstrap, "shown.models", _model_of(rigs, system.core, window))
    found = cli("model", "show", *place, "--json").json
    assert found["version"] == 2
    assert {one["item"] for one in found["segments"]} <= {"0", "1"}
    assert cli("model", "show", *place, "--version", "1").out.splitlines()[0].startswith(("Version 1,", "REPRODUCIBLE"))
    changed = cli("model", "diff", *place, "1", "--json").json
    assert (changed["older"], changed["newer"]) == (1, 2)
    assert changed["moved"][0]["item"] == "1"


@pytest.mark.parametrize("form", ["json", "npz"])
def test_a_released_model_is_exported_into_a_file_that_decides(cli, refused, rigs, bootstrap, tmp_path, form):
    from hushstream.systems.p2b.machines.shuffler import terms_of
    from hushstream.systems.p2b.models import ExportedModel

    name, file = f"exported-{form}", tmp_path / "model"
    core = prepare(tmp_path / name, parse_config({**SHOWN, "deployment": name, "items": {"capacity": 3}})).core
    place = ("--deployment", tmp_path / name, "--bootstrap", bootstrap)
    assert cli("topics", "apply", *place).code == 0
    assert "expected a released model on topic models, got none" in refused("model", "export", file, *place)
    ones = np.outer([1, 5, 2], 100 * rigs.cell_budgets(core.linear.layout)).astype("<i8")
    own = {"window_id": bytes(16), "slots": 300, "variance": 1e6, "private_as_stated": True}
    sums = {"ones": ones.tobytes(), "zeros": (6 * ones.max(0) - ones).tobytes()}
    window = {**terms_of(core).record, **core.price_fields, **own, **sums, **core.window_rules().item_rows._asdict()}
    made = rigs.AggregatorRig(core).give([encode(core.form.sums_record, window)])
    _append(bootstrap, f"{name}.models", made.steps[-1].journal)
    assert cli("model", "export", file, "--format", form, *place).out.startswith(f"{file}: ")
    model = ExportedModel.read(file.read_bytes())
    assert (model.decide({"country": "fr"}), model.about["deployment"]) == ("1", name)
    assert "expected a file to write to" in refused("model", "export", tmp_path / "no" / "folder", *place)


def _model_of(rigs, core, window):
    """The record of the version after a window, in each of which another item is liked, as an aggregator makes it."""
    from hushstream.systems.p2b.machines.shuffler import terms_of

    rig = rigs.AggregatorRig(core)
    for number in range(window + 1):
        ones = np.outer(np.arange(4) == number, 100 * rigs.cell_budgets(core.linear.layout)).astype("<i8")
        own = {"window_id": bytes([number]) * 16, "slots": 300, "variance": 1e6, "private_as_stated": True}
        sums = {"ones": ones.tobytes(), "zeros": (2 * ones.max(0) - ones).tobytes()}
        fields = {
            **terms_of(core).record,
            **core.price_fields,
            **own,
            **sums,
            **core.window_rules().item_rows._asdict(),
        }
        seen = rig.give([encode(core.form.sums_record, fields)])
    return seen.steps[-1].journal


def test_a_partition_that_an_input_does_not_have_cannot_be_resumed(cli, folder):
    found = cli("logs", "repair", "input", "contexts", "--partition", "9", "--at", "5", "-d", folder)
    assert found.code == 2
    assert "Invalid value for '--partition': expected a partition of contexts, 0 to " in found.err


def _append(bootstrap, topic, value):
    async def append():
        async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
            await producer.send_and_wait(topic, value, partition=0)

    asyncio.run(append())
