"""The shuffler's work over a window of nulls against a window of reports, in every form of release."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from hushstream.privacy.keys import seeded_key
from hushstream.replay.audits.roles.work import SLOTS, Holds, Work, held
from hushstream.replay.studies.p2b.audits.releases import ARMS, CELLS, p2b
from hushstream.schemas import codec
from hushstream.systems.p2b.configuration import ReleaseConfig
from hushstream.systems.p2b.contribution.slots import Report, pack
from hushstream.systems.p2b.deployment import P2BSystem
from hushstream.systems.p2b.machines.shuffler import ShufflerMachine

FORMS = {
    "fresh": ReleaseConfig(),
    "sampled": ReleaseConfig(sampling=0.5),
    "counter": ReleaseConfig(sums="counter"),
    "tuples": ReleaseConfig(mode="tuples", sampling=0.5),
    "paper": ReleaseConfig(mode="paper", sampling=0.5),
}


def works(slots: int = SLOTS) -> tuple[Work, ...]:
    """One of each form, a window of so many slots."""
    return tuple(_work(form, p2b(replace(release, window_slots=slots))) for form, release in FORMS.items())


def _work(form: str, system: P2BSystem) -> Work:
    make = partial(ShufflerMachine, system, 0, seeded_key(0, "shuffler"))
    about = "a window of nulls against one of reports"
    return Work(f"time-of-windows-{form}", ("p2b", "shuffler"), about, make, (), partial(_window, system))


def _window(system: P2BSystem, holds: Holds) -> Sequence[bytes]:
    values = []
    for place in range(system.config.release.window_slots):
        report = Report(place * 7 % CELLS, place * 5 % ARMS, place % 2) if held(holds, place) else None
        fields = {
            "report_id": place.to_bytes(16, "big"),
            "period": (0).to_bytes(8, "little"),
            "config_digest": system.digest,
            "content": pack(report),
        }
        values.append(codec.encode("SlotReport", fields))
    return values
