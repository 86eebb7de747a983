"""A BGTplanner deployment: the object that all its roles use.

Stages, in order: one padded slot of a user and round (edge) -> sums of all slots with noise (collector) -> item biases,
the test for factors, factors, and the next round (server) -> the next round's slots, and predictions (edge).

Source: Zhang et al., BGTplanner (2024), in a form that is sound: `hushstream.systems.bgt.price.sensitivity` has the
proofs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hushstream.engine.devices.recipients import Recipients
from hushstream.engine.devices.signing import SigningKeys
from hushstream.engine.system import Core
from hushstream.engine.values import MAX_RECORD_BYTES, require
from hushstream.privacy.mechanisms.noise import NoiseAddress
from hushstream.systems.bgt.configuration import BgtConfig, Kind, bgt_digest
from hushstream.systems.bgt.features import features_bytes
from hushstream.systems.bgt.price.budget import MECHANISM, priced
from hushstream.systems.bgt.price.sensitivity import variance_of
from hushstream.systems.bgt.slots import Float64

TRACK = "ratings"
"""The one model track."""

NAMED_BY = "named_by"
"""Name of the parameter that says what the noise address of a round contains of its slots. A journal record without
this parameter means the contents alone."""

_ROOM_BYTES = 1 << 16
"""Bytes of a record without its columns."""


@dataclass(frozen=True, eq=False)
class BgtSystem(Core[BgtConfig]):
    """A configuration, joined with public features of items and whether a public dataset is replayed.

    Attributes:
        features: (I, f) public features of items.
        sealing, signing: the public keys of the collector and of the aggregator, if devices make slots.
    """

    features: Float64
    sealing: Recipients | None = None
    signing: SigningKeys | None = None

    @classmethod
    def of(
        cls,
        config: BgtConfig,
        features: Float64,
        public_dataset: bool = False,
        sealing: Recipients | None = None,
        signing: SigningKeys | None = None,
    ) -> BgtSystem:
        """Make a deployment.

        Raises:
            ConfigurationError: a model of this size would not fit into a record, or the budget does not cover one
                epoch.
        """
        require_publishable(config)
        hosted = not (config.devices and public_dataset)
        require(hosted, "kind", "hosted in a replay, whose raters are workers", config.kind)
        pinned = b"".join(keys.pinned for keys in (sealing, signing) if keys is not None)
        digest = bgt_digest(config, features_bytes(features), public_dataset, pinned)
        return cls(config, digest, priced(config), features, sealing, signing, public_dataset=public_dataset)

    @property
    def counts(self) -> Mapping[str, int]:
        """Numbers of partitions: users are spread over those of raters; there is one collector."""
        return {"learner": self.config.partitions.learner, "shuffler": 1, "scopes": 1, "tracks": 1}

    def address(self, nonce: bytes, epoch: int, partition: int) -> NoiseAddress:
        """The address of a collector's noise in one journal and epoch; see `bgt_address`."""
        return bgt_address(self.config, self.digest, nonce, epoch, partition)

    def parameters(self, number: int, kind: Kind, with_ids: bool) -> str:
        """Every parameter of a round's noise, as in the journal.

        Args:
            number: of the round.
            kind: kind of its slots.
            with_ids: whether the noise address contains ids of slots.
        """
        values: dict[str, Any] = {"kind": kind, **({NAMED_BY: "ids and contents"} if with_ids else {})}
        if self.config.release.noise != "exact":
            values["variance"] = "/".join(map(str, variance_of(number, kind, self.config)))
        return json.dumps(values, sort_keys=True, separators=(",", ":"))


def bgt_address(config: BgtConfig, digest: bytes, nonce: bytes, epoch: int, partition: int = 0) -> NoiseAddress:
    """The address of a collector's noise; round and content are filled in for each release."""
    return NoiseAddress(
        purpose="release-noise",
        deployment=config.deployment,
        genesis_nonce=nonce,
        system=config.system,
        mechanism=MECHANISM,
        parameters={},
        config_digest=digest,
        epoch=epoch,
        partition=partition,
    )


def require_publishable(config: BgtConfig) -> None:
    """Refuse a configuration whose records would be too large, before anything runs.

    Raises:
        ConfigurationError: sums or a model of so many items do not fit one record.
    """
    a_row = 8 * max(2, 1 + config.release.factors)
    most = (MAX_RECORD_BYTES - _ROOM_BYTES) // a_row
    expected = f"at most {most} (a record holds {a_row} bytes an item, with release.factors {config.release.factors})"
    require(config.items <= most, "items.capacity", expected, config.items)
