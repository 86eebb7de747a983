"""Write the Prometheus targets of a deployment with one worker for each role, where workers have their roles' names.

    python targets.py DEPLOYMENT FOLDER                  # FOLDER/public.yml: the public endpoint of every role
    python targets.py DEPLOYMENT FOLDER --with-gateway   # the same, and that of a gateway
    python targets.py DEPLOYMENT FOLDER --with-auditor ROLE   # the same, and that of an auditor of the role
    python targets.py DEPLOYMENT FOLDER --zone-of ROLE   # FOLDER/zone.yml: its zone's own endpoint alone

Name and roles come from the deployment's folder. So every role of the deployment is scraped, and no alert waits for a
role that it does not have.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml

from hushstream.agents.worker.deployment import load
from hushstream.engine.declare.declaration import System
from hushstream.schemas.errors import HushstreamError

PUBLIC_PORT, ZONE_PORT = 9101, 9201


def public_targets(system: System, gateway: bool = False, audited: str | None = None) -> list[dict[str, Any]]:
    """One entry for each role, and one for a gateway or for a role's auditor, if there is one.

    Raises:
        HushstreamError: the deployment has no such role.
    """
    roles = [*system.role_names, *(["gateway"] if gateway else [])]
    entries = [_entry(system, role, f"{role}:{PUBLIC_PORT}") for role in roles]
    if audited is not None:
        _require_role(system, audited, "--with-auditor")
        entries.append(_entry(system, f"auditor-{audited}", f"auditor:{PUBLIC_PORT}"))
    return entries


def zone_targets(system: System, role: str) -> list[dict[str, Any]]:
    """The entry of one role, with the name that it has in its zone's network.

    Raises:
        HushstreamError: the deployment has no such role.
    """
    _require_role(system, role, "--zone-of")
    return [_entry(system, role, f"zone-{role}:{ZONE_PORT}")]


def _require_role(system: System, role: str, option: str) -> None:
    if role not in system.role_names:
        name = system.config.deployment
        raise HushstreamError(
            f"{option}: expected one of {', '.join(system.role_names)} for deployment {name}, got {role}"
        )


def _entry(system: System, role: str, target: str) -> dict[str, Any]:
    return {"targets": [target], "labels": {"deployment": system.config.deployment, "role": str(role)}}


def main(arguments: list[str] | None = None) -> int:
    """See the module; returns the exit code."""
    parser = argparse.ArgumentParser(description="Write what Prometheus scrapes of a deployment.")
    parser.add_argument("deployment", type=Path, help="the deployment's folder")
    parser.add_argument("folder", type=Path, help="where to write")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--zone-of", metavar="ROLE", help="the zone's own endpoint of this role")
    which.add_argument("--with-gateway", action="store_true", help="a gateway runs beside the roles")
    which.add_argument("--with-auditor", metavar="ROLE", help="an auditor of this role runs beside the roles")
    given = parser.parse_args(arguments)
    try:
        system = load(given.deployment)
        public = public_targets(system, given.with_gateway, given.with_auditor)
        found = zone_targets(system, given.zone_of) if given.zone_of else public
    except HushstreamError as error:
        print(f"targets: {error}", file=sys.stderr)
        return 1
    path = given.folder / ("public.yml" if given.zone_of is None else "zone.yml")
    beside = path.with_suffix(".tmp")
    beside.write_text(yaml.safe_dump(found, sort_keys=False), encoding="utf-8")
    beside.replace(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
