"""The folder that a quickstart leaves: configurations to edit, and the deployment that was made of one."""

from __future__ import annotations

import shutil
from importlib.resources import files
from pathlib import Path

from hushstream.agents.worker.deployment import KEYS, prepare, read_config
from hushstream.engine.declare.declaration import System
from hushstream.engine.declare.role import key_names
from hushstream.privacy.keys import generate_keys
from hushstream.replay.worlds.shop import DECLARATION, ITEMS
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.configuration import P2BConfig

CONFIGURATION = "fast.yaml"
DEPLOYMENT = "deployment"
_MADE_HERE = ".made-by-quickstart"


def lay_out(folder: Path) -> System:
    """Write the configuration, unless it is there to be edited, and make a deployment of it with keys of its own.

    The deployment is made anew each time: its logs were in the memory of a broker that is gone.

    Raises:
        HushstreamError: the configuration is of no system with learners here, or the folder holds something else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / CONFIGURATION
    if not path.exists():
        path.write_text((files(__package__) / CONFIGURATION).read_text(encoding="utf-8"), encoding="utf-8")
    config = read_config(path)
    if config.system != "p2b" or config.kind != "hosted":
        raise HushstreamError(
            f"{path}: expected a hosted deployment of p2b, got {config.system}; other systems are played by "
            f"`hushstream replay {config.system}`"
        )
    _require_shop(path, config)
    made = folder / DEPLOYMENT
    if made.exists():
        if not (made / _MADE_HERE).exists():
            raise HushstreamError(f"{made}: expected a folder that a quickstart made, or none, got another one")
        shutil.rmtree(made)
    made.mkdir()
    (made / _MADE_HERE).touch()
    system = prepare(made, config)
    generate_keys(made / KEYS, key_names(system.roles))
    return system


def _require_shop(path: Path, config: P2BConfig) -> None:
    """Refuse what the simulated visitors cannot tell, and more items than the shop has."""
    declared = config.context.declared
    known = {name: one["kind"] for name, one in DECLARATION.items()}
    told = {} if declared is None else {name: one.kind for name, one in declared.features.items()}
    if not told or any(known.get(name) != kind for name, kind in told.items()):
        raise HushstreamError(
            f"{path}: expected features that the simulated visitors have ("
            f"{', '.join(f'{name}: {kind}' for name, kind in known.items())}), got others"
        )
    if config.arms > len(ITEMS):
        raise HushstreamError(f"{path}: items.capacity: expected at most the shop's {len(ITEMS)}, got {config.arms}")
