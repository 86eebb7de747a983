"""What a published model has learned to show to whom, in names: one line for each value of each declared feature."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hushstream.features.schema import FeatureSchema

_DEVIATIONS = 2.0
"""An item is sure to be the best where it leads the next one by so many standard deviations."""

_HOURS = ("08:00", "14:00", "20:00")
_AMONG_RANGE = (1 / 6, 1 / 2, 5 / 6)


def learned(schema: FeatureSchema, fields: Mapping[str, Any], items: Sequence[str]) -> list[dict[str, Any]]:
    """For each value of each feature, all else being unknown, the item that the model expects most of.

    Args:
        schema: of the deployment.
        fields: of a FeatureModel record.
        items: names, by arm.

    Returns:
        Rows with ``feature``, ``value``, ``item``, ``chance`` (the expected reward, cut to 0 to 1) and ``sure``:
        whether the item leads the next one by more than the model's own doubt.
    """
    shape = (len(items), fields["cells"])
    means, variances = (np.frombuffer(fields[name], "<f8").reshape(shape) for name in ("means", "variances"))
    found = []
    for name, value in _values(schema):
        blocks = schema.blocks(schema.read(schema.encode({name: value}).row))
        context = np.bincount(blocks.cells[0] + 1, blocks.values[0], shape[1])
        context[0] = 1.0
        expected, doubt = means @ context, variances @ context**2
        best, second = np.argsort(-expected, kind="stable")[:2]
        lead = float(expected[best] - expected[second])
        found.append(
            {
                "feature": name,
                "value": value[0] if isinstance(value, list) else value,
                "item": items[best],
                "chance": float(np.clip(expected[best], 0.0, 1.0)),
                "sure": lead > _DEVIATIONS * float(np.sqrt(doubt[best] + doubt[second])),
            }
        )
    return found


def _values(schema: FeatureSchema) -> Iterator[tuple[str, Any]]:
    """Values that stand for what a feature may say; an embedding and a histogram have none."""
    for name, settings in schema.plain.items():
        match settings["kind"]:
            case "category":
                yield from ((name, one) for one in settings["vocabulary"])
            case "tags":
                yield from ((name, [one]) for one in settings["vocabulary"])
            case "boolean":
                yield from ((name, one) for one in (False, True))
            case "day_of_week":
                yield from ((name, one) for one in range(7))
            case "time_of_day":
                yield from ((name, one) for one in _HOURS)
            case "number":
                low, high = settings["range"]
                yield from ((name, round(low + share * (high - low))) for share in _AMONG_RANGE)
