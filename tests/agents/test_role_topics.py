"""The topics of a role are what its machines name, and are known without any key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hushstream.agents.worker.deployment import KeySource, parse_config
from hushstream.agents.worker.roles import role_topics, role_work
from hushstream.engine.declare.declaration import System
from hushstream.engine.devices.errors import BadSeal
from hushstream.engine.devices.recipients import Recipients
from hushstream.privacy.keys import seeded_key
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.colin.deployment import CollaborativeSystem
from hushstream.systems.colin.relation import SocialGraph
from hushstream.systems.colin.system import declare as declare_colin
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.system import declare as declare_p2b

SEED = 3
P2B = {"items": {"capacity": 3}, "features": {"dimension": 3}, "expected_slots": 20, "encoder": {"codes": 2}}
COLIN = {"system": "colin", "items": {"capacity": 3}, "features": {"dimension": 3}}
SHAPES: dict[str, dict[str, Any]] = {
    "p2b": P2B,
    "p2b, public, with a hold-out": {**P2B, "holdout": {"share": 0.2}},
    "p2b, on devices": {**P2B, "kind": "edge"},
    "p2b, sealed": {**P2B, "slot": {"sealed": True}},
    "colin, counted by a server": {**COLIN, "release": {"noise_at": "server"}},
    "colin, counted at the edge": {**COLIN, "release": {"noise_at": "learner"}},
}


def made(values: dict[str, Any], public: bool = False) -> System:
    config: Any = parse_config({"deployment": "small", **values})
    if "system" in values:
        graph = SocialGraph(("ann", "bob"), np.array([[0.0, 1.0], [1.0, 0.0]]))
        return declare_colin(CollaborativeSystem.of(config, graph))
    recipients = Recipients.first(seeded_key(SEED, "sealing")) if config.slot.sealed else None
    return declare_p2b(P2BSystem.fitted(config, recipients, public))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_role_uses_what_its_machines_read_and_journal(shape: str) -> None:
    system = made(SHAPES[shape], public="public" in shape)
    for role in system.roles:
        topics, make = role_topics(role, system), role_work(role.name, system, KeySource(seed=SEED)).make_machine
        machines = [make(home) for home in range(system.homes(role))]
        # A track of an aggregator may take what another does not.
        assert set(topics.inputs) == {name for machine in machines for name, _ in machine.inputs}
        assert {topics.journal} == {machine.journal[0] for machine in machines}
        assert set(topics.broadcasts) == {name for machine in machines for name, _ in machine.broadcasts}
        assert topics.partitions == system.homes(role)
        assert topics.recomputed == {*topics.inputs, topics.journal, *topics.writes, *topics.broadcasts}
        marks = {topics.marks} if role.name != "aggregator" else set()
        assert topics.all - topics.recomputed == {*marks, f"state-{role.name}"}
        assert topics.declared == {topic.name: topic for topic in system.topics if topic.name in topics.all}


EVIDENCE = {
    "p2b": {"learner": (), "shuffler": ("crowds", "ledger")},
    "p2b, public, with a hold-out": {
        "learner": ("interactions", "lift", "ledger-edge"), "shuffler": ("crowds", "ledger"),
    },
    "colin, counted by a server": {"learner": (), "counter": ("releases", "ledger")},
    "colin, counted at the edge": {"learner": ("releases", "ledger")},
}  # fmt: skip
"""Idle shufflers and counters write ticks to reports and rewards: those say nothing of a learner."""


@pytest.mark.parametrize("shape", EVIDENCE)
def test_what_says_that_a_role_has_released_is_written_by_nobody_else(shape: str) -> None:
    system = made(SHAPES[shape], public="public" in shape)
    found = {role.name: role_topics(role, system).evidence for role in system.roles}
    assert found == {**EVIDENCE[shape], "aggregator": ()}


def test_a_role_that_the_deployment_lacks_is_named_with_those_it_has() -> None:
    known = r"expected a role of deployment small \(learner, shuffler, aggregator\), got 'counter'"
    with pytest.raises(HushstreamError, match=known):
        role_work("counter", made(P2B), KeySource(seed=SEED))


def test_a_role_that_works_on_users_devices_has_no_workers_and_that_is_said() -> None:
    with pytest.raises(HushstreamError, match=r"\(shuffler, aggregator\), got 'learner'; .* outside of its workers"):
        role_work("learner", made(SHAPES["p2b, on devices"]), KeySource(seed=SEED))


def test_a_shuffler_with_another_sealing_key_is_refused_before_anything_is_connected() -> None:
    with pytest.raises(BadSeal, match="expected the sealing key of public half"):
        role_work("shuffler", made(SHAPES["p2b, sealed"]), KeySource(seed=SEED + 1))
