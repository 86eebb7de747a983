"""What roles publish of known inputs: a machine folds, is stopped in the middle of a window or step, and goes on.

Each function gives, for every release, the mean of all copies that were ever published of it. The product publishes
equal copies; whoever draws again on a replay gives the attacker something to average.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.contribution.slots import Report, pack
from hushstream.privacy.keys import Key
from hushstream.replay.audits.played_role import PlayedRole
from hushstream.replay.audits.releases import Contents, crowd_sums
from hushstream.roles.collaborative_learner import CollaborativeLearnerMachine
from hushstream.roles.counter import CounterMachine
from hushstream.roles.learner import LearnerMachine
from hushstream.roles.shuffler import ShufflerMachine
from hushstream.schemas.partitioning import partition_of
from hushstream.systems.collaborative import CollaborativeSystem
from hushstream.systems.p2b import P2BSystem


def played_windows(
    system: P2BSystem, key: Key, windows: Sequence[Contents], nonce: bytes | None = None, partition: int = 0
) -> NDArray[np.float64]:
    """Sums of each window as a shuffler publishes them, float64 (windows, 2, codes, arms).

    It restarts after every window, from the journal alone or from a snapshot of the half-filled window.

    Args:
        system: whose windows have as many slots as each of ``windows``.
        key: of the shuffler.
        windows: what the slots hold.
        nonce: of the journal; a new one unless given.
        partition: of the reports.
    """
    role = PlayedRole(partial(ShufflerMachine, system, partition, key), nonce=nonce)
    for number, contents in enumerate(windows):
        half = len(contents) // 2
        for place, content in enumerate(contents):
            if place == half:
                role.work()
                role.keep()
            role.put("reports", "SlotReport", _slot(system, number * len(contents) + place, content), partition)
        role.work()
        if number:
            role.restart(*role.kept)
        else:
            role.restart()
    crowds = [record for p in range(system.line_count) for record in role.published("crowds", "Crowd", p)]
    return _means(((crowd["window_id"], crowd_sums(system, crowd)) for crowd in crowds), len(windows))


def played_rewards(
    system: CollaborativeSystem,
    key: Key,
    features: NDArray[np.float32],
    steps: NDArray[np.float64],
    nonce: bytes | None = None,
) -> NDArray[np.float64]:
    """Sums of every user after each step as a counter publishes them, float64 (steps, users, d).

    Args:
        system: whose steps close after a row of each user.
        key: of the counter.
        features: of every row, (d,).
        steps: rewards, (steps, users).
        nonce: of the journal; a new one unless given.
    """
    role = PlayedRole(partial(CounterMachine, system, 0, key), nonce=nonce)
    for number, rewards in enumerate(steps):
        role.put("rewards", "Rewards", reward_fields(system, number, features, rewards))
        role.work()
        _restart(role, number, len(steps))
    return _released(system, role, len(steps), range(system.nodes))


def played_rows(
    system: CollaborativeSystem,
    key: Key,
    features: NDArray[np.float32],
    steps: NDArray[np.float64],
    partition: int = 0,
    nonce: bytes | None = None,
) -> NDArray[np.float64]:
    """`played_rewards` of a learner whose users' counters are in it; each step ends with a seal.

    Users are those of its partition, in their order; a reward of 0 is one that never comes.
    """
    role = PlayedRole(partial(CollaborativeLearnerMachine, system, partition, key), nonce=nonce)
    homes = homes_of(system, partition)
    for number, rewards in enumerate(steps):
        events = {f"{number}-{node}": system.graph.users[node] for node in homes}
        for event, user in events.items():
            context = features.astype("<f4").tobytes()
            role.put("contexts", "Context", {"event_id": event, "user": user, "context": context}, partition)
        role.work()
        _feedback(role, events, rewards[homes], partition)
        role.put("contexts", "Seal", _seal(system, number), partition)
        role.work()
        _restart(role, number, len(steps))
    return _released(system, role, len(steps), homes)


def played_lift(system: P2BSystem, key: Key, releases: int, nonce: bytes, partition: int = 0) -> NDArray[np.float64]:
    """Running counts of a lift in which nobody was shown anything, as a learner publishes them: (releases, 4)."""
    role = PlayedRole(partial(LearnerMachine, system, partition, key), nonce=nonce)
    for number in range(releases):
        role.put("contexts", "Seal", _seal(system, number), partition)
        role.work()
        _restart(role, number, releases)
    lifts = role.published("lift", "Lift", partition)
    sums = ((lift["release_id"], np.frombuffer(lift["sums"], "<i8").astype(np.int64)) for lift in lifts)
    return _means(sums, releases)


def homes_of(system: CollaborativeSystem, partition: int) -> list[int]:
    """Users of a learner's partition, by number."""
    users, partitions = system.graph.users, system.config.partitions.learner
    return [node for node, user in enumerate(users) if partition_of(user, partitions) == partition]


def reward_fields(
    system: CollaborativeSystem, number: int, features: NDArray[np.float32], rewards: NDArray[np.float64]
) -> dict[str, Any]:
    """A record of rewards of all users, each for the same features."""
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


def _restart(role: PlayedRole, number: int, steps: int) -> None:
    """After the first step from the journal alone; after the last from a snapshot of half of them."""
    if number == steps // 2:
        role.keep()
    if number == 0:
        role.restart()
    elif number == steps - 1:
        role.restart(*role.kept)


def _slot(system: P2BSystem, place: int, content: Report | None) -> dict[str, Any]:
    return {
        "report_id": place.to_bytes(16, "big"),
        "period": bytes(8),
        "config_digest": system.digest,
        "content": pack(content),
    }


def _seal(system: P2BSystem | CollaborativeSystem, phase: int) -> dict[str, Any]:
    return {"phase": phase, "origin": -1, "config_digest": system.digest, "after_click": -1}


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
    return _means(sums, steps)


def _means(found: Iterable[tuple[bytes, NDArray[np.int64]]], releases: int) -> NDArray[np.float64]:
    """The mean of the copies of each release, in the order in which they first came.

    Raises:
        ValueError: another number of releases was published than was due.
    """
    copies: dict[bytes, list[NDArray[np.int64]]] = {}
    for name, sums in found:
        copies.setdefault(name, []).append(sums)
    if len(copies) != releases:
        raise ValueError(f"audit: expected {releases} releases of a role, got {len(copies)}")
    return np.array([np.mean(sums, axis=0) for sums in copies.values()])
