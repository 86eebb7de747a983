"""The real machines of a deployment's folder, as the zygote asks for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hushstream.agents.worker.deployment import KeySource, load
from hushstream.agents.worker.roles import role_work


def role(name: str, folder: str, seed: int) -> tuple[Any, Any]:
    """(make_machine, topics) of one role."""
    work = role_work(name, load(Path(folder)), KeySource(seed=seed))
    return work.make_machine, work.topics
