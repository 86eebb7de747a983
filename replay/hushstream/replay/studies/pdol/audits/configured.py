"""The audit of one PDOL configuration."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from hushstream.privacy.audits.audit import audit_attack
from hushstream.replay.audits.report import AuditReport
from hushstream.replay.studies.pdol.audits.rows import (
    ABREAST,
    PROBES,
    SEEN,
    Domain,
    audit_gossip,
    audited_config,
    domain_attack,
    domain_family,
)
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.pdol.configuration import PdolConfig
from hushstream.systems.pdol.guarantee import epoch_guarantee


def audit_config(config: PdolConfig, runs: int, false_alarm: float) -> AuditReport:
    """Attack what a configuration releases: its counter at its epsilon, delta and horizon, on small records.

    Raises:
        HushstreamError: it adds no noise, or its counter ends before the attack has seen enough.
    """
    settings: dict[str, Any] = {"system": config.system}
    if config.gossip is not None:
        settings |= {"epsilon": config.gossip.epsilon, "gradient_at": config.gossip.gradient_at}
        found = audit_gossip(config.gossip.gradient_at, epsilon=config.gossip.epsilon)(runs, false_alarm)
        return AuditReport("gossip", settings, found, epoch_guarantee(config))
    sharing = config.sharing
    if sharing.counter == "exact":
        raise HushstreamError(
            "audit: expected a release.mechanism that adds noise, got exact, which promises nothing and is for public "
            "data alone"
        )
    if sharing.horizon < SEEN:
        raise HushstreamError(f"audit: expected a release.horizon of at least {SEEN}, got {sharing.horizon}")
    small = replace(sharing, slots_per_release=ABREAST * PROBES, domains=None)
    attacked = replace(audited_config(sharing.counter), sharing=small)
    run = partial(
        audit_attack, domain_attack(attacked, Domain()), epoch_guarantee(attacked).cost, domain_family(attacked)
    )
    settings |= {"epsilon": sharing.epsilon, "horizon": sharing.horizon, "releases": SEEN}
    seen = f"the first {SEEN} of at most {sharing.horizon} releases of a counter, of {ABREAST} features"
    return AuditReport(sharing.counter, settings, run(runs, false_alarm), epoch_guarantee(config), seen)
