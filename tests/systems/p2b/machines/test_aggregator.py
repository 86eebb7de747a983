"""Versions from windows and raw interactions, whole and in parts; contexts that are scored together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from hushstream.agents.worker.deployment import parse_config
from hushstream.agents.worker.roles import MachineMaker
from hushstream.engine.declare.declaration import EVERYBODY
from hushstream.engine.declare.role import Role
from hushstream.engine.learner.items import catalogue_of
from hushstream.engine.records import InputRecord, InputSlice, TopicPartition
from hushstream.learners.linucb import LinUCBModel, LinUCBState
from hushstream.ops.check.findings import Status
from hushstream.ops.check.verify import verify
from hushstream.ops.log_copy import LogCopy, PartitionCopy
from hushstream.schemas import codec
from hushstream.systems.p2b.edge.codes import UserLinUCB
from hushstream.systems.p2b.machines import learner
from hushstream.systems.p2b.machines.learner import LearnerMachine
from hushstream.systems.p2b.server.estimate import model_from_sums
from hushstream.systems.p2b.server.totals import WindowTotals
from hushstream.systems.p2b.system import facts_of
from recordings import KEYS, VARIANTS, Recording, Variant, recorded


def arrays(record, rigs):
    gram, moment = (np.frombuffer(record[name], "<f8") for name in ("gram", "moment"))
    return gram.reshape(rigs.ARMS, rigs.DIMENSION, rigs.DIMENSION), moment.reshape(rigs.ARMS, -1)


def test_each_window_gives_one_version_from_the_totals_of_all(rigs):
    system = rigs.make_system()
    rig = rigs.AggregatorRig(system)
    windows = rigs.window_sums_values(system, 3)
    published = rig.give(windows).journals
    assert [record["version"] for record in published] == [1, 2, 3]
    totals = WindowTotals(rigs.CODES, rigs.ARMS)
    for value, record in zip(windows, published, strict=True):
        window = codec.decode(value)[1]
        ones, zeros = (
            np.frombuffer(window[name], "<i8").astype(np.int64).reshape(rigs.CODES, rigs.ARMS)
            for name in ("ones", "zeros")
        )
        totals.add(ones, zeros, window["variance"], window["slots"])
        sums = (totals.ones, totals.zeros, 1, totals.variance)
        expected = model_from_sums(*sums, system.encoder.centroids, 1.0)
        gram, moment = arrays(record, rigs)
        np.testing.assert_array_equal(gram, expected.gram)
        np.testing.assert_array_equal(moment, expected.moment)
        assert record["observations"] == expected.observations


def test_sums_sent_twice_count_once(rigs):
    system = rigs.make_system()
    rig = rigs.AggregatorRig(system)
    first, second = rigs.window_sums_values(system, 2)
    seen = rig.give([first, first, second, first])
    assert seen.counts == {"window_sums": 2, "model": 2, "repeated_window_sums": 2}
    once = rigs.AggregatorRig(system)
    once.give([first, second])
    assert rig.machine.totals.dump() == once.machine.totals.dump()


def test_a_model_says_its_price_and_whether_all_under_it_is_private(rigs):
    system = rigs.make_system()
    secret, seeded = (
        rigs.window_sums_values(system, 1, rigs.Key(b"\x21" * 31 + b"\1")),
        rigs.window_sums_values(system, 1),
    )
    published = rigs.AggregatorRig(system).give([*secret, *seeded]).journals
    assert [record["epsilon_micro"] for record in published] == [1_000_000] * 2
    assert [record["private_as_stated"] for record in published] == [True, False]
    paper = rigs.make_system(release={"mode": "paper", "sampling": 0.5, "threshold": 1, "window_slots": 4})
    assert not rigs.AggregatorRig(paper).give(rigs.window_sums_values(paper, 1)).journals[0]["private_as_stated"]


def test_new_users_start_from_the_newest_model_of_their_line_and_old_ones_keep_theirs(rigs):
    system = rigs.make_system()
    track = rigs.AggregatorRig(system)
    track.give(rigs.window_sums_values(system, 2))
    rig = rigs.LearnerRig(system)
    rig.interact("old", 1)
    for value in (track.genesis, *track.journal):
        rig.put("models", value)
    rig.fold()
    for user, model_track, version in (("old", "private", 0), ("new", "private", 2), ("cold", "cold", 0)):
        rig.context(f"{user}:9", user, line=model_track)
        (answer,) = rig.fold().answers
        assert answer.model_version == version, user
    gram, _ = rig.knows("new")
    np.testing.assert_allclose(gram, arrays(codec.decode(track.journal[-1])[1], rigs)[0], rtol=1e-3, atol=1e-3)


def test_a_learner_never_writes_into_the_shared_model(rigs):
    system = rigs.make_system()
    track = rigs.AggregatorRig(system)
    track.give(rigs.window_sums_values(system, 1))
    rig = rigs.LearnerRig(system)
    for value in (track.genesis, *track.journal):
        rig.put("models", value)
    rig.fold()
    shared = rig.machine.terms.policy.shared("private").state
    before = shared.packed.copy()
    rig.interact("ann", 3)
    np.testing.assert_array_equal(shared.packed, before)


IN_PARTS = tuple(variant for variant in VARIANTS if variant.name.endswith("in-parts"))
CROWDS, MODELS, PARTS = ("window-sums", 0), ("models", 0), ("model-parts", 0)


@pytest.fixture(params=IN_PARTS, ids=lambda variant: variant.name)
def recording(request: pytest.FixtureRequest) -> Recording:
    variant: Variant = request.param
    return recorded(variant)


def decoded(records: Sequence[InputRecord], schema: str) -> Iterator[dict[str, Any]]:
    for record in records:
        if record.value.startswith(b"\xc3\x01"):
            name, fields = codec.decode(record.value)
            if name == schema:
                yield fields


def copy_of(recording: Recording, changed: Mapping[TopicPartition, Sequence[InputRecord]] | None = None) -> LogCopy:
    there = {**recording.records, **(changed or {})}
    parts = {
        place: PartitionCopy(0, records[-1].offset + 1 if records else 0, list(records))
        for place, records in there.items()
    }
    return LogCopy(parts)


def role_of(recording: Recording, name: str) -> Role:
    return next(role for role, _ in recording.homes() if role.name == name)


def fresh(recording: Recording, name: str) -> Any:
    maker = MachineMaker(role_of(recording, name), recording.system, KEYS)
    machine: Any = maker(0)
    machine.start(recording.records[machine.journal][0].value)
    return machine


def test_a_window_and_a_version_leave_in_parts_under_one_record_and_one_debit(recording: Recording) -> None:
    journal = list(decoded(recording.records["journal-shuffler", 0], "WindowJournal"))
    ledger = list(decoded(recording.records["ledger", 0], "LedgerEntry"))
    assert len(journal) == len(ledger) >= 2
    ours = [one for one in decoded(recording.records[CROWDS], "ReleasePart") if len(one["content"]) > 10]
    assert [one["part"] for one in ours] == [0, 1] * len(journal)
    models, parts = list(decoded(recording.records[MODELS], "LargeModel")), recording.records[PARTS]
    assert len(models) == len(journal)
    named = [one["whole"] for one in decoded(parts, "ReleasePart") if len(one["content"]) > 10]
    assert named == [model["whole"] for model in models for _ in range(2)]


def test_learners_answer_by_a_version_that_came_in_parts(recording: Recording) -> None:
    versions = {version for one in decoded(recording.records["decisions", 0], "Decisions") for version in _by(one)}
    assert len(versions) >= 2
    assert max(versions) == len(list(decoded(recording.records[MODELS], "LargeModel")))


def _by(fields: Mapping[str, Any]) -> set[int]:
    found = fields["model_versions"]
    packed = isinstance(found, bytes)
    return {int.from_bytes(found[at : at + 4], "little") for at in range(0, len(found), 4)} if packed else set(found)


def test_a_writer_that_stopped_between_two_parts_sends_both_again(recording: Recording) -> None:
    """Its journal record stands, so whoever takes the partition up replays it, and gives the same outputs whole."""
    for name, place in (("shuffler", CROWDS), ("aggregator", PARTS)):
        machine, sent = fresh(recording, name), list[bytes]()
        for record in recording.records[machine.journal][1:]:
            ranges = machine.recovery_ranges(record.value)
            inputs = [InputSlice(*part, records=_between(recording, part)) for part in ranges]
            step = machine.replay(record.value, inputs)
            sent += [out.value for out in step.releases if (out.topic, out.partition) == place]
        theirs = [one.value for one in recording.records[place] if len(one.value) > 1000]
        assert sent == theirs


def _between(recording: Recording, part: Any) -> list[InputRecord]:
    return [one for one in recording.records[part.topic, part.partition] if part.low <= one.offset < part.high]


def test_a_model_is_shown_when_all_its_parts_are_there(recording: Recording) -> None:
    view = recording.system.models
    assert view is not None
    assert view.topics == ("models", "model-parts")
    values = [one.value for topic in view.topics for one in recording.records[topic, 0] if len(one.value) > 10]
    newest = len(list(decoded(recording.records[MODELS], "LargeModel")))
    items = recording.records["items", 0]
    rules = recording.system.requests.catalogue
    names = {EVERYBODY: catalogue_of(rules, InputSlice("items", 0, 0, items[-1].offset + 1, items))}
    assert view.read(values, None, names).version == newest
    with pytest.raises(Exception, match=f"expected all 2 parts of version {newest} on topic model-parts"):
        view.read(values[:-1], None, names)


def test_verify_compares_the_whole() -> None:
    """Junk was put in: it is found, and nothing else; then a byte that is changed, or a part that is gone."""
    recording = recorded(IN_PARTS[-1])
    for place in (CROWDS, PARTS):
        *others, first, last = recording.records[place]
        value = bytearray(first.value)
        value[len(value) // 2] ^= 1
        bent = [*others, first._replace(value=bytes(value)), last]
        closed_up = [*others, last._replace(offset=first.offset)]
        junk, changed, missing = (_found(recording, place, records) for records in (None, bent, closed_up))
        assert changed > junk, place
        assert missing > junk, place


def _found(recording: Recording, place: TopicPartition, records: Sequence[InputRecord] | None) -> int:
    """How many records of a topic are changed, or missing from it."""
    changed = None if records is None else {place: records}
    found = verify(copy_of(recording, changed), recording.system, KEYS).of(place[0])
    return found[Status.CHANGED] + found[Status.UNSENT]


def test_a_catalogue_that_is_too_large_for_its_users_is_told_in_numbers() -> None:
    values = {
        "deployment": "large",
        "items": {"capacity": 1000, "named": True},
        "features": {"country": {"kind": "category", "vocabulary": ["de", "fr", "se"]}},
    }
    few, many = (
        {one.name: one for one in facts_of(parse_config({**values, "expected_slots": slots}))}
        for slots in (2_000, 200_000)
    )
    said = few["noise_of_an_item"].text
    assert "is too much" in said
    assert "too much" not in many["noise_of_an_item"].text
    fewer = {**values, "expected_slots": 2_000, "items": {**values["items"], "expected": 353}}
    assert not any("too much" in one.text for one in facts_of(parse_config(fewer)))


def _states(kernel: UserLinUCB, rng: np.random.Generator) -> list[LinUCBState]:
    """Users of one base: some without a step, some with a few, some with many."""
    base = LinUCBModel.cold(kernel.arms, kernel.dimension).state()
    states: list[LinUCBState] = []
    for steps in (0, 1, 3, 7, 12, 3 * kernel.dimension):
        state: LinUCBState = base.fork()
        for _ in range(steps):
            context = rng.dirichlet(np.ones(kernel.dimension)).astype(np.float32)
            kernel.learn(state, context, int(rng.integers(kernel.arms)), float(rng.random()))
        states.append(state)
    return states


@pytest.mark.parametrize(("arms", "dimension"), [(2, 3), (5, 4), (7, 33), (25, 25), (60, 50)])
@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0])
def test_scores_of_many_have_the_bits_of_each_alone(arms: int, dimension: int, alpha: float) -> None:
    kernel, rng = UserLinUCB(arms, dimension, alpha), np.random.default_rng(arms)
    users = _states(kernel, rng)
    states = [users[number] for number in rng.integers(len(users), size=150)]
    contexts = rng.dirichlet(np.ones(dimension), len(states)).astype(np.float32)
    together = kernel.scores_of(states, contexts)
    # As records are decoded one at a time: aligned memory of its own.
    alone = [kernel.scores(*one).copy() for one in zip(states, map(np.copy, contexts), strict=True)]
    assert together.tobytes() == np.array(alone).tobytes()
    assert len(set(together.argmax(axis=1).tolist())) > 1


def _lived(rigs: Any, users: int) -> list[bytes]:
    """The journal of a partition: clicks between contexts, waits that end between them, and many contexts a fold."""
    rig, rng = rigs.LearnerRig(rigs.make_system(feedback={"attribution_window_seconds": 2.0})), np.random.default_rng(3)
    waiting: list[tuple[str, str, int]] = []
    for batch in range(12):
        asked = []
        for number in range(90):
            rig.wait(0.02)
            event_id, user = f"event-{batch}-{number}", f"user-{rng.integers(users)}"
            rig.context(event_id, user, rng.dirichlet(np.ones(rigs.DIMENSION)))
            asked.append((event_id, user))
            if waiting and number % 45 == 7:
                given, whose, arm = waiting.pop(int(rng.integers(len(waiting))))
                rig.reward(given, arm, float(rng.random() < 0.5), whose)
        arms = rig.fold().arms
        waiting = [(event_id, user, arms[event_id]) for event_id, user in asked]
        for event_id, user, arm in waiting[::2]:
            rig.shown(event_id, arm, user)
        rig.fold()
    return list(rig.journal)


def test_a_partition_answers_the_same_whether_rows_wait_for_each_other_or_not(
    rigs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every user has several rows in a batch, and learns while some are still to be answered."""
    sizes: list[int] = []
    answer = LearnerMachine._answer_run

    def noted(machine: LearnerMachine) -> None:
        sizes.append(len(machine._run.rows))
        answer(machine)

    monkeypatch.setattr(LearnerMachine, "_answer_run", noted)
    waited = _lived(rigs, users=6)
    assert max(sizes) > 6, "some user has two rows that are answered together"
    monkeypatch.setattr(learner, "AT_ONCE", 1)
    sizes.clear()
    assert _lived(rigs, users=6) == waited
    assert max(sizes) == 1


def _answered(rigs: Any, decoded_apart: bool) -> dict[str, int]:
    """Eight users who have learned ask once, and three of them again, with another context, in the same batch."""
    rig, users = rigs.LearnerRig(), [f"user-{number}" for number in range(8)]
    for user in users:
        for turn in range(24):
            event_id = f"{user}:{turn}"
            rig.wait(0.01)
            rig.context(event_id, user, rigs.point(turn))
            arm = rig.fold().arms[event_id]
            rig.shown(event_id, arm, user)
            rig.reward(event_id, arm, float(turn % rigs.ARMS == arm), user)
            rig.fold()
    for number, user in enumerate(users):
        rig.context(f"first-{number}", user, rigs.point(number))
    if decoded_apart:
        rig.machine.ready(rig.arrived())
    for number, user in enumerate(users[:3]):
        rig.context(f"second-{number}", user, rigs.point(number + 1))
    arms: dict[str, int] = rig.fold().arms
    return arms


def test_contexts_that_were_decoded_apart_are_answered_as_together(rigs: Any) -> None:
    """What was found for a row of the first piece was taken for the same row of the second, too few to be looked at."""
    together = _answered(rigs, decoded_apart=False)
    assert any(together[f"first-{number}"] != together[f"second-{number}"] for number in range(3))
    assert _answered(rigs, decoded_apart=True) == together
