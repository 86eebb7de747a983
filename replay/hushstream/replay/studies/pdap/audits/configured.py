"""The audit of one P-DAP configuration."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.amounts import count_text
from hushstream.privacy.audits.power import reaching
from hushstream.replay.audits.configured import Noise, laplace_law, report_of
from hushstream.replay.audits.draws import fresh_key
from hushstream.replay.audits.report import AuditReport
from hushstream.replay.studies.pdap.audits.rows import ParallelBlocks, attacked_blocks
from hushstream.systems.pdap.configuration import PdapConfig
from hushstream.systems.pdap.counter.pending import Counter
from hushstream.systems.pdap.promise import release_guarantee

MOST_ARMS = 2_000
"""The most blocks that one deployment of the audit has."""


def audit_config(config: PdapConfig, runs: int, false_alarm: float) -> AuditReport:
    """Attack the releases of a configuration: blocks of its cells and items, on the level with the largest epsilon."""
    release, epsilons = config.release, config.level_epsilons
    # Of levels with equal epsilon take the deepest, as a unit there is tested on every level.
    level = max(range(len(epsilons)), key=lambda one: (epsilons[one], one))
    most = max(1, release.horizon // config.least_counts[level])
    blocks = ParallelBlocks(config, Counter, level, min(config.arms, MOST_ARMS, runs, most))
    settings = {
        "system": config.system,
        "epsilon": epsilons[level],
        "reward_levels": release.reward_levels,
        "level": level,
        "least": config.least_counts[level],
        "items": blocks.arms,
    }
    attacked_steps = (
        f"all releases of blocks of level {level}, with the least "
        f"{count_text(config.least_counts[level], 'outcome')}, one unit each"
    )
    return report_of(
        "blocks",
        settings,
        attacked_blocks(blocks),
        _noise_of(blocks, epsilons[level]),
        release_guarantee(config),
        runs,
        false_alarm,
        attacked_steps,
        _reduced(config, blocks),
        reaching(release.reward_levels),
    )


def _reduced(config: PdapConfig, blocks: ParallelBlocks) -> tuple[str, ...]:
    fewer = config.arms - blocks.arms
    return (
        *(
            [f"{count_text(fewer, 'item')}, as each block has noise of its own, of one size for all items"]
            if fewer
            else []
        ),
        *(
            [f"counters of all vendors but one, as each outcome is in one of the {config.counters}"]
            if config.counters > 1
            else []
        ),
        *(["blocks of other levels, whose epsilon is no larger"] if config.cells.levels else []),
        "the closing of windows, which follows from public counts: one with all units is closed, and one after it",
    )


def _noise_of(blocks: ParallelBlocks, epsilon: float) -> Noise:
    key, levels = fresh_key(), blocks.config.release.reward_levels

    def read() -> NDArray[np.float64]:
        return np.abs(blocks.sums(key, False)) / levels

    return Noise(read, laplace_law(levels, epsilon), release_guarantee(blocks.config).cost)
