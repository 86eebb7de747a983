"""What a collaborative learner decides, which rows leave it and when, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hushstream.counting.blocks import BlockPlan
from hushstream.learners.textbook import TextbookCollaborative
from hushstream.privacy.noise import KeyedStream, NoiseAddress
from hushstream.privacy.rewards import LocalReward
from hushstream.schemas import codec
from hushstream.schemas.batches import encode_context_batch
from hushstream.systems.collaborative_configuration import GRID_BITS
from hushstream.systems.collaborative_release import plan_of

MARK = "payload-canary"


@pytest.fixture
def rig(related):
    return related.RelatedLearnerRig()


def edge(related, **changes):
    partitions = changes.pop("partitions", {})
    release = {**related.DEFAULTS["release"], "trust": "edge", **changes}
    return related.make_system(release=release, partitions=partitions)


# Decisions.


def model_of(related, system, rows):
    """The model record of an aggregator that was given the exact sums of these rows."""
    aggregator = related.RelatedAggregatorRig(system)
    aggregator.give(related.release_values(system, [rows]))
    return [aggregator.genesis, *aggregator.journal]


@pytest.mark.parametrize("algorithm", ["linucb", "colin", "goblin"])
def test_the_arm_is_the_textbooks_choice_before_and_after_a_model(related, algorithm):
    system = related.make_system(
        learner={"algorithm": algorithm, "alpha": 0.3, "ridge": 0.7},
        release={"mechanism": "exact"},
        public_dataset=True,
    )
    rig = related.RelatedLearnerRig(system)
    textbook = TextbookCollaborative(system.relation, related.DIMENSION, 0.7)
    rows = related.some_rewards(4, 40)
    for phase in range(2):
        for number in range(12):
            features = related.some_features(100 * phase + number) * np.float32(0.5 + number / 30)
            user = number % 3
            arm = rig.decide(f"{phase}:{number}", related.USERS[user], features)
            assert arm == textbook.choose(user, features.astype(np.float64), 0.3)
        for value in model_of(related, system, rows):
            rig.model(value)
        for node, features, reward in rows:
            textbook.learn(node, np.array(features, np.float32).astype(np.float64), reward)
    versions = [answer.model_version for answer in rig.seen.answers]
    assert versions == [0] * 12 + [1] * 12
    assert {(answer.propensity, answer.policy) for answer in rig.seen.answers} == {(10**9, 0)}


def test_arms_that_may_not_be_shown_are_not(related, rig):
    for number in range(8):
        arm = rig.decide(f"e{number}", features=related.some_features(number), eligible=bytes([0b0110]))
        assert arm in (1, 2)


def test_a_repeated_context_gets_the_same_answer_and_one_row(related, rig):
    arm = rig.interact("e", features=related.some_features(1))
    rig.context("e", features=related.some_features(2))
    seen = rig.fold()
    assert [(answer.arm, answer.policy) for answer in seen.answers] == [(arm, 2)]
    rig.seal()
    rig.fold()
    rig.context("e")
    assert [(answer.arm, answer.policy) for answer in rig.fold().answers] == [(arm, 2)]
    assert len(rig.rows()) == 1


def test_an_open_decision_is_known_even_when_the_memory_of_events_is_full(related):
    rig = related.RelatedLearnerRig(related.make_system(feedback={"remembered_events": 1}))
    arm = rig.decide("first", features=related.some_features(1))
    rig.decide("second", "bob")
    rig.context("first", features=related.some_features(3))
    rig.context("first", "bob")
    seen = rig.fold()
    assert seen.counts["repeated_context"] == 1
    assert [(answer.event_id, answer.arm) for answer in seen.answers] == [("first", arm)]
    assert seen.reasons == ["event_of_another_user"]
    rig.shown("first", arm)
    rig.wait(10)
    rig.seal()
    assert len(rig.rows(rig.fold())) == 1


def test_a_context_waits_for_the_click_that_it_names(related, rig):
    arm = rig.decide("e")
    rig.shown("e", arm)
    rig.context("later", after_click=1)
    rig.seal(after_click=1)
    seen = rig.fold()
    assert not seen.answers
    assert seen.counts == {"shown": 1}
    rig.reward("e", arm, 0.5)
    seen = rig.fold()
    assert list(seen.arms) == ["later"]
    assert [row[2] for row in rig.rows(seen)] == [0.5], "the seal has waited too"


def test_a_click_that_never_comes_is_not_waited_for_once_younger_ones_have_come(related, rig):
    rig.context("e", after_click=7)
    rig.seal(after_click=7)
    rig.wait(30)
    rig.shown("x", 0)
    assert not rig.fold().reasons
    rig.wait(0.001)
    rig.shown("x", 0)
    seen = rig.fold()
    assert seen.reasons == ["after_click_unreachable"] * 2
    assert not seen.answers


# Rows that leave.


def test_a_row_holds_the_features_of_the_arm_on_screen_and_its_reward(related, rig):
    features = related.some_features(1)
    arm = rig.interact("e", "bob", 0.25, features)
    rig.seal()
    assert rig.rows(rig.fold()) == [(1, features[arm].tolist(), 0.25)]


def test_a_row_leaves_when_its_settle_time_has_passed_in_log_time(related, rig):
    rig.interact("e")
    rig.wait(9.999)
    rig.decide("later")
    assert not rig.rows()
    rig.wait(0.001)
    rig.decide("later still")
    assert len(rig.rows()) == 1
    assert rig.seen.journals[-1]["slots"] == 1


@pytest.mark.parametrize(
    ("feedback", "rows", "outcomes"),
    [
        ("shown", 1, {"shown": 1}),
        ("shown reward", 1, {"shown": 1, "rewarded": 1}),
        ("reward shown", 1, {"shown": 1, "rewarded": 1}),
        ("reward", 0, {"rewarded": 1, "not_shown": 1}),
        ("", 0, {"not_shown": 1}),
        ("other", 0, {"other_arm": 1, "not_shown": 1}),
        ("other reward", 0, {"other_arm": 1, "rewarded": 1, "not_shown": 1}),
        ("other shown", 0, {"other_arm": 1, "repeated_feedback": 1, "not_shown": 1}),
        ("shown other shown", 1, {"shown": 1, "repeated_feedback": 2}),
        ("shown reward reward", 1, {"shown": 1, "rewarded": 1, "repeated_feedback": 1}),
    ],
)
def test_only_what_was_shown_decides_whether_a_row_leaves(related, rig, feedback, rows, outcomes):
    arm = rig.decide("e")
    for turn, word in enumerate(feedback.split()):
        if word == "reward":
            rig.reward("e", arm, 1.0 / (1 + turn))
        else:
            rig.shown("e", arm if word == "shown" else (arm + 1) % related.ARMS)
    rig.seal()
    seen = rig.fold()
    assert len(rig.rows(seen)) == rows
    assert {name: count for name, count in seen.counts.items() if name != "seal"} == outcomes


def test_the_first_reward_stands_and_none_is_zero(related, rig):
    for event, rewards in (("twice", (0.75, 1.0)), ("none", ())):
        arm = rig.decide(event)
        rig.shown(event, arm)
        for reward in rewards:
            rig.reward(event, arm, reward)
    rig.seal()
    assert [row[2] for row in rig.rows(rig.fold())] == [0.75, 0.0]


def test_a_late_reward_is_lost_and_counted(related, rig):
    arm = rig.interact("e", reward=None)
    rig.seal()
    rig.fold()
    rig.reward("e", arm)
    rig.shown("e", arm)
    seen = rig.fold()
    assert seen.counts == {"late_reward": 1, "repeated_feedback": 1}
    rig.seal(1)
    assert [row[2] for row in rig.rows(rig.fold())] == []
    assert [row[2] for row in rig.rows()] == [0.0]


def test_feedback_that_comes_before_its_context_waits_for_it(related, rig):
    rig.shown("e", 0)
    rig.reward("e", 0, 0.5)
    rig.reward("e", 0, 0.5, user="bob")
    seen = rig.fold()
    assert seen.counts == {"parked": 3}
    arm = rig.decide("e", eligible=bytes([0b0001]))
    assert arm == 0
    assert rig.seen.reasons == ["event_of_another_user"]
    rig.seal()
    assert [row[2] for row in rig.rows(rig.fold())] == [0.5]


def test_waiting_feedback_gives_way_when_there_is_no_room(related):
    rig = related.RelatedLearnerRig(related.make_system(feedback={"parked_clicks": 2}))
    for name in ("x", "x", "y"):
        rig.shown(name, 0)
    seen = rig.fold()
    assert seen.reasons == ["click_without_context"] * 2
    assert len(rig.machine.parking) == 1


def test_many_rows_leave_in_records_of_bounded_size(related):
    system = related.make_system(release={"rows": 4096, "horizon": 2048, "rewards_per_user": 2048})
    rig = related.RelatedLearnerRig(system)
    for number in range(600):
        rig.context(f"e{number}", features=related.some_features(number % 7))
    arms = rig.fold().arms
    for name, arm in arms.items():
        rig.shown(name, arm)
    rig.seal()
    seen = rig.fold()
    sizes = [len(fields["nodes"]) // 4 for fields in seen.records("rewards", "Rewards")]
    assert sizes == [256, 256, 88]
    assert len({fields["batch_id"] for fields in seen.records("rewards", "Rewards")}) == 3
    counter = related.CounterRig(system)
    for output in seen.releases("rewards"):
        counter.put("rewards", output.value)
    (record,) = counter.fold().journals
    assert (record["rows"], record["closed_by"]) == (600, "seal")


def test_a_seal_is_passed_on_behind_its_rows(related, rig):
    rig.interact("e")
    rig.seal(3)
    outputs = rig.fold().releases("rewards")
    assert [codec.decode(output.value)[0] for output in outputs] == ["Rewards", "Seal"]
    seal = codec.decode(outputs[1].value)[1]
    assert (seal["phase"], seal["origin"], seal["config_digest"]) == (3, 0, rig.system.digest)


# Nothing but contents moves with rewards.


def played(related, system, flip):
    """Some rounds of three users; with ``flip`` every reward r is 1 - r. A reward of 0 is one that never comes."""
    rig = related.RelatedLearnerRig(system, related.SECRET)
    draw = np.random.default_rng(5)
    for number in range(30):
        user, event = related.USERS[number % 3], f"e{number}"
        arm = rig.decide(event, user, related.some_features(number))
        way, reward = draw.integers(4), abs(float(draw.choice([0.0, 1.0, 0.3])) - flip)
        if way:
            rig.shown(event, arm if way > 1 else (arm + 1) % related.ARMS, user)
        if reward:
            rig.reward(event, arm, reward, user)
        rig.wait(float(draw.choice([0.0, 3.0, 8.0])))
        if number % 10 == 9:
            rig.seal(number // 10)
    rig.fold()
    return rig


def without(fields, *names):
    return {name: value for name, value in fields.items() if name not in names}


@pytest.mark.parametrize("trust", ["server", "edge", "noisy"])
def test_only_contents_move_with_the_rewards(related, trust):
    system = {
        "server": lambda: related.make_system(),
        "edge": lambda: edge(related, rewards_per_user=5),
        "noisy": lambda: edge(related, rewards_per_user=5, mechanism="noisy-reward", reward_levels=1, epsilon=4),
    }[trust]()
    found = []
    for flip in (False, True):
        rig = played(related, system, flip)
        seen = rig.seen
        places = [(output.topic, output.partition, output.key, len(output.value)) for output in seen.outputs]
        sent = [codec.decode(output.value) for output in seen.outputs]
        public = [(name, without(fields, "rewards", "sums")) for name, fields in sent]
        journals = [without(record, "head", "chain") for record in seen.journals]
        content = [fields.get("rewards", fields.get("sums")) for _, fields in sent]
        found.append(((places, public, journals), content))
    assert found[0][0] == found[1][0]
    assert found[0][1] != found[1][1]


# Counters at the edge.


def test_at_the_edge_no_reward_leaves_in_clear(related):
    rig = played(related, edge(related), flip=False)
    assert {output.topic for output in rig.seen.outputs} == {"releases", "ledger"}
    assert not rig.seen.releases("rewards")
    assert {name for name, _ in (codec.decode(o.value) for o in rig.seen.releases("releases"))} == {"Release", "Seal"}


def edge_address(rig, purpose, parameters, partition=0):
    return NoiseAddress(
        purpose=purpose,
        deployment=rig.system.config.deployment,
        genesis_nonce=rig.machine.chain.genesis_nonce,
        system="colin",
        mechanism=rig.system.config.release.mechanism,
        parameters=parameters,
        config_digest=rig.system.digest,
        epoch=0,
        partition=partition,
    )


def rows_played(related):
    """The same rounds where a trusted counter gets the rows in clear: by release, as they left."""
    rig = played(related, related.make_system(), flip=False)
    return [sorted(rig.rows(type(rig.seen)([step])), key=lambda row: row[0]) for step in rig.seen.steps]


@pytest.mark.parametrize("name", ["negative-digit", "binary", "honaker"])
def test_at_the_edge_each_sum_is_the_exact_one_and_the_noise_of_its_users_own_counter_to_the_bit(related, name):
    system = edge(related, mechanism=name)
    rig = played(related, system, flip=False)
    plan = plan_of(system.config.release, system.config.features)
    key = rig.key.derive("local-counters")
    address = edge_address(rig, "counter", {"grid_bits": GRID_BITS})
    zero = np.zeros((1, related.DIMENSION), dtype=np.int64)
    arena = None if name == "honaker" else BlockPlan(plan=plan, blocks=3).open(key, address)
    single = [plan.open(key, replace(address, cell=node)) for node in range(3)] if arena is None else []
    rows = [row for step in rows_played(related) for row in step]
    taken, exact = 0, []
    for release in rig.seen.records("releases", "Release"):
        nodes = np.frombuffer(release["nodes"], "<i4")
        step = rows[taken : taken + len(nodes)]
        taken += len(nodes)
        exact += step
        for node, _, _ in step:
            if arena is not None:
                arena.add(np.array([node]), zero)
            else:
                single[node].add(zero)
        blocks, sums = related.arrays_of(release)
        noise = np.array([single[b].release().values for b in blocks]) if single else arena.release()[blocks]
        assert np.array_equal(sums, related.lattice_sums(exact)[blocks] + noise)
        assert noise.all()
    assert taken == len(rows) > 10


@pytest.mark.parametrize("levels", [1, 8])
def test_a_noisy_reward_is_drawn_once_for_its_user_and_number(related, levels):
    system = edge(related, mechanism="noisy-reward", reward_levels=levels, epsilon=0.5)
    rig = played(related, system, flip=False)
    law = LocalReward.of(levels, 0.5)
    address = edge_address(rig, "reward-noise", {"levels": levels, "epsilon_micro": 500_000, "law": law.law})
    key = rig.key.derive("local-counters")
    sums, count, taken = np.zeros((3, related.DIMENSION), np.int64), [0, 0, 0], 0
    rows = [row for step in rows_played(related) for row in step]
    for release in rig.seen.records("releases", "Release"):
        size = len(release["nodes"]) // 4
        for node, features, reward in rows[taken : taken + size]:
            stream = KeyedStream(key, replace(address, node=(node, count[node])))
            noised = law.estimate(law.draw(stream, np.array([int(reward * levels)])))
            sums[node] += np.trunc(np.array(features) * noised * 2.0**24).astype(np.int64)
            count[node] += 1
        taken += size
        blocks, found = related.arrays_of(release)
        assert np.array_equal(found, sums[blocks])
    assert taken == len(rows)


def test_at_the_edge_an_allowance_ends_too_and_the_price_is_in_the_ledger_once(related):
    system = edge(related, rewards_per_user=3)
    rig = related.RelatedLearnerRig(system, related.SECRET)
    for number in range(5):
        rig.interact(f"e{number}")
    rig.seal()
    seen = rig.fold()
    assert seen.counts["allowance_spent"] == 2
    assert [len(release["nodes"]) // 4 for release in seen.records("releases", "Release")] == [3]
    rig.interact("one more")
    rig.seal(1)
    assert not rig.fold().records("releases", "Release")
    (entry,) = rig.seen.records("ledger", "LedgerEntry")
    assert entry["debit"]["epsilon_micro"] == system.guarantee().epsilon_micro == 1_000_000
    assert entry["debit"]["scope"] == "epoch/0/0"
    assert entry["private_as_stated"]


def test_partitions_with_one_key_draw_noise_of_their_own(related):
    system = edge(related, partitions={"learner": 2})
    noises = []
    for partition in (0, 1):
        rig = related.RelatedLearnerRig(system, related.SECRET, partition)
        rig.interact("e", reward=None)
        rig.seal()
        rig.fold()
        noises.append(related.arrays_of(rig.seen.records("releases", "Release")[0])[1])
    assert (noises[0] != noises[1]).all()


# Refusals.

NAN, INF = float("nan"), float("inf")
GOOD = [[0.3, 0.3, 0.3]] * 4


def context(features=GOOD, **fields):
    record = {"event_id": MARK, "user": "ann", "context": np.array(features, "<f4").tobytes(), **fields}
    return codec.encode("Context", record)


BAD_CONTEXTS = {
    "not a number": (context([*GOOD[:3], [NAN, 0, 0]]), "not_finite"),
    "infinite": (context([*GOOD[:3], [INF, 0, 0]]), "not_finite"),
    "too few arms": (context(GOOD[:3]), "wrong_dimension"),
    "too many arms": (context(GOOD + GOOD[:1]), "wrong_dimension"),
    "longer than L (L2)": (context([*GOOD[:3], [1.0, 0.1, 0.0]]), "too_long_features"),
    "longer than L (L1)": (context([*GOOD[:3], [0.5, 0.5, 0.3]]), "too_long_features"),
    "unknown user": (context(user=MARK), "unknown_user"),
    "unknown line": (context(line=MARK), "unknown_line"),
    "non-private line": (context(line="nonprivate"), "unknown_line"),
    "no user": (context(user=""), "empty_id"),
    "unknown arm in the mask": (context(eligible=bytes([0b10000])), "unknown_arm"),
    "no eligible arm": (context(eligible=bytes([0])), "no_eligible_arm"),
    "baseline not eligible": (context(baseline=1, eligible=bytes([0b0101])), "baseline_not_eligible"),
    "bad after_click": (context(after_click=-2), "bad_after_click"),
    "cut off": (context()[:-3], "truncated"),
    "no Avro": (MARK.encode() * 9, "not_single_object"),
    "another topic's record": (codec.encode("Tick", {"config_digest": bytes(16)}), "unexpected_schema"),
    "negative phase": (codec.encode("Seal", {"phase": -1, "origin": -1, "config_digest": bytes(16)}), "bad_phase"),
    "too many rows": (
        encode_context_batch([f"e{i}" for i in range(4097)], ["ann"] * 4097, np.zeros((4097, 12), np.float32)),
        "too_many_rows",
    ),
}


@pytest.mark.parametrize("name", BAD_CONTEXTS)
def test_a_bad_context_is_a_dead_letter_with_its_reason_and_stops_nobody(related, name):
    value, reason = BAD_CONTEXTS[name]
    system = related.make_system(features={"dimension": 3, "norm": 1.0, "norm_l1": 1.2})
    rig = related.RelatedLearnerRig(system)
    small = related.some_features(0) / np.float32(2)
    rig.context("before", features=small)
    rig.put("contexts", value)
    rig.context("after", features=small)
    seen = rig.fold()
    assert seen.reasons == [reason]
    assert sorted(seen.arms) == ["after", "before"]
    (letter,) = seen.letters
    assert (letter["zone"], letter["role"], letter["topic"], letter["offset"]) == ("edge", "learner", "contexts", 1)
    assert not any(MARK.encode() in output.value for output in seen.outputs)


def test_features_of_exactly_the_allowed_length_are_taken(related):
    system = related.make_system(features={"dimension": 3, "norm": 1.0, "norm_l1": 1.0})
    rig = related.RelatedLearnerRig(system)
    rig.context("axis", features=[[1, 0, 0], [0, -1, 0], [0, 0, 1], [0.5, 0.25, -0.25]])
    assert not rig.fold().reasons
    above = np.nextafter(np.float32(1), np.float32(2))
    rig.context("above", features=[[above, 0, 0]] * 4)
    assert rig.fold().reasons == ["too_long_features"]


def test_an_event_of_another_user_is_refused(related, rig):
    rig.decide("e")
    rig.context("e", "bob")
    rig.shown("e", 0, "bob")
    rig.shown("e", 0, "nobody")
    assert rig.fold().reasons == ["event_of_another_user"] * 3


@pytest.mark.parametrize(("reward", "arm"), [(1.5, 0), (-0.1, 0), (NAN, 0), (INF, 0), (1.0, 4), (1.0, -1)])
def test_feedback_that_cannot_be_is_refused_and_the_row_is_as_without_it(related, rig, reward, arm):
    rig.interact("e", reward=None)
    rig.reward("e", arm, reward)
    rig.seal()
    seen = rig.fold()
    assert len(seen.reasons) == 1
    assert [row[2] for row in rig.rows(seen)] == [0.0]
    assert seen.letters[0]["topic"] == "clicks"


def test_a_model_of_other_users_or_with_numbers_that_are_none_is_refused_and_the_old_one_stands(related, rigs):
    system = related.make_system(release={"mechanism": "exact"}, public_dataset=True)
    rig = related.RelatedLearnerRig(system)
    genesis, model = model_of(related, system, related.some_rewards(1, 9))
    rig.model(genesis)
    rig.model(b"no model")
    rig.model(rigs.changed(model, chain=bytes(16)))
    rig.context("e")
    seen = rig.fold()
    assert [answer.model_version for answer in seen.answers] == [0], "what does not continue the chain does not count"
    rig.model(model)
    rig.context("f")
    assert [answer.model_version for answer in rig.fold().answers] == [1]
