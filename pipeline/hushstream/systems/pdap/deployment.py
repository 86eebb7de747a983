"""A P-DAP deployment, which all its roles use.

Stages, in order: a ticket of the context's cell (edge) -> the outcome at its deadline -> disjoint blocks with noise (a
counter) -> beliefs of every arm in every cell, and tickets drawn from them (server) -> the next choice (edge).

Source: Zhou et al., Differentially Private Online Learning for Cloud-Based Video Recommendation (P-DAP). Differences to
the paper, and reasons: `hushstream.systems.pdap.counter`.

*Reasons.* Outcomes of an event or a record in P-DAP, besides those of the engine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.catalogue import CatalogueRules
from hushstream.engine.configuration import config_digest
from hushstream.engine.declare.outcomes import Refusal
from hushstream.engine.declare.requests import ContextRules
from hushstream.engine.system import NO_NONCE, Core
from hushstream.engine.values import MAX_RECORD_BYTES, ConfigurationError
from hushstream.privacy.amounts import count_text
from hushstream.privacy.keys import Key
from hushstream.schemas.rows import Reason
from hushstream.schemas.topics import of_party
from hushstream.systems.pdap.algorithm.aggregate import TICKETS
from hushstream.systems.pdap.algorithm.blocks import MECHANISM, KeyedBlockNoise, block_scales
from hushstream.systems.pdap.cells import Int64
from hushstream.systems.pdap.configuration import PdapConfig
from hushstream.systems.pdap.promise import counters_topic, priced
from hushstream.systems.pdap.records import ticket_type

BEYOND_HORIZON = "beyond_horizon"
"""An outcome that came after the horizon of its counter; this is public."""


ARM_CHANGED = "arm_changed"
"""A vendor retired an item, or offered it: public."""


class PdapRefusal(StrEnum):
    """Why a role sent a record to the dead letters."""

    CONTEXT_OUTSIDE = "context_outside"
    """An entry of a context is not from 0 to 1."""
    REWARD_OFF_LEVELS = "reward_off_levels"
    MALFORMED_OUTCOMES = "malformed_outcomes"
    OTHER_COUNTER = "other_counter"
    ARM_OF_ANOTHER_VENDOR = "arm_of_another_vendor"
    """A change of an item by a vendor that does not own it."""


NAME = "pdap"
"""Its name in configurations and noise addresses."""

TRACK = "tickets"
"""The one model track. A context names its home vendor in the field ``track``."""

_ROOM_BYTES = 1 << 16
_LEVEL_MARGIN = 1e-6
"""Tolerance between a reward and a level, for the rounding of a division by the number of levels."""


class PdapSystem(Core[PdapConfig]):
    """A configuration, and whether a public dataset is replayed under it."""

    @classmethod
    def of(cls, config: PdapConfig, public_dataset: bool = False) -> PdapSystem:
        """Make a deployment; ``public_dataset``: whether a public dataset is replayed.

        Raises:
            ConfigurationError: a model of this size would not fit into a record, or the budget does not cover one
                epoch.
        """
        require_publishable(config)
        return cls(config, config_digest(config, public_dataset), priced(config), public_dataset=public_dataset)

    @property
    def counts(self) -> Mapping[str, int]:
        """Numbers of partitions. If each vendor has a topic of its own, the number is that of one vendor's topic."""
        config = self.config
        return {
            "learner": config.partitions.learner,
            "counter": 1,
            "scopes": 1,
            "tracks": 1,
        }

    @cached_property
    def homes(self) -> Mapping[str, int]:
        """Number of each vendor, by its name."""
        return {vendor.name: number for number, vendor in enumerate(self.config.vendors)}

    @cached_property
    def requests(self) -> ContextRules:
        """See `System.requests`: contexts are numbers from 0 to 1 or values of the declared features.

        The track is the user's home vendor.
        """
        levels = self.config.release.reward_levels
        schema = self.config.declared
        numbers = ContextRules(
            arms=self.config.arms,
            width=self.config.grid.dimension,
            good=inside,
            refusal=PdapRefusal.CONTEXT_OUTSIDE,
            expected="numbers from 0 to 1",
            tracks=self.homes,
            catalogues=self.catalogues,
            good_reward=lambda reward: self.within_levels(reward) is not None,
            expected_reward=f"a multiple of 1/{levels} from 0 to 1 (feedback.reward_levels)",
            shadow=self.config.mode == "shadow",
        )
        if schema is None:
            return numbers
        return replace(
            numbers,
            width=schema.row_bytes,
            good=schema.readable,
            refusal=Refusal.MALFORMED_FEATURES,
            expected="values of the declared features",
            features=schema,
        )

    @cached_property
    def catalogues(self) -> Mapping[str, CatalogueRules]:
        """Rules of each vendor's catalogue; none if items have no names.

        No row is given to another item, because outcomes of a cell with few of them may wait in a counter for ever.
        """
        if not self.config.named_items:
            return {}
        return {
            vendor: CatalogueRules(len(arms), None, self.digest, party=vendor, first=arms.start)
            for vendor, arms in self.config.items.items()
        }

    @cached_property
    def owners(self) -> Int64:
        """The vendor of each arm."""
        return self.config.owners

    def counter_of(self, home: int) -> int:
        """The counter for outcomes of a home vendor's users."""
        return home if self.config.counters > 1 else 0

    def own_topic(self, name: str, home: int) -> str:
        """The name of one vendor's topic, for a topic that each vendor has."""
        return of_party(name, self.config.vendors[home].name)

    def counters_topic(self, name: str, vendor: str) -> str:
        """A topic of the counter that takes a vendor's outcomes."""
        return counters_topic(self.config, name, vendor)

    def bad_change(self, arm: int, home: int | None) -> str | None:
        """Why a vendor (None: an unknown one) cannot offer or retire the item of an arm; None if it can."""
        if not 0 <= arm < self.config.arms:
            return Reason.UNKNOWN_ARM
        return None if home in (None, self.owners[arm]) else PdapRefusal.ARM_OF_ANOTHER_VENDOR

    @property
    def origins(self) -> int:
        """Number of learner partitions that end a phase for a counter: of all vendors, or of its own."""
        return self.config.partitions.learner * (len(self.homes) // self.config.counters)

    def origin_of(self, home: int, partition: int) -> int:
        """The number of a home vendor's learner partition among the `origins`."""
        return partition if self.config.counters > 1 else home * self.config.partitions.learner + partition

    @cached_property
    def settle_ms(self) -> int:
        """How long a decision waits for its reward."""
        return max(1, math.ceil(self.config.feedback.attribution_window_seconds * 1000))

    @cached_property
    def open_ms(self) -> int | None:
        """How long a window stays open after its first outcome in log time; None if log time closes no window."""
        seconds = self.config.release.seconds
        return None if seconds is None else max(1, math.ceil(seconds * 1000))

    def noise(self, key: Key, genesis_nonce: bytes, epoch: int, counter: int) -> KeyedBlockNoise:
        """The noise of one counter in one journal and epoch."""
        nonce = genesis_nonce or NO_NONCE
        address = self.noise_address("release-noise", MECHANISM, {}, nonce, epoch, counter)
        return KeyedBlockNoise(key, address, block_scales(self.config))

    @cached_property
    def parameters(self) -> str:
        """Every parameter of the mechanism, as in the journal."""
        scales = [f"{top}/{bottom}" for top, bottom in block_scales(self.config)]
        values = {"least": list(self.config.least_counts), "scales": scales}
        return json.dumps(values, sort_keys=True, separators=(",", ":"))

    def within_levels(self, reward: float) -> int | None:
        """A reward from 0 to 1 as a number of reward levels; None if it lies between two levels."""
        found = reward * self.config.release.reward_levels
        level = round(found)
        return level if abs(level - found) <= _LEVEL_MARGIN else None


def inside(contexts: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which rows of (n, d) have entries from 0 to 1."""
    return np.asarray(((contexts >= 0) & (contexts <= 1)).all(axis=1))


def require_publishable(config: PdapConfig) -> None:
    """Refuse a configuration whose models would be too large, before anything runs.

    Raises:
        ConfigurationError: the tickets of all cells do not fit one record.
    """
    row = TICKETS * ticket_type(config.arms).itemsize + 12
    most = (MAX_RECORD_BYTES - _ROOM_BYTES) // row
    if config.cells.cap > most:
        raise ConfigurationError(
            f"cells.cap: expected at most {most} for {count_text(config.arms, 'arm')} (a version holds "
            f"{TICKETS} tickets a cell), "
            f"got {config.cells.cap}"
        )
