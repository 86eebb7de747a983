"""Makes the plan for vendors that share, from public numbers, without a simulation.

Blocks, windows and the pool follow from the configuration (`hushstream.systems.pdap.algorithm.plan`). Whether sharing
is better than separate learning depends on the differences between vendors: the study of the system simulates it, and
adds its verdict to this plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hushstream.engine.declare.plan import DAYS, Audience, Plan, lives_of
from hushstream.privacy.amounts import count_text
from hushstream.privacy.promises.sentence import Prices
from hushstream.systems.pdap.algorithm.plan import plan as plan_blocks
from hushstream.systems.pdap.configuration import PdapConfig
from hushstream.systems.pdap.promise import release_guarantee

KEEP_APART = "keep the vendors apart"


def plan(config: PdapConfig, audience: Audience) -> Plan:
    """The plan for a number of decisions; see the module."""
    outcomes = max(1, int(audience.visited(DAYS[-1])))
    found = plan_blocks(config, outcomes)
    hopeless = any(warning.startswith("no block") for warning in found.warnings)
    return Plan(
        system=config.system,
        measure="",
        values={},
        beats=False if hopeless else None,
        verdict=(
            f"It will not beat vendors that keep apart, so {KEEP_APART}: no block is ever released."
            if hopeless
            else "Only a simulation can say whether sharing beats vendors that keep apart."
        ),
        unit="decisions",
        paid="decision",
        noise=(
            f"in a block of {count_text(found.noise_outcomes, 'outcome', ',.0f')} the noise is as large as the "
            f"scatter of the rewards; the smallest block has {found.least:,}",
        ),
        lives=lives_of(audience.of_one, lambda events: _prices(config, events)),
        sizes=_sizes(config),
        assumed=(
            f"{count_text(audience.users, 'person', ',')} come every "
            f"{count_text(audience.days, 'day', 'g')}, evenly, and make "
            f"{count_text(audience.visits, 'decision')} each within as many days; vendors are equally busy",
        ),
        facts={"outcomes": found.outcomes, "windows": found.windows, "pool": found.pool},
        notes=tuple(found.as_text().splitlines()),
    )


def _prices(config: PdapConfig, events: int) -> Prices:
    return release_guarantee(replace(config, release=replace(config.release, events_per_person=events))).life_prices


def _sizes(config: PdapConfig) -> Mapping[str, str]:
    parts = config.partitions
    return {
        "partitions": f"learner {parts.learner} a vendor, {count_text(config.counters, 'counter')}: at most so many "
        "workers share the work",
        "memory and disk": "not measured for this system (`hushstream bench` and `hushstream sizes` measure others)",
    }
