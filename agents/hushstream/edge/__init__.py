"""The learner of an `edge` deployment, for a user's own device: it decides, learns, and hands in padded slots.

    driver = DeviceDriver("agreement.json", "device.state", "https://devices.shop.example")
    choice = driver.decide("visit-1", {"country": "fr", "age": 34})
    driver.shown("visit-1", choice.arm)
    driver.reward("visit-1", choice.arm, 1.0)
    driver.sync()

`sync`, `flush` and `close` write the state, which is one driver's at a time. It needs numpy and cryptography, and
nothing else.
``deploy/docs/reference/edge-transport.md`` has what leaves a device.
"""

from hushstream.edge.driver import DeviceDriver
from hushstream.edge.transport import Answer, Transport

__all__ = ["Answer", "DeviceDriver", "Transport"]
