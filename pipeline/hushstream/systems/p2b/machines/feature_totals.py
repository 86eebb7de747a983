"""The running totals of linear sums, and the model that follows from them."""

from __future__ import annotations

import math
import struct
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any, Generic, TypeVar

import numpy as np

from hushstream.engine.catalogue import rows_of_known
from hushstream.engine.journal.chain import EXACT
from hushstream.systems.p2b.contribution.feature_layout import FeatureLayout
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.guarantee.form import FeaturesForm
from hushstream.systems.p2b.server.effects import RawEffects, effects, raw_effects
from hushstream.systems.p2b.server.errors import AggregationError
from hushstream.systems.p2b.server.fading import Int64, WeightedSums
from hushstream.systems.p2b.server.forgetting import fades_of_crowds
from hushstream.systems.p2b.server.half_lives import HalfLives, add_crowd, log_score
from hushstream.systems.p2b.server.item_totals import Int32, ItemTotals
from hushstream.systems.p2b.server.pooling import pooled
from hushstream.systems.p2b.server.totals import CrowdTotals
from hushstream.systems.p2b.server.warm_start import WarmStart, warm_start
from hushstream.systems.p2b.shuffler.windows import ItemRows

Kept = TypeVar("Kept", CrowdTotals, ItemTotals)


@dataclass(frozen=True, slots=True)
class FeatureModelFields:
    """The content of a published model of declared features, and the price of the slots behind it."""

    start: WarmStart
    layout_digest: bytes
    observations: float
    stated: Mapping[str, Any]
    item_rows: ItemRows | None = None
    """The items that its rows stand for; None if items have no names."""

    def fields(self) -> dict[str, Any]:
        """The fields that only this form of a model's record has."""
        return {
            "cells": self.start.means.shape[1],
            "layout_digest": self.layout_digest,
            "means": self.start.means.astype("<f8").tobytes(),
            "variances": self.start.variances.astype("<f8").tobytes(),
            "reward_variance": self.start.reward_variance,
            **({} if self.item_rows is None else self.item_rows._asdict()),
        }

    def digested(self, fields: Mapping[str, Any]) -> tuple[Any, ...]:
        """The input of the record's digest: a purpose, and parts of `fields`."""
        arrays = (fields["layout_digest"], fields["means"], fields["variances"])
        entries = () if self.item_rows is None else (self.item_rows.entries,)
        return ("feature-model", *arrays, struct.pack("<d", fields["reward_variance"]), *entries)


class _Totals(Generic[Kept]):
    """The common part of totals of linear sums, whatever they keep for each half-life."""

    rounding = EXACT
    """Models are made with operations that IEEE 754 fixes (`server.elementary`)."""

    def __init__(self, system: P2BSystem, make: Callable[[float], Kept]) -> None:
        """Begin without windows; ``make`` makes the totals of one half-life."""
        config = system.config
        self._system, self._form, self._horizon = system, system.linear, config.slot.after_interactions
        self._kept: HalfLives[Kept] = HalfLives(make, fades_of_crowds(config), config.partitions.shuffler)
        self._as_stated = True

    def dump(self) -> bytes:
        """The totals as bytes, for a snapshot."""
        return bytes([self._as_stated]) + self._kept.dump()

    @property
    def slots(self) -> int:
        """The number of slots in all windows (public), nulls included."""
        return self._kept.best.slots

    @abstractmethod
    def released(self) -> tuple[FeatureLayout, WeightedSums]:
        """The sums from which a model is made, and the layout of their items."""

    def effects(self) -> RawEffects:
        """The effects of items and features in the sums of all windows, before shrinkage."""
        layout, sums = self.released()
        return raw_effects(layout, *sums)


class FeatureTotals(_Totals[CrowdTotals]):
    """The running totals of all linear sums of a deployment (post-processing of what was released)."""

    def __init__(self, system: P2BSystem) -> None:
        """Begin without windows."""
        super().__init__(system, partial(CrowdTotals, *system.linear.shape))

    def add(self, crowd: Mapping[str, Any]) -> bool:
        """Add a record of sums; if it is not of this deployment's layout, change nothing and return False."""
        if not _of_layout(self._form, crowd):
            return False
        try:
            ones, zeros = sums_of(crowd, self._form.shape)
            add_crowd(self._kept, self._form.layout, ones, zeros, crowd["variance"], crowd["slots"])
        except (ValueError, AggregationError):
            return False
        self._as_stated = self._as_stated and crowd["private_as_stated"]
        return True

    def model(self) -> FeatureModelFields:
        """The model that follows from the totals."""
        form = self._form
        totals = self._kept.best
        found = effects(form.layout, *totals.weighted_sums())
        start, slots = warm_start(found, form.chance, self._horizon), found.slots
        known = form.before
        if known is not None:
            faded, rows = _faded(self._kept), np.arange(len(known.model.means))
            start = pooled(known, faded, start, rows, np.full(len(rows), found.slots), found.slots)
            slots = found.slots + faded * known.slots
        return FeatureModelFields(
            start,
            form.layout_digest,
            slots,
            self._system.stated[self._system.private_as_stated and self._as_stated],
        )

    def load(self, dumped: bytes) -> None:
        """Return to what `dump` wrote."""
        self._kept.load(dumped[1:], CrowdTotals.load)
        self._as_stated = dumped[:1] == b"\x01"

    def released(self) -> tuple[FeatureLayout, WeightedSums]:
        """See `_Totals.released`: the sums of all items."""
        return self._form.layout, self._kept.best.weighted_sums()


class NamedTotals(_Totals[ItemTotals]):
    """The running totals of a deployment whose items have names: the total of each row begins when its item entered."""

    def __init__(self, system: P2BSystem) -> None:
        """Begin without windows."""
        super().__init__(system, self._make)

    def add(self, crowd: Mapping[str, Any]) -> bool:
        """Add a record of sums; if it is not of this deployment's layout, change nothing and return False."""
        if not _of_layout(self._form, crowd):
            return False
        try:
            ones, zeros = sums_of(crowd, self._form.shape)
            entries = np.frombuffer(crowd["entries"], "<i4").astype(np.int32)
            variance, slots, catalogue = (crowd[name] for name in ("variance", "slots", "catalogue"))
            self._kept.add(
                lambda totals: totals.add(ones, zeros, variance, slots, catalogue, entries),
                partial(self._log_score, WeightedSums(ones, zeros, variance), entries),
            )
        except (ValueError, AggregationError):
            return False
        self._as_stated = self._as_stated and crowd["private_as_stated"]
        return True

    def model(self) -> FeatureModelFields:
        """The model that follows from the totals. Rows that never had an item hold only noise, and are left out."""
        totals, form = self._kept.best, self._form
        start = form.beginning
        rows = np.flatnonzero(totals.entries > 0)
        slots = 0.0
        if rows.size:
            layout = replace(form.layout, arms=int(rows.size))
            found = effects(layout, *totals.weighted_sums(rows))
            own = warm_start(found, form.chance, self._horizon)
            start.means[rows], start.variances[rows] = own.means, own.variances
            start, slots = start._replace(reward_variance=own.reward_variance), found.slots
        known = form.before
        if known is not None:
            same = np.flatnonzero(rows_of_known(totals.entries, len(known.model.means)))
            faded = _faded(self._kept)
            start = pooled(known, faded, start, same, slots * totals.behind(same), slots)
            slots += faded * known.slots
        return FeatureModelFields(
            start,
            form.layout_digest,
            slots,
            self._system.stated[self._system.private_as_stated and self._as_stated],
            ItemRows(totals.catalogue, totals.entries.astype("<i4").tobytes()),
        )

    def load(self, dumped: bytes) -> None:
        """Return to what `dump` wrote."""
        self._kept.load(dumped[1:], self._read)
        self._as_stated = dumped[:1] == b"\x01"

    def released(self) -> tuple[FeatureLayout, WeightedSums]:
        """See `_Totals.released`: the sums of rows that have had an item."""
        totals = self._kept.best
        rows = np.flatnonzero(totals.entries > 0)
        return replace(self._form.layout, arms=int(rows.size)), totals.weighted_sums(rows)

    def _log_score(self, window: WeightedSums, entries: Int32, totals: ItemTotals) -> float:
        """How well totals predicted a window (`log_score`), in rows with the same item before and in the window."""
        rows = np.flatnonzero((totals.entries > 0) & (totals.entries == entries))
        if not rows.size:
            return 0.0
        layout = replace(self._form.layout, arms=int(rows.size))
        found = WeightedSums(window.ones[rows], window.zeros[rows], window.variance)
        return log_score(layout, totals.weighted_sums(rows), found)

    def _make(self, fade: float) -> ItemTotals:
        carried, started = self._system.window_tree is not None, self._form.start is not None
        return ItemTotals(*self._form.shape, carried, fade, started)

    def _read(self, dumped: bytes, fade: float) -> ItemTotals:
        totals = self._make(fade)
        totals.load(dumped)
        return totals


def _faded(kept: HalfLives[Any]) -> float:
    """The factor by which all windows so far have reduced the weight of a model that came before them."""
    # A product in order: powers are rounded differently by different machines.
    return math.prod(repeat(kept.fade, kept.best.crowds))


def sums_of(crowd: Mapping[str, Any], shape: tuple[int, int]) -> tuple[Int64, Int64]:
    """The sums in a record, for reward 1 and for reward 0, int64 of ``shape`` each.

    Raises:
        ValueError: the sums have another size.
    """
    ones, zeros = (np.frombuffer(crowd[name], "<i8").astype(np.int64).reshape(shape) for name in ("ones", "zeros"))
    return ones, zeros


def _of_layout(form: FeaturesForm, crowd: Mapping[str, Any]) -> bool:
    return all(crowd[name] == value for name, value in form.domain.items())
