"""The learner of an `edge` deployment, for a user's own device: it decides, learns, and hands in fixed-size reports.

    driver = DeviceDriver("agreement.json", "device.state", "https://devices.shop.example")
    choice = driver.decide("visit-1", {"country": "fr", "age": 34})
    driver.shown("visit-1", choice.arm)
    driver.reward("visit-1", choice.arm, 1.0)
    driver.sync()

`sync`, `flush` and `close` write the device's state. Only one driver at a time may have a state open. The package needs
only numpy and cryptography. ``deploy/docs/reference/edge-transport.md`` lists all that leaves a device.
"""

from hushstream.edge.driving import Answer, DeviceDriver, Transport

__all__ = ["Answer", "DeviceDriver", "Transport"]
