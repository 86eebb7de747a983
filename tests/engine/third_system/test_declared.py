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
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from modules import module_at

from hushstream.agents.observe.metrics import Labels, Metrics
from hushstream.agents.worker.deployment import KeySource, load, parse_config
from hushstream.agents.worker.roles import require_live, role_work
from hushstream.cli.main import main
from hushstream.engine.declare import topics
from hushstream.engine.declare.declaration import Kind, role_of
from hushstream.engine.declare.role import DeclarationError, Role, releasing_role
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
from hushstream.schemas.topics import SHORT_MS, PartitionRule, Topic
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
    assert tuple(kinds()) == (*(one.name for one in builtin()), "meanarm")
    asked = {"system": "meanarm", "deployment": "shown", "arms": 3}
    assert parse_config(asked).epsilon == 1.0
    for values, named in (({"privacy": {"epsilon": 0}}, "privacy.epsilon: expected"), ({"epsilonn": 1}, "epsilonn")):
        with pytest.raises(ConfigurationError, match=f"^shop.yaml: {named}"):
            parse_config({**asked, **values}, "shop.yaml")


# Before anything runs.


def test_a_folder_is_checked_promised_and_prepared_by_the_commands(kind, values, cli, tmp_path):
    config = tmp_path / "shown.yaml"
    config.write_text(json.dumps({**values, "privacy": {"epsilon": 0.5, "units_per_person": 3}}), encoding="utf-8")
    checked = json.loads(cli("config", "check", config, "--json"))
    assert checked["budgets"][0]["epsilon"] == "1.5"
    said = cli("guarantee", config, "--details")
    assert "Zero-out: epsilon 0.5, delta " in said
    assert "Counted of one person: 3 rewards of one user." in said
    promised = json.loads(cli("guarantee", config, "--json"))
    assert promised["unit"]["zero_out"]["epsilon_micro"] == 500_000
    assert promised["unit"]["which"]["epsilon_micro"] == 1_000_000
    assert (promised["mechanism"]["zone"], "lift" in promised) == ("counter", False)
    assert promised["marks"] == []
    made = json.loads(cli("prepare", config, tmp_path / "made", "--json"))
    again = json.loads(cli("prepare", config, tmp_path / "made", "--json"))
    assert again == made
    assert load(tmp_path / "made").digest.hex() == made["digest"]


def test_key_files_are_made_checked_and_used_for_their_zones(folder, cli):
    cli("keys", "generate", folder / "keys", "--zone", "counter")
    path = key_path(folder / "keys", "counter")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "counter" in cli("keys", "check", folder / "keys", "--zone", "counter")
    cli("keys", "generate", folder / "keys", "--zone", "edge")
    system = load(folder)
    for role in system.roles:
        maker = role_work(role.name, system, KeySource(folder / "keys")).make_machine
        machine = maker(0)
        genesis = machine.genesis(bytes(range(32)))
        machine.start(genesis)
        assert codec.decode(genesis)[1]["reproducible"] is False
        again = maker.of_journal(0, genesis)
        again.start(genesis)
    with pytest.raises(HushstreamError, match="counter"):
        role_work("counter", system, KeySource(folder / "nowhere"))
    role_work("aggregator", system, KeySource(folder / "nowhere"))


def test_its_key_rotates_as_any_zones_does(folder, cli):
    cli("keys", "generate", folder / "keys", "--zone", "counter")
    system, keys = load(folder), KeySource(folder / "keys")
    maker = role_work("counter", system, keys).make_machine
    genesis = maker(0).genesis(bytes(range(32)))
    before = keys.key("counter").key_id
    cli("keys", "rotate", "counter", folder / "keys")
    turned = role_work("counter", system, keys).make_machine.of_journal(0, genesis)
    turned.start(genesis)
    assert turned.key.key_id == before != keys.key("counter").key_id
    slots = [{"slot_id": bytes([n] * 16), "arm": 0, "reward": 1, "config_digest": system.digest} for n in range(5)]
    records = [InputRecord(n, n, codec.encode("ArmSlot", slot)) for n, slot in enumerate(slots)]
    steps = turned.fold([InputSlice("slots", 0, 0, len(records), records)])
    journaled = [codec.decode(step.journal)[1] for step in steps if step.journal is not None]
    assert [record["turned_to"] for record in journaled] == [keys.key("counter").key_id]
    assert turned.key.key_id == keys.key("counter").key_id


# Topics, access, documents.


def test_topics_are_planned_with_the_settings_and_counts_that_it_declares(system):
    planned = {new.name: new for new in plan(system, {}, "shown.")}
    assert planned.keys() == {f"shown.{topic.name}" for topic in system.topics}
    assert (planned["shown.asks"].partitions, planned["shown.models"].partitions) == (2, 1)
    assert planned["shown.asks"].settings["retention.ms"] == str(SHORT_MS)
    for lasting in ("journal-counter", "models", "ledger"):
        assert planned[f"shown.{lasting}"].settings["retention.ms"] == "-1"
    assert planned["shown.marks-counter"].settings["cleanup.policy"] == "compact"


def test_access_rules_give_each_account_what_it_is_declared_to_do_and_nothing_else(system):
    rules = rules_of(system, "shown.", Principals.of())
    may: dict[tuple[str, str], set[str]] = {}
    for rule in rules:
        if rule.kind == "topic":
            may.setdefault((rule.principal, rule.name.removeprefix("shown.")), set()).add(rule.operation)

    def holders(topic: str, operation: str) -> set[str]:
        return {who for (who, name), held in may.items() if name == topic and operation in held}

    assert holders("asks", "Read") == {"User:learner"}
    assert holders("asks", "Write") == {"User:client"}
    assert holders("answers", "Write") == holders("slots", "Write") == {"User:learner"}
    assert holders("slots", "Read") == {"User:counter"}
    assert holders("journal-counter", "Read") == holders("journal-counter", "Write") == {"User:counter"}
    assert holders("sums", "Write") == holders("ledger", "Write") == {"User:counter"}
    assert holders("sums", "Read") == {"User:aggregator", "User:operator"}
    assert holders("models", "Write") == {"User:aggregator"}
    for zone in ("edge", "counter", "server"):
        assert holders(f"dead-letters-{zone}", "Read") == {f"User:letters-{zone}"}
    assert [rule.principal for rule in rules if rule.kind == "group"] == [
        "User:aggregator",
        "User:counter",
        "User:learner",
    ]
    assert {rule.principal for rule in rules} == {f"User:{who}" for who in accounts_of(system)}


def test_its_duties_are_named_by_its_zones_and_roles(system):
    assert {"requeue-counter", "requeue-server", "verify-counter", "verify-aggregator"} <= set(duty_names())
    named = Principals.of(["requeue-edge=User:fixer", "verify-counter=User:auditor", "export=User:owner"])
    rules = rules_of(system, "", named)
    assert Rule("User:fixer", "topic", "asks", "Write") in rules
    assert Rule("User:auditor", "topic", "journal-counter", "Read") in rules
    assert {rule.name for rule in rules if rule.principal == "User:owner"} == set(system.partitions)
    assert not [rule for rule in rules if rule.principal == "User:fixer" and rule.name == "sums"]


def test_the_asyncapi_document_has_its_channels_messages_and_operations(kind, asyncapi):
    made = asyncapi.document([kind])
    assert made["channels"].keys() == {topic.name for topic in kind.topics}
    assert made["channels"]["asks"]["x-names-users"] is True
    assert made["channels"]["sums"]["x-noised"] is True
    messages, operations = made["components"]["messages"], made["operations"]
    assert {"ArmAsk", "ArmSums", "ArmWindow", "ArmMeans", "Forget"} <= messages.keys()
    assert "Context" not in messages
    for named in ("client-writes-asks", "learner-reads-asks", "counter-writes-sums", "aggregator-writes-models"):
        assert named in operations
    assert "letters-server-reads-dead-letters-server" in operations
    product = asyncapi.document()
    assert "asks" not in product["channels"]
    assert "ArmAsk" not in product["components"]["messages"]
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
            metrics.batch(step.counts if role.name == "counter" else {}, 0.01)
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
        assert declared == {"learner", "counter", "aggregator"}
        if role.name == "counter":
            event = ("hushstream_events_total", (("outcome", "slot"), ("role", "counter")))
            assert shown[event] == 24
            limit = (("partition", "0"), ("role", "counter"), ("scope_class", "reward"))
            assert shown["hushstream_budget_limit_micro_epsilon", limit] == 1_000_000
        elif role.name == "aggregator":
            assert shown["hushstream_model_version", (("partition", "0"), ("role", "aggregator"))] == 0


def test_the_statement_speaks_of_its_own_data_zones_and_result_and_of_no_other_systems(system):
    made = statement_of(system)
    facts = {name: text for section in made.sections for name, text in section.facts}
    assert made.verdict.startswith("Private as stated for one person: one person, replace-one: epsilon 2")
    assert facts["data"] == "personal: rewards of users"
    assert facts["what the result is"] == "the mean reward of each arm"
    assert facts["adds the noise"] == "the counter zone"
    assert facts["topic asks"] == "deleted after 7 days; zone: edge"
    assert facts["roles"] == "learner, counter, aggregator"
    assert "key of the counter zone" in facts
    assert made.registry["data product"] == "running means of arms"
    told = json.dumps([facts, dict(made.registry), made.verdict, made.warning])
    foreign = ("shuffler", "context", "decision", "recommend", "vendor", "rating", "vote")
    assert not [word for word in foreign if re.search(rf"\b{word}", told)], "words of the product's own systems"


def test_a_system_without_studies_runs_and_is_left_out_where_studies_are_listed(kind):
    assert kind.study is None
    assert "meanarm" not in studies()
    with pytest.raises(UnknownStudy, match="'meanarm'"):
        study_of("meanarm")


def test_names_of_other_systems_are_refused_by_what_the_deployment_has(system):
    roles = r"expected a role of deployment shown \(learner, counter, aggregator\)"
    with pytest.raises(HushstreamError, match=f"{roles}, got 'shuffler'"):
        role_of(system, "shuffler")
    with pytest.raises(HushstreamError, match=r"zone of the deployment \(edge, counter, server\), got 'shuffler'"):
        letters_of(system, "shuffler")
    with pytest.raises(HushstreamError, match=roles):
        rules_of(system, "", Principals.of(["verify-shuffler=User:auditor"]))
    with pytest.raises(HushstreamError, match="nothing is refused there"):
        rules_of(system, "", Principals.of(["requeue-shuffler=User:fixer"]))


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
    assert done.stdout.split()[-1] == "meanarm", done.stderr


def fields_of(made: Any) -> dict[str, Any]:
    return {field.name: getattr(made, field.name) for field in dataclass_fields(made) if field.init}


@pytest.mark.parametrize("flag", FLAGS)
def test_no_topic_is_made_without_each_of_its_privacy_flags(kind, flag):
    """A module that leaves one out does not get past its import."""
    given = fields_of(kind.topic("asks"))
    assert Topic(**given) == kind.topic("asks")
    del given[flag]
    with pytest.raises(TypeError, match=f"missing 1 required keyword-only argument: '{flag}'"):
        Topic(**given)


def test_every_privacy_flag_of_a_topic_is_asked_for(kind):
    fields = {name for name, field in type(kind.topics[0]).__dataclass_fields__.items() if field.type == "bool"}
    # Most systems have one party; of a topic that one party alone may open it is said.
    assert fields - {"each"} == set(FLAGS)


@pytest.mark.parametrize("what", ["zone", "key_zone", "private_work", "outcomes"])
def test_no_role_is_made_without_what_it_means_for_privacy(kind, what):
    given = fields_of(kind.roles[1])
    assert Role(**given) == kind.roles[1]
    del given[what]
    with pytest.raises(TypeError, match=f"missing 1 required keyword-only argument: '{what}'"):
        Role(**given)


@pytest.mark.parametrize("left_out", ["private_work", "outcomes", "charges", "writes"])
def test_the_short_form_of_a_releasing_role_asks_for_what_it_cannot_know(kind, left_out):
    counter = kind.roles[1]
    said: dict[str, Any] = {"inputs": ("slots",), "journal": counter.journal, "writes": ("sums", "ledger")}
    said |= {"homes": counter.homes, "charges": "reward", "private_work": True, "outcomes": counter.outcomes}
    short = releasing_role("counter", counter.zone, counter.make, **said)
    assert replace(short, gauges=counter.gauges) == counter
    with pytest.raises(TypeError, match=f"missing 1 required keyword-only argument: '{left_out}'"):
        releasing_role("counter", counter.zone, counter.make, **{n: one for n, one in said.items() if n != left_out})


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
    """The kind with another counter."""
    learner, counter, aggregator = kind.roles
    return replace(kind, roles=(learner, replace(counter, **fields), aggregator))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"inputs": ("slot",)}, r"expected topics among .*slots.*, got slot$"),
        ({"journal": "journal-sums"}, r"expected topics among .*, got journal-sums$"),
        ({"writes": ("sums", "spent", "dead-letters-counter")}, r"expected topics among .*, got spent$"),
        ({"broadcasts": ("rounds",)}, r"expected topics among .*, got rounds$"),
        ({"marks": "marks-sums"}, r"expected topics among .*, got marks-sums$"),
        ({"marks": None}, r"expected a topic of marks, since it writes sums, ledger, got none"),
        ({"zone": "vote"}, r"expected a zone among .*counter.*, got vote$"),
        ({"key_zone": "count"}, r"expected a zone among .*counter.*, got count$"),
        ({"zone": "published"}, r"expected a zone among .*counter.*, got published$"),
        ({"journal": "slots"}, r"expected a journal, whose first record is a Genesis, got slots$"),
        ({"writes": ("sums", "ledger")}, r"expected it to write the dead letters of zone counter"),
    ],
)
def test_a_role_that_names_what_is_not_there_is_refused_in_words(kind, fields, said):
    with pytest.raises(DeclarationError, match=said) as caught:
        changed(kind, **fields)
    assert str(caught.value).startswith("system meanarm: role counter: ")


def test_a_topic_that_is_declared_twice_is_refused(kind):
    with pytest.raises(DeclarationError, match="system meanarm: expected each topic once, got slots again"):
        replace(kind, topics=(*kind.topics, kind.topic("slots")))


def test_a_zone_without_a_topic_for_its_dead_letters_is_refused(kind):
    left = tuple(topic for topic in kind.topics if topic.name != "dead-letters-counter")
    learner, counter, aggregator = kind.roles
    said = r"there is no such topic.*; add topics\.dead_letters\('counter', 'tracks', each=False\)$"
    for role in (replace(counter, writes=("sums", "ledger")), counter):
        with pytest.raises(DeclarationError, match=said):
            replace(kind, topics=left, roles=(learner, role, aggregator))


OWN_NAME = "role counter of zone server: expected a name .*, got counter, as role counter of zone counter"
ALIKE: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "name": ({"name": "counter"}, OWN_NAME),
    "name and journal": ({"name": "counter", "journal": "journal-counter"}, OWN_NAME),
    "journal": (
        {"journal": "journal-counter"},
        "role aggregator of zone server: expected a journal .*, got journal-counter, as role counter of zone counter",
    ),
}


@pytest.mark.parametrize(("fields", "said"), ALIKE.values(), ids=ALIKE.keys())
def test_two_roles_of_one_name_or_journal_are_refused(kind, system, fields, said):
    """A driver would find one of the two alone, and end far from here."""
    said += r" has; .*`publishing_role\(name=\.\.\., journal=\.\.\.\)`"
    for declared, where in ((kind, "system meanarm"), (system, "deployment shown")):
        learner, counter, aggregator = declared.roles
        with pytest.raises(DeclarationError, match=f"{where}: {said}"):
            replace(declared, roles=(learner, counter, replace(aggregator, **fields)))


def test_a_role_may_have_several_forms_and_a_deployment_has_one_of_them(kind, system):
    counter = kind.roles[1]
    replace(kind, roles=(*kind.roles, replace(counter, reasons=("own",))))
    with pytest.raises(DeclarationError, match="deployment shown: role counter of zone counter: expected a name"):
        replace(system, roles=(*system.roles, replace(counter, reasons=("own",))))


def test_a_record_that_nobody_can_encode_is_refused(kind):
    with pytest.raises(HushstreamError, match="topic slots: expected known schemas, got unknown"):
        replace(kind.topic("slots"), schemas=("ArmSlot", "ArmVote"))


def test_a_count_that_a_deployment_does_not_give_is_refused(system):
    with pytest.raises(DeclarationError, match=r"topic dead-letters-extra: expected a count among .*, got 'extra'"):
        replace(system, topics=(*system.topics, topics.dead_letters("extra", "extra")))
    learner = replace(system.roles[0], homes="learner")
    with pytest.raises(DeclarationError, match=r"role learner: expected a count among .*, got 'learner'"):
        replace(system, roles=(learner, *system.roles[1:]))


def test_two_packages_with_a_system_of_one_name_are_refused(edited):
    package = edited("hushstream_meanarm/core.py", 'UNIT = "meanarm",', 'UNIT = "p2b",')
    done = started(package, "-c", FIND)
    assert "two packages offer a system named 'p2b'; remove one of them" in done.stderr


def test_an_entry_point_that_offers_something_else_is_refused(edited):
    package = edited("hushstream_meanarm-1.0.dist-info/entry_points.txt", "system:KIND", "system:ROLES")
    done = started(package, "-c", FIND)
    assert "entry point meanarm of hushstream.systems: expected a Kind, got tuple" in done.stderr


def test_a_schema_under_a_name_of_the_product_is_refused(edited):
    package = edited("hushstream_meanarm/avro/ArmSlot.avsc", '"name": "ArmSlot"', '"name": "Tick"')
    avro = package / "hushstream_meanarm" / "avro"
    (avro / "ArmSlot.avsc").rename(avro / "Tick.avsc")
    done = started(package, "-c", FIND)
    assert re.search(r"SchemaError: Tick: expected one schema of this name, got two", done.stderr)


def test_a_release_that_is_not_private_as_stated_does_not_run_live(system, tmp_path):
    clear, slots, noised, *_ = system.guarantee().contents
    released = system.guarantee().with_contents((clear, slots, replace(noised, form=clear.form)))
    priced = system.core.priced._replace(guarantee=released)
    leaking = replace(system, core=replace(system.core, priced=priced))
    require_live(system, KeySource(tmp_path))
    with pytest.raises(ConfigurationError, match="content leaves un-noised on sums"):
        require_live(leaking, KeySource(tmp_path))
