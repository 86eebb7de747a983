"""Facts for the statement of a deployment with devices: what leaves a device, who sees it, and what can go wrong."""

from __future__ import annotations

from collections.abc import Sequence

from hushstream.engine.declare.declaration import DEVICES, Fact
from hushstream.engine.devices.travelling import body_bytes
from hushstream.privacy.amounts import duration_text
from hushstream.systems.bgt.configuration import BgtConfig
from hushstream.systems.bgt.rounds import ROUNDS
from hushstream.systems.bgt.slots import slot_bytes


def device_facts(config: BgtConfig) -> Sequence[Fact]:
    """The facts, for whoever answers for users' privacy."""
    size, wait = body_bytes(slot_bytes(config)), duration_text(config.settle_seconds)
    return (
        Fact(
            "devices_send",
            size,
            f"What leaves a device: one slot in each of {ROUNDS} rounds, of {size} bytes each, whatever is in it; and "
            f"requests for the model, which is the same for everybody. A slot leaves at a random time within {wait} "
            "after the device learned of the round, or later when the device next runs. There is no cookie, no "
            "credential and no id but the slot's, used once.",
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
    "only what the aggregator signed for the device's own agreement, at no higher price, and never an older version "
    "than it has seen. The model also says about which items a slot is asked for; that is the same for everybody.",
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
