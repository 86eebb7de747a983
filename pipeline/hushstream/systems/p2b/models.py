"""A released model as one file: its numbers, its origin, and golden decisions that every reader must reproduce.

A file holds what a new user starts from. It contains only what was released before, and nothing that a user learned
alone.

These are coefficients of every item and cell, independent and normal, with the declared features that turn a context
into cells. The score of an item is mean plus deviation, sum m_j x_j +
sqrt(sum D_j x_j^2), as a learner scores it for a user who was never seen (`hushstream.learners.sparse`). x is 1 for the
constant, and has a feature's shares in its cells.

*Golden decisions* are contexts with the score of every item. The learner's own kernel computes them when the file is
written. `ExportedModel.read` computes them again, in double precision and by these formulas alone, and refuses a file
whose golden decisions differ. Then it compares the digest in the file with that of the content, so that any other
change is noticed. The digest is no signature: whoever writes a file can write its digest.

*Signed statement.* The signed statement of a model, and the arrays of its content.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.devices import envelope
from hushstream.engine.devices.kept import BadModel
from hushstream.features.checks import FeatureError
from hushstream.features.schema import FeatureSchema, declare
from hushstream.privacy.promises.promise import read_prices
from hushstream.privacy.promises.sentence import Prices
from hushstream.schemas.errors import HushstreamError

Float64 = NDArray[np.float64]

FORMAT, FORMAT_VERSION = "hushstream model", 1
_PLAIN = "model"
"""The name of the array in an archive that holds JSON."""

_TOLERANCE = 1e-5
"""Largest difference of a golden score: a learner keeps coefficients as float32."""


class Golden(NamedTuple):
    """A decision that every reader of the file must reproduce.

    Attributes:
        context: values of features by name.
        scores: the score of every item, in the order of ``items``.
        item: the item to show.
    """

    context: Mapping[str, Any]
    scores: Sequence[float]
    item: str


@dataclass(frozen=True, eq=False)
class ExportedModel:
    """A version of a released model.

    Attributes:
        about: its origin: system, deployment, configuration digest, version, slots, its price, the most that one person
            has paid for it (`paid`), and the variance of a reward (`reward_variance`).
        items: ids of the items.
        golden: decisions that every reader must reproduce.
        schema: the declared features.
        means, variances: (K, P) of the coefficients; the constant's cell comes first.
    """

    about: Mapping[str, Any]
    items: tuple[str, ...]
    golden: tuple[Golden, ...]
    schema: FeatureSchema
    means: Float64
    variances: Float64

    @classmethod
    def read(cls, content: bytes) -> ExportedModel:
        """The model in a file, JSON or npz, after its golden decisions and its digest were checked.

        Raises:
            HushstreamError: it is no such file, a golden decision differs, or anything in it was changed.
        """
        try:
            values = _values(content)
            kind = (values["format"], values["format_version"])
            if kind != (FORMAT, FORMAT_VERSION):
                raise ValueError(f"format {kind}")
            model, stated = cls._of_values(values), str(values["digest"])
        except (KeyError, TypeError, ValueError, BadZipFile, FeatureError) as error:
            raise HushstreamError(f"model file: expected an exported model, got another ({error!r})") from None
        if not isinstance(model._about("private_as_stated"), bool):
            raise HushstreamError("model file: expected private_as_stated: true or false, got another value")
        model.require_golden()
        if stated != model.digest.hex():
            raise HushstreamError(f"model file: expected content with the digest {stated}, got {model.digest.hex()}")
        return model

    @classmethod
    def _of_values(cls, values: Mapping[str, Any]) -> ExportedModel:
        schema, items = declare(values["features"]), _items(values)
        means, variances = (np.array(values[name], dtype=np.float64) for name in ("means", "variances"))
        shape = (len(items), schema.cells + 1)
        if means.shape != shape or variances.shape != shape:
            raise ValueError(f"shapes {means.shape} and {variances.shape}")
        _require_numbers((variances, values["about"]["reward_variance"], values["about"]["slots"]), means)
        return cls(values["about"], items, _golden(values), schema, means, variances)

    @property
    def arrays(self) -> Mapping[str, Float64]:
        """The model's arrays of numbers, by name."""
        return {"means": self.means, "variances": self.variances}

    @property
    def domain(self) -> Mapping[str, Any]:
        """Plain values that say what contexts are."""
        return {"features": self.schema.plain, "cells": ["all visits", *self.schema.cell_names()]}

    @property
    def reward_variance(self) -> float:
        """The variance of a reward around its mean, as learners use it."""
        return float(self.about["reward_variance"])

    def scores(self, context: Mapping[str, Any]) -> Float64:
        """(K,) the score of each item for the values of features by name; see the module.

        Raises:
            FeatureError: the context has a name that is not declared.
        """
        cells, values = self._places(context)
        means, variances = self.means[:, cells] @ values, self.variances[:, cells] @ values**2
        return np.asarray(means + np.sqrt(variances))

    def rewards(self, context: Mapping[str, Any]) -> Float64:
        """(K,) the reward that the model expects of each item."""
        cells, values = self._places(context)
        return np.asarray(self.means[:, cells] @ values)

    def _places(self, context: Mapping[str, Any]) -> tuple[NDArray[np.int64], Float64]:
        blocks = self.schema.blocks(self.schema.read(self.schema.encode(context).row))
        cells = np.concatenate([[0], blocks.cells[0] + 1])
        return cells, np.concatenate([[1.0], blocks.values[0]])

    @property
    def slots(self) -> float:
        """How many slots the model is made of."""
        return float(self.about["slots"])

    @property
    def paid(self) -> Prices:
        """The most that one person has paid for all slots behind the model, in one or in several deployments.

        Raises:
            HushstreamError: the file does not contain it.
        """
        paid = self._about("paid")
        try:
            return read_prices(paid)
        except (TypeError, KeyError, ValueError) as error:
            raise HushstreamError(f"model file: expected what a person was charged, got {error!r}") from None

    @cached_property
    def digest(self) -> bytes:
        """16 bytes that identify the whole content."""
        arrays = {name: one.tolist() for name, one in self.arrays.items()}
        plain = json.dumps({**self._plain(), **arrays}, sort_keys=True)
        return hashlib.blake2b(plain.encode(), digest_size=16, person=b"hush-start").digest()

    def _about(self, name: str) -> Any:
        if name not in self.about:
            raise HushstreamError(f"model file: expected its {name}, got none: export it again with this release")
        return self.about[name]

    def decide(self, context: Any, eligible: Collection[str] | None = None) -> str:
        """The item with the highest score; the first one of equal scores.

        Raises:
            HushstreamError: no item of the model is eligible.
        """
        rows = [row for row, item in enumerate(self.items) if eligible is None or item in eligible]
        if not rows:
            raise HushstreamError("eligible: expected an item of the model, got none")
        return self.items[rows[int(self.scores(context)[rows].argmax())]]

    def require_golden(self) -> None:
        """Refuse a model whose golden decisions cannot be reproduced.

        Raises:
            HushstreamError: a score differs, or the golden item scores less than the decided one.
        """
        for number, golden in enumerate(self.golden):
            found, expected = self.scores(golden.context), np.array(golden.scores)
            if found.shape != expected.shape or not (np.abs(found - expected) <= _TOLERANCE).all():
                raise HushstreamError(f"model file: expected the scores of golden decision {number}, got others")
            decided = self.items.index(self.decide(golden.context))
            stated = self.items.index(golden.item)
            # Two items may have scores that differ by the rounding of floats alone.
            if found[decided] - found[stated] > 2 * _TOLERANCE:
                raise HushstreamError(f"model file: expected golden decision {number}, got another item")

    def as_json(self) -> bytes:
        """The file in JSON."""
        arrays = {name: one.tolist() for name, one in self.arrays.items()}
        return (json.dumps({**self._sealed(), **arrays}, indent=1, ensure_ascii=False) + "\n").encode()

    def as_npz(self) -> bytes:
        """The file as an archive of numpy: the arrays, and everything else as JSON in the array ``model``."""
        content = BytesIO()
        plain = np.frombuffer(json.dumps(self._sealed(), ensure_ascii=False).encode(), np.uint8)
        arrays: dict[str, NDArray[Any]] = {_PLAIN: plain, **self.arrays}
        np.savez(content, allow_pickle=False, **arrays)
        return content.getvalue()

    def _sealed(self) -> dict[str, Any]:
        return {**self._plain(), "digest": self.digest.hex()}

    def _plain(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "about": dict(self.about),
            **self.domain,
            "items": list(self.items),
            "golden": [one._asdict() for one in self.golden],
        }


def _require_numbers(positive: Sequence[Any], *others: Any) -> None:
    """Refuse numbers that are not finite, and those of ``positive`` that are not above 0, with a `ValueError`."""
    finite = all(np.isfinite(one).all() for one in (*positive, *others))
    if not finite or not all((np.asarray(one) > 0).all() for one in positive):
        raise ValueError("numbers that are not finite, or not above 0")


def _items(values: Mapping[str, Any]) -> tuple[str, ...]:
    items = tuple(values["items"])
    if not all(isinstance(item, str) for item in items) or len(set(items)) < len(items):
        raise ValueError("items that are no different ids")
    return items


def _golden(values: Mapping[str, Any]) -> tuple[Golden, ...]:
    return tuple(Golden(**one) for one in values["golden"])


def _values(content: bytes) -> dict[str, Any]:
    if not content.startswith(b"PK"):
        return dict(json.loads(content))
    with np.load(BytesIO(content), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files if name != _PLAIN}
        return {**json.loads(archive[_PLAIN].tobytes()), **arrays}


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement(envelope.Statement):
    """What the aggregator states of one version.

    Attributes:
        layout: digest of the declared features and the budgets, in hexadecimal.
        arms, cells: K and P.
        reward_variance: the variance of a reward around its mean.
    """

    layout: str
    arms: int
    cells: int
    reward_variance: float


def content_of(means: bytes, variances: bytes) -> tuple[bytes, str]:
    """The content of a model's arrays, as its record has them, and its digest."""
    content = means + variances
    return content, hashlib.sha256(content).hexdigest()


def arrays_of(statement: Statement, content: bytes) -> tuple[NDArray[np.float64], ...]:
    """Means and variances (K, P), and the variance of a reward (1,), as `FeaturePolicy.adopt` takes them.

    Raises:
        BadModel: the content is not the one that the statement describes, or a number is not valid in a model.
    """
    shape = (statement.arms, statement.cells)
    wanted = 2 * 8 * math.prod(shape)
    statement.require_content(content, wanted)
    means, variances = np.frombuffer(content, "<f8").reshape(2, *shape).astype(np.float64)
    g = statement.reward_variance
    good = np.isfinite(means).all() and np.isfinite(variances).all() and (variances > 0).all()
    if not (good and math.isfinite(g) and g > 0):
        raise BadModel("model: expected finite means and positive variances, got others")
    return means, variances, np.array([g])
