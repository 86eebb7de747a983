"""Exports a released model as a file, to decide with it elsewhere or to start another deployment from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.catalogue import Catalogue
from hushstream.features.kinds import Boolean, Category, Cross, DayOfWeek, Embedding, Feature, Histogram, Number, Tags
from hushstream.features.schema import FeatureSchema
from hushstream.privacy.amounts import delta_from_bytes, delta_value, epsilon_float, float_up
from hushstream.privacy.promises.promise import prices_json
from hushstream.systems.p2b.guarantee.deployment import TRACKS, P2BSystem
from hushstream.systems.p2b.machines.models import decode_model
from hushstream.systems.p2b.model_file import Context, ExportedCodes, ExportedFeatures, ExportedModel, Golden
from hushstream.systems.p2b.reports.model_report import released_fields, shown_rows

Float64 = NDArray[np.float64]

_GOLDEN = 12


def export_model(
    system: P2BSystem, values: Iterable[bytes], version: int | None = None, catalogue: Catalogue | None = None
) -> ExportedModel:
    """A version of the released model, the newest if none is named; arguments as in `read_model`.

    Raises:
        HushstreamError: there is no such version.
    """
    fields = released_fields(system, values, version)
    if system.config.release.form == "codes":
        return _of_codes(system, fields)
    return _of_features(system, fields, catalogue)


def _of_features(system: P2BSystem, fields: Mapping[str, Any], catalogue: Catalogue | None) -> ExportedFeatures:
    arrays = decode_model(system, dict(fields)).arrays
    rows, shown = shown_rows(system, fields, catalogue)
    schema: FeatureSchema = system.linear.layout.schema
    items = tuple(one.item for one in shown)
    decided = _Decided(system, arrays, rows, items)
    golden = tuple(
        decided.of(context, np.frombuffer(schema.encode(context).row, np.uint8)) for context in _contexts(schema)
    )
    about = {**_about(system, fields), "reward_variance": fields["reward_variance"]}
    return ExportedFeatures(about, items, golden, schema, arrays[0][rows], arrays[1][rows])


def _of_codes(system: P2BSystem, fields: Mapping[str, Any]) -> ExportedCodes:
    arrays = decode_model(system, dict(fields)).arrays
    items, learner = tuple(range(system.config.arms)), system.config.learner
    decided = _Decided(system, arrays, np.arange(len(items)), items)
    contexts = _histograms(system.config.context.dimension)
    golden = tuple(decided.of(context, np.array(context, dtype=np.float32)) for context in contexts)
    onehot = system.config.encoder.features == "onehot"
    return ExportedCodes(
        _about(system, fields), items, golden, system.encoder, onehot, learner.alpha, learner.ridge, *arrays
    )


def _about(system: P2BSystem, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "system": "p2b",
        "deployment": system.config.deployment,
        "config_digest": system.digest.hex(),
        "version": fields["version"],
        "slots": fields["observations"],
        "epsilon": epsilon_float(fields["epsilon_micro"]),
        "delta": float_up(delta_value(delta_from_bytes(fields["delta_units"]))),
        "private_as_stated": fields["private_as_stated"],
        "paid": prices_json(system.paid),
    }


class _Decided:
    """The decisions of the learner's kernel for a user who was never seen."""

    def __init__(
        self, system: P2BSystem, arrays: tuple[Float64, ...], rows: NDArray[np.intp], items: Sequence[int | str]
    ) -> None:
        """Load a model's arrays; ``rows`` are those that items stand in."""
        self._policy, self._rows, self._items = system.policy(), rows, items
        self._policy.adopt(TRACKS[0], 1, *arrays)

    def of(self, context: Context, encoded: NDArray[Any]) -> Golden:
        """The decision for a context; the kernel gets its encoded form."""
        state = self._policy.shared(TRACKS[0]).state
        scores = np.asarray(self._policy.scores(state, encoded), dtype=np.float64)[self._rows]
        return Golden(context, scores.tolist(), self._items[int(scores.argmax())])


def _histograms(dimension: int) -> list[list[float]]:
    """Made-up contexts with one entry, or with two entries in several shares; none comes from a user."""
    found = []
    for number in range(_GOLDEN):
        share, context = (1.0, 0.5, 0.75, 0.25)[number // dimension % 4], [0.0] * dimension
        context[number % dimension] += share
        context[(number + 1) % dimension] += 1.0 - share
        found.append(context)
    return found


def _contexts(schema: FeatureSchema) -> list[dict[str, Any]]:
    """Made-up contexts in which each feature takes its example values in turn; the first one has no values.

    None comes from a user.
    """
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
