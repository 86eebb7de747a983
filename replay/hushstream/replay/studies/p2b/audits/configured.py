"""The audit of one configuration of P2B."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from hushstream.privacy.audits.audit import AuditResult
from hushstream.replay.audits.configured import seen, steps_for
from hushstream.replay.audits.readings import reading_of
from hushstream.replay.audits.report import AuditReport
from hushstream.replay.studies.p2b.audits.linear import audit_linear_sums
from hushstream.replay.studies.p2b.audits.releases import audit_slot_sums_release, stand_in
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.configuration import P2BConfig
from hushstream.systems.p2b.contribution.summed import summed_of
from hushstream.systems.p2b.deployment import P2BSystem

_Attack: TypeAlias = Callable[[P2BSystem, int], Callable[[int, float], AuditResult]]

_SUMS = 1 << 21
"""Noised sums of all steps that one counter over windows is fed."""


def audit_config(config: P2BConfig, runs: int, false_alarm: float) -> AuditReport:
    """Attack what a configuration releases.

    Raises:
        HushstreamError: its mode's noise cannot be attacked at any size, or so many runs of it take too long.
    """
    release = config.release
    if release.mode != "slot-sums":
        raise HushstreamError(
            f"audit: expected release.mechanism slot-sums, whose noise can be attacked at any size, got "
            f"{release.mode}; hushstream audit --only {release.mode} attacks that mode in a small deployment"
        )
    system, attack = _ATTACKED[release.form](config)
    tree, cells = system.window_tree, math.prod(system.form.shape)
    most = min(_SUMS // cells, steps_for(runs, cells, 1)) if tree is not None else 1
    result = attack(system, most)(runs, false_alarm)
    return _report(system, 1 if tree is None else reading_of(tree, most).steps, result)


def _of_codes(config: P2BConfig) -> tuple[P2BSystem, _Attack]:
    # Whether slots travel sealed changes nothing about what is released of them.
    return stand_in(replace(config, slot=replace(config.slot, sealed=False))), audit_slot_sums_release


def _of_features(config: P2BConfig) -> tuple[P2BSystem, _Attack]:
    return P2BSystem.declared(config), audit_linear_sums


_ATTACKED: Mapping[str, Callable[[P2BConfig], tuple[P2BSystem, _Attack]]] = {
    "codes": _of_codes,
    "features": _of_features,
}


def _report(system: P2BSystem, steps: int, result: AuditResult) -> AuditReport:
    release, tree = system.config.release, system.window_tree
    settings = {
        "system": system.config.system,
        "epsilon": release.epsilon,
        "levels": release.levels,
        "sampling": release.sampling,
        "sums": "fresh" if tree is None else "counter",
        "horizon": None if tree is None else tree.horizon,
        "steps": steps,
    }
    return AuditReport(
        summed_of(system.config).mechanism, settings, result, system.guarantee(), seen(tree, steps, "windows")
    )
