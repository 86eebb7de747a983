"""What was paid elsewhere for the model that a deployment begins with, in words."""

from __future__ import annotations

from collections.abc import Sequence

from hushstream.engine.declare.declaration import Fact
from hushstream.privacy.promises.promise import Promises
from hushstream.privacy.promises.sentence import Prices, price_text
from hushstream.systems.p2b.model_file import ExportedModel


def started_facts(promises: Promises, start: ExportedModel | None) -> Sequence[Fact]:
    """The sum that whoever is in both deployments has paid; nothing where users begin with nothing."""
    if start is None:
        return ()
    about, both = start.about, start.paid + promises.together
    return (
        Fact(
            "started_from_slots",
            start.slots,
            f"New users begin with version {about['version']} of the model of deployment {about['deployment']} "
            f"({start.slots:,.0f} slots). Who gave a slot there has paid {_in_words(start.paid)}; who is in both pays "
            f"{_in_words(both)} together.",
        ),
    )


def _in_words(paid: Prices) -> str:
    which = f"{price_text(paid.which)} about which of two things they did"
    if paid.took_part is None:
        return which
    return f"{which} and {price_text(paid.took_part)} about whether they took part at all"
