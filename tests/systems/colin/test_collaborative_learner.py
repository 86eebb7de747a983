"""What a collaborative learner decides, refuses and sends, and when; also with its users' counters at the edge."""

import struct
from dataclasses import replace

import numpy as np
import pytest

from hushstream.counting.blocks import BlockPlan
from hushstream.engine.records import ReplayMismatch, Step
from hushstream.engine.state.packed import OtherForm
from hushstream.privacy.keys import seeded_key
from hushstream.privacy.mechanisms.noise import KeyedStream, NoiseAddress
from hushstream.privacy.mechanisms.rewards import LocalReward
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.colin.algorithm.estimator import OwnRewards
from hushstream.systems.colin.configuration import GRID_BITS, plan_of
from hushstream.systems.colin.system import LEARNER
from textbook import TextbookCollaborative


@pytest.fixture
def rig(related):
    return related.RelatedLearnerRig()


# Decisions.


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
        for value in related.model_of(system, rows):
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


# Rows that leave.


def test_a_row_holds_the_features_of_the_arm_on_screen_and_its_reward(related, rig):
    features = related.some_features(1)
    arm = rig.interact("e", "bob", 0.25, features)
    rig.end_phase()
    assert rig.rows(rig.fold()) == [(1, features[arm].tolist(), 0.25)]


def test_rows_decided_in_one_span_leave_together_once_the_last_of_them_has_settled(related, rig):
    rig.interact("e")
    rig.wait(9.999)
    rig.interact("in the same span")
    rig.wait(0.001)
    rig.interact("in the next")
    rig.wait(9.999)
    rig.decide("later")
    assert not rig.rows()
    rig.wait(0.001)
    rig.decide("later still")
    (record,) = rig.seen.records("rewards", "Rewards")
    assert len(record["nodes"]) // 4 == rig.seen.journals[-1]["slots"] == 2


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
    rig.end_phase()
    seen = rig.fold()
    assert len(rig.rows(seen)) == rows
    assert {name: count for name, count in seen.counts.items() if name != "seal"} == outcomes


def leaving(related, system, rewarded_early):
    """What leaves when more is shown and rewarded before its context than there are places for."""
    rig = related.RelatedLearnerRig(system, related.SECRET)
    if rewarded_early:
        rig.reward("e0", 0, 1.0)
    for number in range(30):
        rig.shown(f"e{number}", 0)
    for number in range(1, 30):
        rig.reward(f"e{number}", 0, 0.5)
    rig.fold()
    for number in range(30):
        rig.context(f"e{number}", eligible=bytes([0b0001]))
    rig.end_phase()
    return rig.fold()


@pytest.mark.parametrize("noise_at", ["server", "learner", "noisy"])
def test_one_reward_before_its_context_decides_of_no_row_whether_it_leaves(related, noise_at):
    """25 places: one reward more must not take the place of what was shown, nor of another reward."""
    places = {"early_feedback": 25 * len(related.USERS)}
    system = {
        "server": lambda: related.make_system(feedback=places),
        "learner": lambda: related.make_system(feedback=places, release={"noise_at": "learner"}),
        "noisy": lambda: related.make_system(
            feedback=places, release={"noise_at": "learner", "mechanism": "noisy-reward"}
        ),
    }[noise_at]()
    one, more = (leaving(related, system, early) for early in (False, True))
    assert [record["slots"] for record in one.journals] == [record["slots"] for record in more.journals] == [25]
    if noise_at == "server":
        rig = related.RelatedLearnerRig(system)
        assert rig.rows(one) == rig.rows(more)
        assert [row[2] for row in rig.rows(one)] == [0.0, *[0.5] * 24]


def test_many_rows_leave_in_records_of_bounded_size(related):
    system = related.make_system(release={"rows": 4096, "horizon": 2048, "rewards_per_user": 2048})
    rig = related.RelatedLearnerRig(system)
    for number in range(600):
        rig.context(f"e{number}", features=related.some_features(number % 7))
    arms = rig.fold().arms
    for name, arm in arms.items():
        rig.shown(name, arm)
    rig.end_phase()
    seen = rig.fold()
    sizes = [len(fields["nodes"]) // 4 for fields in seen.records("rewards", "Rewards")]
    assert sizes == [256, 256, 88]
    assert len({fields["batch_id"] for fields in seen.records("rewards", "Rewards")}) == 3
    counter = related.CounterRig(system)
    for output in seen.releases("rewards"):
        counter.put("rewards", output.value)
    (record,) = counter.fold().journals
    assert (record["rows"], record["closed_by"]) == (600, "seal")


def test_a_phase_end_is_passed_on_behind_its_rows(related, rig):
    rig.interact("e")
    rig.end_phase(3)
    outputs = rig.fold().releases("rewards")
    assert [codec.decode(output.value)[0] for output in outputs] == ["Rewards", "Seal"]
    phase_end = codec.decode(outputs[1].value)[1]
    assert (phase_end["phase"], phase_end["origin"], phase_end["config_digest"]) == (3, 0, rig.system.digest)


# Nothing but contents moves with rewards.


def without(fields, *names):
    return {name: value for name, value in fields.items() if name not in names}


MIXED = {"clean_share": 0.4}
NOISY = {"mechanism": "noisy-reward", "reward_levels": 1, "epsilon": 4}


@pytest.mark.parametrize("noise_at", ["server", "learner", "noisy", "mixed", "mixed at the server"])
def test_only_contents_move_with_the_rewards(related, noise_at):
    """Where visits are dark decisions move too, which stay in their zone; nothing that leaves it does."""
    mixed = noise_at.startswith("mixed")
    system = {
        "server": lambda: related.make_system(),
        "learner": lambda: related.edge_system(rewards_per_user=5),
        "noisy": lambda: related.edge_system(rewards_per_user=5, **NOISY),
        "mixed": lambda: related.make_system(learner=MIXED, release={"noise_at": "learner", **NOISY}),
        "mixed at the server": lambda: related.make_system(learner=MIXED, release=NOISY),
    }[noise_at]()
    found = []
    for flip in (False, True):
        rig = related.played(system, flip, 150 if mixed else 30)
        seen = rig.seen
        places = [(output.topic, output.partition, output.key, len(output.value)) for output in seen.outputs]
        sent = [codec.decode(output.value) for output in seen.outputs]
        public = [(name, without(fields, "rewards", "sums")) for name, fields in sent]
        journals = [without(record, "head", "chain") for record in seen.journals]
        content = [fields.get("rewards", fields.get("sums")) for _, fields in sent]
        found.append(((places, public), journals, content))
    assert found[0][0] == found[1][0]
    assert (found[0][1] == found[1][1]) is not mixed
    assert found[0][2] != found[1][2]


@pytest.mark.parametrize("noise_at", ["server", "learner"])
def test_rows_of_clean_visits_alone_leave(related, noise_at):
    rig = related.played(related.make_system(learner=MIXED, release={**NOISY, "noise_at": noise_at}), False, 90)
    renewed = related.RelatedLearnerRig(rig.system, seeded_key(9, "edge"), nonce=b"\x09" * 32)
    clean, again = (
        [number for number in range(90) if one.machine._is_clean(related.USERS[number % 3], f"e{number}")]
        for one in (rig, renewed)
    )
    assert clean == again, "another key or journal moves no coin"
    assert 20 < len(clean) < 55
    sent = rig.seen.records(
        "rewards" if noise_at == "server" else "releases", "Rewards" if noise_at == "server" else "Release"
    )
    shown = [row for fields in sent for row in np.frombuffer(fields["contexts"], "<f4").reshape(-1, related.DIMENSION)]
    offered = {tuple(row): number for number in range(90) for row in related.some_features(number)}
    assert {offered[tuple(row)] for row in shown} <= set(clean)
    assert len(shown) > 10


def test_no_public_count_tells_whether_an_application_showed_what_a_dark_visit_chose(related):
    counted = []
    for reward in (0.0, 1.0):
        rig = related.RelatedLearnerRig(related.make_system(learner={"clean_share": 0.001}, release=NOISY))
        for number in range(60):
            rig.decide(f"e{number}", features=related.some_features(number))
            rig.shown(f"e{number}", 0)
            rig.reward(f"e{number}", 0, reward)
            rig.wait(11)
        rig.fold()
        counted.append(rig.seen.counts)
    assert counted[0] != counted[1]
    public = [{name: one[name] for name in one if LEARNER.outcomes.get(name) == "slot-public"} for one in counted]
    assert public[0] == public[1]


def test_a_dark_visit_is_scored_by_the_released_model_and_the_users_own_rewards():
    draw = np.random.default_rng(3)
    phi, root = draw.normal(size=3), draw.normal(size=(3, 3))
    own = OwnRewards(np.tile(0.5 * np.eye(3), (2, 1, 1)), 1.5, 0.36)
    width, features, shown, rewards = root @ root.T, draw.normal(size=(5, 3)), draw.normal(size=(7, 3)), draw.random(7)
    for row, reward in zip(shown, rewards, strict=True):
        own.learn(1, row, reward)
    told = 0.1 * np.linalg.inv(width)
    for user, (gram, moment) in enumerate([(0.0, 0.0), (shown.T @ shown, rewards @ shown)]):
        precision = (1.5 - 0.1 * 2) * np.eye(3) + told + gram
        theta = np.linalg.solve(precision, told @ phi + moment)
        bounds = [x @ theta + 0.1 * np.sqrt(x @ np.linalg.solve(precision, x)) for x in features]
        assert own.scores(user, features, phi, width, 0.1) == pytest.approx(bounds)
    own.forget(1)
    assert np.array_equal(*(own.scores(user, features, phi, width, 0.1) for user in range(2)))
    with pytest.raises(HushstreamError, match="expected positive definite widths"):
        OwnRewards(np.zeros((2, 3, 3)), 1.5, 0.36)
    with pytest.raises(HushstreamError, match="2 users in 3 dimensions"):
        own.load(OwnRewards(np.ones((2, 1, 1)), 1.0, 0.0).dump())


MARK = "payload-canary"


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
    "unknown track": (context(line=MARK), "unknown_line"),
    "non-private track": (context(line="nonprivate"), "unknown_line"),
    "another topic's record": (codec.encode("Tick", {"config_digest": bytes(16)}), "unexpected_schema"),
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


def test_a_model_of_other_users_or_with_numbers_that_are_none_is_refused_and_the_old_one_stands(related, rigs):
    system = related.make_system(release={"mechanism": "exact"}, public_dataset=True)
    rig = related.RelatedLearnerRig(system)
    genesis, model = related.model_of(system, related.some_rewards(1, 9))
    rig.model(genesis)
    rig.model(b"no model")
    rig.model(rigs.changed(model, chain=bytes(16)))
    rig.context("e")
    seen = rig.fold()
    assert [answer.model_version for answer in seen.answers] == [0], "what does not continue the chain does not count"
    rig.model(model)
    rig.context("f")
    assert [answer.model_version for answer in rig.fold().answers] == [1]


def journaled_arm(rig, arm):
    """The first journal record under the right key, but with another arm in its first row."""
    name, fields = codec.decode(rig.journal[0])
    content = codec.encode(name, {**fields, "arms": np.array([arm], "<i4").tobytes(), "chain": bytes(16)})[:-16]
    return content + rig.key.digest("chain", rig.genesis[-16:], content)


def test_an_arm_as_good_as_the_recomputed_one_is_a_float_tie_and_stands(related):
    rig = related.RelatedLearnerRig()
    features = np.repeat(related.some_features(1)[:1], 4, axis=0)
    assert rig.decide("e", features=features) == 0
    rig.journal[0] = journaled_arm(rig, 2)
    fresh = rig.fresh()
    rig.replayed(fresh)
    assert fresh.float_ties == 1
    assert fresh.open.get("e").arm == 2


@pytest.mark.parametrize("arm", [1, 9, -1])
def test_an_arm_that_scores_worse_or_is_none_is_a_change(related, arm):
    rig = related.RelatedLearnerRig()
    features = related.some_features(1) * np.array([[1.0], [0.2], [0.1], [0.1]], np.float32)
    assert rig.decide("e", features=features) == 0
    rig.journal[0] = journaled_arm(rig, arm)
    with pytest.raises(ReplayMismatch, match="another arm"):
        rig.replayed(rig.fresh())


def test_each_machine_has_the_state_form_of_its_own_items_whichever_was_made_last(related):
    """A deployment without names goes on from what it kept before items could have names."""
    kind, rig = related.CollaborativeLearnerMachine, related.RelatedLearnerRig()
    of_class = kind.state
    named = kind(related.make_system(named_items=True), 0, rig.key)
    assert kind.state is of_class
    rig.interact("e")
    state, again = rig.machine.snapshot(), rig.fresh()
    again.start(rig.genesis)
    again.restore(state)
    assert again.snapshot() == state
    assert again.state is rig.machine.state is not named.state
    assert "items" not in rig.machine.state.form.read(state)
    with pytest.raises(OtherForm, match="with a catalogue, got a state of another form"):
        named.restore(state)


# Counters at the edge.


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
    rig = related.played(related.make_system(), flip=False)
    records = [output for step in rig.seen.steps for output in step.releases if output.topic == "rewards"]
    parts = [rig.rows(related.Seen([Step(None, (output,))])) for output in records]
    return [sorted(rows, key=lambda row: row[0]) for rows in parts]


def event_names(related, rig):
    """By the features of a row, the name under which the learner knows its event."""
    return {
        tuple(row): rig.machine.row_names([f"e{number}"])[0]
        for number in range(30)
        for row in related.some_features(number).tolist()
    }


@pytest.mark.parametrize("name", ["negative-digit", "binary"])
def test_at_the_edge_each_sum_is_the_exact_one_and_the_noise_of_its_users_own_counter_to_the_bit(related, name):
    system = related.edge_system(mechanism=name)
    rig = related.played(system, flip=False)
    plan = plan_of(system.config.release, system.config.features)
    key = rig.key.derive("local-counters")
    address = edge_address(rig, "counter", {"grid_bits": GRID_BITS})
    zero = np.zeros((1, related.DIMENSION), dtype=np.int64)
    arena = BlockPlan(plan=plan, blocks=3).open(key, address) if name == "negative-digit" else None
    single = [plan.open(key, replace(address, cell=node)) for node in range(3)] if arena is None else []
    names = event_names(related, rig)
    rows = [row for step in rows_played(related) for row in step]
    taken, exact = 0, []
    for release in rig.seen.records("releases", "Release"):
        nodes = np.frombuffer(release["nodes"], "<i4")
        step = rows[taken : taken + len(nodes)]
        taken += len(nodes)
        exact += step
        for node, features, reward in step:
            if arena is not None:
                arena.add(np.array([node]), zero)
            else:
                leaf = related.lattice_sums([(node, features, reward)])[node]
                single[node].add(leaf[None], names[tuple(features)])
        blocks, sums = related.arrays_of(release)
        held = [single[b] for b in blocks] if single else []
        noise = np.array([one.release().values - one.exact for one in held]) if held else arena.release()[blocks]
        assert np.array_equal(sums, related.lattice_sums(exact)[blocks] + noise)
        assert noise.all()
    assert taken == len(rows) > 10


@pytest.mark.parametrize("levels", [1, 8])
def test_a_noisy_reward_is_drawn_once_for_its_user_number_event_and_content(related, levels):
    system = related.edge_system(mechanism="noisy-reward", reward_levels=levels, epsilon=0.5)
    rig = related.played(system, flip=False)
    law = LocalReward.of(levels, 0.5)
    address = edge_address(rig, "reward-noise", {"levels": levels, "epsilon_micro": 500_000, "law": law.law})
    key = rig.key.derive("local-counters")
    sums, count, taken = np.zeros((3, related.DIMENSION), np.int64), [0, 0, 0], 0
    rows = [row for step in rows_played(related) for row in step]
    names = event_names(related, rig)
    for release in rig.seen.records("releases", "Release"):
        size = len(release["nodes"]) // 4
        for node, features, reward in rows[taken : taken + size]:
            content = key.digest("reward", names[tuple(features)], struct.pack("<q", int(reward * levels)))
            stream = KeyedStream(key, replace(address, node=(node, count[node]), content=content))
            noised = law.estimate(law.draw(stream, np.array([int(reward * levels)])))
            sums[node] += np.trunc(np.array(features) * noised * 2.0**24).astype(np.int64)
            count[node] += 1
        taken += size
        blocks, found = related.arrays_of(release)
        assert np.array_equal(found, sums[blocks])
    assert taken == len(rows)


def test_at_the_edge_an_allowance_ends_too_and_the_price_is_in_the_ledger_once(related):
    system = related.edge_system(rewards_per_user=3)
    rig = related.RelatedLearnerRig(system, related.SECRET)
    for number in range(5):
        rig.interact(f"e{number}")
    rig.end_phase()
    seen = rig.fold()
    assert seen.counts["allowance_spent"] == 2
    assert [len(release["nodes"]) // 4 for release in seen.records("releases", "Release")] == [3]
    rig.interact("one more")
    rig.end_phase(1)
    assert not rig.fold().records("releases", "Release")
    (entry,) = rig.seen.records("ledger", "LedgerEntry")
    assert entry["debit"]["epsilon_micro"] == system.guarantee().epsilon_micro == 1_000_000
    assert entry["debit"]["scope"] == "epoch/0/0"
    assert entry["private_as_stated"]
    assert [debit for record in rig.seen.journals for debit in record["debits"]] == [entry["debit"]]
