"""The plan for vendors that share: how many outcomes their blocks need, and when they come, from public numbers.

Whether sharing is better than separate learning depends on the differences between vendors, which no public number
tells; `hushstream replay pdap` plays it on synthetic vendors. So a plan has no range: `_MEASURED` has gains that differ
by 14 and 18 points from the same public numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hushstream.engine.declare.declaration import Note
from hushstream.engine.declare.plan import DAYS, Audience, Plan, lives_of
from hushstream.privacy.amounts import count_text
from hushstream.privacy.promises.sentence import Prices
from hushstream.systems.pdap.algorithm.aggregate import FLOOR, TRIAL_Z, pool_size
from hushstream.systems.pdap.algorithm.blocks import block_variances
from hushstream.systems.pdap.configuration import PdapConfig
from hushstream.systems.pdap.promise import release_guarantee

_ARMS_TOLD_APART = 0.5
"""A plan warns if less than this share of the arms can be shown: most items are then never shown."""


_UNTRIED = (
    "below epsilon 1 sharing may cost more than it brings: vendors that each declare their rate "
    "(vendors.declared_rate) join on trial"
)
_TRIED = (
    "Vendors join on trial: a share of {share:g} of visits follow the shared model, the others a vendor's own exact "
    "rewards, until released rewards exceed its declared rate by {z:g} standard errors (again if they fall as far "
    "below). After the trial nothing bounds losses."
)

_NEVER = (
    "It will not beat vendors that keep apart, unless others' items suit their users better on average: no block is "
    "ever released, so items are shown almost at random."
)
_NOISY = (
    "It may or may not beat vendors that keep apart: in a block of all outcomes of a counter the noise is larger than "
    "the scatter of the rewards, so it pays only where few items are far better than all others."
)
_OPEN = (
    "It may or may not beat vendors that keep apart: that depends on how their items differ. Simulate it: hushstream "
    "replay pdap."
)
_MEASURED = (
    "In ten simulated worlds (four vendors, 100 items each, 20,000 decisions) sharing brought points of clicks, of all "
    "visits (95 % intervals): specialised vendors -2.7 (-6.2 to 0.7) at epsilon 0.1 and +13.9 (11.7 to 16.0) at "
    "epsilon 1, alike ones -20.6 (-25.2 to -16.0) at epsilon 0.1 and +0.1 (-3.0 to 3.2) at epsilon 1. So no range."
)


@dataclass(frozen=True, slots=True)
class BlockFigures:
    """What a number of outcomes brings.

    Attributes:
        outcomes: decisions in the life of the deployment, of all vendors.
        least: smallest number of outcomes in a block at the root.
        windows: number of windows.
        first_model: number of outcomes at which the first window closes.
        pool: arms that may be shown at the end.
        arms: of all vendors.
        noise_outcomes: number of outcomes in a block whose noise is as large as the rewards' own deviation.
        hopeless: whether no block is ever released.
        warnings: problems, in words.
    """

    outcomes: int
    least: int
    windows: int
    first_model: int
    pool: int
    arms: int
    noise_outcomes: float
    hopeless: bool
    warnings: tuple[str, ...]


def plan(config: PdapConfig, audience: Audience) -> Plan:
    """The plan for a number of decisions; see the module."""
    found = block_figures(config, max(1, int(config.trial_share * audience.visited(DAYS[-1]))))
    beats, verdict = _verdict(config, found)
    return Plan(
        system=config.system,
        measure="",
        values={},
        beats=beats,
        verdict=verdict,
        unit="decisions",
        paid="decision",
        noise=(
            f"a block has {found.least:,} or more outcomes; with {found.noise_outcomes:,.0f} its noise varies as "
            "much as the sum of its rewards",
        ),
        lives=lives_of(audience.of_one, lambda events: _prices(config, events)),
        sizes=_sizes(config),
        assumed=(
            f"{count_text(audience.users, 'person', ',')} come every "
            f"{count_text(audience.days, 'day', 'g')}, evenly, and make "
            f"{count_text(audience.visits, 'decision')} each within as many days; vendors are equally busy",
        ),
        facts={"outcomes": found.outcomes, "windows": found.windows, "pool": found.pool},
        notes=(*_trial(config), *_notes(found)),
    )


def _trial(config: PdapConfig) -> tuple[str, ...]:
    return (_TRIED.format(share=config.trial_share, z=TRIAL_Z),) if config.on_trial else ()


def _verdict(config: PdapConfig, found: BlockFigures) -> tuple[bool | None, str]:
    """Whether sharing is better, and the sentence; False only where nothing is ever learned together.

    Noise above the scatter of n rewards, which grows as sqrt(n), may be below the differences of items' sums, which
    grow as n.
    """
    if len(config.vendors) == 1:
        return False, "It will not beat the vendor alone: one vendor has nobody to share with."
    if found.hopeless:
        return False, _NEVER
    return None, _NOISY if found.outcomes / config.counters < found.noise_outcomes else _OPEN


def block_figures(config: PdapConfig, outcomes: int) -> BlockFigures:
    """What ``outcomes`` decisions of all vendors together bring.

    With a counter at each home, a block fills from one vendor's traffic alone; homes are assumed to be equally busy.
    """
    release = config.release
    share, least = outcomes // config.counters, config.least_counts[0]
    windows = config.schedule.windows(share)
    # Estimates weigh n^2 sigma2 / n against V: both are equal at n = V / sigma2.
    noise = block_variances(config)[0] / config.estimate.reward_variance
    size = pool_size(config.arms, outcomes, release.kappa / max(config.level_epsilons))
    return BlockFigures(
        outcomes,
        least,
        windows,
        release.schedule.closes_at(0),
        size,
        config.arms,
        noise,
        share < least or not windows,
        tuple(_warnings(config, share, least, windows, config.arms - size)),
    )


def warnings(config: PdapConfig) -> tuple[Note, ...]:
    """Problems of a deployment that remain with any traffic, up to its horizon."""
    found = block_figures(config, config.release.horizon * config.counters)
    return tuple(
        Note(text, "never" if found.hopeless and not place else "warning") for place, text in enumerate(found.warnings)
    )


def _warnings(config: PdapConfig, share: int, least: int, windows: int, hidden: int) -> list[str]:
    found, arms = [], config.arms
    if share < least or not windows:
        found.append(
            f"no block will ever be released: the smallest needs {count_text(least, 'outcome', ',')}, a counter takes"
            f" {share:,}, and {count_text(windows, 'window')} will close"
        )
    elif share < FLOOR * least:
        found.append(
            f"hardly any block will be released: {FLOOR} arms are tried from the start, which needs"
            f" {count_text(FLOOR * least, 'outcome', ',')} a counter, and it takes {share:,}"
        )
    if arms - hidden < _ARMS_TOLD_APART * arms:
        found.append(f"{hidden:,} of {arms:,} arms will never be shown")
    if max(config.level_epsilons) < 1 and config.clean_share is None and not config.on_trial:
        found.append(_UNTRIED)
    if len(config.vendors) == 1:
        found.append("one vendor has nobody to share with: a counter of its own needs no noise")
    return found


def _notes(found: BlockFigures) -> tuple[str, ...]:
    return (
        f"{count_text(found.outcomes, 'outcome', ',')} within a year: each counter closes "
        f"{count_text(found.windows, 'window')}, and the first model comes after {found.first_model:,} outcomes.",
        f"After a year {found.pool:,} of {found.arms:,} items may be shown.",
        _MEASURED,
        *(f"Warning: {warning}." for warning in found.warnings),
    )


def _prices(config: PdapConfig, events: int) -> Prices:
    return release_guarantee(replace(config, release=replace(config.release, events_per_person=events))).life_prices


def _sizes(config: PdapConfig) -> Mapping[str, str]:
    parts = config.partitions
    return {
        "partitions": f"learner {parts.learner} a vendor, {count_text(config.counters, 'counter')}: at most so many "
        "workers share the work",
        "memory and disk": "not measured for this system (`hushstream bench` measures others)",
    }
