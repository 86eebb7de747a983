"""A catalogue whose sums and models are larger than a record: windows and versions in parts, on the direct runner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from hushstream.agents.worker.deployment import parse_config
from hushstream.agents.worker.roles import MachineMaker
from hushstream.engine.declare.outcomes import Outcome
from hushstream.engine.declare.role import Role
from hushstream.engine.records import InputRecord, InputSlice, Step, TopicPartition
from hushstream.ops.check.findings import Status
from hushstream.ops.check.verify import verify
from hushstream.ops.log_copy import LogCopy, PartitionCopy
from hushstream.schemas import codec
from hushstream.systems.p2b.reports.feature_facts import facts_of
from recordings import KEYS, VARIANTS, Recording, Variant, recorded

IN_PARTS = tuple(variant for variant in VARIANTS if variant.name.endswith("in-parts"))
CROWDS, MODELS, PARTS = ("crowds", 0), ("models", 0), ("model-parts", 0)


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


def folded(machine: Any, values: Sequence[bytes]) -> list[Step]:
    records = [InputRecord(place, 1000 + place, value) for place, value in enumerate(values)]
    return list(machine.fold([InputSlice(*machine.inputs[0], 0, len(records), records)]))


def of_release(recording: Recording, place: TopicPartition) -> list[bytes]:
    """The parts of the newest whole release on a topic, in the order in which they were sent."""
    records = [one for one in recording.records[place] if one.value.startswith(b"\xc3\x01")]
    last = codec.decode(records[-1].value)[1]["whole"]
    found = [one.value for one in records if codec.decode(one.value)[1]["whole"] == last]
    assert [codec.decode(one)[1]["part"] for one in found] == [0, 1]
    return found


def made(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """What the versions of some steps say, beside where they stand in their journal."""
    fields = [codec.decode(step.journal)[1] for step in steps if step.journal is not None]
    return [{name: value for name, value in one.items() if name not in ("head", "chain")} for one in fields]


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


def test_parts_in_any_order_and_repeated_give_one_version_and_the_same_one(recording: Recording) -> None:
    first, second = of_release(recording, CROWDS)
    (whole,) = made(folded(fresh(recording, "aggregator"), [first, second]))
    for values in ([second, first], [first, first, second], [second, second, first, first, second]):
        steps = folded(fresh(recording, "aggregator"), values)
        assert made(steps) == [whole]
    assert sum(step.counts.get(Outcome.REPEATED_CROWD, 0) for step in steps) == 1


@pytest.mark.parametrize("sent", [0, 1])
def test_one_part_alone_gives_nothing(recording: Recording, sent: int) -> None:
    steps = folded(fresh(recording, "aggregator"), [of_release(recording, CROWDS)[sent]] * 2)
    assert not made(steps)
    assert [step.counts for step in steps] == [{Outcome.INCOMPLETE_RELEASE: 0, Outcome.RELEASE_PART: 2}]


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
    if recording.system.requests.catalogue is None:
        assert view.read(values, None, {}).version == newest
    with pytest.raises(Exception, match=f"expected all 2 parts of version {newest} on topic model-parts"):
        view.read(values[:-1], None, {})


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
    assert (
        "that is too much: the slots expected are enough for 353 items, and 1000 items need `expected_slots` of "
        in said
    )
    needed = int(said.rpartition("some ")[2].rstrip("."))
    enough = {one.name: one for one in facts_of(parse_config({**values, "expected_slots": needed}))}
    assert "too much" not in enough["noise_of_an_item"].text
    assert "too much" not in many["noise_of_an_item"].text
    fits = {
        one.name: one
        for one in facts_of(
            parse_config({**values, "expected_slots": 2_000, "items": {**values["items"], "expected": 353}})
        )
    }
    assert "too much" not in fits["noise_of_an_item"].text
    hopeless = facts_of(parse_config({**values, "expected_slots": 2_000, "privacy": {"epsilon": 0.0001}}))
    assert any("not enough for one item" in one.text for one in hopeless)
