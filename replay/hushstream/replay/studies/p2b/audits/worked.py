"""Releases of P2B's roles from known inputs, with stops and restarts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.keys import Key
from hushstream.replay.audits.roles.forks import AS_IT_WAS, Branch
from hushstream.replay.audits.roles.played import PlayedRole
from hushstream.replay.audits.roles.worked import means, phase_end_fields, restart_between
from hushstream.replay.audits.row import Run
from hushstream.replay.studies.p2b.audits.releases import (
    ARMS,
    CELLS,
    Contents,
    audit_slot_sums_release,
    crowd_sums,
    p2b,
)
from hushstream.systems.p2b.configuration import ReleaseConfig
from hushstream.systems.p2b.contribution.slots import Report, pack
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.machines.learner import LearnerMachine
from hushstream.systems.p2b.machines.shuffler import ShufflerMachine


def played_windows(
    system: P2BSystem,
    key: Key,
    windows: Sequence[Contents],
    nonce: bytes | None = None,
    partition: int = 0,
    branch: Branch = AS_IT_WAS,
) -> NDArray[np.float64]:
    """Sums of each window as a shuffler publishes them, float64 (windows, 2, codes, arms).

    The shuffler restarts after every window, from the journal alone or from a snapshot of the half-filled window.

    Args:
        system: a system whose windows have as many slots as each of ``windows``.
        key: the shuffler's key.
        windows: contents of the slots.
        nonce: the journal's nonce; None: a new one.
        partition: partition of the reports.
        branch: which branch of a rolled-back journal to play.
    """
    role = PlayedRole(partial(ShufflerMachine, system, partition, key), nonce=nonce, epoch_nonce=branch.epoch_nonce)
    for number, contents in enumerate(windows):
        half = len(contents) // 2
        for place, content in enumerate(contents):
            if place == half:
                role.work()
                role.keep()
            role.put(
                "reports",
                "SlotReport",
                _slot(system, branch.number(number * len(contents) + place), content),
                partition,
            )
        role.work()
        if number:
            role.restart(*role.kept)
        else:
            role.restart()
    crowds = [record for p in range(system.track_count) for record in role.published("crowds", "Crowd", p)]
    return means(((crowd["window_id"], crowd_sums(system, crowd)) for crowd in crowds), len(windows))


def played_lift(
    system: P2BSystem, key: Key, releases: int, nonce: bytes, partition: int = 0, branch: Branch = AS_IT_WAS
) -> NDArray[np.float64]:
    """Running counts of a lift as a learner publishes them, when no user was shown an item: (releases, 4)."""
    role = PlayedRole(partial(LearnerMachine, system, partition, key), nonce=nonce, epoch_nonce=branch.epoch_nonce)
    for number in range(releases):
        role.put("contexts", "Seal", phase_end_fields(system.digest, number), partition)
        role.work()
        restart_between(role, number, releases)
    lifts = role.published("lift", "Lift", partition)
    sums = ((lift["release_id"], np.frombuffer(lift["sums"], "<i8").astype(np.int64)) for lift in lifts)
    return means(sums, releases)


def audit_worked_windows(release: ReleaseConfig, most: int) -> Run:
    """`audit_slot_sums_release` of what a shuffler publishes when it is stopped in the middle of each window."""
    system = p2b(replace(release, window_slots=CELLS * ARMS))
    return audit_slot_sums_release(system, most, played_windows)


def _slot(system: P2BSystem, place: int, content: Report | None) -> dict[str, Any]:
    return {
        "report_id": place.to_bytes(16, "big"),
        "period": bytes(8),
        "config_digest": system.digest,
        "content": pack(content),
    }
