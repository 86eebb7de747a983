"""Says which commands play a dataset: worlds are replayed through a system, logs of another policy are evaluated."""

from __future__ import annotations

from hushstream.replay.catalogue.known_worlds import known_worlds, system_of
from hushstream.replay.datasets.registry import known_datasets
from hushstream.replay.logged.catalogue import known_logs


def played_by(name: str) -> tuple[str, ...]:
    """The commands that play the dataset of this name, without ``hushstream`` and ``--dataset NAME``; often one."""
    replays = (f"replay {system_of(name)}",) if name in known_worlds() else ()
    return replays + (("evaluate",) if name in known_logs() else ())


def hint(name: str) -> str:
    """The end of a message about a name that was given to the wrong command; empty for an unknown name."""
    commands = [f"`hushstream {command} --dataset {name}`" for command in played_by(name)]
    if commands:
        return f"; {name!r} is played by {' and '.join(commands)}"
    if name in known_datasets():
        return f"; {name!r} is a dataset that no command plays: `hushstream datasets inspect {name}` reads it"
    return ""
