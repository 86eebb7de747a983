"""The configuration of a P-DAP deployment: vendors, the partition of contexts, the release of blocks, the model.

Plain frozen values, checked once, digested once. Contexts' cells, which vendor serves which context, which arm was
shown and all timing are public; rewards alone are private, and one event's reward is the unit.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from hushstream.counting.digits import LARGEST_LIFE
from hushstream.engine import language, values
from hushstream.engine.configuration import (
    LARGEST_EPSILON,
    FeedbackConfig,
    Mode,
    PartitionConfig,
    PrivacyConfig,
    declared_features,
    undigested_mode,
    undigested_privacy,
)
from hushstream.engine.noise.budget import BudgetConfig
from hushstream.engine.values import (
    Checked,
    ConfigurationError,
    Is,
    between,
    check_fields,
    keep,
    number,
    positive,
    price,
    require,
    require_deployment,
    require_deployment_name,
    whole,
)
from hushstream.features.kinds import Feature
from hushstream.privacy.amounts import epsilon_micro, epsilon_value, exact
from hushstream.systems.pdap.cells import LARGEST_DIMENSION, Grid, PdapError

Placement = Literal["serving", "home"]
PLACEMENTS: tuple[Placement, ...] = ("serving", "home")

LARGEST_ARMS = 1 << 20
TRIAL_SHARE = 0.05
"""The share of a vendor's visits that are clean while it is on trial."""


@dataclass(frozen=True, slots=True)
class VendorConfig(Checked):
    """A vendor: its name and its number of items. Items are numbered vendor by vendor.

    Attributes:
        name: of the vendor; it stands in topic names.
        arms: largest number of items that it may ever show.
        named: whether its items have ids, which the vendor adds and retires while the deployment runs. Each item keeps
            its number for ever, so ``arms`` limits all items that there may ever be.
        declared_rate: mean reward of its visits while it recommends alone, from 0 to 1, which it publishes before it
            joins; a trial compares with it. No noise is added to it: it is the vendor's own publication.
    """

    name: str
    arms: Annotated[int, Is("vendors.items.capacity", whole, 1, LARGEST_ARMS)]
    named: Annotated[bool, Is("vendors.items.named")] = False
    declared_rate: Annotated[float | None, Is("vendors.", between, 0, 1)] = None

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        require_deployment_name(self.name)
        check_fields(self)


@dataclass(frozen=True, slots=True)
class CellConfig(Checked):
    """How contexts are partitioned.

    Attributes:
        branching: m, parts of each side of a cell that splits.
        split_at: A; a cell of level l splits when A m^(p l) contexts arrived in it.
        growth: p, the exponent by which deeper cells need more arrivals.
        levels: L, the deepest level.
        cap: most open cells; beyond it the deepest open cell above a context serves.
    """

    branching: Annotated[int, Is("cells.", whole, 2, 64)] = 2
    split_at: Annotated[float, Is("cells.", positive)] = 400.0
    growth: Annotated[float, Is("cells.", between, 0, 10)] = 1.0
    levels: Annotated[int, Is("cells.", whole, 0, 57)] = 3
    cap: Annotated[int, Is("cells.", whole, 1, 65_536)] = 1024


@dataclass(frozen=True, slots=True)
class BlockConfig(Checked):
    """Releases of rewards: what, and when.

    Attributes:
        epsilon: of one event's reward, for ever; with ``level_growth`` that of the root's level.
        level_growth: alpha of GP-DAP: blocks of level l are released at epsilon m^(alpha l), and the guarantee is that
            of the largest level; 0 for one epsilon.
        placement: serving (one counter takes all outcomes) or home (each vendor's own counter takes those of its
            users: nobody else holds their rewards, at smaller blocks).
        kappa: a block has at least kappa / epsilon outcomes; with fewer, noise would dominate.
        reward_levels: R; a reward is a whole number from 0 to R, 1 for clicks.
        first_window: n0; the first window closes at this number of outcomes.
        window_ratio: each window closes at this multiple of the total before.
        seconds: a window also closes this log time after its first outcome; null for never.
        events_per_person: c, events of one person that are priced together; an assumption, because nobody counts them.
        horizon: largest number of outcomes of a counter; further ones are refused.
    """

    epsilon: Annotated[float, Is(language.EPSILON, price, LARGEST_EPSILON)] = 1.0
    level_growth: Annotated[float, Is("release.", between, 0, 10)] = 0.0
    placement: Annotated[Placement, Is("release.")] = "serving"
    kappa: Annotated[float, Is("release.", positive)] = 3.0
    reward_levels: Annotated[int, Is(language.REWARD_LEVELS, whole, 1, 256)] = 1
    first_window: Annotated[int, Is(language.WINDOW_UNITS, whole, 1, 1 << 40)] = 500
    window_ratio: Annotated[float, Is("release.", number, "a number in (1, 100]", lambda x: 1 < x <= 100)] = 1.5
    seconds: Annotated[float | None, Is(language.WINDOW_SECONDS, values.seconds, 0.001)] = None
    events_per_person: Annotated[int, Is(language.UNITS_PER_PERSON, whole, 1, LARGEST_LIFE)] = 100
    horizon: Annotated[int, Is("release.horizon_units", whole, 1, 1 << 40)] = 1 << 40

    @property
    def schedule(self) -> Schedule:
        """When windows close, by the outcomes of all vendors."""
        return Schedule(self.first_window, self.window_ratio)


@dataclass(frozen=True, slots=True)
class EstimateConfig(Checked):
    """Parameters of beliefs and choices; privacy does not depend on them.

    Attributes:
        reward_variance: of one reward (in [0, 1]) around its mean.
        arm_variance: prior variance of an arm's deviation from its vendor's mean, at the root.
        arm_steps: variance of that deviation's step from level to level; below the last given one each is half of the
            one before.
        arm_spread: variance of arms around their vendor's mean, where that mean is estimated.
        vendor_variance: prior variance of a vendor's mean at the root.
        vendor_steps: of its steps, as ``arm_steps``.
        prior_share: the prior mean of a vendor's mean, as a share of the mean reward released so far.
        temper: multiplies the deviations from which tickets are drawn; 0 shows only the best arm.
    """

    reward_variance: Annotated[float, Is("model.", positive)] = 0.2
    arm_variance: Annotated[float, Is("model.", positive)] = 0.02
    arm_steps: tuple[float, ...] = (0.009, 0.0045, 0.0024)
    arm_spread: Annotated[float, Is("model.", positive)] = 0.1
    vendor_variance: Annotated[float, Is("model.", positive)] = 0.05
    vendor_steps: tuple[float, ...] = (0.03, 0.015, 0.008)
    prior_share: Annotated[float, Is("model.", between, 0, 1)] = 0.7
    temper: Annotated[float, Is("model.", between, 0, 10)] = 0.5

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        check_fields(self)
        for name in ("arm_steps", "vendor_steps"):
            steps = tuple(getattr(self, name))
            require(bool(steps), f"model.{name}", "at least one variance", steps)
            keep(self, **{name: tuple(positive(f"model.{name}", step) for step in steps)})


def steps_to(levels: int, given: tuple[float, ...]) -> tuple[float, ...]:
    """Variances of the steps to levels 1 to ``levels``: those given, then halves of halves."""
    missing = max(0, levels - len(given))
    return given[:levels] + tuple(given[-1] / 2**place for place in range(1, missing + 1))


@dataclass(frozen=True, slots=True)
class Schedule:
    """Says when windows close: window w = 0, 1, ... closes after n0 ratio^w outcomes in total, rounded up.

    Attributes:
        first: n0.
        ratio: how much larger each total is than the one before.
    """

    first: int = 500
    ratio: float = 1.5
    _ratio: Fraction = field(init=False, repr=False, compare=False)
    """The ratio, exactly."""

    def __post_init__(self) -> None:
        """Refuse totals that do not grow.

        Raises:
            PdapError: n0 below 1, or a ratio of 1 or less.
        """
        object.__setattr__(self, "_ratio", exact(self.ratio))
        if self.first < 1 or not self._ratio > 1:
            raise PdapError(f"windows: expected a first total >= 1 and a ratio above 1, got {self.first}, {self.ratio}")

    def closes_at(self, window: int) -> int:
        """Number of outcomes at which a window closes; it is above that of the window before."""
        # If n0 is small, rounding up alone could give two windows the same number.
        return max(math.ceil(self.first * self._ratio**window), self.first + window)

    def windows(self, total: int) -> int:
        """Number of windows that have closed when ``total`` outcomes have come."""
        most = 1
        # High powers of a ratio are long numbers, so no window far beyond the one that is sought is computed.
        while self.closes_at(most) <= total:
            most *= 2
        return bisect_right(range(most), total, key=self.closes_at)

    def after(self, total: int) -> int:
        """The number of outcomes at which the window closes that is open after ``total`` outcomes."""
        return self.closes_at(self.windows(total))


@dataclass(frozen=True, slots=True)
class PdapConfig(Checked):
    """All parameters of a P-DAP deployment's computation.

    Attributes:
        deployment: its name; topics and consumer groups begin with it.
        vendors: at least one, by name.
        dimension: d, numbers of a context, each from 0 to 1; none where features are declared.
        cells: how contexts are partitioned.
        release: releases of a counter.
        estimate: the model from releases.
        clean_share: the share of a vendor's visits, by a coin, that follow from releases alone while the vendor is on
            trial (`hushstream.systems.pdap.algorithm.aggregate`); the others are dark: they follow its own exact
            rewards, and nothing of them leaves it. 1: no trial. null: .05 where epsilon is below 1 and each vendor
            declares its rate, else 1.
        feedback: how shown and reward are joined to the decision.
        partitions: how many of each topic.
        budget: limit of one reward's price over all noise epochs; null for the price of one epoch.
        privacy: what the operator says of the promise in words; no digest follows from it.
        mode: live, or shadow where clients show the application's own choice, and answers are recorded beside it; no
            digest follows from it, so a deployment goes live by this word alone.
        system: which system this is a configuration of.
        declared: features by name, each with its kind and settings (`hushstream.features.schema.declare`), 1 to 10 of
            category, number, boolean, time_of_day and day_of_week: each is one side of the space that cells cut
            (`FeatureSchema.positions`). Without them contexts are numbers.
    """

    deployment: str
    vendors: tuple[VendorConfig, ...]
    dimension: Annotated[int, Is(language.DIMENSION)] = 0
    cells: CellConfig = field(default_factory=CellConfig)
    release: BlockConfig = field(default_factory=BlockConfig)
    estimate: Annotated[EstimateConfig, Is(language.MODEL)] = field(default_factory=EstimateConfig)
    clean_share: Annotated[float | None, Is("learner.", between, 0.001, 1)] = None
    feedback: FeedbackConfig = field(default_factory=FeedbackConfig)
    partitions: PartitionConfig = field(default_factory=PartitionConfig)
    budget: Annotated[BudgetConfig | None, Is(language.LIFETIME)] = None
    privacy: PrivacyConfig = undigested_privacy()
    mode: Annotated[Mode, Is("mode")] = undigested_mode()
    system: Literal["pdap"] = "pdap"
    declared: Annotated[Any, Is(language.FEATURES)] = None

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        require_deployment(self.deployment, self.system, "pdap")
        check_fields(self)
        keep(self, vendors=tuple(self.vendors))
        names = [vendor.name for vendor in self.vendors]
        require(bool(names), "vendors", "at least one", names)
        require(len(set(names)) == len(names), "vendors", "names that differ", names)
        require(self.arms <= LARGEST_ARMS, "vendors", f"at most {LARGEST_ARMS} arms in all", self.arms)
        named = {vendor.named for vendor in self.vendors}
        require(len(named) == 1, "vendors.items.named", "the same of all vendors", "both true and false")
        if self.declared is None:
            whole("features.dimension", self.dimension, 1, LARGEST_DIMENSION)
        else:
            self._declare()
        shufflers = self.partitions.shuffler
        require(shufflers == 1, "partitions.counter", "1 (there is no shuffler)", shufflers)
        if self.budget is not None:
            require(self.budget.lift == 0, "budget.lift", "0 (nothing is measured)", self.budget.lift)
        try:
            deepest = self.grid.levels
        except PdapError as error:
            raise ConfigurationError(f"cells: {error}") from None
        largest = self.level_epsilons[deepest]
        expected = f"level_growth that keeps the deepest level's epsilon at most {LARGEST_EPSILON:g}"
        require(largest <= LARGEST_EPSILON, "release.level_growth", expected, self.release.level_growth)
        self._require_rates()

    def _require_rates(self) -> None:
        expected = "1 where a vendor has no vendors.declared_rate, as a trial compares with it"
        require(not self.on_trial or self._all_declared, "learner.clean_share", expected, self.clean_share)

    def _declare(self) -> None:
        """Check the declared features.

        A feature with several values at once is refused, because it is in no single cell.
        """
        require(self.dimension == 0, "features.dimension", "none beside declared features", self.dimension)
        keep(self, declared=declared_features(self.declared))
        found: Mapping[str, Feature] = self.declared.features
        for name, feature in found.items():
            expected = "a category, number, boolean, time_of_day or day_of_week, as each context is in one cell"
            require(bool(feature.level_names), f"features.{name}.kind", expected, feature.kind)
        most = f"at most {LARGEST_DIMENSION}, as each halves every cell"
        require(len(found) <= LARGEST_DIMENSION, "features", most, len(found))

    @property
    def arms(self) -> int:
        """Items of all vendors."""
        return sum(vendor.arms for vendor in self.vendors)

    @property
    def owners(self) -> NDArray[np.int64]:
        """The vendor of each arm, int64 (arms,)."""
        return np.repeat(np.arange(len(self.vendors)), [vendor.arms for vendor in self.vendors])

    @property
    def items(self) -> Mapping[str, range]:
        """The arms of each vendor, by its name."""
        ends = np.cumsum([vendor.arms for vendor in self.vendors]).tolist()
        return {vendor.name: range(end - vendor.arms, end) for vendor, end in zip(self.vendors, ends, strict=True)}

    @property
    def named_items(self) -> bool:
        """Whether items have names, and come and go in a catalogue of each vendor."""
        return self.vendors[0].named

    @property
    def on_trial(self) -> bool:
        """Whether vendors join on trial."""
        return self.trial_share < 1

    @property
    def trial_share(self) -> float:
        """The share of clean visits at a vendor on trial."""
        if self.clean_share is not None:
            return self.clean_share
        return TRIAL_SHARE if max(self.level_epsilons) < 1 and self._all_declared else 1.0

    @property
    def _all_declared(self) -> bool:
        return all(vendor.declared_rate is not None for vendor in self.vendors)

    @property
    def counters(self) -> int:
        """How many counters there are."""
        return len(self.vendors) if self.release.placement == "home" else 1

    @property
    def schedule(self) -> Schedule:
        """Schedule of one counter's windows, by its own outcomes; homes are assumed to be equally busy."""
        release = self.release
        return Schedule(-(-release.first_window // self.counters), release.window_ratio)

    @property
    def grid(self) -> Grid:
        """How contexts become cells.

        Raises:
            CellsExhausted: the cells of the deepest level do not fit their numbers.
        """
        dimension = self.dimension if self.declared is None else len(self.declared.features)
        return Grid(dimension, self.cells.branching, self.cells.levels)

    @property
    def level_epsilons(self) -> tuple[float, ...]:
        """Epsilon of a block of each level, from the root down: eps0 m^(alpha l), in whole millionths, rounded up."""
        release, branching = self.release, self.cells.branching
        asked = [
            release.epsilon * branching ** (release.level_growth * level) for level in range(self.cells.levels + 1)
        ]
        return tuple(float(epsilon_value(epsilon_micro(round(epsilon, 9)))) for epsilon in asked)

    @property
    def least_counts(self) -> tuple[int, ...]:
        """Outcomes that a block of each level must have: max(1, kappa / epsilon), rounded up."""
        kappa = exact(self.release.kappa)
        return tuple(max(1, math.ceil(kappa / exact(epsilon))) for epsilon in self.level_epsilons)
