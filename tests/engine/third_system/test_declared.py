"""A system of another package: all follows from what it declares, and what it leaves out is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from modules import module_at

from hushstream.agents.observe.metrics import Labels, Metrics
from hushstream.agents.worker.deployment import KeySource, load, parse_config
from hushstream.agents.worker.roles import require_live, role_work
from hushstream.cli.main import main
from hushstream.engine.declare import topics
from hushstream.engine.declare.declaration import Kind, role_of
from hushstream.engine.declare.role import DeclarationError, releasing_role
from hushstream.engine.records import InputRecord, InputSlice
from hushstream.engine.values import ConfigurationError
from hushstream.ops.access import Principals, Rule, accounts_of, duty_names, rules_of
from hushstream.ops.dead_letters import letters_of
from hushstream.ops.statement import statement_of
from hushstream.ops.topics import plan
from hushstream.privacy.keys import key_path
from hushstream.replay.study import UnknownStudy, studies, study_of
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import SHORT_MS, PartitionRule
from hushstream.systems.catalogue import builtin, kinds

Command = Callable[..., str]


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Command:
    """Run ``hushstream ARGUMENTS``, which must end well; gives what it printed."""

    def run(*arguments: str | Path) -> str:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        assert not ended.value.code, captured
        return captured.out

    return run


@pytest.fixture(scope="module")
def asyncapi() -> ModuleType:
    return module_at(Path(__file__).parents[3] / "deploy" / "asyncapi" / "build.py", "hushstream_asyncapi_of_another")


def test_the_catalogue_finds_it_beside_the_built_in_ones(kind):
    assert kind not in builtin()
    assert tuple(kinds()) == (*(one.name for one in builtin()), "poll")
    assert parse_config({"system": "poll", "deployment": "drinks"}).epsilon == 1.0
    for values, named in (({"epsilon": 0}, "epsilon: expected"), ({"epsilonn": 1}, "epsilonn")):
        with pytest.raises(ConfigurationError, match=f"^shop.yaml: {named}"):
            parse_config({"system": "poll", "deployment": "drinks", **values}, "shop.yaml")


# Before anything runs.


def test_a_folder_is_checked_promised_and_prepared_by_the_commands(kind, cli, tmp_path):
    config, options = tmp_path / "drinks.yaml", tmp_path / "options"
    config.write_text("system: poll\ndeployment: drinks\nepsilon: 0.5\nvotes_per_user: 3\n", encoding="utf-8")
    options.write_text("tea\ncoffee\n", encoding="utf-8")
    checked = json.loads(cli("config", "check", config, "--json"))
    assert checked["budgets"][0]["epsilon"] == "1.5"
    said = cli("guarantee", config, "--details")
    assert "Zero-out: epsilon 0.5, delta " in said
    assert "Counted of one person: 3 votes of one user." in said
    assert "Scale of the noise of a count: 2 votes." in said
    promised = json.loads(cli("guarantee", config, "--json"))
    assert promised["unit"]["zero_out"]["epsilon_micro"] == 500_000
    assert promised["unit"]["which"]["epsilon_micro"] == 1_000_000
    assert (promised["mechanism"]["zone"], "lift" in promised) == ("ballots", False)
    assert promised["marks"] == []
    made = json.loads(cli("prepare", config, tmp_path / "made", "--options", options, "--json"))
    assert made["options"] == 2
    again = json.loads(cli("prepare", config, tmp_path / "made", "--json"))
    assert again == made
    assert load(tmp_path / "made").digest.hex() == made["digest"]


def test_a_folder_without_what_it_needs_is_refused(kind, tmp_path, capfd):
    (tmp_path / "drinks.yaml").write_text("system: poll\ndeployment: drinks\n", encoding="utf-8")
    refusals = {
        (): "expected --options with",
        ("--graph", "g"): "(what can be voted for, one a line) for poll, got --graph",
    }
    for words, said in refusals.items():
        with pytest.raises(SystemExit) as ended:
            main(["prepare", str(tmp_path / "drinks.yaml"), str(tmp_path / "made"), *words])
        assert ended.value.code == 1
        assert said in capfd.readouterr().err


def test_key_files_are_made_checked_and_used_for_its_zone(folder, cli):
    cli("keys", "generate", folder / "keys", "--zone", "ballots")
    path = key_path(folder / "keys", "ballots")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "ballots" in cli("keys", "check", folder / "keys", "--zone", "ballots")
    system = load(folder)
    for role in system.roles:
        maker = role_work(role.name, system, KeySource(folder / "keys")).make_machine
        machine = maker(0)
        genesis = machine.genesis(bytes(range(32)))
        machine.start(genesis)
        assert codec.decode(genesis)[1]["reproducible"] is False
        again = maker.of_journal(0, genesis)
        again.start(genesis)
    with pytest.raises(HushstreamError, match="ballots"):
        role_work("tally", system, KeySource(folder / "nowhere"))
    role_work("board", system, KeySource(folder / "nowhere"))


def test_its_key_rotates_as_any_zones_does(folder, cli):
    cli("keys", "generate", folder / "keys", "--zone", "ballots")
    system, keys = load(folder), KeySource(folder / "keys")
    maker = role_work("tally", system, keys).make_machine
    genesis = maker(0).genesis(bytes(range(32)))
    before = keys.key("ballots").key_id
    cli("keys", "rotate", "ballots", folder / "keys")
    turned = role_work("tally", system, keys).make_machine.of_journal(0, genesis)
    turned.start(genesis)
    assert turned.key.key_id == before != keys.key("ballots").key_id
    votes = [
        codec.encode(
            "Vote", {"vote_id": f"v{number}", "user": f"u{number}", "option": 0, "config_digest": system.digest}
        )
        for number in range(5)
    ]
    records = [InputRecord(number, number, value) for number, value in enumerate(votes)]
    steps = turned.fold([InputSlice("votes", 0, 0, len(records), records)])
    journaled = [codec.decode(step.journal)[1] for step in steps if step.journal is not None]
    assert [record["turned_to"] for record in journaled] == [keys.key("ballots").key_id]
    assert turned.key.key_id == keys.key("ballots").key_id


# Topics, access, documents.


def test_topics_are_planned_with_the_settings_and_counts_that_it_declares(system):
    planned = {new.name: new for new in plan(system, {}, "drinks.")}
    assert planned.keys() == {f"drinks.{topic.name}" for topic in system.topics}
    assert (planned["drinks.votes"].partitions, planned["drinks.standings"].partitions) == (2, 1)
    assert planned["drinks.votes"].settings["retention.ms"] == str(SHORT_MS)
    for lasting in ("journal-ballots", "standings", "spent-on-votes"):
        assert planned[f"drinks.{lasting}"].settings["retention.ms"] == "-1"
    assert planned["drinks.marks-ballots"].settings["cleanup.policy"] == "compact"


def test_access_rules_give_each_account_what_it_is_declared_to_do_and_nothing_else(system):
    rules = rules_of(system, "drinks.", Principals.of())
    may: dict[tuple[str, str], set[str]] = {}
    for rule in rules:
        if rule.kind == "topic":
            may.setdefault((rule.principal, rule.name.removeprefix("drinks.")), set()).add(rule.operation)

    def holders(topic: str, operation: str) -> set[str]:
        return {who for (who, name), held in may.items() if name == topic and operation in held}

    assert holders("votes", "Read") == {"User:tally"}
    assert holders("votes", "Write") == {"User:client", "User:tally"}, "whoever reads an input with ticks appends them"
    assert holders("journal-ballots", "Read") == holders("journal-ballots", "Write") == {"User:tally"}
    assert holders("tallies", "Write") == holders("spent-on-votes", "Write") == {"User:tally"}
    assert holders("tallies", "Read") == {"User:board", "User:operator"}
    assert holders("standings", "Write") == {"User:board"}
    assert holders("standings", "Read") == {"User:board", "User:client", "User:operator"}
    assert holders("dead-letters-ballots", "Read") == {"User:letters-ballots"}
    assert holders("dead-letters-board", "Read") == {"User:letters-board"}
    assert [rule.principal for rule in rules if rule.kind == "group"] == ["User:board", "User:tally"]
    assert {rule.principal for rule in rules} == {f"User:{who}" for who in accounts_of(system)}


def test_its_duties_are_named_by_its_zones_and_roles(system):
    assert {"requeue-ballots", "requeue-board", "verify-tally", "verify-board"} <= set(duty_names())
    named = Principals.of(["requeue-ballots=User:fixer", "verify-tally=User:auditor", "export=User:owner"])
    rules = rules_of(system, "", named)
    assert Rule("User:fixer", "topic", "votes", "Write") in rules
    assert Rule("User:auditor", "topic", "journal-ballots", "Read") in rules
    assert {rule.name for rule in rules if rule.principal == "User:owner"} == set(system.partitions)
    assert not [rule for rule in rules if rule.principal == "User:fixer" and rule.name == "tallies"]


def test_the_asyncapi_document_has_its_channels_messages_and_operations(kind, asyncapi):
    made = asyncapi.document([kind])
    assert made["channels"].keys() == {topic.name for topic in kind.topics}
    assert made["channels"]["votes"]["x-names-users"] is True
    assert made["channels"]["tallies"]["x-noised"] is True
    messages, operations = made["components"]["messages"], made["operations"]
    assert {"Vote", "Tally", "TallyJournal", "Standing", "Forget"} <= messages.keys()
    assert "Context" not in messages
    for named in ("client-writes-votes", "tally-reads-votes", "tally-writes-votes", "board-writes-standings"):
        assert named in operations
    assert "letters-board-reads-dead-letters-board" in operations
    product = asyncapi.document()
    assert "votes" not in product["channels"]
    assert "Vote" not in product["components"]["messages"]
    assert asyncapi.text() == asyncapi.DOCUMENT.read_text("utf-8"), "what the product has does not depend on it"


# What is shown.


def test_metric_labels_are_the_lists_that_its_roles_declare(played):
    system = played.system
    for role in system.roles:
        work = role_work(role.name, system, played.keys)
        told = work.reporting
        topics = (*work.topics.inputs, *work.topics.writes)
        labels = Labels(
            role.name, told.outcomes, told.reasons, topics, system.homes(role), told.roles,
            told.private_work, told.private_lag, told.scope_classes,
        )  # fmt: skip
        metrics = Metrics(labels, told.reason_of)
        for step in played.driver.steps:
            metrics.batch(step.counts if role.name == "tally" else {}, 0.01)
            metrics.dead_letters(step.dead_letters)
        assert told.gauges is not None
        metrics.role_gauges(0, told.gauges(work.make_machine(0)))
        shown = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for registry in (metrics.public, metrics.zone)
            for family in registry.collect()
            for sample in family.samples
        }
        declared = {value for (name, labels), _ in shown.items() for key, value in labels if key == "declared"}
        assert declared == {"tally", "board"}
        if role.name == "tally":
            event = ("hushstream_events_total", (("outcome", "vote"), ("role", "tally")))
            assert shown[event] == 24
            limit = (("partition", "0"), ("role", "tally"), ("scope_class", "vote"))
            assert shown["hushstream_budget_limit_micro_epsilon", limit] == 1_000_000
            assert ("hushstream_dead_letters_total", (("reason", "unknown_option"), ("role", "tally"))) in shown
        else:
            assert shown["hushstream_model_version", (("partition", "0"), ("role", "board"))] == 0


def test_the_statement_speaks_of_its_own_data_zones_and_result_and_of_no_other_systems(system):
    made = statement_of(system)
    facts = {name: text for section in made.sections for name, text in section.facts}
    assert made.verdict.startswith("Private as stated for one person: one person, replace-one: epsilon 2")
    assert facts["data"] == "personal: votes of users"
    assert facts["what the result is"] == "how an open vote stands"
    assert facts["adds the noise"] == "the ballots zone: the operator's tally workers"
    assert facts["without a key"] == "the board and whoever reads published topics"
    assert facts["topic votes"] == "deleted after 7 days; zone: ballots"
    assert facts["roles"] == "tally, board"
    assert "key of the ballots zone" in facts
    assert made.registry["data product"] == "running standing of a poll"
    contents = {name for name in facts if name.startswith(("votes, ", "tallies, ", "standings, "))}
    assert len(contents) == 3
    told = json.dumps([facts, dict(made.registry), made.verdict, made.warning])
    foreign = ("learner", "shuffler", "counter zone", "aggregator", "slot", "click", "context", "decision", "recommend")
    assert not [word for word in foreign if re.search(rf"\b{word}", told)], "words of the product's own systems"


def test_a_system_without_studies_runs_and_is_left_out_where_studies_are_listed(kind):
    assert kind.study is None
    assert "poll" not in studies()
    with pytest.raises(UnknownStudy, match="'poll'"):
        study_of("poll")


def test_the_noise_of_a_count_has_the_scale_that_is_promised(played):
    promise = played.system.guarantee()
    tally = played.records("tallies")[0]
    ratio = np.exp(-promise.epsilon_micro / 1e6)
    assert tally["variance"] == pytest.approx(2 * ratio / (1 - ratio) ** 2)
    assert tally["epsilon_micro"] == promise.epsilon_micro
    assert tally["private_as_stated"] is False, "the key is seeded"


def test_names_of_other_systems_are_refused_by_what_the_deployment_has(system):
    with pytest.raises(HushstreamError, match=r"expected a role of deployment drinks \(tally, board\), got 'learner'"):
        role_of(system, "learner")
    with pytest.raises(HushstreamError, match=r"expected a zone of the deployment \(ballots, board\), got 'edge'"):
        letters_of(system, "edge")
    with pytest.raises(HushstreamError, match=r"expected a role of deployment drinks \(tally, board\)"):
        rules_of(system, "", Principals.of(["verify-learner=User:auditor"]))
    with pytest.raises(HushstreamError, match="nothing is refused there"):
        rules_of(system, "", Principals.of(["requeue-edge=User:fixer"]))


FIND = "from hushstream.systems.catalogue import kinds; print(*kinds())"
FLAGS = ("noised", "names_users", "deletions", "ticks", "private_lag")


def started(package: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A process that finds this package beside the product."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
    )


@pytest.fixture
def edited(package: Path, tmp_path: Path) -> Any:
    """A copy of the other package with one place of a file changed."""

    def edit(file: str, old: str, new: str) -> Path:
        shutil.copytree(package, tmp_path / "package", ignore=shutil.ignore_patterns("__pycache__"))
        path = tmp_path / "package" / file
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1
        path.write_text(text.replace(old, new), encoding="utf-8")
        return tmp_path / "package"

    return edit


def test_the_package_as_it_is_gets_past_import(package):
    done = started(package, "-c", FIND)
    assert done.stdout.split()[-1] == "poll", done.stderr


@pytest.mark.parametrize("flag", FLAGS)
def test_a_topic_whose_privacy_flag_is_left_out_does_not_get_past_import(edited, flag):
    value = {"names_users": "True", "deletions": "True", "ticks": "True"}.get(flag, "False")
    package = edited("hushstream_poll/topics.py", f"    {flag}={value},\n", "")
    done = started(package, "-c", FIND)
    assert done.returncode != 0
    assert f"TypeError: Topic.__init__() missing 1 required keyword-only argument: '{flag}'" in done.stderr


def test_every_privacy_flag_of_a_topic_is_asked_for(kind):
    fields = {name for name, field in type(kind.topics[0]).__dataclass_fields__.items() if field.type == "bool"}
    # Most systems have one party; of a topic that one party alone may open it is said.
    assert fields - {"each"} == set(FLAGS)


@pytest.mark.parametrize(
    ("what", "lines"),
    [
        ("zone", ("zone=BALLOTS,",)),
        ("key_zone", ("key_zone=BALLOTS,",)),
        ("private_work", ("private_work=False,", "outcomes=_OUTCOMES,", "reasons=(UNKNOWN_OPTION,),")),
        ("outcomes", ("outcomes=_OUTCOMES,", "reasons=(UNKNOWN_OPTION,),")),
    ],
)
def test_a_role_that_leaves_out_what_it_means_for_privacy_does_not_get_past_import(edited, what, lines):
    """The first of the lines is left out; those behind it say which role's it is."""
    old, new = ("".join(f"        {line}\n" for line in found) for found in (lines, lines[1:]))
    done = started(edited("hushstream_poll/system.py", old, new), "-c", FIND)
    assert done.returncode != 0
    assert f"TypeError: Role.__init__() missing 1 required keyword-only argument: '{what}'" in done.stderr


@pytest.mark.parametrize("left_out", ["private_work", "outcomes", "charges", "writes"])
def test_the_short_form_of_a_releasing_role_asks_for_what_it_cannot_know(kind, left_out):
    tally = kind.roles[0]
    said: dict[str, Any] = {"inputs": ("votes",), "journal": tally.journal, "writes": ("tallies", "spent-on-votes")}
    said |= {"homes": tally.homes, "charges": "vote", "private_work": False, "outcomes": tally.outcomes}
    short = releasing_role("tally", tally.zone, tally.make, reasons=tally.reasons, **said)
    assert replace(short, gauges=tally.gauges) == tally
    with pytest.raises(TypeError, match=f"missing 1 required keyword-only argument: '{left_out}'"):
        releasing_role("tally", tally.zone, tally.make, **{name: one for name, one in said.items() if name != left_out})


@pytest.mark.parametrize(
    ("form", "flags"), [("requests", ("ticks", "private_lag")), ("unnamed", ("noised", "ticks", "private_lag"))]
)
def test_the_short_forms_of_topics_ask_for_each_flag_that_differs(form, flags):
    make = {"requests": topics.requests, "unnamed": partial(topics.unnamed, rule=PartitionRule.TRACK)}[form]
    given: dict[str, Any] = {"name": "votes", "schemas": ("Tick",), "zone": "ballots", "count": "ballots"}
    assert make(**given, **dict.fromkeys(flags, True)).private_lag
    for flag in flags:
        with pytest.raises(TypeError, match=f"missing 1 required keyword-only argument: '{flag}'"):
            make(**given, **dict.fromkeys(set(flags) - {flag}, True))


def test_the_short_form_of_a_published_topic_asks_whether_it_is_noised_and_how_long_it_is_kept():
    assert topics.published("tallies", "Tick", kept_ms=None, noised=True).noised
    with pytest.raises(TypeError, match="missing 2 required keyword-only arguments: 'kept_ms' and 'noised'"):
        partial(topics.published, "tallies", "Tick")()


def changed(kind: Kind, **fields: Any) -> Kind:
    """The kind with another tally."""
    tally, *others = kind.roles
    return replace(kind, roles=(replace(tally, **fields), *others))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"inputs": ("voted",)}, r"expected topics among .*votes.*, got voted$"),
        ({"journal": "journal-tally"}, r"expected topics among .*, got journal-tally$"),
        ({"writes": ("tallies", "ledger", "dead-letters-ballots")}, r"expected topics among .*, got ledger$"),
        ({"broadcasts": ("models",)}, r"expected topics among .*, got models$"),
        ({"marks": "marks-tally"}, r"expected topics among .*, got marks-tally$"),
        ({"marks": None}, r"expected a topic of marks, since it writes tallies, spent-on-votes, got none"),
        ({"zone": "edge"}, r"expected a zone among ballots, board, got edge$"),
        ({"key_zone": "ballot"}, r"expected a zone among ballots, board, got ballot$"),
        ({"zone": "published"}, r"expected a zone among ballots, board, got published$"),
        ({"journal": "votes"}, r"expected a journal, whose first record is a Genesis, got votes$"),
        ({"writes": ("tallies", "spent-on-votes")}, r"expected it to write the dead letters of zone ballots"),
    ],
)
def test_a_role_that_names_what_is_not_there_is_refused_in_words(kind, fields, said):
    with pytest.raises(DeclarationError, match=said) as caught:
        changed(kind, **fields)
    assert str(caught.value).startswith("system poll: role tally: ")


def test_a_topic_that_is_declared_twice_is_refused(kind):
    with pytest.raises(DeclarationError, match="system poll: expected each topic once, got votes again"):
        replace(kind, topics=(*kind.topics, kind.topic("votes")))


def test_a_zone_without_a_topic_for_its_dead_letters_is_refused(kind):
    left = tuple(topic for topic in kind.topics if topic.name != "dead-letters-ballots")
    tally = replace(kind.roles[0], writes=("tallies", "spent-on-votes"))
    said = r"there is no such topic.*; add topics\.dead_letters\('ballots', 'ballots', each=False\)$"
    for role in (tally, kind.roles[0]):
        with pytest.raises(DeclarationError, match=said):
            replace(kind, topics=left, roles=(role, *kind.roles[1:]))


OWN_NAME = "role tally of zone board: expected a name .*, got tally, as role tally of zone ballots"
ALIKE: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "name": ({"name": "tally"}, OWN_NAME),
    "name and journal": ({"name": "tally", "journal": "journal-ballots"}, OWN_NAME),
    "journal": (
        {"journal": "journal-ballots"},
        "role board of zone board: expected a journal .*, got journal-ballots, as role tally of zone ballots",
    ),
}


@pytest.mark.parametrize(("fields", "said"), ALIKE.values(), ids=ALIKE.keys())
def test_two_roles_of_one_name_or_journal_are_refused(kind, system, fields, said):
    """A driver would find one of the two alone, and end far from here."""
    said += r" has; .*`publishing_role\(name=\.\.\., journal=\.\.\.\)`"
    for declared, where in ((kind, "system poll"), (system, "deployment drinks")):
        tally, board = declared.roles
        with pytest.raises(DeclarationError, match=f"{where}: {said}"):
            replace(declared, roles=(tally, replace(board, **fields)))


def test_a_role_may_have_several_forms_and_a_deployment_has_one_of_them(kind, system):
    tally, board = kind.roles
    replace(kind, roles=(tally, replace(tally, reasons=()), board))
    tally, board = system.roles
    with pytest.raises(DeclarationError, match="deployment drinks: role tally of zone ballots: expected a name"):
        replace(system, roles=(tally, replace(tally, reasons=()), board))


def test_a_record_that_nobody_can_encode_is_refused(kind):
    with pytest.raises(HushstreamError, match="topic votes: expected known schemas, got unknown"):
        replace(kind.topic("votes"), schemas=("Vote", "Ballot"))


def test_a_count_that_a_deployment_does_not_give_is_refused(system):
    with pytest.raises(DeclarationError, match=r"topic dead-letters-extra: expected a count among .*, got 'extra'"):
        replace(system, topics=(*system.topics, topics.dead_letters("extra", "extra")))
    tally = replace(system.roles[0], homes="tally")
    with pytest.raises(DeclarationError, match=r"role tally: expected a count among .*, got 'tally'"):
        replace(system, roles=(tally, *system.roles[1:]))


def test_two_packages_with_a_system_of_one_name_are_refused(edited):
    package = edited("hushstream_poll/configuration.py", 'NAME = "poll"', 'NAME = "p2b"')
    done = started(package, "-c", FIND)
    assert "two packages offer a system named 'p2b'; remove one of them" in done.stderr


def test_an_entry_point_that_offers_something_else_is_refused(edited):
    package = edited("hushstream_poll-1.0.dist-info/entry_points.txt", "system:KIND", "system:ROLES")
    done = started(package, "-c", FIND)
    assert "entry point poll of hushstream.systems: expected a Kind, got tuple" in done.stderr


def test_a_schema_under_a_name_of_the_product_is_refused(edited):
    package = edited("hushstream_poll/avro/Vote.avsc", '"name": "Vote"', '"name": "Tick"')
    (package / "hushstream_poll" / "avro" / "Vote.avsc").rename(package / "hushstream_poll" / "avro" / "Tick.avsc")
    done = started(package, "-c", FIND)
    assert re.search(r"SchemaError: Tick: expected one schema of this name, got two", done.stderr)


def test_a_release_that_is_not_private_as_stated_does_not_run_live(system, tmp_path):
    clear, noised, *_ = system.guarantee().contents
    released = system.guarantee().with_contents((clear, replace(noised, form=clear.form)))
    priced = system.core.priced._replace(guarantee=released)
    leaking = replace(system, core=replace(system.core, priced=priced))
    require_live(system, KeySource(tmp_path))
    with pytest.raises(ConfigurationError, match="content leaves un-noised on tallies"):
        require_live(leaking, KeySource(tmp_path))
