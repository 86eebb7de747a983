"""A released model as one file: its numbers, where it comes from, and decisions that must come out.

A file holds what a new user starts from: coefficients of every item and cell, independent and normal, with the declared
features that make cells of a context. Its score of an item is mean plus deviation, sum m_j x_j + sqrt(sum D_j x_j^2),
as a learner's of somebody who was never seen (`hushstream.learners.sparse`); x has 1 for the constant and a feature's
shares in its cells. What a user learned alone is not in it, and nothing that was not released before.

*Golden decisions* are made by the learner's own kernel when the file is written: contexts by the values of their
features, with the score of every item. `ExportedModel.read` computes them anew, in double precision and by these
formulas alone, and refuses a file of which they do not come out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from hushstream.features.errors import FeatureError
from hushstream.features.schema import FeatureSchema, declare
from hushstream.privacy.amounts import Cost
from hushstream.privacy.promises.sentence import Prices
from hushstream.schemas.errors import HushstreamError

Float64 = NDArray[np.float64]

FORMAT, FORMAT_VERSION = "hushstream model", 1
_TOLERANCE = 1e-5
"""Of a golden score: a learner keeps coefficients as float32."""

_ARRAYS = ("means", "variances")
_QUESTIONS = ("which", "took_part")


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


@dataclass(frozen=True, eq=False)
class ExportedModel:
    """A version of a released model.

    Attributes:
        about: where it comes from: system, deployment, configuration digest, version, slots, its price, what one person
            has paid for it at most (`paid`), and the variance of a reward, which learners need to go on from it.
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

    @property
    def slots(self) -> float:
        """How many slots it is made of."""
        return float(self.about["slots"])

    @property
    def reward_variance(self) -> float:
        """Of a reward around its mean, as learners take it.

        Raises:
            HushstreamError: the file does not say it.
        """
        return float(self._said("reward_variance"))

    @property
    def paid(self) -> Prices:
        """What one person has paid at most for all slots behind it, in one life or in several deployments.

        Raises:
            HushstreamError: the file does not say it.
        """
        said = self._said("paid")
        try:
            each = [said[question] for question in _QUESTIONS]
            which, took_part = (Cost(one["epsilon_micro"], int(one["delta_units"])) for one in each)
        except (TypeError, KeyError, ValueError) as error:
            raise HushstreamError(f"model file: expected what a person has paid, got another ({error!r})") from None
        return Prices(which, took_part)

    @cached_property
    def digest(self) -> bytes:
        """16 bytes that stand for all of it."""
        return hashlib.blake2b(self.as_json(), digest_size=16, person=b"hush-start").digest()

    def _said(self, name: str) -> Any:
        if name not in self.about:
            raise HushstreamError(f"model file: expected its {name}, got none: export it again with this release")
        return self.about[name]

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


def _values(content: bytes) -> dict[str, Any]:
    if not content.startswith(b"PK"):
        return dict(json.loads(content))
    with np.load(BytesIO(content), allow_pickle=False) as archive:
        return {**json.loads(archive["model"].tobytes()), **{name: archive[name] for name in _ARRAYS}}
