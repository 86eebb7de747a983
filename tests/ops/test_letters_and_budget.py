"""What was refused and what was spent, read from the logs."""

from __future__ import annotations

from typing import Any

import pytest

from hushstream.ops import budget, dead_letters
from hushstream.privacy.amounts import Cost
from hushstream.privacy.keys import Zone
from hushstream.roles.outcomes import Refusal
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.reasons import Reason


def test_every_refused_record_is_listed_with_its_place_and_reason(deployment: Any) -> None:
    letters = dead_letters.read(deployment.copy)
    assert len(letters) == 12
    assert {letter.zone for letter in letters} == {"edge"}
    assert all(letter.partition == letter.filed_partition and letter.times == 1 for letter in letters)
    reasons = {letter.reason for letter in letters if letter.topic == "contexts"}
    assert {str(Refusal.UNKNOWN_LINE), str(Reason.NOT_SINGLE_OBJECT)} <= reasons
    for letter in letters:
        value = deployment.log.slice(letter.topic, letter.partition, letter.offset, letter.offset + 1).records[0].value
        assert deployment.keys.key(Zone.EDGE).digest("dead-letter", value).hex() == letter.digest


def test_a_summary_counts_by_reason_and_partition(invaded: Any) -> None:
    letters = dead_letters.read(invaded.copy)
    summary = dead_letters.summarise(letters)
    assert sum(one.count for one in summary) == len(letters) == 12 + 8 + 4
    foreign = [one for one in summary if one.reason == Refusal.OTHER_CONFIGURATION]
    assert {(one.zone, one.topic, one.partition, one.count) for one in foreign} == {
        ("shuffler", "reports", 0, 2),
        ("shuffler", "reports", 1, 2),
    }
    assert [one.count for one in summary] == sorted((one.count for one in summary), reverse=True)
    assert foreign[0].first_offset < foreign[0].last_offset


def test_those_of_a_record_are_found_by_its_place(deployment: Any) -> None:
    letters = dead_letters.read(deployment.copy)
    wanted = letters[3]
    (one,) = dead_letters.of_record(letters, wanted.topic, wanted.partition, wanted.offset)
    assert one == wanted
    assert f"reason: {one.reason}" in one.as_text()
    assert f"digest: {one.digest}" in one.as_text()
    with pytest.raises(dead_letters.UnknownDeadLetter, match="contexts/1 offset 9999"):
        dead_letters.of_record(letters, "contexts", 1, 9999)


def test_a_repeated_dead_letter_is_one(deployment: Any, editor: Any) -> None:
    source = ("dead-letters-edge", 0)
    records = editor.copy.part(source).records
    letters = dead_letters.read(editor.inserted(source, len(records), records[2].value))
    assert len(letters) == 12
    assert [letter.filed_offset for letter in letters if letter.times == 2] == [2]


def test_no_payload_is_in_a_listing(deployment: Any) -> None:
    shown = str([letter.as_json() for letter in dead_letters.read(deployment.copy)])
    assert "not a record" not in shown
    assert "nan" not in shown


def test_what_is_no_dead_letter_is_an_error_that_says_where(editor: Any) -> None:
    with pytest.raises(HushstreamError, match="dead-letters-edge/0 offset 0: expected a dead letter"):
        dead_letters.read(editor.inserted(("dead-letters-edge", 0), 0, b"noise"))


def test_every_window_costs_its_slots_the_promised_price_once(deployment: Any) -> None:
    found = budget.read(deployment.copy, deployment.system)
    windows = sum(len(part.records) for _, part in deployment.copy.of_topic("ledger"))
    promised = deployment.system.guarantee()
    assert found.ok
    assert found.exit_code == 0
    assert found.by_mechanism == {"slot-sums": windows}
    assert len({one.scope for one in found.spent}) == windows
    assert found.largest_of_a_slot == promised.cost
    said = found.as_json()
    assert said["one_slot"]["spent"] == said["one_slot"]["promised"]
    assert said["lifetime"]["slots"] == 2
    assert said["lifetime"]["epsilon_micro"] == promised.lifetime.cost.epsilon_micro == 2 * promised.epsilon_micro
    assert f"{windows} by slot-sums" in found.as_text()


def test_a_repeated_entry_is_charged_once(deployment: Any, editor: Any) -> None:
    source = ("ledger", 0)
    records = editor.copy.part(source).records
    found = budget.read(editor.inserted(source, len(records), records[0].value), deployment.system)
    assert found.ok
    assert found.repeated == 1
    assert found.spent == budget.read(editor.copy, deployment.system).spent


def test_two_contents_under_one_id_are_an_error_and_both_are_charged(deployment: Any, editor: Any) -> None:
    source = ("ledger", 0)
    records = editor.copy.part(source).records
    _, entry = codec.decode(records[0].value)
    other = codec.encode("LedgerEntry", {**entry, "debit": {**entry["debit"], "epsilon_micro": 5}})
    # Written to the other partition: an id stands for one content wherever it is.
    found = budget.read(editor.inserted(("ledger", 1), 0, other), deployment.system)
    assert found.exit_code == 1
    (problem,) = found.problems
    assert (problem.partition, problem.offset) == (1, 0)
    assert entry["entry_id"].hex() in problem.reason
    charged = next(one for one in found.spent if one.scope == entry["debit"]["scope"])
    assert charged.cost.epsilon_micro == entry["debit"]["epsilon_micro"] + 5
    assert not found.largest_of_a_slot.fits(deployment.system.guarantee().cost)


def test_entries_of_others_and_noise_are_named_and_cost_nothing(deployment: Any, editor: Any) -> None:
    source = ("ledger", 0)
    _, entry = codec.decode(editor.copy.part(source).records[0].value)
    before = budget.read(editor.copy, deployment.system)
    for value, reason in (
        (codec.encode("LedgerEntry", {**entry, "deployment": "theirs"}), "deployment small"),
        (codec.encode("LedgerEntry", {**entry, "config_digest": bytes(16)}), "configuration"),
        (b"noise", "a ledger entry"),
    ):
        found = budget.read(editor.inserted(source, 1, value), deployment.system)
        assert not found.ok
        assert reason in found.problems[0].reason
        assert found.spent == before.spent


def test_an_empty_ledger_has_spent_nothing(deployment: Any) -> None:
    found = budget.read(type(deployment.copy)({}), deployment.system)
    assert found.ok
    assert found.largest_of_a_slot == Cost(0)


def test_what_a_scope_has_left_is_its_limit_less_all_that_it_spent(deployment: Any) -> None:
    promised = deployment.system.guarantee().cost
    found = budget.read(deployment.copy, deployment.system)
    assert {one.left for one in found.spent} == {Cost(0)}
    scope = found.spent[0].scope
    limits = {"window": promised + promised, scope: promised + Cost(5)}
    wider = budget.read(deployment.copy, deployment.system, limits)
    assert wider.ok
    assert {one.left for one in wider.spent if one.scope != scope} == {promised}
    assert wider.smallest_left == (scope, Cost(5))
    assert f"Left: least in scope {scope}, {Cost(5)}." in wider.as_text()
    assert {row["left"]["epsilon_micro"] for row in wider.as_json()["spent"]} == {5, promised.epsilon_micro}


def test_a_scope_beyond_its_limit_is_an_error(deployment: Any) -> None:
    found = budget.read(deployment.copy, deployment.system, {"window": Cost(1)})
    assert found.exit_code == 1
    assert {one.left for one in found.spent} == {Cost(0)}
