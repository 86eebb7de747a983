"""Write the OpenAPI documents of the gateway: ``python deploy/openapi/build.py [--check]``.

One for each conversation that a gateway serves, and one for devices; ``--check`` writes nothing and exits 1 when a
file differs from what would be written.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from hushstream.gateway.conversation.conversations import SERVED
from hushstream.gateway.devices import calls
from hushstream.gateway.openapi import document

FOLDER = Path(__file__).parent


def wanted() -> dict[Path, str]:
    """The text of each file."""
    documents = {served.name: document(served) for served in SERVED.values()}
    documents[calls.NAME] = calls.document()
    return {
        FOLDER / f"{name}.json": json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        for name, content in documents.items()
    }


def main(arguments: list[str] | None = None) -> int:
    """See the module; returns the exit code."""
    parser = argparse.ArgumentParser(description="Write the OpenAPI documents of the gateway.")
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 when a file differs")
    given = parser.parse_args(arguments)
    differing = [
        path for path, text in wanted().items() if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    for path in differing:
        if given.check:
            print(f"{path}: differs from the code; run `make manifests`", file=sys.stderr)
        else:
            path.write_text(wanted()[path], encoding="utf-8")
    return 1 if given.check and differing else 0


if __name__ == "__main__":
    sys.exit(main())
