"""One who sees both sides of the shuffler: at chance among slots of equal content, well above it without any rule.

Sizes. 2,000 users in three spans give more than 920 pairs of equal content; the attacker learns from half of them and
is tried on the other half, each trial right with probability exactly 1/2 for one who knows nothing. *At chance* means
that the exact interval at confidence 1 - 1e-6 holds 1/2, so a false alarm has probability 1e-6; *above chance* that
guessing does as well with probability below 1e-6. `test_the_sizes_have_power` computes what that finds: an attacker who
is right in 65 % of pairs with probability above 0.94, in 70 % above 0.9999. Everything is seeded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from hushstream.schemas import codec
from hushstream.systems.p2b.deployment import P2BSystem
from hushstream.systems.p2b.machines import learner
from hushstream.systems.p2b.slots import Report, pack

USERS, SPANS, SPAN_SECONDS, PARTITIONS = 2000, 3, 100.0, 8
LEAST_PAIRS = 460
FALSE_ALARM = 1e-6
RULES = ("key", "headers", "partition", "timestamp", "order", "client", "producer")


@dataclass(frozen=True)
class Played:
    """A learner's life: for each user what the edge side knows, and the slots in the steps in which they were sent."""

    edges: list[Any]
    contents: list[bytes]
    steps: list[tuple[int, list[Any]]]
    number_of: dict[bytes, int]


def make_system(rigs: Any) -> P2BSystem:
    slot = {"after_interactions": 1, "settle_seconds": SPAN_SECONDS}
    system: P2BSystem = rigs.make_system(
        slot=slot, partitions={"shuffler": PARTITIONS}, feedback={"attribution_window_seconds": 5.0}
    )
    return system


def play(rigs: Any, attacker: Any) -> Played:
    """Users come one by one; a third of them click, a third see the arm and do not, of a third nothing is heard."""
    generator = np.random.default_rng(20)
    rig = rigs.LearnerRig(make_system(rigs))
    edges, contents, steps, number_of = [], [], [], {}
    pause = SPANS * SPAN_SECONDS / USERS

    def sent(seen: Any) -> None:
        for step in seen.steps:
            reports = [output for output in step.releases if output.topic == "reports"]
            if reports:
                steps.append((rig.now_ms, reports))

    for number in generator.permutation(USERS).tolist():
        user, x = f"user-{number:04}", rigs.point(int(generator.integers(4)))
        came_ms = rig.now_ms
        rig.context(f"{user}:0", user, x)
        seen = rig.fold()
        sent(seen)
        arm = seen.arms[f"{user}:0"]
        heard = int(generator.integers(3))
        if heard:
            rig.reward(f"{user}:0", arm, float(heard == 1), user)
        content = pack(Report(int(rig.system.encoder.encode(x[None])[0]), arm, int(heard == 1)) if heard else None)
        number_of[rig.machine.terms.user_key(user).digest("report-id", bytes(8))] = len(edges)
        edges.append(attacker.EdgeView(user, came_ms, came_ms, content))
        contents.append(content)
        rig.wait(pause)
    for _ in range(3):
        rig.wait(SPAN_SECONDS)
        rig.context(f"late-{rig.now_ms}", "nobody")
        sent(rig.fold())
    return Played(edges, contents, steps, number_of)


def seen_in_the_log(played: Played, raw: Any, relay: Any, attacker: Any, off: str | None) -> list[Any]:
    """The slots as they lie in the log, by user; the relay is made with the rule that is off."""

    def sender_of(report_id: bytes) -> Any:
        number = played.number_of[report_id]
        edge = played.edges[number]
        return relay.Sender(edge.user, number, edge.due_ms)

    way = relay.Relay(sender_of, PARTITIONS, off)
    for now_ms, outputs in played.steps:
        known = [o for o in outputs if codec.decode(o.value)[1]["report_id"] in played.number_of]
        way.send(known, now_ms)
    found: dict[int, Any] = {}
    for record in raw.of_topic(way.segments, relay.TOPIC):
        report_id = record.value[10:26]
        found[played.number_of[report_id]] = attacker.SlotView(
            record.partition, record.offset, record.created_ms, record.appended_ms,
            len(record.value), record.key, record.headers, record.producer[0], way.clients[report_id], record.value,
        )  # fmt: skip
    return [found[number] for number in range(len(played.edges))]


@pytest.fixture(scope="module")
def in_clear(rigs, attacker) -> Played:
    return play(rigs, attacker)


@pytest.fixture
def tried(raw, relay, attacker):
    def run(played: Played, off: str | None = None, equal_content: bool = True) -> Any:
        slots = seen_in_the_log(played, raw, relay, attacker, off)
        spans = [int(edge.due_ms // (SPAN_SECONDS * 1000)) for edge in played.edges]
        groups = list(zip(spans, played.contents, strict=True)) if equal_content else spans
        pairs = attacker.pairs_of(groups, seed=21)
        verdict = attacker.attack(played.edges, slots, pairs, PARTITIONS, seed=22)
        assert verdict.pairs >= LEAST_PAIRS
        return verdict

    return run


def at_chance(verdict: Any) -> bool:
    low, high = verdict.interval(1 - FALSE_ALARM)
    return low <= 0.5 <= high


def test_the_sizes_have_power(attacker):
    needed = attacker.least_right(LEAST_PAIRS, FALSE_ALARM)
    assert binom.sf(needed - 1, LEAST_PAIRS, 0.5) < FALSE_ALARM
    assert binom.sf(needed - 1, LEAST_PAIRS, 0.65) > 0.94
    assert binom.sf(needed - 1, LEAST_PAIRS, 0.70) > 0.9999


def test_the_attacker_knows_what_slots_hold_and_all_slots_of_a_span_leave_together(in_clear):
    assert sum(len(outputs) for _, outputs in in_clear.steps) >= USERS
    for _, outputs in in_clear.steps:
        for output in outputs:
            fields = codec.decode(output.value)[1]
            number = in_clear.number_of.get(fields["report_id"])
            assert number is None or in_clear.contents[number] == fields["content"]
    assert len(in_clear.steps) <= SPANS + 2
    assert len(set(in_clear.contents)) >= 10


def test_among_slots_of_equal_content_they_are_at_chance(in_clear, tried):
    verdict = tried(in_clear)
    assert at_chance(verdict), verdict


@pytest.mark.parametrize("rule", RULES)
def test_without_one_rule_an_attacker_tells_slots_of_equal_content_apart(in_clear, tried, rule):
    verdict = tried(in_clear, off=rule)
    assert verdict.chance() < FALSE_ALARM, verdict


def test_where_each_slot_leaves_for_itself_an_attacker_tells_them_apart_by_time(rigs, attacker, tried, monkeypatch):
    monkeypatch.setattr(learner, "settled_at", lambda due_ms, settle_ms: due_ms + settle_ms)
    verdict = tried(play(rigs, attacker))
    assert verdict.chance() < FALSE_ALARM, verdict


def test_one_operator_who_reads_contents_as_well_defeats_the_shuffler(in_clear, tried):
    """Not a rule that is broken, but what no rule can mend: whoever computes what a slot should hold finds it."""
    verdict = tried(in_clear, equal_content=False)
    assert verdict.chance() < FALSE_ALARM, verdict
