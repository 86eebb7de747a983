"""Deadlines end what still waits, in order, and the memory that they take follows what waits."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from hushstream.engine.configuration import FeedbackConfig
from hushstream.privacy.keys import seeded_key
from hushstream.systems.p2b.configuration import ContextConfig, EncoderConfig, P2BConfig
from hushstream.systems.p2b.edge.agent import EdgeAgent
from hushstream.systems.p2b.edge.users import Deadlines, _waits
from hushstream.systems.p2b.guarantee.deployment import P2BSystem

WAIT_MS = 5_000
CONTEXT = np.array([0.5, 0.5], np.float32)


def _agent() -> EdgeAgent:
    config = P2BConfig(
        "deadlines",
        3,
        ContextConfig(2),
        expected_slots=10,
        encoder=EncoderConfig(codes=2),
        feedback=FeedbackConfig(attribution_window_seconds=WAIT_MS / 1000),
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
    _decide(deadlines, agent, "again", WAIT_MS)
    assert _passed(deadlines, WAIT_MS) == []
    assert _passed(deadlines, 2 * WAIT_MS) == ["again"]


def test_the_memory_of_deadlines_does_not_grow_with_what_was_rewarded() -> None:
    deadlines, agent = Deadlines(), _agent()
    _decide(deadlines, agent, "waiting", 0)
    most = 0
    for number in range(20_000):
        _decide(deadlines, agent, f"event-{number}", number // 10)
        agent.rewarded(f"event-{number}", number % 3, 0.0)
        most = max(most, len(deadlines))
    assert most <= 4096 + 256
    assert _passed(deadlines, WAIT_MS) == ["waiting"]


def test_what_is_rewarded_late_holds_three_waits_at_most_and_no_decision_pays_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = 0

    def waits(*entry: Any) -> bool:
        nonlocal looked
        looked += 1
        return _waits(*entry)

    monkeypatch.setattr("hushstream.systems.p2b.edge.users._waits", waits)
    deadlines, agent = Deadlines(), _agent()
    wait, most, longest = 3000, 0, 0
    for number in range(8 * wait):
        before = looked
        _decide(deadlines, agent, f"event-{number}", 0)
        longest = max(longest, looked - before)
        if number >= wait:
            agent.rewarded(f"event-{number - wait}", 1, 0.0)
        most = max(most, len(deadlines))
    assert most <= 3 * wait + 512
    assert longest == 512
    assert _passed(deadlines, WAIT_MS) == [f"event-{number}" for number in range(7 * wait, 8 * wait)]


def test_whatever_is_rewarded_meanwhile_the_rest_ends_in_order() -> None:
    deadlines, agent = Deadlines(), _agent()
    rng = random.Random(5)
    waiting: dict[str, int] = {}
    ended: list[str] = []
    for number in range(15_000):
        now = number // 2
        _decide(deadlines, agent, f"event-{number}", now)
        waiting[f"event-{number}"] = now + WAIT_MS
        if rng.random() < 0.6:
            rewarded = f"event-{number - rng.randrange(min(number + 1, 6000))}"
            if waiting.pop(rewarded, None) is not None:
                agent.rewarded(rewarded, 1, 0.0)
    for now in range(0, 8000, 700):
        expected = [event_id for event_id, deadline in waiting.items() if deadline <= WAIT_MS + now]
        found = _passed(deadlines, WAIT_MS + now)
        assert found == expected
        ended += found
        for event_id in found:
            del waiting[event_id]
    assert len(ended) > 4096
    assert not waiting
