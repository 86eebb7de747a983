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
            f"{slot.after_interactions} decisions; and requests for the model, which is the same for everybody. It "
            f"leaves within {wait} of the decision that completes it, at a time that a coin draws, or "
            "when the device next runs. There is no cookie, no credential and no id but the slot's, used once.",
            DEVICES,
        ),
        *_FACTS,
    )


_FACTS = (
    Fact(
        "devices_see",
        1.0,
        "Who sees what of a device: the gateway an address, a time and an opaque id, and never what a slot holds; the "
        "broker's operator sealed slots of one size; who has the shuffler's sealing key what a slot holds, without an "
        "address; who has both sides puts them together. The device itself holds all that its user did.",
        DEVICES,
    ),
    Fact(
        "devices_ask",
        1.0,
        "What the gateway learns of a request for the model: that somebody at this address has one already, and which "
        "version. It can keep a newer one back, and it can make none: a device takes only what the aggregator signed "
        "for the agreement that it was shipped with, at no higher price, never an older version than it has seen.",
        DEVICES,
    ),
    Fact(
        "devices_cleared",
        1.0,
        "A device that was cleared, and each further device of one person, is another user: D of them cost D lives, "
        "and nobody can know it. In a browser a mark beside the state says what was spent: where the state alone is "
        "cleared, it goes on from there. Browsers clear both together.",
        DEVICES,
    ),
    Fact(
        "devices_restored",
        1.0,
        "One that is restored from an older copy numbers its slots anew, under the same ids, with other content; none "
        "counts twice, whichever comes first. Who reads the shuffler's zone sees both.",
        DEVICES,
    ),
    Fact(
        "devices_killed",
        1.0,
        "One that is ended at any moment may forget its last decisions. It sends no second slot, and no other bytes "
        "for one that may have left: a slot is in the device's storage before it leaves.",
        DEVICES,
    ),
    Fact(
        "devices_flooded",
        1.0,
        "Whoever forges slots changes nobody's guarantee: each moves the sums by a bounded amount, and the noise is "
        "scaled to what one slot can move, however many beside it are known. In the model n forged slots weigh as n "
        "users do, and they fill windows: releases come sooner with fewer users in them, and a counter over windows "
        "(release.horizon) ends sooner. A gateway takes so many of one address, or of one IPv6 network of 64 bits, an "
        "hour (devices.slots_per_hour), so m addresses send m times as many; devices behind one address share that. "
        "A slot that is refused for that is sent later, whatever it holds. There are no blind tokens (RFC 9578), and "
        "nobody has to prove to be a person.",
        DEVICES,
    ),
    Fact(
        "devices_have_no",
        1.0,
        "Decisions are on devices alone: there is no lift over a hold-out, no shadow, and no evaluation on a log.",
        DEVICES,
    ),
)
