"""Drives a `RatingDevice` of BGTplanner: one user's ratings, slots of rounds, and predictions.

    driver = RatingDriver("agreement.json", "device.state", "https://devices.films.example")
    driver.rate([3, 14], [5.0, 2.0])
    driver.sync()
    driver.predict([7, 9])

The device takes part in each round that it learns of. If it has no ratings, it sends a null slot of the same size as
any other. ``deploy/docs/reference/edge-transport.md`` says what the time of sending may show.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hushstream.edge.driving import Driver
from hushstream.systems.bgt.edge.device import Agreement, RatingDevice
from hushstream.systems.bgt.records import Float64


class RatingDriver(Driver[RatingDevice]):
    """One user's device, on one machine; the only open driver of its state, and not thread-safe."""

    _agreement, _device = Agreement, RatingDevice

    def rate(self, items: Sequence[int], ratings: Sequence[float]) -> None:
        """See `RatingDevice.rate`."""
        self.device.rate(items, ratings)

    def forget(self, items: Iterable[int] | None = None) -> None:
        """See `RatingDevice.forget`; the state is written at once, so that no crash brings the ratings back."""
        self.device.forget(items)
        self.flush()

    def predict(self, items: Iterable[int]) -> Float64:
        """See `RatingDevice.predict`."""
        return self.device.predict(items)
