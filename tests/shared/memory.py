"""What the product remembers between calls, and how a test that breaks the product makes it forget."""

from __future__ import annotations

import sys


def forget() -> None:
    """Empty every cache of every system: what was worked out before a test broke the product, or while it was broken.

    Releases keep the terms of a deployment (`hushstream.systems.p2b.machines.shuffler.terms_of`), and the audits of the
    catalogue are made once for a process. So an audit that ran once goes on to draw sound noise when what makes it is
    broken.
    """
    for name, module in list(sys.modules.items()):
        # The catalogue of kinds and the tables of noise are not of one system, and follow from what they are given.
        if name.startswith("hushstream.systems.") and name != "hushstream.systems.catalogue":
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear"):
                    value.cache_clear()
