"""Facts for the statement of a deployment with devices: what leaves a device, who sees it, and what can go wrong."""

from __future__ import annotations

from collections.abc import Sequence

from hushstream.engine.declare.declaration import DEVICES, Fact
from hushstream.engine.devices.travelling import body_bytes
from hushstream.privacy.amounts import duration_text
from hushstream.systems.p2b.configuration import P2BConfig
from hushstream.systems.p2b.guarantee.summed import summed_of


def device_facts(config: P2BConfig, slots: int) -> Sequence[Fact]:
    """The facts, for whoever answers for users' privacy; none if the operator runs the learners.

    Args:
        config: of the deployment.
        slots: how many slots a user sends in their life.
    """
    if not config.devices:
        return ()
    slot = config.slot
    size = body_bytes(int(summed_of(config).resolved["slot_bytes"]))
    many = "one slot" if slots == 1 else f"{slots} slots"
    wait = duration_text(config.feedback.attribution_window_seconds + slot.settle_seconds)
    return (
        Fact(
            "devices_send",
            size,
            f"What leaves a device: {many} in a life, of {size} bytes each, whatever is in it, after "
            f"{slot.after_interactions} decisions; and requests for the model, which is the same for everybody. A slot "
            f"leaves at a random time within {wait} after the decision that completes it, or later when the device "
            "next runs. There is no cookie, no credential and no id but the slot's, used once.",
            DEVICES,
        ),
        *(Fact(name, 1.0, text, DEVICES) for name, text in _TEXTS.items()),
    )


_TEXTS = {
    "devices_see": "Who sees what of a device: the gateway sees an address, a time and an opaque id, and never what a "
    "slot holds. The broker's operator sees sealed slots of one size. Whoever has the shuffler's sealing key sees "
    "what a slot holds, without an address. Whoever has both sides can put them together. The device itself holds all "
    "that its user did.",
    "devices_ask": "What the gateway learns from a request for the model: whether somebody at this address has a "
    "model already, and which version. A gateway can keep a newer model back, but it cannot forge one: a device takes "
    "only what the aggregator signed for the device's own agreement, at no higher price, and never an older version "
    "than it has seen.",
    "devices_cleared": "A device that was cleared counts as another user, and so does each further device of one "
    "person; nobody can know that. D such users of one person cost D times the price of a life. In a browser a mark "
    "beside the state says what was spent: if the state alone is cleared, the device continues from the mark. "
    "Browsers clear both together.",
    "devices_restored": "A device that is restored from an older copy may send a slot again, under the same id, with "
    "other content. Only the slot that comes first counts. Whoever reads the shuffler's zone sees both.",
    "devices_killed": "A device that is ended at any moment may forget its last decisions. It sends no slot twice "
    "with different bytes: a slot is in the device's storage before it leaves.",
    "devices_flooded": "Whoever forges slots changes nobody's guarantee: each moves the sums by a bounded amount, and "
    "the noise is scaled to what one slot can move, even for somebody who knows all other slots. In the model n "
    "forged slots weigh as much as n users. They also fill windows: releases come sooner with fewer users in them, "
    "and a counter over windows (release.horizon) ends sooner. A gateway limits the slots an hour from one address, "
    "or from one IPv6 network of 64 bits (devices.slots_per_hour), so m addresses can send m times as many, and "
    "devices behind one address share the limit. A slot over the limit is refused and sent later, whatever it holds. "
    "There are no blind tokens (RFC 9578), and nobody has to prove to be a person.",
    "devices_have_no": "Decisions are on devices alone: there is no lift over a hold-out, no shadow, and no "
    "evaluation on a log.",
}
