"""A state that forgets a field draws twice: every role of every registered system goes on as if it were never stopped.

Each role's machine is driven over the recorded inputs of a small closed loop (`recordings`), record by record: once as
it is, and once stopped after every record, packed, and restored into a new machine. That is in the midst of windows and
steps, and also after the zone's key was rotated, in an epoch that was requested, and with most users spilled. What both
write (journal records, outputs, dead letters, counts) and how both are packed must be the same bytes.

Whoever follows its journal must come to the same bytes and the same state, too; and where batches are cut must change
nothing that a role with one input sends.

A field that is missing from the packed state may show in no output of a small recording. So the restored machine is
also compared with the one that it goes on for, attribute by attribute, through all objects of ours (`attributes`):
whatever differs must stand in `DERIVED`, with the reason why nothing that is written follows from the difference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import pytest

from attributes import EVERY, Contents, differences, named_by
from hushstream.engine.records import InputSlice, TopicPartition
from hushstream.engine.state.packed import Form
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.catalogue import kind_of, kinds
from hushstream.systems.colin.rows import Rows
from hushstream.systems.p2b.edge.users import Users
from machine_drive import PLAIN, ROTATED_AND_SUSPECTED, SPILLED, Rig, Scenario, Written, require_undisturbed
from recordings import VARIANTS, Variant, every_home, form_of, marks_of, recorded, require_all, unplayed

pytestmark = pytest.mark.slow

require_all(kinds())

DERIVED: Mapping[tuple[str, ...], str] = {
    ("counting.blocks.BlockCounters", "_above_at", "_bound", "_held", "_moved", "_noise", "_rows"): (
        "which noise of which nodes is at hand, drawn again from its address where it is not; `_bound` is a bound of "
        "the sums, which is only tighter after a restart"
    ),
    ("counting.counter.Counter", "_bound"): "a bound of the sum; it is only tighter after a restart",
    ("counting.tree.TreeCounter", "_cached", "_run", "_run_start"): "noise that is drawn again from its address",
    ("engine.state.packed.KnownIds", "_merged", "_shift", "_starts", "_view", "_young"): (
        "in which of its arrays an id lies: all are looked through"
    ),
    ("engine.learner.arrivals.Arrivals", "_decode"): "a function of the configuration, which has no equality",
    ("engine.learner.model_parts.ModelReader", "foreign", "published_ms"): "shown by gauges, and nothing else",
    ("engine.journal.chain.Chain", "_read"): "the journal record that was read last; another one is read anew",
    ("engine.records.JournalEntry", EVERY): "what that record says",
    ("engine.machine.MemoryUserStore", "_users"): "they are dumped in the order of their keys",
    ("feedback.join.Decisions", EVERY): "those that are needed no more are left out",
    ("learners.exploration.Highest", EVERY): "arrays that a computation writes before it reads them",
    ("learners.linucb.LinUCB", EVERY): "arrays that a computation writes before it reads them",
    ("learners.linucb.LinUCBState", "shared"): "whether another user has the same array; it is copied before a change",
    ("learners.sparse.OwnSteps", "_held"): "room for further steps: those taken are compared",
    ("learners.sparse.SparseUCB", EVERY): "arrays that a computation writes before it reads them",
    ("systems.p2b.edge.agent.Table", EVERY): "in which row a user lies; keys are made when they are first asked for",
    ("privacy.keys.Key", "_digest_key", "_key_id", "_set_up"): "made of the key when they are first asked for",
    ("privacy.ledger.Ledger", "_totals"): "a scope that has spent nothing is absent, or has an empty sum",
    ("systems.colin.counter.CounterMachine", "pending"): "the same rows in one piece",
    ("systems.colin.algorithm.estimator.CollaborativeState", "_correction"): "written before it is read",
    ("systems.colin.server.CollaborativeAggregatorMachine", "pending"): "the same rows in one piece",
    ("engine.devices.sealing.ContentOpener", "_private"): "the key's other form, which has no equality",
    ("engine.devices.signing.Signer", "_held"): "the keys' other forms, which have no equality",
    ("systems.p2b.edge.users.Users", "_changed", "_leaving", "_old", "_young"): "the rows that users lie in",
    ("systems.p2b.edge.users.Users", "name"): "a memory of names in the store, which are made of the key alone",
    ("systems.p2b.edge.users.Users", "_looked_for"): "what the store has of one user",
    ("systems.p2b.edge.codes.UserLinUCB", EVERY): "arrays that a computation writes before it reads them",
    ("systems.p2b.edge.policies.SharedModels", "_retained", "_users"): "by name; their order means nothing",
    ("systems.p2b.lift.LiftCounter", "_open", "_waiting"): "by moment and user; their order means nothing",
    ("systems.p2b.machines.guardrail.Guardrail", "_held"): "by user; their order means nothing",
    ("systems.p2b.shuffler.Windows", "_opened_ms"): "of no meaning while the window is empty",
    (
        "systems.pdap.algorithm.aggregate.ModelUpdate",
        EVERY,
    ): "the version that was published last; the next replaces it whole",
    ("systems.pdap.algorithm.blocks.Blocks", EVERY): "what waits, batch into one table",
    ("systems.pdap.counter.Counter", "_arrivals", "_fresh", "_rows"): "the same outcomes in one piece",
    ("systems.pdap.algorithm.partition.Partition", "_arrived", "_met"): "by cell; their order means nothing",
    ("systems.pdap.algorithm.serving.Serving", "_shown"): "the arms of all tickets, found when they are first needed",
    ("systems.pdap.edge.PdapLearnerMachine", "_may_show"): "found anew from model and catalogue",
    ("systems.pdap.algorithm.serving.TicketNumbers", "_keyed"): "a hash function under the key, which has no equality",
}
"""Attributes that differ after a restart, by class: why nothing that a machine writes follows from that."""

PASSED = {(f"hushstream.{owner}", name) for owner, *names in DERIVED for name in names}

CONTENTS: Contents = {
    "hushstream.engine.state.packed.KnownIds": lambda ids: ids.dump(),
    "hushstream.engine.machine.MemoryUserStore": lambda store: store.all(),
    "hushstream.feedback.join.Decisions": lambda decisions: decisions.dump(),
    "hushstream.privacy.ledger.Ledger": lambda ledger: {scope: sums for scope, sums in ledger.totals().items() if sums},
    "hushstream.learners.sparse.OwnSteps": lambda own: own.rows.tobytes(),
    "hushstream.systems.colin.counter.CounterMachine": lambda machine: in_one_piece(machine.pending),
    "hushstream.systems.colin.server.CollaborativeAggregatorMachine": lambda one: in_one_piece(one.pending)[:2],
    "hushstream.engine.devices.sealing.ContentOpener": lambda opener: opener._private.private_bytes_raw(),
    "hushstream.engine.devices.signing.Signer": lambda signer: {
        public: private.private_bytes_raw() for public, private in signer._held.items()
    },
    "hushstream.systems.p2b.edge.users.Users": lambda users: users_of(users),
    "hushstream.systems.p2b.edge.policies.SharedModels": lambda models: (
        sorted(models._retained),
        sorted(models._users.items()),
    ),
    "hushstream.systems.p2b.lift.LiftCounter": lambda counter: counter.dump(),
    "hushstream.systems.p2b.machines.guardrail.Guardrail": lambda counter: counter.dump(),
    "hushstream.systems.p2b.shuffler.Windows": lambda windows: windows._slots and windows._opened_ms,
    "hushstream.systems.pdap.counter.Counter": lambda counter: counter.dump(),
    "hushstream.systems.pdap.algorithm.partition.Partition": lambda partition: sorted(partition._arrived.items()),
}
"""What those hold, however it lies there, whose attributes are derived above."""


def in_one_piece(rows: list[Any]) -> list[bytes]:
    """The columns of pieces of rows."""
    joined = Rows.joined(rows, rows[0].features.shape[1]) if rows else None
    return (
        []
        if joined is None
        else [getattr(joined, name).tobytes() for name in ("nodes", "features", "rewards", "events")]
    )


def users_of(users: Users) -> list[Any]:
    """Who is in which generation and who has changed, with every column of a table but the key."""
    generations = [
        [(user, _columns(users, row)) for user, row in one.items()]
        for one in (users._leaving, users._old, users._young)
    ]
    return [*generations, sorted(users.table.user[row] for row in users._changed)]


def _columns(users: Users, row: int) -> dict[str, Any]:
    """What a row holds: numbers and shows as they are, what waits and what was learned as they are dumped."""
    packed, agent = {"key", "state", "_waits"}, users.table.agent(row)
    return {name: getattr(agent, name) for name in users.table._empty if name not in packed} | agent.dump()


CONSTANT = frozenset({"deployment", "config_digest", "partition"})
"""Fields of every state that say whose it is: they never change, and a state of another owner is refused."""


def scenarios(variant: Variant) -> Iterator[tuple[int, str, int, Scenario]]:
    """(place among the roles, role, home, what happens) of all that has to be driven."""
    for place, (role, home) in enumerate(unplayed(variant).homes()):
        yield place, role.name, home, PLAIN
        if role.marks is not None:
            yield place, role.name, home, ROTATED_AND_SUSPECTED
        if Rig(unplayed(variant), role, home).machine.spills_users:
            yield from ((place, role.name, home, spilled) for spilled in SPILLED)


def cases() -> Iterator[Any]:
    for variant in VARIANTS:
        with variant.registered():
            for place, role, home, scenario in scenarios(variant):
                name = f"{variant.name}-{role}-{home}-{scenario.name}"
                left = marks_of(variant) if scenario in quick(variant, place) else [pytest.mark.sweep]
                yield pytest.param(variant, place, scenario, id=name, marks=left)


def quick(variant: Variant, place: int) -> tuple[Scenario, ...]:
    """What the quick part keeps: where keys are rotated and a rollback is suspected, all is plain until then.

    A model in parts is many records; users, keys and epochs are those of whole models.
    """
    role = list(unplayed(variant).homes())[place][0]
    if "in-parts" in variant.name:
        return () if role.name == "learner" else (PLAIN,)
    if role.marks is None:
        return (PLAIN,)
    return ROTATED_AND_SUSPECTED, SPILLED[-1]


CASES = tuple(cases())


@pytest.fixture
def rigs(variant: Variant, place: int, scenario: Scenario, tmp_path: Any) -> Iterator[tuple[Rig, Rig]]:
    """Two of a kind."""
    with variant.registered():
        role, home = list(recorded(variant).homes())[place]
        made = [Rig(recorded(variant), role, home, scenario, tmp_path) for _ in range(2)]
        yield made[0], made[1]
        for rig in made:
            rig.close()


@pytest.mark.parametrize(("variant", "place", "scenario"), CASES)
def test_a_machine_that_is_restored_at_every_record_goes_on_as_if_undisturbed(rigs, scenario):
    lost = require_undisturbed(*rigs, PASSED, CONTENTS)
    if not scenario.spills:
        assert lost == set(), "attributes that a restart changes, and no reason why nothing follows from that"


@pytest.mark.parametrize("place", DERIVED)
def test_what_is_said_to_be_derived_is_there(place):
    path, *names = place
    module, _, name = path.rpartition(".")
    kind = getattr(import_module(f"hushstream.{module}"), name)
    assert {name for name in names if name != EVERY} <= named_by(kind)


@pytest.mark.parametrize("kind", sorted({variant.kind for variant in VARIANTS}))
def test_every_role_of_a_system_is_driven(kind):
    own = [variant for variant in VARIANTS if variant.kind == kind]
    with own[0].registered():
        driven = {form_of(role) for variant in own for role in recorded(variant).system.roles}
        assert {form_of(role) for role in kind_of(kind).roles} <= driven


# What leaves follows from the logs, however they were cut and whoever follows the journal.


HOMES = every_home()


def has_one_input(variant: Variant, place: int) -> bool:
    with variant.registered():
        role, home = list(unplayed(variant).homes())[place]
        return len(Rig(unplayed(variant), role, home).machine.positions()) == 1


def all_sent(written: Iterable[Written]) -> dict[TopicPartition, list[bytes]]:
    """What is sent on each topic, in its order; a dead letter need not wait for the window around it to close."""
    sent: dict[TopicPartition, list[bytes]] = defaultdict(list)
    for step in written:
        for output in (*step.releases, *step.dead_letters):
            sent[output.topic, output.partition].append(output.value)
    return sent


def follow(rig: Rig, journal: Sequence[bytes]) -> Iterator[Written]:
    """What a machine sends that follows a journal, and then folds what no record of it covers."""
    there = rig.recording.records
    for value in journal:
        covered = [
            InputSlice(*part, [r for r in there.get(part[:2], ()) if part.low <= r.offset < part.high])
            for part in rig.machine.recovery_ranges(value)
        ]
        yield Written.by(rig.machine.replay(value, covered))
    rest = {place: there.get(place, ()) for place in rig.machine.positions()}
    yield from (Written.by(step) for steps in rig.folds(rest) for step in steps)


@pytest.mark.parametrize(("variant", "place"), HOMES)
def test_whoever_follows_a_journal_sends_the_same_bytes_and_comes_to_the_same_state(variant, place):
    with variant.registered():
        role, home = list(recorded(variant).homes())[place]
        scenario = PLAIN if role.marks is None else ROTATED_AND_SUSPECTED
        owner, follower = (Rig(recorded(variant), role, home, scenario) for _ in range(2))
        written = [step for steps in owner.drive() for step in steps]
        again = list(follow(follower, [step.journal for step in written if step.journal is not None]))
        assert all_sent(again) == all_sent(written)
        assert follower.machine.snapshot() == owner.machine.snapshot()


@pytest.mark.parametrize(("variant", "place"), [home for home in HOMES if has_one_input(*home.values)])
def test_where_batches_are_cut_changes_no_byte_of_a_role_with_one_input(variant, place):
    """One that reads several logs takes them as they come: which record it meets first is then no matter of cuts."""
    with variant.registered():
        role, home = list(recorded(variant).homes())[place]
        single, whole = (Rig(recorded(variant), role, home) for _ in range(2))
        everything = {place: recorded(variant).records.get(place, ()) for place in whole.machine.positions()}
        together = [Written.by(step) for steps in whole.folds(everything) for step in steps]
        one_by_one = [step for steps in single.drive() for step in steps]
        assert all_sent(together) == all_sent(one_by_one)


# That the suite would notice.


def states_of(rig: Rig) -> Iterator[dict[str, Any]]:
    """The packed state after each record."""
    for _ in rig.drive():
        yield read_state(rig, rig.machine.snapshot())[1]


def read_state(rig: Rig, snapshot: bytes) -> tuple[Form, dict[str, Any]]:
    found: list[tuple[Form, dict[str, Any]]] = []
    read = Form.read

    def noting(form: Form, packed: bytes) -> dict[str, Any]:
        found.append((form, read(form, packed)))
        return read(form, packed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Form, "read", noting)
        rig.fresh().restore(snapshot)
    return found[0]


def is_noticed(rig: Rig, form: Form, state: dict[str, Any], field: str, start: Any) -> bool:
    """Whether a machine that is restored without one field (which stays as it began) is told from a whole one."""
    whole, without = rig.fresh(), rig.fresh()
    whole.restore(form.write(state))
    try:
        without.restore(form.write({**state, field: start}))
    except (HushstreamError, ValueError, AssertionError):
        return True
    return bool(differences(whole, without, PASSED, CONTENTS))


_DIVERGED = "set where a journal record is adopted that its inputs no longer give, and tested where that is"
_WHOLE = "declared once for models that come whole as well, in whose recordings it changes"
UNCHANGED: Mapping[tuple[str, str], str] = {
    ("a collector's state", "ended"): "set where the budget cannot pay for a round, and tested where that is",
    ("a rating aggregator's state", "stopped"): "set where a model cannot be made, and tested where that is",
    ("a learner's state", "guardrail"): "the same counter is played where features are declared",
    **{
        (f"a P-DAP learner's state{kind}", "epoch"): "it releases nothing under noise"
        for kind in ("", " with a catalogue", " on trial", " on trial with a catalogue")
    },
    ("a domain's state", "diverged"): _DIVERGED,
    ("a node's state", "diverged"): _DIVERGED,
    **{
        (f"a learner's state with {models}", field): _WHOLE
        for models in ("models in parts", "a catalogue and models in parts")
        for field in ("epoch", "lift", "guardrail", "spending")
    },
}
"""Fields, by the name of the state, that no recording changes, with the reason."""

UNCHANGED_IN = "UNCHANGED of tests/contract/test_declared_state.py"


def kept_in(machine: Any) -> Iterator[tuple[str, str]]:
    """(field, attribute that it holds) of a machine's packed state."""
    for name, field in machine.state.fields.items():
        yield from ((key, f"{type(machine).__name__}.{name}") for key in field.schema(name))


def require_explained(
    left: set[tuple[str, str]], unchanged: set[tuple[str, str]], attributes: Mapping[tuple[str, str], str]
) -> None:
    """Refuse fields, by the name of the state, that no recording changes, and no reason says why; and the other way.

    Raises:
        AssertionError: there are some.
    """
    missing = ", ".join(f"{attributes[place]} {place}" for place in sorted(left - unchanged))
    assert not missing, (
        f"expected a recording that changes each field of a state, got none for {missing}: play such a record in "
        f"tests/shared/recordings.py, or say in {UNCHANGED_IN} why none is played"
    )
    extra = ", ".join(f"{attributes[place]} {place}" for place in sorted(unchanged - left))
    assert not extra, f"expected in {UNCHANGED_IN} only fields that no recording changes, got {extra}"


@pytest.mark.sweep(keep=["bgt", "colin", "meanarm", "pdol"])
@pytest.mark.parametrize("kind", sorted({variant.kind for variant in VARIANTS}))
def test_a_role_that_left_out_any_one_field_of_its_packed_state_would_be_noticed(kind):
    """Field by field, as if it were in no pack: all of them change in some recording, and each is missed."""
    changed: set[tuple[str, str]] = set()
    every: set[tuple[str, str]] = set()
    attributes: dict[tuple[str, str], str] = {}
    for variant in VARIANTS:
        if variant.kind != kind:
            continue
        with variant.registered():
            for role, home in recorded(variant).homes():
                rig = Rig(recorded(variant), role, home)
                form, start = read_state(rig, rig.machine.snapshot())
                states = [(rig, state) for state in states_of(rig)]
                if role.marks is not None:
                    other = Rig(recorded(variant), role, home, ROTATED_AND_SUSPECTED)
                    states += [(other, state) for state in states_of(other)]
                every |= {(form.what, field) for field in start}
                attributes |= {(form.what, field): attribute for field, attribute in kept_in(rig.machine)}
                for field in start:
                    others = [(of, state) for of, state in reversed(states) if state[field] != start[field]]
                    noticed = (is_noticed(of, form, state, field, start[field]) for of, state in others)
                    assert not others or any(noticed), f"{variant.name}, {form.what}: {field}"
                    changed |= {(form.what, field)} if others else set()
    left = {(what, field) for what, field in every - changed if field not in CONSTANT}
    require_explained(left, set(UNCHANGED) & every, attributes)


def test_a_field_without_a_recording_is_named_with_its_attribute_and_the_file_to_say_why():
    (toy,) = (variant for variant in VARIANTS if variant.name == "meanarm")
    with toy.registered():
        (place,) = (one for one in unplayed(toy).homes() if one[0].name == "aggregator")
        attributes = {("means", field): attribute for field, attribute in kept_in(Rig(unplayed(toy), *place).machine)}
    known = {("means", "model_version")}
    said = r"AggregatorMachine\.version \('means', 'model_version'\)"
    with pytest.raises(AssertionError, match=rf"got none for {said}: .* UNCHANGED of tests/contract/test_declared_st"):
        require_explained(known, set(), attributes)
    with pytest.raises(AssertionError, match=rf"UNCHANGED of tests/contract/test_declared_state.py only .* got {said}"):
        require_explained(set(), known, attributes)
    require_explained(known, known, attributes)


@pytest.mark.parametrize(("variant", "place", "scenario"), [case for case in CASES if case.values[2].rotates])
def test_keys_are_rotated_and_epochs_opened_where_noise_is_drawn(rigs):
    """Of the roles whose journal says so: or the scenarios would be plain ones under another name."""
    rig, _ = rigs
    written = [one for steps in rig.drive() for one in steps]
    journals = [codec.decode(one.journal)[1] for one in written if one.journal is not None]
    if any("turned_to" in record for record in journals):
        assert any(one.rotates for one in written)
        assert {record["head"]["epoch"] for record in journals} > {0}
