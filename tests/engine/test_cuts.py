"""Where batches are cut changes nothing that leaves, so a click, or the lack of one, moves one content and no more.

Logs are drawn from a seed and folded as workers do that catch up: by the schedules that cut their batches, with small
limits and records that arrive in any order. What leaves is compared byte for byte, in its order, and so is the state
that is packed at the end. `make cuts` draws 10,000 cuts.
"""

import os
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from hushstream.agents.kafka.intake import InputBuffer
from hushstream.agents.partition.schedule import FixedSchedule, LiveSchedule
from hushstream.features.schema import declare
from hushstream.schemas import codec
from hushstream.systems.p2b.configuration import ContextConfig
from hushstream.systems.p2b.deployment import P2BSystem

pytestmark = [
    pytest.mark.slow,
    pytest.mark.sweep(
        keep=[
            "p2b-0",
            "features-6",
            "settled-before-its-wait-4",
            "p2b-1",
            "server-0",
            "learner-0",
            "noisy-reward-0",
            "test_what_one_fold_holds_decides_nothing_about_who_is_late",
            "test_one_click_more_or_less_moves_the_content_of_its_own_user_and_nothing_else[p2b]",
        ]
    ),
]

SEEDS = range(12)
CUTS = int(os.environ.get("HUSHSTREAM_CUTS", "4"))
"""How many times the logs of each seed are cut, in each system."""
PLACES = ("server", "learner", "noisy-reward")
P2B = ("p2b", "features", "settled-before-its-wait")
FEATURES = declare({"age": {"kind": "number", "range": [0, 1000]}, "new": {"kind": "boolean"}})
EVENTS = 70
SETTLE_SECONDS = 10.0


def system_of(rigs, related, kind):
    """Spans and waits of a few seconds, so that many of them end within a log, and memories that are soon full."""
    if kind in P2B:
        settles_first = kind == P2B[2]
        system = rigs.make_system(
            slot={"after_interactions": 4, "settle_seconds": SETTLE_SECONDS}
            | ({"settle_seconds": 1.0, "period_seconds": 1.0} if settles_first else {}),
            feedback={"attribution_window_seconds": 60.0 if settles_first else 6.0, "remembered_events": 1},
            users={"early_feedback": 2, "contexts_per_period": 12},
        )
        if kind == "p2b":
            return system
        changes = {
            "context": ContextConfig(declared=FEATURES),
            "release": rigs.ReleaseConfig(form="features", sums="fresh"),
            "encoder": rigs.EncoderConfig(),
            "click_rate": 0.1,
        }
        return P2BSystem.declared(replace(system.config, **changes))
    feedback = {"early_feedback": 2 * len(related.USERS), "remembered_events": 3}
    release = {"rows": 4, "horizon": 64, "rewards_per_user": 16}
    if kind != "server":
        release["noise_at"] = "learner"
    if kind == "noisy-reward":
        release["mechanism"] = kind
    return related.make_system(settle_seconds=SETTLE_SECONDS, feedback=feedback, release=release)


def rig_of(rigs, related, system, kind):
    if kind in P2B[1:]:
        return with_rows(rigs.LearnerRig(system))
    return rigs.LearnerRig(system) if kind == "p2b" else related.RelatedLearnerRig(system, related.SECRET)


def with_rows(rig):
    """A rig whose contexts are rows of declared features, by a number."""

    def context(event_id, user, number, **fields):
        row = FEATURES.encode({"age": number, "new": number % 3 == 0}).row
        plain = {"features_digest": FEATURES.digest, "event_id": event_id, "user": user, "row": row, "line": "private"}
        return rig.put("contexts", codec.encode("FeatureContext", {**plain, **fields}))

    rig.context = context
    return rig


class Script:
    """What users and the world do, by log time: contexts, views, clicks, phase ends and models.

    A click comes at any time about its context: before it, at its deadline to the millisecond, after it, or never. Some
    come of events that never do, and take up the places of those that wait. Some events are asked for again. Some
    clicks are refused, the last record of all among them.
    """

    def __init__(self, seed, users, waits):
        draw = np.random.default_rng(seed)
        self.items = []
        now = 0
        for number in range(EVENTS):
            now += int(draw.choice([0, 0, 1, 700, 2500, 9000], p=[0.2, 0.1, 0.2, 0.3, 0.15, 0.05]))
            event, user = f"e{number}", users[draw.integers(len(users))]
            self.items.append((now, 2, "context", event, user, int(draw.integers(1000)), draw.random() < 0.5))
            if draw.random() < 0.3:
                again = now + int(draw.choice([1, 2500, 5000, 25_000]))
                self.items.append((again, 2, "context", event, user, int(draw.integers(1000)), False))
            if draw.random() < 0.9:
                self.items.append((now + self._delay(draw, waits), 0, "shown", event, user, 0, False))
            if draw.random() < 0.6:
                self.items.append((now + self._delay(draw, waits), 0, "reward", event, user, 0, False))
            if draw.random() < 0.3:
                what = ["shown", "reward"][draw.integers(2)]
                self.items.append((now - int(draw.integers(9000)), 0, what, f"none{number}", user, 0, False))
            if draw.random() < 0.05:
                self.items.append((now, 2, "seal", number, "", 0, False))
        self.items.append((now + 60_000, 2, "context", "last", users[0], 1, False))
        bad = np.random.default_rng(3000 + seed)
        for time in (*bad.integers(now, size=12).tolist(), now + 60_001):
            self.items.append(
                (time, 0, "refused", f"e{bad.integers(EVENTS)}", users[bad.integers(len(users))], 0, False)
            )
        # Stable: what has one log time is in the order in which it was drawn, clicks first.
        self.items.sort(key=lambda item: item[:2])

    @staticmethod
    def _delay(draw, waits):
        early = [-9000, -3000, -400, -1]
        return int(draw.choice([*early, 0, 1, 400, 3000, *[w + late for w in waits for late in (-1, 0, 1)], 25_000]))

    def some_private(self, kind, draw):
        """Where some of what is private lies, half of it of events asked again; in p2b feedback, in colin rewards."""
        kinds = ("shown", "reward") if kind in P2B else ("reward",)
        private = [place for place, item in enumerate(self.items) if item[2] in kinds]
        asked = Counter(item[3] for item in self.items if item[2] == "context")
        again = [place for place in private if asked[self.items[place][3]] > 1]
        return {int(place) for group in (private, again) for place in draw.choice(group, size=5, replace=False)}

    def play(self, rig, rigs, kind, left_out=None, names=True, skew_ms=0, back_ms=0):
        """Write the logs; nothing is folded.

        With ``names`` some contexts name their user's last click; the clock of clicks goes ``skew_ms`` ahead, and
        now and then each clock is ``back_ms`` behind what it said before.
        """
        start = rig.now_ms
        last_click = {}
        for place, (time, rank, what, event, user, number, waits) in enumerate(self.items):
            rig.now_ms = start + time + (0 if rank else skew_ms) - (0 if place % 7 else back_ms)
            if place == left_out:
                continue
            if what == "context":
                fields = {"after_click": last_click.get(user, -1)} if names and waits else {}
                if kind in P2B:
                    rig.context(event, user, rigs.point(number) if kind == "p2b" else number, **fields)
                else:
                    rig.context(event, user, None, eligible=bytes([0b0001]), **fields)
            elif what == "seal":
                rig.end_phase(event)
            elif what == "refused":
                rig.reward(event, 0, float("nan"), user)
            else:
                offset = rig.shown(event, 0, user) if what == "shown" else rig.reward(event, 0, 1.0, user)
                last_click[user] = offset
        return rig


def catch_up(rig, draw):
    """Fold the rig's logs as a worker does: what arrives is cut by one of the two schedules with some small limits."""
    machine = rig.machine
    sources = [source for source in machine.positions() if source[0] == "models"]
    buffers = [InputBuffer(source, 0, 1 << 20, 1 << 30) for source in (*sources, *machine.inputs)]
    for buffer in buffers:
        buffer.sought()
    ends = {buffer.source: len(rig.logs.get(buffer.source, ())) for buffer in buffers}
    if draw.random() < 0.5:
        schedule = FixedSchedule(buffers, machine.inputs[0], int(draw.integers(1, 9)))
    else:
        schedule = LiveSchedule(buffers, machine.inputs, ends.get, int(draw.integers(1, 9)), 1 << 30)
    idle = 0
    while idle < 50:
        idle += 1
        for buffer in buffers:
            low = buffer.next_offset
            buffer.offer(rig.logs.get(buffer.source, ())[low : low + int(draw.integers(6))])
        if schedule.wants_ends:
            schedule.set_ends(ends)
        while batch := schedule.next_batch():
            ready = machine.ready(batch)
            if not ready:
                if schedule.held_back(machine.awaited):
                    continue
                break
            rig.take(ready)
            schedule.folded()
            idle = 0
            for buffer in buffers:
                buffer.advance(machine.positions()[buffer.source])
            if schedule.wants_ends:
                schedule.set_ends(ends)
    assert {source: machine.positions()[source] for source in ends} == ends
    return rig


def sent(rig):
    return [(o.topic, o.partition, o.key, o.value) for step in rig.seen.steps for o in step.releases]


def waits_of(system, kind):
    waits_ms = dict.fromkeys(P2B, 6000) | {P2B[2]: 60_000}
    return [waits_ms.get(kind, round(1000 * SETTLE_SECONDS))]


def users_of(related, kind):
    return [f"user-{number}" for number in range(12)] if kind in P2B else related.USERS


def packed(machine):
    """The state, without its place in the journal, which tells of the cuts."""
    held = machine.state.form.read(machine.snapshot())
    beside = machine.state.fields["chain"].schema("chain")
    return {name: value for name, value in held.items() if name not in beside}


@pytest.fixture(params=[*P2B, *PLACES])
def world(rigs, related, request):
    system = system_of(rigs, related, request.param)
    return request.param, system, users_of(related, request.param), waits_of(system, request.param)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_cut_gives_the_same_bytes_in_the_same_order(rigs, related, world, seed):
    kind, system, users, waits = world
    script = Script(seed, users, waits)
    draw = np.random.default_rng(1000 + seed)
    clocks = {"skew_ms": int(draw.choice([0, 2000])), "back_ms": int(draw.choice([0, 1500]))}
    whole = script.play(rig_of(rigs, related, system, kind), rigs, kind, **clocks)
    whole.fold()
    assert len(sent(whole)) > 5
    for _ in range(CUTS):
        rig = script.play(rig_of(rigs, related, system, kind), rigs, kind, **clocks)
        pieces = catch_up(rig, draw)
        assert len(pieces.journal) > 5
        assert sent(pieces) == sent(whole)
        assert pieces.seen.answers == whole.seen.answers
        assert sorted(pieces.seen.reasons) == sorted(whole.seen.reasons)
        assert pieces.seen.counts == whole.seen.counts
        assert packed(pieces.machine) == packed(whole.machine)
        # Another machine on the same journal follows the same cuts.
        again = rig_of(rigs, related, system, kind).machine
        assert [o for step in pieces.replayed(type(again)(system, 0, pieces.key)).steps for o in step.releases] == [
            o for step in pieces.seen.steps for o in step.releases
        ]


def test_one_click_more_or_less_moves_the_content_of_its_own_user_and_nothing_else(rigs, related, world):
    kind, system, users, waits = world
    draw = np.random.default_rng(2000)
    moved = 0
    for seed in SEEDS:
        script = Script(seed, users, waits)
        base = sent(catch_up(script.play(rig_of(rigs, related, system, kind), rigs, kind, names=False), draw))
        for place in script.some_private(kind, draw):
            rig = script.play(rig_of(rigs, related, system, kind), rigs, kind, left_out=place, names=False)
            other = sent(catch_up(rig, draw))
            assert [(t, p, k, len(v)) for t, p, k, v in other] == [(t, p, k, len(v)) for t, p, k, v in base]
            user = script.items[place][4]
            differing = [(one[3], two[3]) for one, two in zip(base, other, strict=True) if one != two]
            moved += bool(differing)
            if kind in P2B:
                assert_one_slot(rig, user, differing)
            elif kind == "server":
                assert_one_reward(related, user, differing)
            else:
                assert_one_leaf(related, user, differing)
    assert moved >= (3 if kind == P2B[2] else 5), "hardly a click that was left out had counted"


def test_in_a_flood_one_click_decides_of_no_slot_whether_it_leaves(rigs, related):
    """Where the places for early feedback are full, a click may cost another user theirs: what leaves is the same."""
    system = rigs.make_system(
        slot={"after_interactions": 2, "settle_seconds": SETTLE_SECONDS},
        feedback={"attribution_window_seconds": 6.0, "remembered_events": 1, "early_feedback": 2},
    )
    draw = np.random.default_rng(2001)
    lost = 0
    for seed in SEEDS[:4]:
        script = Script(seed, users_of(related, "p2b"), [6000])
        rig = catch_up(script.play(rigs.LearnerRig(system), rigs, "p2b", names=False), draw)
        lost += rig.seen.reasons.count("click_without_context")
        base = public_slots(rig)
        for place in script.some_private("p2b", draw):
            rig = script.play(rigs.LearnerRig(system), rigs, "p2b", left_out=place, names=False)
            assert public_slots(catch_up(rig, draw)) == base
    assert lost > 20, "hardly a click lost its place"


def public_slots(rig):
    """All but the content."""
    return [(slot.partition, slot.report_id, slot.period) for slot in rig.seen.slots]


def assert_one_slot(rig, user, differing):
    assert len(differing) <= 1
    for one, two in differing:
        (_, before), (_, after) = codec.decode(one), codec.decode(two)
        assert without(before, "content") == without(after, "content")
        assert before["report_id"] == rig.machine.terms.user_key(user).digest("report-id", bytes(8))


def without(fields, name):
    return {key: value for key, value in fields.items() if key != name}


def assert_one_reward(related, user, differing):
    assert len(differing) <= 1
    for one, two in differing:
        (name, before), (_, after) = codec.decode(one), codec.decode(two)
        assert name == "Rewards"
        assert without(before, "rewards") == without(after, "rewards")
        (row,) = np.flatnonzero(np.frombuffer(before["rewards"], "<f8") != np.frombuffer(after["rewards"], "<f8"))
        assert related.USERS[np.frombuffer(before["nodes"], "<i4")[row]] == user


def assert_one_leaf(related, user, differing):
    """Their running sum moves by one row's numbers, from one release on, and nobody else's moves at all."""
    steps = set()
    for one, two in differing:
        (name, before), (_, after) = codec.decode(one), codec.decode(two)
        assert name == "Release"
        assert without(before, "sums") == without(after, "sums")
        blocks, sums = related.arrays_of(before)
        step = related.arrays_of(after)[1] - sums
        mine = blocks == related.USERS.index(user)
        assert not step[~mine].any()
        steps.update(map(tuple, step[mine].tolist()))
    assert len(steps) <= 1


@pytest.mark.parametrize("kind", ["p2b", "server"])
def test_what_one_fold_holds_decides_nothing_about_who_is_late(rigs, related, kind):
    """The log decides: a click at the deadline counts, a millisecond later it does not, however they are folded."""
    system = system_of(rigs, related, kind)
    (wait,) = waits_of(system, kind)
    for late in (0, 1):
        contents = set()
        for together in (True, False):
            rig = rig_of(rigs, related, system, kind)
            for number in range(2):
                rig.context(f"e{number}", eligible=bytes([0b0001]))
                rig.shown(f"e{number}", 0)
            rig.now_ms += wait + late
            for number in range(2):
                rig.reward(f"e{number}", 0, 1.0)
            rig.now_ms += 60_000
            rig.context("last", "bob", eligible=bytes([0b0001]))
            if not together:
                catch_up(rig, np.random.default_rng(1))
            rig.fold()
            contents.add(tuple(sent(rig)))
            assert rig.seen.counts.get("late_reward", 0) == 2 * late
        assert len(contents) == 1
