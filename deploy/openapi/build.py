"""Write the OpenAPI documents of the gateway: ``python deploy/openapi/build.py [--check]``.

One for each conversation that a gateway serves, and one for devices; ``--check`` writes nothing and exits 1 when a
file differs from what would be written.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hushstream.gateway.devices import calls
from hushstream.gateway.openapi import SERVED, document
from hushstream.replay.report.committed import main as committed

FOLDER = Path(__file__).parent


def wanted() -> dict[Path, str]:
    """The text of each file."""
    documents = {served.name: document(served) for served in SERVED.values()}
    documents[calls.NAME] = calls.document()
    return {
        FOLDER / f"{name}.json": json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        for name, content in documents.items()
    }


if __name__ == "__main__":
    sys.exit(committed(wanted, __doc__))
