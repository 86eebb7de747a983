"""The options of a replay that all systems have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hushstream.replay.runners.playing import Place, Runner, require_runner


@dataclass(frozen=True, slots=True)
class PlayOptions:
    """What to run.

    Attributes:
        dataset: a world by name.
        runner: "direct" (machines in this process) or "stream" (broker and workers as processes).
        seed: of world, coins, noise and keys: the run is reproducible, and says that it is not private.
        world: options of the world.
        config: values of the configuration that replace the defaults, nested as in deployment.yaml.
        folder: where the deployment lives; a temporary folder by default.
        bootstrap: a Kafka to run on; the embedded broker by default.
        security: YAML file with that Kafka's SASL and TLS settings, as `hushstream.agents.security` reads it.
        verify: recompute everything that was published, at the end.
    """

    dataset: str = ""
    runner: Runner = "direct"
    seed: int = 0
    world: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    bootstrap: str | None = None
    security: Path | None = None
    verify: bool = True

    def require_runner(self) -> None:
        """Refuse an unknown runner, and a Kafka that may not be used, before anything is made.

        Raises:
            HushstreamError, ConfigurationError: as `hushstream.replay.runners.playing.require_runner`.
        """
        require_runner(self.runner, self.bootstrap, self.security)

    def place(self, folder: Path, resume: bool = False) -> Place:
        """Where to run the deployment in ``folder``; with ``resume`` the run continues topics of an earlier one."""
        return Place(self.runner, folder, self.bootstrap, self.seed, resume, self.security)
