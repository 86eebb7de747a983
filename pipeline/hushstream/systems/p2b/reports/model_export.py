"""A released model as a file, for whoever decides with it elsewhere or starts another deployment from it."""

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
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.guarantee.deployment import TRACKS, P2BSystem
from hushstream.systems.p2b.machines.models import decode_model
from hushstream.systems.p2b.model_file import ExportedModel, Golden
from hushstream.systems.p2b.reports.model_report import released_fields, shown_rows

Float64 = NDArray[np.float64]

_GOLDEN = 12


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
        "reward_variance": fields["reward_variance"],
        "paid": prices_json(system.paid),
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
