"""Releases of the roles of collaborative bandits from known inputs, with stops and restarts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.keys import Key
from hushstream.replay.audits.roles.forks import AS_IT_WAS, Branch
from hushstream.replay.audits.roles.played import PlayedRole
from hushstream.replay.audits.roles.worked import means, phase_end_fields, restart_between
from hushstream.schemas.partitioning import partition_of
from hushstream.systems.colin.counter.machine import CounterMachine
from hushstream.systems.colin.deployment import CollaborativeSystem
from hushstream.systems.colin.edge.learner import CollaborativeLearnerMachine


def played_rewards(
    system: CollaborativeSystem,
    key: Key,
    features: NDArray[np.float32],
    steps: NDArray[np.float64],
    nonce: bytes | None = None,
    branch: Branch = AS_IT_WAS,
) -> NDArray[np.float64]:
    """Sums of every user after each step as a counter publishes them, float64 (steps, users, d).

    Args:
        system: a system whose steps close after a row of each user.
        key: the counter's key.
        features: the features of every row, (d,).
        steps: rewards, (steps, users).
        nonce: the journal's nonce; None: a new one.
        branch: which branch of a rolled-back journal to play.
    """
    role = PlayedRole(partial(CounterMachine, system, 0, key), nonce=nonce, epoch_nonce=branch.epoch_nonce)
    for number, rewards in enumerate(steps):
        role.put("rewards", "Rewards", reward_fields(system, branch.number(number), features, rewards))
        role.work()
        restart_between(role, number, len(steps))
    return _released(system, role, len(steps), range(system.nodes))


def played_rows(
    system: CollaborativeSystem,
    key: Key,
    features: NDArray[np.float32],
    steps: NDArray[np.float64],
    partition: int = 0,
    nonce: bytes | None = None,
    branch: Branch = AS_IT_WAS,
) -> NDArray[np.float64]:
    """As `played_rewards`, for a learner that holds its users' counters; each step ends with a phase end.

    The users are those of the learner's partition, in their order. A reward of 0 is never sent.
    """
    role = PlayedRole(
        partial(CollaborativeLearnerMachine, system, partition, key), nonce=nonce, epoch_nonce=branch.epoch_nonce
    )
    homes = homes_of(system, partition)
    for number, rewards in enumerate(steps):
        events = {f"{branch.number(number)}-{node}": system.graph.users[node] for node in homes}
        for event, user in events.items():
            context = features.astype("<f4").tobytes()
            role.put("contexts", "Context", {"event_id": event, "user": user, "context": context}, partition)
        role.work()
        _feedback(role, events, rewards[homes], partition)
        role.put("contexts", "Seal", phase_end_fields(system.digest, number), partition)
        role.work()
        restart_between(role, number, len(steps))
    return _released(system, role, len(steps), homes)


def homes_of(system: CollaborativeSystem, partition: int) -> list[int]:
    """The users of a learner's partition, by number."""
    users, partitions = system.graph.users, system.config.partitions.learner
    return [node for node, user in enumerate(users) if partition_of(user, partitions) == partition]


def reward_fields(
    system: CollaborativeSystem, number: int, features: NDArray[np.float32], rewards: NDArray[np.float64]
) -> dict[str, Any]:
    """The fields of a record with the rewards of all users, who share the same features."""
    nodes = np.arange(system.nodes)
    return {
        "batch_id": number.to_bytes(16, "big"),
        "config_digest": system.digest,
        "nodes": nodes.astype("<i4").tobytes(),
        "contexts": np.tile(features, (len(nodes), 1)).astype("<f4").tobytes(),
        "rewards": rewards.astype("<f8").tobytes(),
    }


def release_sums(system: CollaborativeSystem, release: Mapping[str, Any]) -> NDArray[np.int64]:
    """The sums of a release, int64 (users, d); 0 for users who are not in it."""
    sums = np.zeros((system.nodes, system.features.dimension), dtype=np.int64)
    blocks = np.frombuffer(release["blocks"], "<i4")
    sums[blocks] = np.frombuffer(release["sums"], "<i8").reshape(len(blocks), -1)
    return sums


def _feedback(role: PlayedRole, events: Mapping[str, str], rewards: NDArray[np.float64], partition: int) -> None:
    for (event, user), reward in zip(events.items(), rewards.tolist(), strict=True):
        fields = {"event_id": event, "user": user, "arm": 0}
        role.put("clicks", "Feedback", {**fields, "kind": "shown", "reward": 0.0}, partition)
        if reward:
            role.put("clicks", "Feedback", {**fields, "kind": "reward", "reward": reward}, partition)
    role.work()


def _released(system: CollaborativeSystem, role: PlayedRole, steps: int, users: Sequence[int]) -> NDArray[np.float64]:
    found = role.published("releases", "Release")
    sums = ((one["release_id"], release_sums(system, one)[list(users)]) for one in found)
    return means(sums, steps)
