"""What a gateway needs to take the slots of BGTplanner from devices.

A slot counts only in the open round. So the gateway writes the record that opens the round before the round's slots:
otherwise the collector refuses them.

*Device facts.* Facts for the statement of a deployment with devices: what leaves a device, who sees it, and what can go
wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hushstream.engine.declare.declaration import DEVICES, Fact
from hushstream.engine.devices.envelope import STATEMENT_RECORD, ModelBody
from hushstream.engine.devices.sealing import body_bytes, period_of
from hushstream.privacy.amounts import duration_text
from hushstream.schemas import codec
from hushstream.systems.bgt.artefacts import BgtSystem
from hushstream.systems.bgt.configuration import BgtConfig
from hushstream.systems.bgt.records import signed_round
from hushstream.systems.bgt.slots import ROUNDS, Round, first_round, slot_bytes


class RatingDeviceService:
    """See `DeviceService`."""

    topic, partitions = "updates", 1

    def __init__(self, system: BgtSystem, agreement: bytes) -> None:
        """Bind to a deployment whose slots devices make.

        Args:
            system: the deployment.
            agreement: what its devices agree to.
        """
        self.digest, self._system = system.digest, system
        self.body_bytes, self.agreement = body_bytes(slot_bytes(system.config)), agreement
        self.opening: bytes | None = None
        self.asked: Round | None = first_round(system.config)
        """The round that is open."""

    def is_stale(self, fields: Mapping[str, Any], now_ms: int) -> bool:
        return self.asked is None or period_of(fields) != self.asked.number

    def record(self, fields: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        named = {"slot_id": fields["report_id"], "config_digest": fields["config_digest"], "round": period_of(fields)}
        return "SealedRatingSlot", {**named, "sealed": fields["sealed"]}

    def follow(self, fields: Mapping[str, Any]) -> ModelBody:
        body = ModelBody.of(fields, self._system)
        self.asked, _ = signed_round(fields, self._system.config, self.digest, body.signing)
        self.opening = None if self.asked is None else codec.encode(STATEMENT_RECORD, fields)
        return body


def device_facts(config: BgtConfig) -> Sequence[Fact]:
    """The facts, for whoever answers for users' privacy."""
    size, wait = body_bytes(slot_bytes(config)), duration_text(config.settle_seconds)
    return (
        Fact(
            "devices_send",
            size,
            f"What leaves a device: one slot in each of {ROUNDS} rounds, of {size} bytes each, whatever is in it; and "
            f"requests for the model, the same for everybody while the aggregator is honest. A slot leaves at a random "
            f"time within {wait} after the device learned of the round, or later when the device next runs. There is "
            "no cookie, no credential and no id but the slot's, used once.",
            DEVICES,
        ),
        *(Fact(name, 1.0, text, DEVICES) for name, text in _TEXTS.items()),
    )


_TEXTS = {
    "devices_see": "Who sees what of a device: the gateway sees an address, a time, an opaque id and a round, and "
    "never what a slot holds. The broker's operator sees sealed slots of one size. Whoever has the collector's "
    "sealing key sees what a slot holds, without an address. Whoever has both sides can put them together. Ratings "
    "and predictions stay on the device.",
    "devices_ask": "What the gateway learns from a request for the model: whether somebody at this address has a "
    "model already, and which version. A gateway can keep a newer model back, but it cannot forge one: a device takes "
    "only what the aggregator signed for the device's own agreement, at no higher privacy cost, and never an older "
    "version than it has seen. The model also says about which items a slot is asked for, alike for all.",
    "devices_cleared": "A device that was cleared counts as another user, and so does each further device of one "
    "person; nobody can know that. D such users of one person move every sum D times as far, at D^2 times the rho.",
    "devices_restored": "A device that is restored from an older copy may answer a round again, under the same id, "
    "with other ratings. Only the slot that comes first counts. Whoever reads the collector's zone sees both.",
    "devices_killed": "A device that is ended at any moment may forget its last ratings. It sends no second slot in a "
    "round, and it never sends other bytes for a slot that may have left: a slot is in the device's storage before it "
    "leaves.",
    "devices_flooded": "Whoever forges slots changes nobody's guarantee: each moves the sums by a bounded amount, and "
    "the noise is scaled to what one user's slots can move, even for somebody who knows all other slots. In the model "
    "n forged slots weigh as much as n users. A gateway limits the slots an hour from one address, or from one IPv6 "
    "network of 64 bits (devices.slots_per_hour), so m addresses can send m times as many, and devices behind one "
    "address share the limit. A slot over the limit is refused and sent later, whatever it holds. There are no blind "
    "tokens (RFC 9578), and nobody has to prove to be a person.",
    "devices_ended": "Whoever may write the collector's input can end rounds (`SlotClient.end_round`), but cannot "
    "begin one: the collector opens only rounds that the aggregator has signed. A slot that comes after the end of "
    "its round does not count, but its user has no other slot in that round.",
}
