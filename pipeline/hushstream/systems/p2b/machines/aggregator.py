"""The aggregator role (server zone): makes versions of a model from noised sums.

It makes one new version after each window's sums, from the running totals of all windows. The models topic is the
journal. Its content is public, so its digests need no key.

*Totals.* The running totals of linear sums, and the model that follows from them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.batch import Batch, Refused
from hushstream.engine.catalogue import rows_of_known
from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.devices.envelope import STATEMENT_RECORD
from hushstream.engine.devices.signing import Signer
from hushstream.engine.journal.chain import EXACT, Rounding
from hushstream.engine.learner.model_parts import aggregator_identity
from hushstream.engine.one_input import PUBLISHING, PublishingRole
from hushstream.engine.records import MODEL_PARTS, PART, InputSlice, Output, Step
from hushstream.engine.release_parts import BadPart, PartSets, parts_of, record_of, whole_digest
from hushstream.engine.state.declared import FIXED, State, optional_part, own_part
from hushstream.schemas import codec
from hushstream.systems.p2b.deployment import PRIVATE, FeaturesForm, P2BSystem
from hushstream.systems.p2b.models import Statement, content_of
from hushstream.systems.p2b.server.estimate import (
    AggregationError,
    Effects,
    WarmStart,
    effects,
    model_from_sums,
    pooled,
    warm_start,
)
from hushstream.systems.p2b.server.prior import item_vectors, shaped_effects
from hushstream.systems.p2b.server.totals import Int64, ItemTotals, WindowTotals, fade_of_sums
from hushstream.systems.p2b.slots import shapes_priors
from hushstream.systems.p2b.topics import SERVER_ZONE, STATEMENTS


@dataclass(frozen=True, slots=True)
class FeatureModelFields:
    """The content of a published model of declared features, and the price of the slots behind it."""

    start: WarmStart
    layout_digest: bytes
    observations: float
    stated: Mapping[str, Any]
    catalogue: int
    """The version of the catalogue."""
    entries: bytes
    """The versions at which the items of its rows entered, as its record has them."""

    def fields(self) -> dict[str, Any]:
        """The fields that only this form of a model's record has."""
        return {
            "cells": self.start.means.shape[1],
            "layout_digest": self.layout_digest,
            "means": self.start.means.astype("<f8").tobytes(),
            "variances": self.start.variances.astype("<f8").tobytes(),
            "reward_variance": self.start.reward_variance,
            "catalogue": self.catalogue,
            "entries": self.entries,
        }

    def digested(self, fields: Mapping[str, Any]) -> tuple[Any, ...]:
        """The input of the record's digest: a purpose, and parts of `fields`."""
        arrays = (fields["layout_digest"], fields["means"], fields["variances"])
        return ("feature-model", *arrays, struct.pack("<d", fields["reward_variance"]), self.entries)


class FeatureTotals:
    """The running totals of all linear sums of a deployment (post-processing of what was released).

    The total of each row begins when its item entered.
    """

    rounding = EXACT
    """Models are made with operations that IEEE 754 fixes (`server.elementary`)."""

    def __init__(self, system: P2BSystem) -> None:
        """Begin without windows."""
        config, form = system.config, system.linear
        self._system, self._form, self._horizon = system, form, config.slot.after_interactions
        self._fade, self._items = fade_of_sums(config), config.item_features
        self._kept = ItemTotals(*form.shape, system.window_tree is not None, self._fade, form.start is not None)
        self._as_stated = True

    @property
    def slots(self) -> int:
        """The number of slots in all windows (public), nulls included."""
        return self._kept.slots

    def add(self, record: Mapping[str, Any]) -> bool:
        """Add a record of sums; if it is not of this deployment's layout, change nothing and return False."""
        if not _of_layout(self._form, record) or not self._describes_items(record["features"]):
            return False
        try:
            ones, zeros = sums_of(record, self._form.shape)
            entries = np.frombuffer(record["entries"], "<i4").astype(np.int32)
            variance, slots, catalogue = (record[name] for name in ("variance", "slots", "catalogue"))
            self._kept.add(ones, zeros, variance, slots, catalogue, entries, record["features"])
        except (ValueError, AggregationError):
            return False
        self._as_stated = self._as_stated and record["private_as_stated"]
        return True

    def model(self) -> FeatureModelFields:
        """The model that follows from the totals. Rows that never had an item hold only noise, and are left out."""
        totals, form = self._kept, self._form
        start = form.beginning
        rows = np.flatnonzero(totals.entries > 0)
        slots = 0.0
        if rows.size:
            found = self._effects(rows)
            own = warm_start(found, form.chance, self._horizon)
            start.means[rows], start.variances[rows] = own.means, own.variances
            start, slots = start._replace(reward_variance=own.reward_variance), found.slots
        known = form.before
        if known is not None:
            same = np.flatnonzero(rows_of_known(totals.entries, len(known.model.means)))
            faded = self._faded()
            start = pooled(known, faded, start, same, slots * totals.behind(same), slots)
            slots += faded * known.slots
        return FeatureModelFields(
            start,
            form.layout_digest,
            slots,
            self._system.stated[self._system.private_as_stated and self._as_stated],
            totals.catalogue,
            totals.entries.astype("<i4").tobytes(),
        )

    def _describes_items(self, features: bytes) -> bool:
        """Whether these are the public features of all rows' items, row after row."""
        schema, arms = self._items, self._form.shape[0]
        if schema is None or len(features) != arms * schema.row_bytes:
            return schema is None and not features
        return bool(schema.readable(np.frombuffer(features, np.uint8).reshape(arms, -1)).all())

    def _effects(self, rows: NDArray[np.intp]) -> Effects:
        """The effects of rows that have or had an item."""
        totals, schema = self._kept, self._items
        layout, sums = replace(self._form.layout, arms=int(rows.size)), totals.weighted_sums(rows)
        if schema is None or not shapes_priors(schema, totals.entries):
            return effects(layout, *sums)
        return shaped_effects(layout, *sums, item_vectors(schema, schema.read(totals.features)[rows]))

    def dump(self) -> bytes:
        """The totals as bytes, for a snapshot."""
        return bytes([self._as_stated]) + self._kept.dump()

    def load(self, dumped: bytes) -> None:
        """Return to what `dump` wrote."""
        self._kept.load(dumped[1:])
        self._as_stated = dumped[:1] == b"\x01"

    def _faded(self) -> float:
        """The factor by which all windows so far have reduced the weight of a model that came before them."""
        # A product in order: powers are rounded differently by different machines.
        return math.prod(repeat(self._fade, self._kept.windows))


def sums_of(record: Mapping[str, Any], shape: tuple[int, int]) -> tuple[Int64, Int64]:
    """The sums in a record, for reward 1 and for reward 0, int64 of ``shape`` each.

    Raises:
        ValueError: the sums have another size.
    """
    ones, zeros = (np.frombuffer(record[name], "<i8").astype(np.int64).reshape(shape) for name in ("ones", "zeros"))
    return ones, zeros


def _of_layout(form: FeaturesForm, record: Mapping[str, Any]) -> bool:
    return all(record[name] == value for name, value in form.domain.items())


_WHOLE = State("an aggregator's state", "AggregatorState", PUBLISHING, totals=own_part())
"""The state if the sums of a window are one record."""

_IN_PARTS = State(
    "an aggregator's state with parts",
    "PartedAggregatorState",
    _WHOLE.fields,
    parts=optional_part("parts of windows' sums"),
)
"""The state if sums come, and models leave, in parts."""


class AggregatorMachine(PublishingRole):
    """The aggregator of the shared model."""

    state = _IN_PARTS
    derived: ClassVar[Mapping[str, str]] = {
        "track": FIXED,
        "rounding": FIXED,
        "_kinds": FIXED,
        "state": FIXED,
        "_signer": FIXED,
    }
    system: P2BSystem

    def __init__(self, system: P2BSystem, track: int, signer: Signer | None = None) -> None:
        """Bind to a deployment and a track.

        Args:
            system: the deployment.
            track: its partition of models, 0.
            signer: signs models, where devices take them.
        """
        source = ("window-sums", track)
        schema = system.form.model_record
        super().__init__(system, aggregator_identity(system, track), schema, source, SERVER_ZONE)
        self.track = track
        self._signer = signer
        coded = system.config.release.form == "codes"
        self.totals: PrivateTotals | FeatureTotals = PrivateTotals(system) if coded else FeatureTotals(system)
        self.rounding = self.totals.rounding
        in_parts = system.form.parts > 1
        # A shuffler that stops between two parts sends the set again; one that never does leaves an incomplete set
        # behind. So there is room for two sets of each shuffler.
        self.parts = PartSets(2 * system.config.partitions.shuffler) if in_parts else None
        self.state = _IN_PARTS if in_parts else _WHOLE
        self._kinds = frozenset({PART if in_parts else system.form.sums_record})

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: a version for each window's sums."""
        batch = Batch(self)
        for record, name, fields, reason in self.read(slices, self._kinds):
            version_follows = False
            try:
                if reason:
                    raise Refused(reason)
                if name == self.system.form.sums_record:
                    version_follows = self._add_sums(fields, batch)
                else:
                    version_follows = self._part(fields, batch)
            except Refused as error:
                batch.refuse(error.reason, record)
            if version_follows:
                high, version = record.offset + 1, self._version()
                if self._signer is not None:
                    self._publish_signed(high, version, batch, record.timestamp_ms, self._signer)
                else:
                    publish = self._publish_in_parts if self.system.form.parts > 1 else self.publish
                    publish(high, version, batch)
        return self.finished(slices, batch)

    def _publish_signed(self, high: int, fields: dict[str, Any], batch: Batch, now_ms: int, signer: Signer) -> None:
        """Publish a version, and behind it the signed statement that devices take."""
        self.publish(high, fields, batch, lambda stands: (self._stated(stands, now_ms, signer),))

    def _stated(self, fields: Mapping[str, Any], now_ms: int, signer: Signer) -> Output:
        """The signed statement of a version, as devices take it."""
        system = self.system
        content, digest = content_of(fields["means"], fields["variances"])
        statement = Statement(
            deployment=system.config.deployment,
            configuration=system.digest.hex(),
            layout=fields["layout_digest"].hex(),
            arms=fields["arms"],
            cells=fields["cells"],
            version=fields["version"],
            issued_ms=now_ms,
            expires_ms=now_ms + system.config.valid_ms,
            reward_variance=fields["reward_variance"],
            epsilon_micro=fields["epsilon_micro"],
            delta_units=str(int.from_bytes(fields["delta_units"], "big")),
            private_as_stated=fields["private_as_stated"],
            content_sha256=digest,
            content_bytes=len(content),
        )
        record = statement.signed(signer, system.digest, content)
        return Output(STATEMENTS.name, self.track, codec.encode(STATEMENT_RECORD, record))

    def _publish_in_parts(self, high: int, fields: dict[str, Any], batch: Batch) -> None:
        """Publish a version, and behind its record its arrays in parts."""
        content = fields.pop("means") + fields.pop("variances")
        parts = parts_of(content, self.system.digest)
        large = {**fields, "whole": whole_digest(content), "parts": len(parts)}
        self.publish(high, large, batch, lambda _: tuple(Output(MODEL_PARTS, self.track, one) for one in parts))

    def _version(self) -> dict[str, Any]:
        """The fields of the next version without head and number."""
        model = self.totals.model()
        fields = model.fields()
        return {
            "line": PRIVATE,
            "arms": self.system.config.arms,
            **fields,
            "observations": model.observations,
            **model.stated,
            "digest": self.chain.digester.digest(*model.digested(fields)),
        }

    def _part(self, fields: dict[str, Any], batch: Batch) -> bool:
        """Take a part of a window's sums, and with the last part the whole; returns whether a version follows."""
        assert self.parts is not None, "parts are read where sums come in parts"
        try:
            content, gave_up = self.parts.take(fields)
            batch.counts[Outcome.INCOMPLETE_RELEASE] += gave_up
            batch.counts[Outcome.RELEASE_PART] += 1
            if content is None:
                return False
            record = record_of(content, self.system.form.sums_record)
        except BadPart:
            raise Refused(Refusal.MALFORMED_PART) from None
        if record["config_digest"] != self.system.digest:
            raise Refused(Refusal.OTHER_CONFIGURATION)
        return self._add_sums(record, batch)

    def _add_sums(self, fields: dict[str, Any], batch: Batch) -> bool:
        window_id = fields["window_id"].hex()
        if window_id in self.known:
            batch.counts[Outcome.REPEATED_WINDOW_SUMS] += 1
            return False
        if not self.totals.add(fields):
            raise Refused(Refusal.OTHER_CONFIGURATION)
        self.known.put(window_id, None)
        batch.counts[Outcome.WINDOW_SUMS] += 1
        return True


@dataclass(frozen=True, slots=True)
class ModelFields:
    """The content of a published model of codes: its arrays, and the price of the slots behind it."""

    gram: NDArray[np.float64]
    moment: NDArray[np.float64]
    observations: float
    stated: Mapping[str, Any]

    def fields(self) -> dict[str, Any]:
        """The fields that only this form of a model's record has."""
        return {
            "dimension": self.moment.shape[1],
            "gram": self.gram.astype("<f8").tobytes(),
            "moment": self.moment.astype("<f8").tobytes(),
        }

    def digested(self, fields: Mapping[str, Any]) -> tuple[str, bytes, bytes]:
        """The input of the record's digest: a purpose, and parts of `fields`."""
        return ("model", fields["gram"], fields["moment"])


_ROUNDING = Rounding({"gram": "<f8", "moment": "<f8", "observations": "<f8"}, 1e-9, ("digest",))


class PrivateTotals:
    """The running totals of all windows of a deployment of codes (post-processing of what was released)."""

    rounding = _ROUNDING

    def __init__(self, system: P2BSystem) -> None:
        """Begin without windows."""
        config = system.config
        self._config = config
        self._domain = (system.codes, config.arms, config.release.levels)
        self._centroids = system.encoder.centroids
        self._system = system
        self._totals = WindowTotals(system.codes, config.arms)
        self._as_stated = True

    def add(self, record: Mapping[str, Any]) -> bool:
        """Add a record of sums; if it is not of this deployment's domain, change nothing and return False."""
        if (record["codes"], record["arms"], record["levels"]) != self._domain:
            return False
        shape = self._domain[:2]
        try:
            ones, zeros = (
                np.frombuffer(record[name], "<i8").astype(np.int64).reshape(shape) for name in ("ones", "zeros")
            )
            self._totals.add(ones, zeros, record["variance"], record["slots"])
        except (ValueError, AggregationError):
            return False
        self._as_stated = self._as_stated and record["private_as_stated"]
        return True

    def model(self) -> ModelFields:
        """The model that follows from the totals."""
        config, totals = self._config, self._totals
        sums = model_from_sums(
            totals.ones,
            totals.zeros,
            config.release.levels,
            totals.variance,
            self._centroids,
            config.learner.ridge,
        )
        return ModelFields(
            sums.gram,
            sums.moment,
            sums.observations,
            self._system.stated[self._system.private_as_stated and self._as_stated],
        )

    @property
    def slots(self) -> int:
        """The number of slots in all windows (public), nulls included."""
        return self._totals.slots

    def dump(self) -> bytes:
        """The totals as bytes, for a snapshot."""
        return bytes([self._as_stated]) + self._totals.dump()

    def load(self, dumped: bytes) -> None:
        """Return to what `dump` wrote."""
        self._totals = WindowTotals.load(dumped[1:])
        self._as_stated = dumped[:1] == b"\x01"
