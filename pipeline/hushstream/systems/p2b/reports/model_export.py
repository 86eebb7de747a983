"""A released model as one file, for whoever decides with it elsewhere: its numbers, and decisions that must come out.

A file holds what a new user starts from: coefficients of every item and cell, independent and normal, with the declared
features that make cells of a context. Its score of an item is mean plus deviation, sum m_j x_j + sqrt(sum D_j x_j^2),
as a learner's of somebody who was never seen (`hushstream.learners.sparse`); x has 1 for the constant and a feature's
shares in its cells. What a user learns alone is not in it, and nothing that was not released before.

*Golden decisions* are made by the learner's own kernel when the file is written: contexts by the values of their
features, with the score of every item. `ExportedModel.read` computes them anew, in double precision and by these
formulas alone, and refuses a file of which they do not come out.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.catalogue import Catalogue
from hushstream.features.errors import FeatureError
from hushstream.features.kinds import Boolean, Category, Cross, DayOfWeek, Embedding, Feature, Histogram, Number, Tags
from hushstream.features.schema import FeatureSchema, declare
from hushstream.privacy.amounts import delta_from_bytes, delta_value, epsilon_float, float_up
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.deployment import TRACKS, P2BSystem
from hushstream.systems.p2b.machines.models import decode_model
from hushstream.systems.p2b.reports.model_report import released_fields, shown_rows

Float64 = NDArray[np.float64]

FORMAT, FORMAT_VERSION = "hushstream model", 1
_GOLDEN = 12
_TOLERANCE = 1e-5
"""Of a golden score: a learner keeps coefficients as float32."""

_ARRAYS = ("means", "variances")


class Golden(NamedTuple):
    """A decision that must come out.

    Attributes:
        context: values of features by name.
        scores: of every item, in the order of ``items``.
        item: the one to show.
    """

    context: Mapping[str, Any]
    scores: Sequence[float]
    item: int | str


@dataclass(frozen=True, slots=True, eq=False)
class ExportedModel:
    """A version of a released model.

    Attributes:
        about: where it comes from: system, deployment, configuration digest, version, slots, and its price.
        schema: the declared features.
        items: ids of the items, or their numbers.
        means, variances: (K, P) of coefficients; the constant's cell comes first.
        golden: decisions that must come out.
    """

    about: Mapping[str, Any]
    schema: FeatureSchema
    items: tuple[int | str, ...]
    means: Float64
    variances: Float64
    golden: tuple[Golden, ...]

    @classmethod
    def read(cls, content: bytes) -> ExportedModel:
        """The model of a file, JSON or npz, whose golden decisions come out.

        Raises:
            HushstreamError: it is no such file, or a golden decision comes out otherwise.
        """
        try:
            model = cls._of(_values(content))
        except (KeyError, TypeError, ValueError, BadZipFile, FeatureError) as error:
            raise HushstreamError(f"model file: expected an exported model, got another ({error!r})") from None
        model.require_golden()
        return model

    @classmethod
    def _of(cls, values: Mapping[str, Any]) -> ExportedModel:
        kind = (values["format"], values["format_version"])
        if kind != (FORMAT, FORMAT_VERSION):
            raise ValueError(f"format {kind}")
        schema, items = declare(values["features"]), tuple(values["items"])
        means, variances = (np.array(values[name], dtype=np.float64) for name in _ARRAYS)
        shape = (len(items), schema.cells + 1)
        if means.shape != shape or variances.shape != shape or not (variances > 0).all():
            raise ValueError(f"shapes {means.shape} and {variances.shape}")
        golden = tuple(Golden(**one) for one in values["golden"])
        return cls(values["about"], schema, items, means, variances, golden)

    def scores(self, context: Mapping[str, Any]) -> Float64:
        """(K,) the score of each item for the values of features by name; see the module.

        Raises:
            FeatureError: a name that is not declared.
        """
        cells, values = self._places(context)
        means, variances = self.means[:, cells] @ values, self.variances[:, cells] @ values**2
        return np.asarray(means + np.sqrt(variances))

    def rewards(self, context: Mapping[str, Any]) -> Float64:
        """(K,) the reward that the model expects of each item."""
        cells, values = self._places(context)
        return np.asarray(self.means[:, cells] @ values)

    def decide(self, context: Mapping[str, Any], eligible: Collection[int | str] | None = None) -> int | str:
        """The item with the highest score, the first of several.

        Raises:
            HushstreamError: no item of the model is eligible.
        """
        rows = [row for row, item in enumerate(self.items) if eligible is None or item in eligible]
        if not rows:
            raise HushstreamError("eligible: expected an item of the model, got none")
        return self.items[rows[int(self.scores(context)[rows].argmax())]]

    def require_golden(self) -> None:
        """Refuse a model of which the golden decisions do not come out.

        Raises:
            HushstreamError: a score is another one, or another item is decided that scores less.
        """
        for number, golden in enumerate(self.golden):
            found, expected = self.scores(golden.context), np.array(golden.scores)
            if found.shape != expected.shape or not (np.abs(found - expected) <= _TOLERANCE).all():
                raise HushstreamError(f"model file: expected the scores of golden decision {number}, got others")
            decided = self.items.index(self.decide(golden.context))
            stated = self.items.index(golden.item)
            # Two items may score alike but for how floats are rounded.
            if found[decided] - found[stated] > 2 * _TOLERANCE:
                raise HushstreamError(f"model file: expected golden decision {number}, got another item")

    def as_json(self) -> bytes:
        """A file of it as JSON."""
        arrays = {name: getattr(self, name).tolist() for name in _ARRAYS}
        return (json.dumps({**self._plain(), **arrays}, indent=1, ensure_ascii=False) + "\n").encode()

    def as_npz(self) -> bytes:
        """A file of it as numpy's archive: arrays, and all else as JSON in the array ``model``."""
        content = BytesIO()
        plain = np.frombuffer(json.dumps(self._plain(), ensure_ascii=False).encode(), np.uint8)
        np.savez(content, model=plain, means=self.means, variances=self.variances)
        return content.getvalue()

    def _plain(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "about": dict(self.about),
            "features": self.schema.plain,
            "cells": ["all visits", *self.schema.cell_names()],
            "items": list(self.items),
            "golden": [one._asdict() for one in self.golden],
        }

    def _places(self, context: Mapping[str, Any]) -> tuple[NDArray[np.int64], Float64]:
        blocks = self.schema.blocks(self.schema.read(self.schema.encode(context).row))
        cells = np.concatenate([[0], blocks.cells[0] + 1])
        return cells, np.concatenate([[1.0], blocks.values[0]])


def export_model(
    system: P2BSystem, values: Iterable[bytes], version: int | None = None, catalogue: Catalogue | None = None
) -> ExportedModel:
    """A version of the released model, the newest if none is named; arguments as of `read_model`.

    Raises:
        HushstreamError: there is no such version, or it is one of codes.
    """
    if system.config.release.form != "features":
        raise HushstreamError("model: expected a deployment of declared features, got one of codes")
    fields = released_fields(system, values, version)
    arrays = decode_model(system, fields).arrays
    rows, shown = shown_rows(system, fields, catalogue)
    schema: FeatureSchema = system.linear.layout.schema
    items = tuple(one.item for one in shown)
    about = {
        "system": "p2b",
        "deployment": system.config.deployment,
        "config_digest": system.digest.hex(),
        "version": fields["version"],
        "slots": fields["observations"],
        "epsilon": epsilon_float(fields["epsilon_micro"]),
        "delta": float_up(delta_value(delta_from_bytes(fields["delta_units"]))),
        "private_as_stated": fields["private_as_stated"],
    }
    golden = tuple(_decided(system, arrays, rows, items, context) for context in _contexts(schema))
    return ExportedModel(about, schema, items, arrays[0][rows], arrays[1][rows], golden)


def _decided(
    system: P2BSystem,
    arrays: tuple[Float64, ...],
    rows: NDArray[np.intp],
    items: Sequence[int | str],
    context: Mapping[str, Any],
) -> Golden:
    """What the learner's kernel decides for somebody who was never seen."""
    policy, track = system.policy(), TRACKS[0]
    policy.adopt(track, 1, *arrays)
    row = np.frombuffer(system.linear.layout.schema.encode(context).row, np.uint8)
    scores = np.asarray(policy.scores(policy.shared(track).state, row), dtype=np.float64)[rows]
    return Golden(context, scores.tolist(), items[int(scores.argmax())])


def _contexts(schema: FeatureSchema) -> list[dict[str, Any]]:
    """Contexts of which each feature takes its values in turn, none of anybody: the first knows nothing."""
    features = schema.features.items()
    examples = {name: _values_of(feature) for name, feature in features if not isinstance(feature, Cross)}
    found: list[dict[str, Any]] = [{}]
    for number in range(_GOLDEN - 1):
        found.append({name: some[(number + place) % len(some)] for place, (name, some) in enumerate(examples.items())})
    return found


def _values_of(feature: Feature) -> list[Any]:
    match feature:
        case Category():
            return [*feature.vocabulary[:5], "something else", None]
        case Number():
            low, high = feature.low, feature.high
            return [low, high, low + (high - low) / 3, high + (high - low), None]
        case Boolean():
            return [True, False, None]
        case DayOfWeek():
            return [1, 4, 7]
        case Tags():
            return [[], list(feature.vocabulary[:1]), list(feature.vocabulary[: feature.most]), ["something else"]]
        case Embedding():
            return [[1.0, *[0.0] * (feature.count - 1)], [-0.5 / feature.count] * feature.count, None]
        case Histogram():
            return [[1.0, *[0.0] * (feature.count - 1)], [1.0 / feature.count] * feature.count]
    return [0.0, 7.5, 23.0]


def _values(content: bytes) -> dict[str, Any]:
    if not content.startswith(b"PK"):
        return dict(json.loads(content))
    with np.load(BytesIO(content), allow_pickle=False) as archive:
        return {**json.loads(archive["model"].tobytes()), **{name: archive[name] for name in _ARRAYS}}
