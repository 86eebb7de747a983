"""The rater role: who takes part sends one fixed-size report a round, whatever they rated, and predictions follow."""

import numpy as np
import pytest

from hushstream.engine.records import ReplayMismatch
from hushstream.schemas import codec
from hushstream.systems.bgt.records import NOTHING, slot_bytes


@pytest.fixture
def rig(films):
    return films.RaterRig()


def items_of(slot, system):
    return np.frombuffer(slot["content"], "<i4")[: system.config.release.pairs]


def test_each_user_sends_one_slot_of_one_size_a_round_and_the_end_is_passed_on_behind_them(films, rig):
    rig.rate("ann", range(20), [4.0] * 20)
    rig.rate("bob", [3], [1.0])
    rig.rate("cem", [], [])
    rig.rate("ann", [1], [2.0])
    rig.end(0)
    seen = rig.fold()
    slots = rig.slots(seen)
    assert len(slots) == seen.counts["slot_sent"] == 3
    assert {len(slot["content"]) for slot in slots} == {slot_bytes(rig.system.config)}
    assert sorted(int((items_of(slot, rig.system) != NOTHING).sum()) for slot in slots) == [0, 1, 8]
    assert [slot["slot_id"] for slot in slots] == sorted(slot["slot_id"] for slot in slots), "no order of users"
    kinds = [codec.decode(output.value)[0] for output in seen.releases("updates")]
    assert kinds == ["RatingSlot"] * 3 + ["Seal"]


def test_slots_of_a_round_leave_in_the_order_of_their_ids_whoever_joined_first(films, rig):
    """Of forty users: any other order that follows them is that of ids with probability below 1e-47."""
    for number in np.random.default_rng(1).permutation(40).tolist():
        rig.rate(f"user-{number}", [number], [4.0] if number % 3 else [1.0])
    for number in range(0, 40, 4):
        rig.forget(f"user-{number}")
    rig.end(0)
    ids = [slot["slot_id"] for slot in rig.slots(rig.fold())]
    assert len(set(ids)) == 40
    assert ids == sorted(ids)
    joined = [agent._key.prf("bgt-slot", 0)[:16] for agent in rig.machine.users._agents.values()]
    assert sorted(joined) == ids != joined


def test_what_users_rated_moves_the_content_of_slots_and_nothing_else_that_leaves(films):
    left = []
    for value in (1.0, 5.0):
        rig = films.RaterRig(key=films.SECRET)
        rig.rate("ann", [1, 2], [value, 3.0])
        rig.rate("bob", [4], [2.0])
        rig.end(0)
        left.append(rig.fold().records("updates", "RatingSlot"))
    ours, theirs = left
    assert [{**one, "content": b""} for one in ours] == [{**one, "content": b""} for one in theirs]
    assert sum(one["content"] != other["content"] for one, other in zip(ours, theirs, strict=True)) == 1


def test_the_end_of_a_round_waits_for_that_round_and_what_is_behind_it_waits_too(films):
    system = films.make_system()
    rig, _, server = films.all_rounds(system)
    late = films.RaterRig(system)
    late.rate("ann")
    late.end(0)
    late.end(1)
    late.ask("behind")
    late.fold()
    assert len(late.slots()) == 1
    assert not late.predicted()
    for value in (server.genesis, server.journal[0]):
        late.put("models", value)
    late.fold()
    assert len(late.slots()) == 1, "a model without its round"
    late.put("rounds", rig.logs["rounds", 0][0].value)
    late.fold()
    assert [slot["round"] for slot in late.slots()] == [0, 1]
    assert late.predicted()["behind"][1] == 1
    opened = late.seen.records("updates", "RatingRound")
    assert [one["number"] for one in opened] == [1]


def test_a_round_is_answered_with_its_own_model_though_later_ones_were_published(films):
    """As where a partition's log is read again behind what the server published since."""
    system = films.make_system()
    rig, _, server = films.all_rounds(system)
    late = films.RaterRig(system)
    for record in rig.logs["ratings", 0]:
        late.put("ratings", record.value)
    for value in (server.genesis, *server.journal):
        late.put("models", value)
    for record in rig.logs["rounds", 0]:
        late.put("rounds", record.value)
    late.fold()
    assert films.outputs_of(late.seen, "updates") == films.outputs_of(rig.seen, "updates")


def test_a_question_waits_for_the_model_of_an_ended_round_and_for_no_other(films, rig):
    rig.rate("ann")
    rig.ask("never", after_round=1)
    rig.end(0)
    rig.ask("waits", after_round=0)
    rig.fold()
    assert list(rig.predicted()) == ["never"]
    _, _, server = films.all_rounds(rig.system)
    for value in (server.genesis, server.journal[0]):
        rig.put("models", value)
    rig.fold()
    rig.put("rounds", server.seen.releases("rounds")[0].value)
    rig.fold()
    assert rig.predicted()["waits"][1] == 1


def test_predictions_lie_on_the_scale_and_are_the_users_own_mean_before_there_is_a_model(rig):
    rig.rate("ann", [0, 1, 2, 3], [5.0, 5.0, 4.0, 5.0])
    rig.ask("own", "ann", [5, 6, 7])
    rig.ask("stranger", "bob", [5])
    rig.fold()
    own, version = rig.predicted()["own"]
    assert version == 0
    assert len(set(own)) == 1
    assert 3.8 < own[0] <= 5.0
    assert rig.predicted()["stranger"][0] == [pytest.approx(1 + 0.7 * 4)]
    rig.end(0)
    rig.fold()
    assert len(rig.slots()) == 1, "who only asks does not take part"


def test_an_erasure_leaves_null_slots_and_refills_nothing(films, rig):
    rig.rate("ann")
    rig.end(0)
    rig.fold()
    rig.forget("ann")
    rig.forget("nobody")
    rig.forget("ann", bytes(16))
    seen = rig.fold()
    assert seen.counts["forgotten"] == 2
    assert seen.reasons == ["other_configuration"]
    state = rig.machine.snapshot()
    again = rig.fresh()
    again.start(rig.genesis)
    again.restore(state)
    rig.machine = again
    _, _, server = films.all_rounds(rig.system)
    for value in (server.genesis, server.journal[0]):
        rig.put("models", value)
    rig.put("rounds", server.seen.releases("rounds")[0].value)
    # Whatever the noise has put at the top, some of it.
    rig.rate("bob", range(films.ITEMS), [5.0] * films.ITEMS)
    rig.end(1)
    rig.fold()
    first, *later = rig.slots()
    assert len(later) == 2
    assert first["slot_id"] not in {slot["slot_id"] for slot in later}
    assert sorted(bool((items_of(slot, rig.system) != NOTHING).any()) for slot in later) == [False, True]


def test_bad_records_go_to_the_dead_letters_and_take_nothing_with_them(films, rig):
    rig.put("ratings", b"nothing")
    rig.rate("ann", [films.ITEMS], [3.0])
    rig.rate("ann", [-1], [3.0])
    for value in (np.nan, np.inf, 5.5, 0.5):
        rig.rate("ann", [1, 2], [3.0, value])
    rig.rate("ann", [1, 2], [3.0])
    rig.rate("", [1], [3.0])
    rig.ask("q", "ann", [films.ITEMS])
    rig.ask("q", "ann", [])
    rig.ask("", "ann", [1])
    for phase in (1, 3, -1):
        rig.end(phase)
    rig.put("ratings", films.phase_end_of(0, 0, bytes(16)))
    seen = rig.fold()
    assert seen.reasons[1:8] == ["bad_ratings"] * 7
    assert seen.reasons[8:] == ["empty_id", "bad_question", "bad_question", "empty_id", *["bad_phase"] * 4]
    assert seen.counts["rejected"] == len(seen.letters) == 16
    rig.rate("ann", [1, 1, 2], [1.0, 5.0, 3.0])
    rig.end(0)
    rig.fold()
    (slot,) = rig.slots()
    assert [item for item in items_of(slot, rig.system).tolist() if item != NOTHING] == [1, 2], (
        "the last of a pair wins"
    )


def test_a_prediction_that_differs_by_a_rounding_stands_and_one_that_differs_by_more_does_not(rig, monkeypatch):
    rig.rate("ann")
    rig.ask("q")
    rig.fold()
    users = type(rig.machine.users)
    predict = users.predict
    for off, ties in ((1e-12, 2), (1e-6, None)):
        monkeypatch.setattr(users, "predict", lambda *given, off=off: predict(*given) + off)
        fresh = rig.fresh()
        if ties is None:
            with pytest.raises(ReplayMismatch, match="values differs"):
                rig.replayed(fresh)
        else:
            rig.replayed(fresh)
            assert fresh.float_ties == ties


def test_a_round_of_another_deployment_is_refused_and_one_heard_twice_counts_once(films, rig):
    asked = films.rounds_of(rig.system.config)[1]
    fields = films.round_fields(asked, 1, bytes(16))
    rig.put("rounds", codec.encode("RatingRound", fields))
    rig.put("rounds", b"none")
    good = codec.encode("RatingRound", {**fields, "config_digest": rig.system.digest})
    rig.put("rounds", good)
    rig.put("rounds", good)
    seen = rig.fold()
    assert seen.reasons == ["bad_round", "bad_round"]
    assert seen.counts["round"] == 1


def test_the_name_of_a_question_is_its_users_and_a_second_users_use_of_it_is_refused(films, rig):
    """Answers are found by their event id: under one name two users would read each other's predictions."""
    rig.rate("ann", [1], [5.0])
    rig.rate("bob", [1], [1.0])
    rig.ask("visit", "ann")
    rig.ask("visit", "bob")
    rig.ask("bad", "ann", items=[films.ITEMS])
    seen = rig.fold()
    assert seen.reasons == ["event_of_another_user", "bad_question"]
    assert list(rig.predicted(seen)) == ["visit"]
    first = rig.predicted(seen)["visit"][0]
    restored = rig.fresh()
    restored.start(rig.genesis)
    restored.restore(rig.machine.snapshot())
    rig.machine = restored
    rig.ask("visit", "bob")
    rig.ask("visit", "ann")
    rig.ask("bad", "bob")
    seen = rig.fold()
    assert seen.reasons == ["event_of_another_user"]
    assert rig.predicted(seen)["visit"][0] == first, "whose it is may ask again"
    assert "bad" in rig.predicted(seen), "a question that was refused has taken no name"
