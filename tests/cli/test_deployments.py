"""Commands on a deployment's folder, from its configuration to its keys; every setting has its meaning."""

import inspect
import io
import json
import os
import re
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import yaml
from full_disk import no_room

from hushstream.agents.worker.deployment import load, parse_config, prepare, read_config
from hushstream.cli.configure.config_options import settings
from hushstream.cli.main import main
from hushstream.engine.configuration import meanings
from hushstream.engine.declare.artefacts import PUBLIC_DATASET
from hushstream.privacy.keys import generate_keys
from hushstream.privacy.promises.promise import NOT_PRIVATE, Form
from hushstream.replay.checks import nested
from hushstream.systems.catalogue import kinds
from hushstream.systems.colin.deployment import inputs_of
from hushstream.systems.colin.relation import SocialGraph


@pytest.mark.parametrize(
    ("release", "private"),
    [
        ("{mechanism: slot-sums, sampling: 0.5}", True),
        ("{mechanism: tuples, sampling: 0.5, threshold: 50}", True),
        ("{mechanism: paper, sampling: 0.5}", False),
    ],
)
def test_the_guarantee_is_one_text_and_one_json_for_every_mode(cli, config, release, private):
    path = config(add=f"release: {release}\n")
    text, values = cli("guarantee", path, "--details"), cli("guarantee", path, "--json").json
    assert text.code == 0
    assert (values["marks"] == []) is private
    assert (NOT_PRIVATE in text.out) is not private
    assert ("claimed" not in values["mechanism"]) is private
    for group, title in (
        ("person", "One person, in a whole life"),
        ("unit", "The unit"),
        ("mechanism", "How it is kept"),
    ):
        assert f"\n\n{title}\n" in text.out
        assert all(value not in (None, "") for value in values[group].values())
    assert f"  Deployment: {values['mechanism']['deployment']}." in text.out
    assert f"  Mechanism: {values['mechanism']['mechanism']}." in text.out
    listed = text.out.partition("\nNot protected\n")[2].partition("\n\n")[0].splitlines()
    assert listed == [f"  - {fact}" for fact in values["not_protected"]]
    assert listed


EXAMPLES = sorted((Path(__file__).parents[2] / "deploy" / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_first_screen_says_who_is_protected_who_reads_and_how_long_it_is_kept(cli, path):
    text, values = cli("guarantee", path).out, cli("guarantee", path, "--json").json
    assert len(text.splitlines()) <= 25
    for name in ("Protected", "Replace-one", "Trusted", "Not protected"):
        assert f"\n  {name}: " in text
    assert "\n  It holds only if: a person has " in text, "first what the application has to see to"
    parts = [(one["topic"], one["form"], one["what"]) for one in values["seen"]]
    for topic, _, what in parts:
        several = len({other for name, other, _ in parts if name == topic}) > 1
        assert (f"in {topic} {what}" in text) == several, "one topic stood under noised and in clear"
    public = [one["what"] for one in values["seen"] if (one["form"], one["zone"]) == (Form.PUBLIC, "published")]
    assert values["short"].get("in_clear", []) == public
    assert all(what in text.partition("\n  Published in clear: ")[2].splitlines()[0] for what in public)
    seen = {one["topic"] for one in values["seen"]}
    assert seen == {topic for kept in values["readers"].values() for topics in kept.values() for topic in topics}
    assert "(7 days)" in text


def test_the_epsilon_that_was_configured_is_the_one_that_is_printed(cli, config):
    path = config(add="privacy: {epsilon: 0.5, units_per_person: 3}\n")
    values = cli("guarantee", path, "--json").json
    unit, person = values["unit"], values["person"]
    assert (unit["zero_out"]["epsilon"], unit["which"]["epsilon"]) == (0.5, 1.0)
    assert (person["zero_out"]["epsilon"], person["which"]["epsilon"]) == (1.5, 3.0)
    assert person["counted"]["units"] == 3


def test_what_the_lift_costs_one_user_is_added_to_what_their_slots_cost(cli, config):
    path = config(add="measurement: {own: 0.1, epsilon: 3}\n")
    values = cli("guarantee", path, "--json").json
    for question, prices in (("zero_out", (1.0, 3.0, 4.0)), ("which", (2.0, 6.0, 8.0))):
        parts = [values[group][question] for group in ("unit", "lift", "person")]
        assert tuple(part["epsilon"] for part in parts) == prices
        assert int(parts[2]["delta_units"]) == sum(int(part["delta_units"]) for part in parts[:2])
    assert "  One person, zero-out: epsilon 4, delta " in cli("guarantee", path, "--details").out
    without = cli("guarantee", config(), "--json").json
    assert ("lift" in without, without["person"]["zero_out"]["epsilon"]) == (False, 1.0)


def test_the_lift_of_a_deployment_without_one_names_the_setting_before_any_broker_is_asked(
    cli, refused, config, tmp_path
):
    cli("prepare", config(), tmp_path / "shop")
    line = refused("lift", "--deployment", tmp_path / "shop", "--bootstrap", "127.0.0.1:1")
    assert "expected a deployment that measures, got one of p2b that does not" in line
    assert "measurement: {baseline: 0.1, own: 0.1}" in line


def test_the_environment_overrides_a_value(cli, config, monkeypatch):
    monkeypatch.setenv("HUSHSTREAM__PRIVACY__EPSILON", "0.25")
    assert cli("guarantee", config(), "--json").json["unit"]["zero_out"]["epsilon"] == 0.25


def test_the_budget_says_how_much_of_what_is_planned_fits(cli, config):
    path = config(add="privacy: {units_per_person: 9, lifetime: {epsilon: 2.5, delta: 1.0e-6}}\n")
    said = "all reports of one user: epsilon 2.5, delta 1.00e-6"
    stop = "it pays for 2 of 9 planned reports of a user, then releases stop"
    each = ((("guarantee",), ("--details",), f"{said} (basic composition); {stop}; "),)
    for command, details, told in (*each, (("config", "check"), (), f"{said} ({stop})\n")):
        assert told in cli(*command, path, *details).out
        (found,) = cli(*command, path, "--json").json["budgets"]
        assert (found["planned"], found["fits"], found["filter"], found["configured"]) == (9, 2, "basic", True)
    assert cli("guarantee", path, "--json").json["person"]["counted"]["units"] == 2


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (
            "{epsilon: 0.5, delta: 1.0e-6}",
            "privacy.lifetime: expected a limit that covers one report of one user at least (epsilon 1, ",
        ),
        ("{epsilon: 0, delta: 1.0e-6}", "privacy.lifetime.epsilon: expected a finite number above 0, got 0"),
        ("{epsilon: .inf, delta: 1.0e-6}", "privacy.lifetime.epsilon: expected a finite number above 0, got inf"),
        ("{epsilon: 1}", "privacy.lifetime.delta: expected a value, got none"),
        ("{epsilon: 1, delta: 1.0e-6, fliter: zcdp}", "privacy.lifetime.fliter: there is no such key"),
    ],
)
def test_a_budget_that_cannot_be_is_refused(refused, config, budget, message):
    assert message in refused("config", "check", config(add=f"privacy: {{lifetime: {budget}}}\n"))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_good_configuration_passes_with_and_without_a_byte_order_mark(cli, config, encoding):
    found = cli("config", "check", config(encoding=encoding), "--json").json
    assert {name: found[name] for name in ("deployment", "codes")} == {"deployment": "shop", "codes": 4}
    assert [(one["counted"], one["planned"], one["fits"]) for one in found["budgets"]] == [("reports of a user", 1, 1)]


@pytest.mark.parametrize(
    ("replace", "add", "message"),
    [
        ([], "relase: {epsilon: 1}\n", "relase: there is no such key"),
        ([], "privacy: {epsilom: 1}\nslot: {after: 3}\n", "privacy.epsilom: there is no such key"),
        ([("capacity: 4", "capacity: many")], "", "line 2: items.capacity: expected a whole number, got 'many'"),
        ([("capacity: 4", "capacity: 1")], "", "items.capacity: expected a whole number from 2 to 65536, got 1"),
        ([("items: {capacity: 4}\n", "")], "", "items.capacity: expected a value, got none"),
        (
            [("{dimension: 3, digits: 1}", "3")],
            "",
            "line 3: features: expected 1 to 64 names with declarations, got a whole number",
        ),
        ([], "privacy: {epsilon: .nan}\n", "privacy.epsilon: expected a finite number above 0"),
        (
            [],
            "release: {mechanism: sums}\n",
            "release.mechanism: expected 'slot-sums', 'tuples' or 'paper', got 'sums'",
        ),
        ([], "release: {mechanism: paper}\n", "release.sampling: expected below 1 for mechanism paper"),
        ([("codes: 4", "codes: 5000")], "", "encoder.codes: expected at most the 66 contexts of the grid, got 5000"),
        ([("capacity: 4", "capacity: 60000")], "", "expected the sums of a window (16 * codes * arms) of at most"),
        ([], "items: {capacity: 5}\n", "line 6: expected YAML with each key once, got a key twice"),
        (
            [],
            "x: {a: 1\ny: 2\n",
            "line 7: expected YAML, got something else: while parsing a flow mapping from line 6 on, expected ','",
        ),
        ([], "\tx: 1\n", "found character '\\t' that cannot start any token"),
        ([], "x: *secret\n", "line 6: expected YAML, got something else\n"),
        ([], 'x: "a\\secret"\n', "line 6: expected YAML, got something else\n"),
    ],
)
def test_a_wrong_configuration_is_refused_in_one_line_that_names_file_and_key(refused, config, replace, add, message):
    path = config(*replace, add=add)
    line = refused("config", "check", path)
    assert message in line
    assert str(path) in line


def test_what_follows_from_a_wrong_section_is_not_said_beside_it(refused, config):
    """Left out, the section would miss its keys: that would be a second fault, of a key that nobody wrote."""
    line = refused("config", "check", config(("{dimension: 3, digits: 1}", "3")))
    assert line.endswith("features: expected 1 to 64 names with declarations, got a whole number\n")


@pytest.mark.parametrize(
    "content", [b"", b"- a\n", b"\xff\xfe\x00", b"text", b"items: &x\n  capacity: *x\n", b"a: " + 3000 * b"["]
)
def test_what_is_no_configuration_at_all_is_refused(refused, tmp_path, content):
    path = tmp_path / "shop.yaml"
    path.write_bytes(content)
    assert f"{path}: expected" in refused("guarantee", path)
    assert f"{tmp_path / 'deployment.yaml'}: expected a configuration file, got none" in refused("guarantee", tmp_path)


def test_preparing_twice_keeps_encoder_and_digest(cli, config, tmp_path):
    folder = tmp_path / "shop"
    first = cli("prepare", config(), folder, "--json").json
    encoder = (folder / "encoder.json").read_bytes()
    again = cli("prepare", config(encoding="utf-8-sig", name="again.yaml"), folder, "--json").json
    assert first == again
    assert (folder / "encoder.json").read_bytes() == encoder
    checked = cli("config", "check", folder, "--json").json
    assert {**first, **{name: checked[name] for name in ("budgets", "plan", "doubt", "useless", "next")}} == checked
    assert first["digest"] in cli("config", "check", folder).out
    assert first["guarantee"].startswith("User-level differential privacy")
    assert first["guarantee"] in cli("prepare", config(), folder).out


CLUB = """\
system: colin
deployment: club
items: {capacity: 4}
features: {dimension: 3}
privacy: {units_per_person: 100, person: unprotected}
"""
TOLD = ", person: unprotected"


def test_the_ridge_of_a_collaborative_deployment_is_told_with_its_graph(cli, tmp_path):
    club, edges, folder = tmp_path / "club.yaml", tmp_path / "edges.csv", tmp_path / "club"
    club.write_text(CLUB, encoding="utf-8")
    edges.write_text("ann,bob\nbob,cyd\n", encoding="utf-8")
    assert "ridge" not in cli("guarantee", club, "--json").json["facts"]
    made = cli("prepare", club, folder, "--graph", edges, "--json").json
    assert cli("prepare", "--graph", edges, club, folder, "--json").json == made
    promised = cli("guarantee", folder, "--json").json["facts"]["ridge"]
    assert promised == pytest.approx(made["ridge"], abs=1e-6)
    assert cli("config", "check", folder, "--json").json["ridge"] == made["ridge"] > 10
    assert f"Ridge of the models: {promised:.6g}, " in cli("guarantee", folder, "--details").out


def test_a_horizon_that_rewards_cannot_need_is_noted(cli, tmp_path):
    club = tmp_path / "club.yaml"
    club.write_text(CLUB, encoding="utf-8")
    mechanism = cli("config", "check", club, "--json").json["mechanism"]
    assert mechanism.startswith("noise on each reward, once, with deviation ")
    assert not cli("config", "check", club, "--json").json["warnings"]
    club.write_text(CLUB + "release: {mechanism: negative-digit}\n", encoding="utf-8")
    (less,) = cli("config", "check", club, "--json").json["warnings"]
    assert less.startswith("release.mechanism: negative-digit adds noise with deviation ")
    club.write_text(CLUB + "release: {horizon: 1000}\n", encoding="utf-8")
    (note,) = cli("config", "check", club, "--json").json["warnings"]
    assert note.startswith("release.horizon: noise is sized for 1000 steps of a user, and 100 of their rewards count")
    assert note in cli("config", "check", club).out


def test_a_counter_whose_windows_the_clock_uses_up_is_noted(cli, tmp_path):
    shop = tmp_path / "shop.yaml"
    plain = "deployment: shop\nitems: {capacity: 4}\nfeatures: {dimension: 3}\nexpected_slots: 10000000\n"
    shop.write_text(plain + "release: {window_units: 10000}\n", encoding="utf-8")
    assert cli("config", "check", shop, "--json").json["warnings"] == []
    shop.write_text(plain + "release: {window_units: 10000, window_seconds: 60, horizon: 1440}\n", encoding="utf-8")
    (note,) = cli("config", "check", shop, "--json").json["warnings"]
    assert "the counter serves 1440 of a partition: at one each 60 s they last 24 hours" in note
    shop.write_text(plain + "release: {window_units: 10000, window_seconds: 60, sums: fresh}\n", encoding="utf-8")
    assert cli("config", "check", shop, "--json").json["warnings"] == []


def test_a_folder_of_another_configuration_and_a_file_in_its_place_are_refused(cli, refused, config, tmp_path):
    folder = tmp_path / "shop"
    assert cli("prepare", config(), folder).code == 0
    before = (folder / "deployment.yaml").read_bytes()
    other = config(("capacity: 4", "capacity: 5"), name="other.yaml")
    assert "the configuration of a deployment is frozen" in refused("prepare", other, folder)
    assert (folder / "deployment.yaml").read_bytes() == before
    (tmp_path / "taken").write_text("x", encoding="utf-8")
    assert "taken" in refused("prepare", other, tmp_path / "taken")


def test_an_impossible_configuration_leaves_no_folder_behind(refused, config, tmp_path):
    refused("prepare", config(("codes: 4", "codes: 5000")), tmp_path / "shop")
    assert not (tmp_path / "shop").exists()


STORAGE = ("storage-edge", "storage-shuffler", "storage-server")


def test_storage_keys_that_an_earlier_releases_folder_lacks_are_named_made_and_printed(cli, tmp_path):
    generate_keys(tmp_path, ["edge", "sealing", "edge.north"])
    before = (tmp_path / "edge.key").read_bytes()
    checked = cli("keys", "check", tmp_path)
    assert checked.code == 0
    assert "storage-edge.key: none, so states are sealed under the zone's key; `hushstream keys st" in checked.out
    made = cli("keys", "storage", tmp_path)
    assert sorted(path.stem for path in tmp_path.glob("*.key")) == [
        "edge", "edge.north", "sealing", "storage-edge", "storage-edge.north",
    ]  # fmt: skip
    assert made.out.count(": key ") == 2
    assert (tmp_path / "edge.key").read_bytes() == before
    again = cli("keys", "storage", tmp_path)
    assert (again.code, "no zone lacks a storage key" in again.out) == (0, True)
    assert "none, so" not in cli("keys", "check", tmp_path).out


def test_keys_are_made_once_for_the_owner_alone_and_never_shown(cli, refused, tmp_path):
    folder = tmp_path / "keys"
    made = cli("keys", "generate", folder, "--json")
    ids = {item["zone"]: item["key_id"] for item in made.json}
    assert set(ids) == {"edge", "shuffler", *STORAGE}
    for zone, key_id in ids.items():
        path = folder / f"{zone}.key"
        assert path.stat().st_mode & 0o777 == 0o600
        assert key_id in cli("keys", "check", folder).out
        assert path.read_text(errors="replace", encoding="utf-8").strip() not in made.out
    before = (folder / "edge.key").read_bytes()
    assert "keys are never overwritten" in refused("keys", "generate", folder)
    assert (folder / "edge.key").read_bytes() == before
    assert cli("keys", "check", folder, "--json").json == [
        {"zone": zone, "key_id": ids[zone], "epochs": [0, 0], "problem": None}
        for zone in ("edge", "shuffler", *STORAGE)
    ]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: os.chmod(path, 0o644), "expected mode 600"),
        (lambda path: path.write_bytes(path.read_bytes()[:-10]), "key file"),
    ],
    ids=["world-readable", "short"],
)
def test_a_key_file_that_no_worker_would_take_fails_the_check(cli, tmp_path, spoil, message):
    cli("keys", "generate", tmp_path)
    material = (tmp_path / "edge.key").read_text(errors="replace", encoding="utf-8").strip()
    spoil(tmp_path / "edge.key")
    answer = cli("keys", "check", tmp_path)
    assert answer.code == 1
    assert message in answer.out
    assert "shuffler.key: good" in answer.out
    assert material not in answer.out + answer.err
    found = cli("keys", "check", tmp_path, "--json")
    assert found.code == 1
    assert [item["problem"] is None for item in found.json] == [False, *[True] * 4]


def test_a_demanded_zone_is_compared_with_all_that_are_there(cli, tmp_path):
    cli("keys", "generate", tmp_path)
    (tmp_path / "shuffler.key").write_bytes((tmp_path / "edge.key").read_bytes())
    cli("keys", "rotate", "shuffler", tmp_path)
    for zone, other in (("shuffler", "edge"), ("edge", "shuffler")):
        answer = cli("keys", "check", tmp_path, "--zone", zone)
        assert (answer.code, answer.out.count("\n")) == (1, 1)
        assert f"got a key of zone {other}" in answer.out


@pytest.mark.parametrize("zones", [["edge"], ["edge", "counter"], ["shuffler", "sealing"]], ids=" ".join)
def test_the_key_files_that_are_there_are_checked_and_a_demanded_one_must_be(cli, tmp_path, zones):
    for zone in zones:
        cli("keys", "generate", tmp_path, "--zone", zone)
    found = cli("keys", "check", tmp_path, "--json")
    assert found.code == 0
    stored = [f"storage-{zone}" for zone in zones if zone != "sealing"]
    assert [item["zone"] for item in found.json] == [*zones, *stored]
    demanded = cli("keys", "check", tmp_path, "--zone", zones[0])
    assert (demanded.code, demanded.out.count("\n")) == (0, 1)
    absent = cli("keys", "check", tmp_path, "--zone", "counter" if zones[0] == "shuffler" else "shuffler")
    assert absent.code == 1
    assert "expected a file, got none" in absent.out
    (tmp_path / f"{zones[-1]}.key").chmod(0o644)
    assert cli("keys", "check", tmp_path).code == 1


def test_a_folder_without_any_key_file_fails_the_check(refused, tmp_path):
    line = refused("keys", "check", tmp_path)
    assert "expected a key file in" in line
    assert "edge.key, shuffler.key, sealing.key, signing.key, counter.key, storage-edge.key" in line
    assert "keys generate" in line


def test_a_worker_without_its_key_says_how_to_make_one(cli, refused, config, tmp_path):
    cli("prepare", config(), tmp_path / "shop")
    line = refused("worker", "learner", "--deployment", tmp_path / "shop", "--bootstrap", "127.0.0.1:1")
    assert "keys generate" in line
    live = refused("worker", "learner", "--deployment", tmp_path / "shop", "--seed", "1")
    assert "live data needs key files" in live


def test_a_zones_key_is_rotated_and_an_ended_epoch_retired_for_good(cli, refused, tmp_path):
    folder = tmp_path / "keys"
    cli("keys", "generate", folder, "--zone", "counter")
    first = cli("keys", "check", folder, "--zone", "counter", "--json").json[0]
    assert "expected an ended epoch that is kept (none), got 0" in refused(
        "keys", "retire", "counter", folder, "--epoch", "0"
    )
    turned = cli("keys", "rotate", "counter", folder, "--json").json
    assert (turned["epoch"], turned["oldest"]) == (1, 0)
    assert turned["key_id"] != first["key_id"]
    gone = cli("keys", "retire", "counter", folder, "--epoch", "0")
    assert "kept from epoch 1" in gone.out
    assert "epoch 1" in cli("keys", "check", folder, "--zone", "counter").out


CLAIMS = "expected one that is private as stated"


@pytest.fixture
def live(cli, config, tmp_path):
    """A folder with key files, made by the commands, of a configuration with something added."""

    def made(add=""):
        folder = tmp_path / "live"
        assert cli("prepare", config(add=add), folder).code == 0
        assert cli("keys", "generate", folder / "keys").code == 0
        return folder

    return made


@pytest.fixture
def ended(cli):
    """Why a worker with key files, and no broker to be found, gives up: it says one line, and exits with 1."""

    def why(role, folder):
        asked = cli("worker", role, "-d", folder, "--bootstrap", "127.0.0.1:1", "--connect-timeout", "0.2")
        assert (asked.code, asked.err.count("\n")) == (1, 1), asked
        return asked.err

    return why


def test_no_configuration_can_say_that_its_data_is_public(ended, refused, config, monkeypatch, live):
    """With it, and keys of its own, a worker once published contexts, arms and rewards beside a statement of eps 1."""
    folder = live()
    assert "no broker at 127.0.0.1:1 answered" in ended("learner", folder)
    path = folder / "deployment.yaml"
    path.write_text(path.read_text(encoding="utf-8") + "public_dataset: true\n", encoding="utf-8")
    for line in (ended("learner", folder), refused("prepare", config(add="public_dataset: true\n"), folder)):
        assert "public_dataset: there is no such key" in line
    monkeypatch.setenv("HUSHSTREAM__PUBLIC_DATASET", "true")
    assert "public_dataset: there is no such key" in refused("config", "check", config())


def test_a_live_worker_refuses_the_folder_of_a_replay_whatever_keys_it_has(ended, cli, refused, config, tmp_path, live):
    folder = live()
    assert "--seed: expected the folder of a replay" in refused("worker", "learner", "-d", folder, "--seed", "1")
    (folder / PUBLIC_DATASET).write_text(json.dumps({"dataset": "synthetic"}), encoding="utf-8")
    for role in ("learner", "shuffler", "aggregator"):
        assert "got the folder of a replay of a public dataset" in ended(role, folder)
    marks = cli("statement", "--deployment", folder, "--json").json["marks"]
    assert marks == ["REPRODUCIBLE, NOT PRIVATE"]
    seen = cli("guarantee", folder, "--json").json["seen"]
    assert not any(one["leaves_unnoised"] for one in seen)
    assert "expected the folder of a deployment, got that of a replay" in refused("prepare", config(), folder)


@pytest.mark.parametrize("release", ["{mechanism: paper, sampling: 0.5}"])
def test_a_release_that_is_not_private_as_stated_is_for_replays_alone(ended, refused, config, tmp_path, release):
    path = config(add=f"release: {release}\n")
    for command in (("config", "check", path), ("prepare", path, tmp_path / "shop")):
        assert CLAIMS in refused(*command)
    folder = tmp_path / "made"
    prepare(folder, read_config(path))
    generate_keys(folder / "keys", ("edge", "shuffler"))
    for role in ("learner", "shuffler", "aggregator"):
        assert CLAIMS in ended(role, folder)


def test_exact_sums_are_marked_and_for_replays_alone(ended, cli, refused, tmp_path):
    """Their guarantee once said that they were private as stated."""
    club, folder = tmp_path / "club.yaml", tmp_path / "club"
    club.write_text(CLUB + "release: {mechanism: exact}\n", encoding="utf-8")
    found = cli("guarantee", club, "--json").json
    assert found["marks"] == [NOT_PRIVATE]
    assert [one["topic"] for one in found["seen"] if one["leaves_unnoised"]] == ["releases", "models"]
    first = "A person is guaranteed nothing, since content leaves un-noised on releases, models."
    assert cli("guarantee", club).out.startswith(f"{first}\n{NOT_PRIVATE}\n\nIn short")
    assert f"{CLAIMS}, got exact" in refused("config", "check", club)
    prepare(folder, read_config(club), inputs_of(SocialGraph.of_edges([("ann", "bob", 1.0)])))
    generate_keys(folder / "keys", ("edge", "counter"))
    for role in ("learner", "counter", "aggregator"):
        assert CLAIMS in ended(role, folder)


@pytest.mark.parametrize(
    ("items", "add", "told", "once"),
    [
        (
            "items: {capacity: 1}\n",
            "release: {mechanism: sums, window_units: 0}\nslot:\n  after: 3\nmeasurement: {own: 7}\n",
            (
                ", line 2: items.capacity: expected a whole number from 2 to 65536, got 1",
                ", line 6: release.mechanism: expected 'slot-sums', 'tuples' or 'paper', got 'sums'",
                ", line 8: slot.after: there is no such key",
                ", line 9: measurement.own: expected",
            ),
            "release.",  # what the wrong mode decides is not judged by another mode
        ),
        (
            "",
            "slot: {after_interactions: x}\nprivacy: {units_per_person: 0}\nmeasurement: {own: 7}\n",
            (
                ": items.capacity: expected a value, got none",
                ", line 5: slot.after_interactions: expected a whole number, got 'x'",
                ", line 6: privacy.units_per_person: expected a whole number from 1 to 1000000, got 0",
                ", line 7: measurement.own: expected",
            ),
            "items.capacity",
        ),
    ],
)
def test_all_that_is_wrong_is_said_at_once_with_its_line(refused, config, items, add, told, once):
    path = config(("items: {capacity: 4}\n", items), add=add)
    line = refused("config", "check", path)
    assert all(f"{path}{said}" in line for said in told), line
    assert line.count(once) == 1


def test_a_key_that_is_nearly_right_or_stands_elsewhere_is_answered_with_the_right_one(refused, config, tmp_path):
    path = config(add="privacy: {epsilom: 1, zzz: 1}\nwindow_units: 9\n")
    line = refused("config", "check", path)
    for said in (
        "privacy.epsilom: there is no such key; did you mean epsilon?",
        "privacy.zzz: there is no such key; /",
        "window_units: there is no such key; did you mean release.window_units?",
    ):
        assert said in line
    mall = tmp_path / "mall.yaml"
    mall.write_text(
        "system: pdap\ndeployment: m\nvendors: [{name: a, item: {capacity: 3}}]\nfeatures: {dimension: 2}\n",
        encoding="utf-8",
    )
    assert "line 3: vendors.0.item: there is no such key; did you mean items?" in refused("config", "check", mall)


def test_a_value_from_the_environment_is_on_no_line(refused, config, monkeypatch):
    monkeypatch.setenv("HUSHSTREAM__ITEMS__CAPACITY", "1")
    path = config()
    assert f"{path}: items.capacity: expected a whole number from 2 to 65536, got 1" in refused("config", "check", path)


MALL = """\
system: pdap
deployment: mall
vendors: [{name: north, items: {capacity: 5}}]
features: {dimension: 2}
"""


SHOP = """\
deployment: shop
items: {capacity: 10}
expected_slots: 20000
features:
  country: {kind: category, vocabulary: [de, fr, it]}
  age: {kind: number, range: [16, 96]}
feedback: {click_rate: 0.08}
release: {window_units: 5000}
"""
FILMS = "system: bgt\ndeployment: films\nitems: {capacity: 1682}\n"
WARDS = """\
system: pdol
deployment: wards
nodes: 8
features: {dimension: 20}
release: {window_units: 128, horizon: 128, domains: 1}
"""


def _told(values, word):
    """A configuration that says of its persons whether they are protected."""
    if "privacy" in values:
        return re.sub(r"(privacy: \{.*)\}", rf"\1, person: {word}}}", values)
    return f"{values}privacy: {{person: {word}}}\n"


@pytest.mark.parametrize(
    ("values", "why", "out"),
    [
        (
            MALL + "privacy: {units_per_person: 9}\n",
            "nobody counts a person's rewards (9 together would cost epsilon 9",
            "State this in the configuration",
        ),
        (
            MALL,
            "nobody counts a person's rewards (100 together would cost epsilon 100",
            "State this in the configuration",
        ),
        (
            CLUB.replace(TOLD, "") + "release: {mechanism: negative-digit}\n",
            "100 rewards of one user together cost",
            "Either set privacy.units_per_person to 9 or less",
        ),
    ],
)
def test_who_promises_a_person_nothing_says_so_in_words_or_sets_a_cap(cli, refused, tmp_path, values, why, out):
    path, folder, edges = tmp_path / "x.yaml", tmp_path / "made", tmp_path / "edges.csv"
    edges.write_text("ann,bob\n", encoding="utf-8")
    given = ("--graph", edges) if "colin" in values else ()
    path.write_text(values, encoding="utf-8")
    for command in (("prepare", path, folder, *given), ("config", "check", path)):
        line = refused(*command)
        assert f"privacy: expected a guarantee for each person, got none: {why}" in line
        assert out in line
        assert "privacy: {person: unprotected}" in line
    assert not folder.exists()
    path.write_text(_told(values, "unprotected"), encoding="utf-8")
    said = cli("prepare", path, folder, *given, "--json").json["digest"]
    said_of_it = cli("guarantee", folder).out
    assert ("One person as a whole is not protected" in said_of_it) == ("units_per_person: 9}" not in values)
    assert ("nobody counts" in said_of_it.splitlines()[0]) == ("pdap" in values)
    assert cli("config", "check", folder).code == 0
    # The words are in no digest: a deployment that runs is not another one because it says so.
    plain = tmp_path / "plain"
    path.write_text(values, encoding="utf-8")
    prepare(plain, read_config(path), {"graph": (str(edges), "ann,bob\n")} if given else None)
    assert load(plain).digest.hex() == said
    path.write_text(_told(values, "unprotected"), encoding="utf-8")
    assert cli("prepare", path, plain, *given, "--json").json["digest"] == said
    path.write_text(_told(values, "sure"), encoding="utf-8")
    assert "privacy.person: expected 'protected' or 'unprotected', got 'sure'" in refused("config", "check", path)


@pytest.mark.parametrize(
    ("values", "paid"),
    [
        (f"{SHOP}privacy: {{units_per_person: 12}}\n", "12 reports of one user cost one person epsilon 24, "),
        (
            "system: colin\ndeployment: club\nitems: {capacity: 10}\nfeatures: {dimension: 8}\n"
            "privacy: {epsilon: 0.25}\n",
            "cost one person epsilon 2500 (replace-",
        ),
        (f"{WARDS}privacy: {{epsilon: 8.0}}\n", "one record cost one person epsilon "),
        (f"{FILMS}privacy: {{epsilon: 4.5}}\n", "guaranteed under replace-one. State it if it is meant: privacy: "),
        (f"{MALL}privacy: {{units_per_person: 9}}\n", None),
    ],
    ids=["p2b", "colin", "pdol", "bgt", "pdap"],
)
def test_who_is_guaranteed_next_to_nothing_is_warned_of_in_every_system(cli, refused, tmp_path, values, paid):
    """A club without a cap, at epsilon 2,500 for a person, passed without a word, as PRIVACY.md says it does not.

    Where nobody counts what a person gives, as in pdap, it is refused.
    """
    path, folder, edges = tmp_path / "x.yaml", tmp_path / "made", tmp_path / "edges.csv"
    edges.write_text("ann,bob\n", encoding="utf-8")
    path.write_text(values, encoding="utf-8")
    commands = (
        ("config", "check", path),
        ("prepare", path, folder, *(("--graph", edges) if "colin" in values else ())),
    )
    for command in commands if paid else ():
        (warned,) = [line for line in cli(*command).out.splitlines() if line.startswith("warning: privacy: ")]
        assert paid in warned
        assert "next to nothing is guaranteed" in warned
        assert any(line in f"warning: {one}" for one in cli(*command, "--json").json["warnings"] for line in [warned])
    if paid is None:
        assert "nobody counts a person's rewards" in refused(*commands[0])
    path.write_text(_told(values, "unprotected"), encoding="utf-8")
    for command in commands:
        assert "warning: privacy: " not in cli(*command).out


def test_the_check_says_valid_guarantee_plan_warnings_and_what_comes_next(cli, tmp_path):
    """Four paragraphs on privacy stood there, with two budgets that were not added up, and no verdict."""
    path = tmp_path / "shop.yaml"
    path.write_text(f"{SHOP}measurement: {{own: 0.1, epsilon: 0.5}}\n", encoding="utf-8")
    found, plain = cli("config", "check", path).out.splitlines(), cli("config", "check", path, "--json").json
    assert [line.partition(": ")[0] for line in found] == [str(path), "guarantee", "plan", "warning", "next"]
    assert found[0] == f"{path}: valid"
    assert "user-level epsilon 3, delta " in found[1]
    assert "(replace-one) and epsilon 1.5, delta " in found[1]
    assert found[1].count("all reports of one user: epsilon 1, delta ") == 1
    assert found[1].count("the A/B measurement (lift), charged once a user, over their first 5 decisions: eps") == 1
    assert found[2] == f"plan: {plain['plan']}" == f"plan: {cli('plan', path, '--json').json['verdict']}"
    assert found[3] == f"warning: {plain['warnings'][0]}"
    assert found[4] == f"next: {plain['next']}" == f"next: hushstream up {path}"
    path.write_text(FILMS, encoding="utf-8")
    *_, last = cli("config", "check", path).out.splitlines()
    assert last == f"next: hushstream plan {path} --users N --visits-per-user N"
    assert cli(*last.replace(" N", " 9000").split()[2:]).code == 0


def test_a_cap_promises_a_person_something(cli, tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(CLUB.replace("100,", "9,").replace(TOLD, ""), encoding="utf-8")
    assert cli("config", "check", path).code == 0
    assert cli("guarantee", path, "--json").json["person"]["which"]["epsilon"] == 9


def test_a_number_that_nobody_counts_is_called_a_supposition(cli, tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(MALL + "privacy: {units_per_person: 9}\n", encoding="utf-8")
    told = cli("guarantee", path, "--json").json
    assert told["person"]["counted"]["counted"] is False
    assert told["sentence"].startswith(
        "Reward-level differential privacy, for all that this deployment releases: epsilon 1, "
    )
    assert "; 9 rewards of one person together (weak): epsilon 9, delta " in told["sentence"]
    assert "Assumed of one person: 9 rewards of one user" in cli("guarantee", path, "--details").out


def _without_room(*arguments):
    """What a command says that is refused because the disk is full; pytest could not note it in a file, either."""
    said = io.StringIO()
    with no_room(), redirect_stdout(io.StringIO()), redirect_stderr(said), pytest.raises(SystemExit, match="1"):
        main([str(argument) for argument in arguments])
    return said.getvalue()


def test_a_full_disk_leaves_no_part_of_a_deployment_or_statement(config, cli, tmp_path):
    folder, page = tmp_path / "shop", tmp_path / "page.html"
    line = _without_room("prepare", config(), folder)
    assert f"{folder}/" in line
    assert "expected a file to write to, got: File too large" in line
    assert list(folder.iterdir()) == []
    assert cli("prepare", config(), folder).code == 0
    assert cli("statement", "--deployment", folder, "--out", page).code == 0
    before = page.read_bytes()
    for path in (page, tmp_path / "new.html"):
        line = _without_room("statement", "--deployment", folder, "--out", path)
        assert f"{path}: expected a file to write to, got: File too large" in line
    assert page.read_bytes() == before
    assert {one.name for one in tmp_path.iterdir()} == {"shop", "shop.yaml", "page.html"}


def test_the_statement_of_another_deployment_is_never_written_over(cli, refused, config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("shop", "other"):
        cli("prepare", config(("deployment: shop", f"deployment: {name}"), name=f"{name}.yaml"), tmp_path / name)
    assert cli("statement", "--deployment", "shop").out.endswith("\nstatement-shop.html\n")
    cli("statement", "--deployment", "other")
    before = (tmp_path / "statement-shop.html").read_bytes()
    line = refused("statement", "--deployment", "other", "--out", "statement-shop.html")
    assert "expected no file at statement-shop.html, or an earlier statement of deployment other" in line
    assert (tmp_path / "statement-shop.html").read_bytes() == before
    assert cli("statement", "--deployment", "shop", "--out", "statement-shop.html").code == 0
    (tmp_path / "notes.html").write_text("mine", encoding="utf-8")
    assert "got another file, which is kept" in refused("statement", "--deployment", "shop", "--out", "notes.html")


def test_a_file_in_place_of_a_deployments_folder_is_called_so(refused, cli, config, tmp_path):
    expected = "expected the folder of a deployment, got a file"
    file = config()
    told = f"hushstream: {file}: {expected}; `hushstream prepare {file}` makes one\n"
    assert refused("verify", "--deployment", file) == told
    assert refused("worker", "learner", "--deployment", file) == told
    assert cli("prepare", file, tmp_path / "made").code == 0
    inside = tmp_path / "made" / "deployment.yaml"
    told = f"hushstream: {inside}: {expected}; give its folder, {tmp_path / 'made'}\n"
    for command in ("verify", "budget"):
        assert refused(command, "--deployment", inside) == told
    assert refused("worker", "learner", "--deployment", inside) == told


CONFIGURATIONS = {name: kind.config for name, kind in kinds().items()}
NEEDED = {
    "p2b": {"deployment": "shop", "items.capacity": 3, "features.dimension": 4, "expected_slots": 100},
    "colin": {"deployment": "shop", "items.capacity": 3, "features.dimension": 4},
    "pdap": {
        "deployment": "shop",
        "vendors": [{"name": "one", "items": {"capacity": 3}}],
        "features.dimension": 2,
    },
    "pdol": {"deployment": "shop", "nodes": 3, "features.dimension": 4},
    "bgt": {"deployment": "shop", "items.capacity": 9},
}


def _classes(made):
    """A configuration class and all sections below it."""
    yield made
    for hint in get_type_hints(made).values():
        for part in (hint, *get_args(hint)):
            if is_dataclass(part):
                yield from _classes(part)


CLASSES = sorted({each for made in CONFIGURATIONS.values() for each in _classes(made)}, key=lambda made: made.__name__)


@pytest.mark.parametrize("made", CLASSES, ids=lambda made: made.__name__)
def test_every_field_of_every_configuration_has_a_meaning_and_nothing_else_has(made):
    said = meanings(made)
    assert list(said) == [one.name for one in fields(made)], inspect.getdoc(made)
    assert all(len(meaning) > 5 and meaning.endswith(".") for meaning in said.values())


@pytest.mark.parametrize("system", CONFIGURATIONS)
def test_the_defaults_are_those_that_a_configuration_has_and_yaml_reads_them(system):
    listed = settings(kinds()[system])
    optional = ("privacy.lifetime.", "vendors.")
    inside = {one.name for one in listed if one.name.startswith(optional) or one.name == "features"}
    required = {one.name for one in listed if one.default is None and one.type != "section"} - inside
    # Features that are declared by name take the place of a histogram and its dimension.
    assert required == set(NEEDED[system]) - ({"features.dimension"} if system in ("p2b", "pdap", "pdol") else set())
    values = {
        one.name: yaml.safe_load(one.default) for one in listed if one.default is not None and one.type != "section"
    }
    whole = {name: value for name, value in values.items() if name not in inside} | NEEDED[system]
    assert parse_config(nested(whole, "test")) == parse_config(nested({**NEEDED[system], "system": system}, "test"))


@pytest.mark.parametrize(
    ("system", "name", "type_", "default", "says"),
    [
        ("colin", "release.noise", None, "laplace", "gaussian"),
        ("colin", "release.mechanism", None, "auto", "noisy-reward"),
        ("colin", "learner.alpha", "number | lemma", "0.1", "lemma"),
        ("colin", "learner.self_weight", "number", "1.0", "CoLin"),
        ("colin", "feedback.reward_levels", "whole number", "256", "noisy-reward"),
        ("colin", "privacy.epochs", "whole number", "1", "budget"),
        ("colin", "release.window_units", "whole number", "256", "rewards"),
        ("p2b", "measurement.own", "number", "0.0", "they never get the shared model"),
        ("p2b", "privacy.delta", "number", "1.0e-06", "threshold"),
        ("p2b", "encoder.codes", "whole number | auto", "auto", "auto picks"),
        ("p2b", "privacy.lifetime", "section | null", "null", "limits"),
    ],
)
def test_a_setting_can_be_looked_up(cli, system, name, type_, default, says):
    answer = cli("config", "options", "--system", system, "--json")
    assert (answer.code, answer.err, set(answer.json)) == (0, "", {system})
    found = next(one for one in answer.json[system] if one["name"] == name)
    assert type_ in (None, found["type"])
    assert found["default"] == default
    assert says in found["meaning"]


def test_without_a_system_all_are_printed_and_nothing_is_cut(cli):
    whole = cli("config", "options", "--json").json
    assert list(whole) == sorted(kinds())
    printed = cli("config", "options")
    assert printed.code == 0
    words = " ".join(printed.out.split())
    for system, listed in whole.items():
        assert f"system: {system}" in words
        for one in listed:
            assert one["name"] in words
            assert one["default"] is None or one["default"] in words
    assert "HUSHSTREAM__PRIVACY__EPSILON=0.5" in words
