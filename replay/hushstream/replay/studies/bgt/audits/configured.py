"""The audit of one BGTplanner configuration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.amounts import count_text
from hushstream.replay.audits.configured import Noise, gaussian_law, report_of
from hushstream.replay.audits.draws import fresh_key
from hushstream.replay.audits.report import AuditReport
from hushstream.replay.studies.bgt.audits.rows import (
    Rig,
    answers_of,
    attacked_slots,
    deviations,
    stated_rho,
    transcript,
)
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.bgt.configuration import BgtConfig
from hushstream.systems.bgt.price.guarantee import epoch_guarantee

MOST_ITEMS = 4_096
"""The most items of an attacked deployment; noise of items without ratings takes time and reveals nothing."""


def audit_config(config: BgtConfig, runs: int, false_alarm: float) -> AuditReport:
    """Attack the releases of a configuration: all three rounds, with its slots, clips, shares, items and top items.

    Raises:
        HushstreamError: the configuration adds no noise.
    """
    release = config.release
    if release.noise == "exact":
        raise HushstreamError(
            "audit: expected release.mechanism gaussian, got exact, which has no guarantee and is for public data alone"
        )
    rig = Rig(replace(config, items=min(config.items, max(MOST_ITEMS, config.top)), features=0))
    settings = {
        "system": config.system,
        "epsilon": release.epsilon,
        "delta": release.delta,
        "shares": list(release.shares),
        "items": rig.config.items,
        "top": config.top,
        "pairs": release.pairs,
    }
    attacked_rounds = (
        f"all three releases, of {rig.parallel_users} users who each rate {rig.own} of {rig.config.items} items, "
        f"up to each clip"
    )
    return report_of(
        "three-slots",
        settings,
        attacked_slots(rig),
        _noise_of(rig),
        epoch_guarantee(config),
        runs,
        false_alarm,
        attacked_rounds,
        _reduced(config, rig),
    )


def _reduced(config: BgtConfig, rig: Rig) -> tuple[str, ...]:
    fewer = config.items - rig.config.items
    return (
        *(
            [f"{count_text(fewer, 'item')}, as each sum has noise of its own, of one size for all items"]
            if fewer
            else []
        ),
        *(["public features of items, as slots do not hold them"] if config.features else []),
        *(
            [f"{config.release.factors - 1} of {config.release.factors} factors of an item, as the clip is of all"]
            if config.release.factors > 1
            else []
        ),
    )


def _noise_of(rig: Rig) -> Noise:
    """The noise of all three rounds, released for users who rated nothing."""
    key, spreads = fresh_key(), deviations(rig.config)
    sent = answers_of(rig, key, False)

    def read() -> NDArray[np.float64]:
        released = transcript(rig, key, sent)
        return np.asarray(np.abs(np.concatenate([cells / one for cells, one in zip(released, spreads, strict=True)])))

    # Epsilon is stated for half of delta.
    law = gaussian_law(stated_rho(rig.config), float(rig.config.release.delta) / 2)
    return Noise(read, law, epoch_guarantee(rig.config).cost)
