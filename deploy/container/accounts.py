"""Make the accounts under which the containers of the Compose example connect to the broker.

    python accounts.py folders FOLDER     # a folder for each account that any deployment may need, for the image
    python accounts.py passwords FOLDER   # a password in each folder that has a volume, unless one is there

A container mounts only the folder of its own account.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterable
from pathlib import Path

from hushstream.ops.access import account_names, duty_names

PASSWORD = "password"


def make_folders(folder: Path) -> None:
    """Make one folder for each account; the first volume mounted there takes over the folder's owner and mode."""
    for name in (*account_names(), *duty_names()):
        (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)


def make_passwords(accounts: Iterable[Path]) -> list[str]:
    """Write a password into each account's folder that has none; return the names of those accounts."""
    new = []
    for account in accounts:
        if not (account / PASSWORD).exists():
            beside = account / f"{PASSWORD}.new"
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                file.write(secrets.token_urlsafe(24))
            beside.rename(account / PASSWORD)
            new.append(account.name)
    return new


def main(arguments: list[str]) -> int:
    """See the module; returns the exit code."""
    if len(arguments) != 2 or arguments[0] not in ("folders", "passwords"):
        print("accounts.py: expected folders FOLDER or passwords FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[1])
    if arguments[0] == "folders":
        make_folders(folder)
    else:
        # A folder without a volume is part of the image, which is read-only.
        made = make_passwords(account for account in sorted(folder.iterdir()) if account.is_mount())
        print(f"passwords made: {', '.join(made) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
