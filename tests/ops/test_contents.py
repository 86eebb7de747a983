"""Where content leaves un-noised is found by watching every topic, and held against what guarantee and statement say.

Each configuration is played six times: with two contents of one user, under three seeds of the keys. What is on a topic
whichever the key, and is there with one content and not with the other, stands there un-noised.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, reduce
from itertools import product
from operator import and_
from typing import Any

import numpy as np
import pytest

from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import all_machines
from hushstream.engine.declare.declaration import System
from hushstream.engine.devices.recipients import Recipients
from hushstream.ops.statement.statement import statement_of
from hushstream.privacy.keys import seeded_key
from hushstream.privacy.promises.contents import Form
from hushstream.privacy.promises.page import page_text
from hushstream.replay.report.statement import statement_page
from hushstream.replay.runners.direct import DirectDriver
from hushstream.replay.runners.memory import MemoryLog
from hushstream.schemas import codec
from hushstream.schemas.topics import Topic
from hushstream.systems.colin.system import declare as declare_colin
from hushstream.systems.p2b.edge.agent import EdgeAgent
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.machines.sending import TakenSlot, slot_outputs
from hushstream.systems.p2b.system import declare as declare_p2b

NONCE = bytes(range(32))
SEEDS = (1, 2, 3)
TARGET, USERS, ROUNDS = "user-0", 24, 3
START_MS = 1_700_000_000_000

# With a coin that keeps nearly all, what `paper` lets through is the reports themselves.
MODES: Mapping[str, Mapping[str, Any]] = {
    "slot-sums": {"mode": "slot-sums"},
    "counter": {"mode": "slot-sums", "sums": "counter", "windows": 8},
    "tuples": {"mode": "tuples", "sampling": 0.5, "threshold": 2},
    "paper": {"mode": "paper", "sampling": 0.999999, "threshold": 1},
}
SHUFFLED = {
    f"{mode}, {kind}{', lift' * lift}{', sealed' * sealed}{', public' * public}": (mode, kind, lift, sealed, public)
    for mode, kind, lift, sealed, public in product(MODES, ("hosted", "edge"), (0, 1), (0, 1), (0, 1))
    if kind == "hosted" or not (lift or public)
}
RELEASES: Mapping[str, Mapping[str, Any]] = {
    f"{noise_at}, {mechanism}, {noise}": {"noise_at": noise_at, "mechanism": mechanism, "noise": noise}
    for noise_at, mechanism, noise in (
        *product(("server", "learner"), ("negative-digit", "binary", "honaker"), ("laplace", "k-norm", "gaussian")),
        *product(("server", "learner"), ("blt",), ("gaussian",)),
        ("learner", "noisy-reward", "laplace"),
        ("server", "exact", "laplace"),
    )
}


def shuffled(rigs: Any, name: str, seed: int) -> System:
    mode, kind, lift, sealed, public = SHUFFLED[name]
    changes = {"learner": {"alpha": 0.05}, "kind": kind, "lift": {"holdout": 0.3 * lift, "releases": 8}}
    made = rigs.make_system(release={**MODES[mode], "window_slots": 1000}, **changes)
    config = replace(made.config, slot=replace(made.config.slot, sealed=bool(sealed)))
    recipients = Recipients.first(seeded_key(seed, "sealing")) if sealed else None
    return declare_p2b(P2BSystem.of(config, rigs.lattice(), recipients, bool(public)))


class History:
    """What reaches the broker: the target's content is one of two, and all else is the same."""

    def __init__(self, system: System, content: int, seed: int) -> None:
        self.system, self.content, self.seed = system, content, seed
        self.now_ms = START_MS
        self.log = MemoryLog(lambda: self.now_ms)
        self.driver = DirectDriver(self.log, all_machines(system, KeySource(seed=seed)), NONCE)

    def put(self, topic: str, schema: str, **fields: Any) -> None:
        self.now_ms += 100
        self.log.append(topic, 0, codec.encode(schema, fields))
        self.driver.pump()

    def interact(self, event_id: str, user: str, context: Any, reward: float, arm: int | None, arms: int) -> None:
        only = b"" if arm is None else (1 << arm).to_bytes((arms + 7) // 8, "little")
        line = {"line": "cold"} if self.system.kind == "p2b" else {}
        self.put("contexts", "Context", event_id=event_id, user=user, context=context, eligible=only, **line)
        if arm is not None:
            for kind, worth in (("shown", 0.0), ("reward", reward)):
                self.put("clicks", "Feedback", kind=kind, event_id=event_id, user=user, arm=arm, reward=worth)

    def end_phase(self, topic: str, origin: int, phase: int) -> None:
        self.now_ms += 30_000
        self.put(topic, "Seal", phase=phase, origin=origin, config_digest=self.system.digest, after_click=-1)

    def bad_records(self) -> None:
        """What is refused, with the target's content in it: it becomes dead letters."""
        click = {"kind": "reward", "event_id": "bad", "user": TARGET, "arm": 0, "reward": 7.0 + self.content}
        self.put("clicks", "Feedback", **click)


class ShuffledHistory(History):
    """Users of p2b, each of whom sends one slot: through a hosted learner, or from an agent on a device."""

    def play(self, rigs: Any) -> MemoryLog:
        for number in range(USERS):
            content = self.content if number == 0 else 0
            context, arm, reward = rigs.point(number + content), number % 4, float((number + content) % 2)
            self.user(f"user-{number}", context, arm, reward)
        if "learner" not in self.system.role_names:
            self.end_phase("reports", 0, 0)
            return self.log
        self.bad_records()
        self.end_phase("contexts", -1, 0)
        # With one arm learned from and little to explore, the target's answers follow the target's content.
        for number in range(4):
            self.interact(f"free-{number}", TARGET, rigs.point(0).tobytes(), 0.0, None, rigs.ARMS)
        self.end_phase("contexts", -1, 1)
        return self.log

    def user(self, user: str, context: Any, arm: int, reward: float) -> None:
        if "learner" not in self.system.role_names:
            return self.device(user, context, arm, reward)
        for number in range(ROUNDS):
            self.interact(f"{user}:{number}", user, context.tobytes(), reward, arm, self.system.config.arms)
        return None

    def device(self, user: str, context: Any, arm: int, reward: float) -> None:
        """The agent, and a relay that puts its slot on the broker."""
        core = self.system.core
        key = seeded_key(self.seed, "edge").derive("user", user)
        agent = EdgeAgent(core.edge_terms(), key, "cold")
        eligible = np.arange(self.system.config.arms) == arm
        for number in range(ROUNDS):
            agent.decide(f"{user}:{number}", context, self.now_ms, eligible)
            agent.rewarded(f"{user}:{number}", arm, reward)
        self.now_ms += 100
        period = self.now_ms // round(self.system.config.slot.period_seconds * 1000)
        for sent in slot_outputs(core, [TakenSlot(agent.take_slot(), period, key)], 0, codec.encode):
            if sent.topic != "interactions":
                self.log.append(sent.topic, sent.partition, sent.value)


class RelatedHistory(History):
    """Users of a collaborative deployment; the target's content is one reward of many."""

    def play(self, related: Any) -> MemoryLog:
        for phase in range(2):
            for number in range(5):
                for at, user in enumerate(related.USERS):
                    features = related.some_features(10 * number + at).tobytes()
                    target = (phase, number, at) == (0, 0, 0)
                    reward = float(self.content) if target else float((number + at) % 2)
                    arm = None if phase else (number + at) % related.ARMS
                    self.interact(f"{phase}:{number}:{at}", user, features, reward, arm, related.ARMS)
            if not phase:
                self.bad_records()
            self.end_phase("contexts", -1, phase)
        return self.log


Values = Counter[tuple[str, str, str]]


def values_on(log: MemoryLog) -> dict[str, Values]:
    """Every field of every record, by topic; columns also as the multiset of their entries: their order is keyed."""
    found: dict[str, Values] = {}
    for (topic, _), records in log.partitions():
        there = found.setdefault(topic, Counter())
        for record in records:
            schema, fields = codec.decode(record.value)
            for name, value in fields.items():
                there[schema, name, repr(value)] += 1
                if isinstance(value, bytes):
                    there[schema, name, repr(sorted(value[at : at + 4] for at in range(0, len(value), 4)))] += 1
    return found


@dataclass(frozen=True)
class Seen:
    """What an onlooker of all topics can tell.

    Attributes:
        unnoised: topics with something that is there under either key, and with one content alone.
        moved: by topic, the fields that differ between the contents under one key.
    """

    unnoised: frozenset[str]
    moved: Mapping[str, frozenset[str]]


def watched(histories: Mapping[tuple[int, int], dict[str, Values]]) -> Seen:
    topics = {topic for found in histories.values() for topic in found}
    stays, moved = {}, {}
    for topic in topics:
        on = {place: found.get(topic, Counter()) for place, found in histories.items()}
        stays[topic] = [reduce(and_, (on[content, seed] for seed in SEEDS)) for content in (0, 1)]
        one, other = on[0, SEEDS[0]], on[1, SEEDS[0]]
        moved[topic] = frozenset(name for _, name, _ in (one - other) + (other - one))
    return Seen(frozenset(topic for topic, (one, other) in stays.items() if one != other), moved)


@pytest.fixture(scope="module")
def play(rigs: Any, related: Any) -> Any:
    """A configuration by name: its system, and what an onlooker sees."""

    @cache
    def found(name: str) -> tuple[System, Seen]:
        def played(content: int, seed: int) -> MemoryLog:
            if name in SHUFFLED:
                return ShuffledHistory(shuffled(rigs, name, seed), content, seed).play(rigs)
            return RelatedHistory(collaborative(related, name), content, seed).play(related)

        system = shuffled(rigs, name, SEEDS[0]) if name in SHUFFLED else collaborative(related, name)
        return system, watched({place: values_on(played(*place)) for place in product((0, 1), SEEDS)})

    return found


def collaborative(related: Any, name: str) -> System:
    release = {**related.DEFAULTS["release"], **RELEASES[name]}
    return declare_colin(related.make_system(release=release, public_dataset="exact" in name))


def topics_by_name(system: System) -> Mapping[str, Topic]:
    return {topic.name: topic for topic in system.topics}


def out_of_trust(system: System, seen: Seen) -> set[str]:
    """The topics with content in clear that others than those who are trusted with it may read."""
    declared = topics_by_name(system)
    return {topic for topic in seen.unnoised if declared[topic].zone not in TRUSTED[system.kind]}


CONFIGURATIONS = (*SHUFFLED, *RELEASES)
TRUSTED = {"p2b": {"edge", "shuffler"}, "colin": {"edge", "counter"}}
DIGESTS = frozenset({"head", "chain", "digest", "entry_id", "leaves"})
"""Fields with keyed digests of content, which tell nothing without the key."""


@pytest.mark.sweep(
    keep=[
        "slot-sums, hosted",
        "slot-sums, hosted, lift, sealed, public",
        "counter, edge, sealed",
        "tuples, hosted",
        "paper, edge",
        "server, negative-digit, laplace",
        "learner, blt, gaussian",
        "learner, noisy-reward, laplace",
        "server, exact, laplace",
    ]
)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_guarantee_names_every_topic_on_which_content_leaves_unnoised(play: Any, name: str) -> None:
    system, seen = play(name)
    promise = system.promises.releases
    outside = out_of_trust(system, seen)
    assert outside == set(promise.unnoised)
    assert promise.private_as_stated is (not outside)
    assert bool(outside) == (", public" in name or "paper" in name or "exact" in name)
    assert promise.as_json()["unnoised"] == list(promise.unnoised)
    for topic in outside:
        text = page_text(system.promises)
        assert re.search(rf"^  - {re.escape(topic)} \(.* zone\), in clear: LEAVES UN-NOISED", text, re.MULTILINE)
        assert topic in text.splitlines()[0]


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_no_topic_holds_content_that_the_guarantee_does_not_name(play: Any, name: str) -> None:
    system, seen = play(name)
    contents = system.promises.releases.contents
    clear = {content.topic for content in contents if content.form is Form.CLEAR}
    public = {content.topic for content in contents if content.form is Form.PUBLIC}
    declared = {content.topic for content in contents}
    assert seen.unnoised <= clear | public
    assert clear <= seen.unnoised, "what is said to be in clear is seen"
    there = topics_by_name(system)
    assert declared <= there.keys()
    for topic in there.keys() - declared:
        assert seen.moved.get(topic, frozenset()) <= DIGESTS, topic
    assert all(content.zone == there[content.topic].zone for content in contents)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_statement_and_registry_name_what_the_guarantee_names(play: Any, name: str) -> None:
    system, seen = play(name)
    statement = statement_of(system)
    outside = out_of_trust(system, seen)
    said = statement.registry["content that leaves un-noised"]
    assert set(said.split(", ")) == (outside or {"none"})
    assert statement.verdict.startswith("Not private as stated") is bool(outside)
    assert statement.registry["verdict"] == statement.as_json()["verdict"] == statement.verdict
    assert (statement.registry["epsilon"] == "none: content leaves un-noised") is bool(outside)
    declared = topics_by_name(system)
    stands = {name: text for section in statement.sections for name, text in section.facts}
    for content in system.promises.releases.contents:
        text = stands[f"{content.topic}, {content.form}: {content.what}"]
        assert ("LEAVES UN-NOISED" in text) is content.leaves_unnoised
        days = declared[content.topic].retention_ms
        assert ("for the life of the deployment" if days is None else f"after {days // 86_400_000} days") in text
    page = statement_page(statement)
    assert page.index(statement.verdict) < page.index("Who, and what for</h2>")
