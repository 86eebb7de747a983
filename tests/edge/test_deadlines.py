"""Deadlines end what still waits, in order, and the memory that they take follows what waits."""

from __future__ import annotations

import numpy as np

from hushstream.edge.agent import EdgeAgent
from hushstream.edge.deadlines import Deadlines
from hushstream.privacy.keys import seeded_key
from hushstream.systems.configuration import ContextConfig, EncoderConfig, FeedbackConfig, P2BConfig
from hushstream.systems.p2b import P2BSystem

WAIT_MS = 5_000
CONTEXT = np.array([0.5, 0.5], np.float32)


def _agent() -> EdgeAgent:
    config = P2BConfig(
        "deadlines",
        3,
        ContextConfig(2),
        expected_slots=10,
        encoder=EncoderConfig(codes=2),
        feedback=FeedbackConfig(reward_wait_seconds=WAIT_MS / 1000),
    )
    system = P2BSystem.of(config, np.array([[65536, 0], [0, 65536]], np.int64))
    return EdgeAgent(system.edge_terms(), seeded_key(0, "edge"), "private")


def _decide(deadlines: Deadlines, agent: EdgeAgent, event_id: str, log_time_ms: int) -> None:
    agent.decide(event_id, CONTEXT, log_time_ms)
    deadlines.add(log_time_ms + WAIT_MS, agent, event_id)


def _passed(deadlines: Deadlines, now_ms: int) -> list[str]:
    return [event_id for _, event_id in deadlines.passed(now_ms)]


def test_what_waits_ends_at_its_deadline_and_not_before() -> None:
    deadlines, agent = Deadlines(), _agent()
    _decide(deadlines, agent, "first", 0)
    _decide(deadlines, agent, "second", 10)
    assert _passed(deadlines, WAIT_MS - 1) == []
    assert _passed(deadlines, WAIT_MS) == ["first"]
    assert _passed(deadlines, WAIT_MS + 10) == ["second"]


def test_what_was_rewarded_in_time_does_not_end() -> None:
    deadlines, agent = Deadlines(), _agent()
    _decide(deadlines, agent, "rewarded", 0)
    _decide(deadlines, agent, "waiting", 0)
    agent.rewarded("rewarded", 1, 1.0)
    assert _passed(deadlines, WAIT_MS) == ["waiting"]


def test_an_event_decided_a_second_time_has_its_second_deadline() -> None:
    deadlines, agent = Deadlines(), _agent()
    _decide(deadlines, agent, "again", 0)
    agent.rewarded("again", 1, 1.0)
    _decide(deadlines, agent, "again", 100)
    assert _passed(deadlines, WAIT_MS) == []
    assert _passed(deadlines, WAIT_MS + 100) == ["again"]


def test_the_memory_of_deadlines_does_not_grow_with_what_was_rewarded() -> None:
    deadlines, agent = Deadlines(), _agent()
    _decide(deadlines, agent, "waiting", 0)
    most = 0
    for number in range(20_000):
        _decide(deadlines, agent, f"event-{number}", number // 10)
        agent.rewarded(f"event-{number}", number % 3, 0.0)
        most = max(most, len(deadlines))
    assert most <= 4096
    assert _passed(deadlines, WAIT_MS) == ["waiting"]
