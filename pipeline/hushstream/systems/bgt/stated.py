"""The signed statement of a version: its model, and the round that it asks for.

Devices, gateways and the collector read both from it, after they have checked the aggregator's signature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hushstream.engine.devices import envelope
from hushstream.engine.devices.errors import BadModel
from hushstream.engine.devices.signing import SigningKeys
from hushstream.systems.bgt.configuration import BgtConfig
from hushstream.systems.bgt.errors import BgtError
from hushstream.systems.bgt.records import parse_model, parse_round
from hushstream.systems.bgt.rounds import Model, Round

_COLUMNS = ("biases", "factors", "top", "gains")


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement(envelope.Statement):
    """What the aggregator states of one version; the number of the round that it asks for is the version.

    Attributes:
        kind: kind of the slots that are asked for, or "none".
        factors: how many factors each item has.
        top: M, if pairs are asked for; else 0.
    """

    kind: str
    factors: int
    top: int


def content_of(fields: Mapping[str, Any]) -> bytes:
    """The content of a version: the biases and factors, and the round's items and their gains."""
    return b"".join(fields[name] for name in _COLUMNS)


def version_of(
    statement: Statement, content: bytes, config: BgtConfig
) -> tuple[Model, Round | None, Mapping[str, Any]]:
    """The model of a version, the round that it asks for (None for no more), and the fields of its `RatingRound`.

    Raises:
        BadModel: the content is not the one that the statement describes, or is not possible in this deployment.
    """
    if not (0 <= statement.factors <= config.release.factors and statement.top in (0, config.top)):
        raise BadModel("model: expected factors and items as the configuration has them, got others")
    sizes = 8 * config.items, 8 * config.items * statement.factors, 4 * statement.top, 8 * statement.top
    statement.require_content(content, sum(sizes))
    ends = np.cumsum(sizes).tolist()
    columns = {name: content[end - size : end] for name, size, end in zip(_COLUMNS, sizes, ends, strict=True)}
    asked = {
        "config_digest": bytes.fromhex(statement.configuration),
        "number": statement.version,
        "kind": statement.kind,
        "kept": statement.factors if statement.kind == "factors" else 0,
        "top": columns["top"],
        "gains": columns["gains"],
    }
    try:
        model = parse_model(columns, config)
        return model, parse_round(asked, model, config), asked
    except BgtError as error:
        raise BadModel(f"model: {error}") from None


def signed_round(
    fields: Mapping[str, Any], config: BgtConfig, digest: bytes, keys: SigningKeys
) -> tuple[Round | None, Mapping[str, Any]]:
    """The round that a signed version asks for (None for no more), and the fields of its `RatingRound`.

    Args:
        fields: of the record that the aggregator has signed.
        config, digest: of the deployment.
        keys: the aggregator's public keys.

    Raises:
        BadModel: it is not signed, or not of this deployment.
    """
    stated = Statement.signed_in(fields, keys, digest)
    return version_of(stated, fields["content"], config)[1:]
