"""The audit of one BGTplanner configuration."""

from __future__ import annotations

from dataclasses import replace

from hushstream.replay.audits.report import AuditReport
from hushstream.replay.studies.bgt.audits.rows import Rig, audit_slots, audited_config
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.bgt.configuration import BgtConfig
from hushstream.systems.bgt.price.guarantee import epoch_guarantee


def audit_config(config: BgtConfig, runs: int, false_alarm: float) -> AuditReport:
    """Attack what a configuration releases: all three rounds at its epsilon, delta, shares and clips, on few items.

    Raises:
        HushstreamError: it adds no noise.
    """
    release = config.release
    if release.noise == "exact":
        raise HushstreamError(
            "audit: expected release.mechanism gaussian, got exact, which promises nothing and is for public data alone"
        )
    small = audited_config(release.shares)
    same = {name: getattr(release, name) for name in ("epsilon", "delta", "clip", "factor_clip", "count_weight")}
    attacked = replace(small, release=replace(small.release, **same))
    result = audit_slots(Rig(attacked))(runs, false_alarm)
    settings = {"system": config.system, "epsilon": release.epsilon, "shares": list(release.shares)}
    seen = f"all three releases, of users who rate {attacked.release.pairs} of {attacked.items} items, up to each clip"
    return AuditReport("three-slots", settings, result, epoch_guarantee(config), seen)
