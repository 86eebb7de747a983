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
            f"requests for the model, which is the same for everybody. A slot leaves within {wait} of when "
            "the device learned of the round, at a time that a coin draws, or when the device next runs. There is no "
            "cookie, no credential and no id but the slot's, used once.",
            DEVICES,
        ),
        *_FACTS,
    )


_FACTS = (
    Fact(
        "devices_see",
        1.0,
        "Who sees what of a device: the gateway an address, a time, an opaque id and a round, and never what a slot "
        "holds; the broker's operator sealed slots of one size; who has the collector's sealing key what a slot holds, "
        "without an address; who has both sides puts them together. Ratings and predictions stay on the device.",
        DEVICES,
    ),
    Fact(
        "devices_ask",
        1.0,
        "What the gateway learns of a request for the model: that somebody at this address has one already, and which "
        "version. It can keep a newer one back, and it can make none: a device takes only what the aggregator signed "
        "for the agreement that it was shipped with, at no higher price, never an older version than it has seen. "
        "Which items a slot is asked for stands in it, the same for everybody.",
        DEVICES,
    ),
    Fact(
        "devices_cleared",
        1.0,
        "A device that was cleared, and each further device of one person, is another user, and nobody can know it: D "
        "of them move every sum D times as far, at D^2 times the rho.",
        DEVICES,
    ),
    Fact(
        "devices_restored",
        1.0,
        "One that is restored from an older copy may answer a round again, under the same id, with other ratings; none "
        "counts twice, whichever comes first. Who reads the collector's zone sees both.",
        DEVICES,
    ),
    Fact(
        "devices_killed",
        1.0,
        "One that is ended at any moment may forget its last ratings. It sends no second slot of a round, and no other "
        "bytes for one that may have left: a slot is in the device's storage before it leaves.",
        DEVICES,
    ),
    Fact(
        "devices_flooded",
        1.0,
        "Whoever forges slots changes nobody's guarantee: each moves the sums by a bounded amount, and the noise is "
        "scaled to what one user's slots can move, however many beside them are known. In the model n forged slots "
        "weigh as n users do. A gateway takes so many of one address, or of one IPv6 network of 64 bits, an hour "
        "(devices.slots_per_hour), so m addresses send m times as many; devices behind one address share that. A slot "
        "that is refused for that is sent later, whatever it holds. There are no blind tokens (RFC 9578), and nobody "
        "has to prove to be a person.",
        DEVICES,
    ),
    Fact(
        "devices_ended",
        1.0,
        "Whoever may write the collector's input ends rounds (`SlotClient.end_round`), and begins none: the collector "
        "opens only what the aggregator has signed. A slot that comes after the end counts for nothing, and spends its "
        "user's part in that round all the same.",
        DEVICES,
    ),
)
