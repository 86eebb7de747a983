"""P-DAP as it is declared: where content stands, what is said of it, and what cannot be deployed."""

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from onlooker import watched

from hushstream.agents.worker.deployment import KeySource, load, parse_config, prepare
from hushstream.agents.worker.roles import all_machines
from hushstream.engine.declare.artefacts import PUBLIC_DATASET, Artefacts
from hushstream.engine.values import ConfigurationError
from hushstream.ops.check.findings import Status
from hushstream.ops.check.matching import UNEXPLAINED
from hushstream.ops.check.verify import verify
from hushstream.ops.log_copy import LogCopy, PartitionCopy
from hushstream.ops.statement import statement_of
from hushstream.privacy.promises.promise import Form
from hushstream.replay.runners.direct import DirectDriver, MemoryLog
from hushstream.schemas import codec
from hushstream.schemas.topics import common_name
from hushstream.systems.pdap import counter as pending
from hushstream.systems.pdap.configuration import VendorConfig
from hushstream.systems.pdap.counter import BlockCounterMachine
from hushstream.systems.pdap.promise import TRUSTED, pdap_contents
from hushstream.systems.pdap.system import KIND, declare

SEEDS = (1, 2, 3)
NONCE = bytes(range(32))


# What an onlooker of all topics can tell: the same events, but for one reward.


def played(shops, placement, content, seed):
    """A deployment in which one reward is ``content`` and all else is the same; under keys of this seed."""
    release = {"placement": placement, "first_window": 1000}
    system = declare(shops.make_system(release=release, public_dataset=True, vendors=shops.NAMED))
    clock = iter(range(10**12, 10**13, 100))
    log = MemoryLog(lambda: next(clock))
    driver = DirectDriver(log, all_machines(system, KeySource(seed=seed)), NONCE)

    def put(topic, schema, **fields):
        log.append(f"{topic}.{fields.pop('vendor', 'one')}", 0, codec.encode(schema, fields))
        driver.pump()

    stock = catalogue_changes(system, put)
    stock()
    for number in range(60):
        if number in (25, 45):
            stock("i3", offered=number == 45)
        event, arm = f"e{number}", number % 7
        at, only = np.array([number / 60, 0.4], "<f4").tobytes(), bytes([1 << arm])
        put("contexts", "Context", event_id=event, user=f"u{number % 9}", line="one", context=at, eligible=only)
        reward = float(content) if number == 0 else float(number % 3 == 0)
        put("clicks", "Feedback", kind="shown", event_id=event, user=f"u{number % 9}", arm=arm, reward=0.0)
        put("clicks", "Feedback", kind="reward", event_id=event, user=f"u{number % 9}", arm=arm, reward=reward)
    for phase, vendor in product(range(2), ("one", "two")):
        put("contexts", "Seal", vendor=vendor, phase=phase, origin=-1, config_digest=bytes(16), after_click=-1)
    return system, log


def catalogue_changes(system, put):
    """Fills the catalogues of both vendors, and then changes that of the second one."""
    versions = {"one": 0, "two": 0}

    def change(item=None, offered=True):
        named = [("two", item)] if item else [("one", f"i{n}") for n in range(3)] + [("two", f"i{n}") for n in range(4)]
        for vendor, one in named:
            versions[vendor] += 1
            items = [{"item": one, "offered": offered, "title": "", "features": ""}]
            fields = {"version": versions[vendor], "items": items, "config_digest": system.digest}
            put("items", "ItemChanges", vendor=vendor, **fields)

    return change


@cache
def seen(shops, placement):
    return watched(lambda content, seed: played(shops, placement, content, seed)[1], (0, 1), SEEDS)


@pytest.mark.parametrize("placement", ["serving", "home"])
def test_a_reward_stands_unnoised_where_it_is_said_to_and_nowhere_else(shops, placement):
    unnoised = seen(shops, placement).unnoised
    assert unnoised == {content.topic for content in pdap_contents(on_trial=False) if content.form is Form.CLEAR}
    assert {KIND.topic(topic).zone for topic in unnoised} <= TRUSTED


@pytest.mark.parametrize("placement", ["serving", "home"])
def test_under_one_key_a_reward_moves_sums_and_keyed_digests_alone(shops, placement):
    moved = seen(shops, placement).moved
    assert moved["releases"] == {"sums"}
    assert moved["outcomes"] == {"rewards"}
    assert moved["journal-counter"] <= {"head", "history", "chain"}
    assert moved["forwards"] == moved["ledger"] == set()
    assert moved["decisions"] <= {"head", "chain"}
    assert moved["models"] <= {"head", "chain", "digest", "tickets", "changed"}


@pytest.mark.parametrize("placement", ["serving", "home"])
def test_a_retired_item_is_shown_by_nobody_and_what_was_shown_before_counts(shops, placement):
    system = declare(shops.make_system(release={"placement": placement}, vendors=shops.NAMED))
    clock = iter(range(10**12, 10**13, 10))
    log = MemoryLog(lambda: next(clock))
    machines = all_machines(system, KeySource(seed=1))
    driver = DirectDriver(log, machines, NONCE)

    def put(topic, schema, **fields):
        log.append(topic, 0, codec.encode(schema, fields))
        driver.pump()

    def decided(name, count):
        for number in range(count):
            at = np.array([number / count, 0.4], "<f4").tobytes()
            put("contexts.one", "Context", event_id=f"{name}{number}", user="ann", line="one", context=at)
        answers = [codec.decode(record.value)[1] for record in log.slice("decisions.one", 0, 1).records]
        found = {
            event: arm
            for fields in answers
            for event, arm in zip(fields["event_ids"], np.frombuffer(fields["arms"], "<i4").tolist(), strict=True)
        }
        return {event: arm for event, arm in found.items() if event.startswith(name)}

    def put_of(topic, schema, vendor, **fields):
        put(f"{topic}.{vendor}", schema, **fields)

    stock = catalogue_changes(system, put_of)
    stock()
    before = decided("before", 60)
    event, gone = next((event, arm) for event, arm in before.items() if arm >= 3)
    stock(f"i{gone - 3}", offered=False)
    # Of what was decided before this was on screen.
    put("clicks.one", "Feedback", kind="shown", event_id=event, user="ann", arm=gone, reward=0.0)
    assert gone not in decided("after", 200).values()
    put("contexts.one", "Seal", phase=0, origin=-1, config_digest=bytes(16), after_click=0)
    counters = [machine for machine in machines if isinstance(machine, BlockCounterMachine)]
    assert sum(machine.counter.taken for machine in counters) == 1
    stock(f"i{gone - 3}")
    assert gone in decided("again", 200).values()
    found = verify(LogCopy.of(log), system, KeySource(seed=1))
    assert found.exit_code == 0, found


def test_what_is_published_in_anothers_name_is_found_by_whoever_verifies_all(shops):
    system, log = played(shops, "home", 1, 1)
    forged = {"arm": 0, "offered": False, "config_digest": system.digest}
    log.append("releases", 0, codec.encode("ArmChange", forged))
    found = verify(LogCopy.of(log), system, KeySource(seed=1))
    assert found.exit_code == 1
    assert ("releases", UNEXPLAINED) in {(one.topic, one.reason) for one in found.findings}


def test_a_vendor_checks_its_own_work_and_says_nothing_of_what_others_sent_to_the_counter(shops):
    system, log = played(shops, "serving", 1, 1)
    logs = LogCopy.of(log)
    for vendor, changed in (("one", 1), ("two", 0)):
        found = verify(logs, system, KeySource(seed=1), [f"learner.{vendor}"])
        assert found.exit_code == 0, found
        assert {finding.topic for finding in found.findings} == {"outcomes"}
        assert {finding.status for finding in found.findings} == {Status.UNCHECKABLE}
        # What the first vendor sent is missing; the other has sent ends of phases and changes of its items alone.
        sent = logs.part(("outcomes", 0)).records
        left = [record for record in sent if codec.decode(record.value)[0] != "Outcomes"]
        cut = replace(logs, parts={**logs.parts, ("outcomes", 0): PartitionCopy(0, len(left), left)})
        assert verify(cut, system, KeySource(seed=1), [f"learner.{vendor}"]).exit_code == changed


@pytest.mark.parametrize("placement", ["serving", "home"])
def test_an_outcome_in_two_blocks_is_found_though_the_same_code_recomputes_it(shops, placement, monkeypatch):
    """A counter that forgets to clear what it released would agree with itself."""
    whole = pending.close
    monkeypatch.setattr(pending, "close", lambda grid, waiting, least: (whole(grid, waiting, least)[0], waiting))
    system, log = played(shops, placement, 1, 1)
    found = verify(LogCopy.of(log), system, KeySource(seed=1))
    assert found.exit_code == 1
    assert all("outcomes where" in finding.reason for finding in found.findings)
    assert {common_name(finding.topic) for finding in found.findings} == {"journal-counter"}


# What is said, and what cannot be.


def test_the_statement_says_whom_the_vendors_trust(shops, tmp_path):
    for placement, who in (("serving", "the one trusted counter"), ("home", "each vendor's counter")):
        config = shops.make_config(release={"placement": placement}, deployment=placement)
        text = str(statement_of(prepare(tmp_path / placement, config)).as_json())
        assert who in text
        assert "replace-one" in text


def test_no_topic_that_holds_a_workers_memory_is_said_to_hold_nothing_of_persons(shops, tmp_path):
    """Each vendor has state topics of its own."""
    statement = statement_of(prepare(tmp_path, shops.make_config(release={"placement": "home"})))
    stands = dict(next(section.facts for section in statement.sections if "content of persons" in section.title))
    nothing = next(name for name in stands if name.startswith("on "))
    assert "marks-edge" in nothing
    assert "state-" not in nothing
    assert sum(name.startswith("state-learner.") for name in stands) > 1


def test_a_folder_gives_the_deployment_that_was_prepared(shops, tmp_path):
    config = shops.make_config()
    made = prepare(tmp_path, config)
    assert load(tmp_path).digest == made.digest == shops.make_system().digest
    assert {name for name in made.partitions if name.startswith("outcomes")} == {"outcomes"}
    home = declare(shops.make_system(release={"placement": "home"}))
    for name in ("outcomes", "journal-counter", "ledger", "marks-counter", "dead-letters-counter"):
        assert {topic for topic in home.partitions if topic.startswith(name)} == {f"{name}.one", f"{name}.two"}


def test_a_replay_of_a_public_dataset_is_another_deployment(shops):
    marked = Artefacts("here", {PUBLIC_DATASET: b'{"dataset": "vendors"}'})
    system = KIND.assemble(shops.make_config(), marked)
    assert system.public_dataset
    assert system.digest != shops.make_system().digest


@pytest.mark.parametrize(
    ("arms", "most"), [(4000, 1876), (100_000, 948)], ids=["two bytes a ticket", "four bytes a ticket"]
)
def test_cells_whose_tickets_fit_no_record_are_refused_before_anything_runs(shops, arms, most):
    vendors = (VendorConfig("one", arms),)
    shops.make_system(vendors=vendors, cells={"cap": most})
    with pytest.raises(ConfigurationError, match=f"cells.cap: expected at most {most} for {arms} arms"):
        shops.make_system(vendors=vendors, cells={"cap": most + 1})


def test_a_configuration_from_plain_values_names_its_items_by_vendor():
    values = {
        "system": "pdap",
        "deployment": "d",
        "features": {"dimension": 2},
        "vendors": [{"name": "a", "items": {"capacity": 3}}],
    }
    config = parse_config({**values, "vendors": [*values["vendors"], {"name": "b", "items": {"capacity": 2}}]})
    assert config.items == {"a": range(3), "b": range(3, 5)}


def test_homes_close_windows_by_their_own_share_of_outcomes(shops):
    serving, home = (shops.make_config(release={"placement": name, "first_window": 41}) for name in ("serving", "home"))
    assert (serving.schedule.closes_at(0), home.schedule.closes_at(0)) == (41, 21)


@pytest.mark.parametrize("named", [False, True])
def test_on_trial_alone_a_lost_journal_of_decisions_is_never_given_up(shops, named):
    on_trial, without = declare(shops.on_trial(named=named)), declare(shops.make_system())
    assert {role.name for role in on_trial.roles if role.irreplaceable} == {"learner.one", "learner.two"}
    assert not any(role.irreplaceable for role in without.roles)
