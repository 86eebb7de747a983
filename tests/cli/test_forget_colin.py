"""Erasing a user of a running collaborative deployment from the command line, on the embedded broker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hushstream.agents.worker.deployment import load, prepare, read_config
from hushstream.client.client import Client
from hushstream.replay.runners.stream import StreamPlace, StreamSession
from hushstream.schemas import codec
from patience import patience

pytestmark = pytest.mark.slow

CANARY = "ann-canary"
SEED = 5
RELATED = """\
system: colin
deployment: related
items: {capacity: 3}
features: {dimension: 2}
feedback: {settle_seconds: 3600.0}
privacy: {units_per_person: 32}
release: {noise_at: %s, mechanism: %s, window_units: 64, horizon: 64}
"""
MODES = {
    "server": ("server", "negative-digit"),
    "edge": ("learner", "negative-digit"),
    "noisy": ("learner", "noisy-reward"),
}
WAIT_SECONDS = 60.0


@pytest.mark.process
@pytest.mark.parametrize("mode", MODES)
def test_a_user_is_erased_while_the_workers_run(cli, mode, tmp_path):
    (tmp_path / "related.yaml").write_text(RELATED % MODES[mode], encoding="utf-8")
    folder = tmp_path / "deployment"
    ties = {"graph": ("ties.csv", f"{CANARY},bob,1.0\n")}
    prepare(folder, read_config(tmp_path / "related.yaml"), ties, public_dataset="synthetic")
    asyncio.run(erased_while_running(cli, folder, tmp_path / "copy"))
    held = [path for path in (folder / "state").rglob("*") if path.is_file()]
    assert held, "the workers left their states"
    assert not any(CANARY.encode() in path.read_bytes() for path in held)
    found = cli("verify", "-d", folder, "--seed", str(SEED), "--log", tmp_path / "copy", "--json")
    assert (found.code, found.json["totals"]["changed"]) == (0, 0), found
    said = cli("forget", CANARY, "-d", folder, "--export", tmp_path / "copy")
    assert said.code == 0, said
    for role in load(folder).role_names:
        again = cli("verify", "-d", folder, "--seed", str(SEED), "--log", tmp_path / "copy", "--role", role, "--json")
        assert (again.code, again.json["totals"]["changed"]) == (0, 0), again
        assert (again.json["totals"]["erased"] > 0) is (role != "aggregator"), role


async def erased_while_running(cli: Any, folder: Path, copy: Path) -> None:
    """Two rounds of two users, the deletion request, two more rounds; then everything is exported."""
    system = load(folder)
    async with StreamSession(system, StreamPlace(folder, None, SEED)) as stream:
        place = ("-d", folder, "--bootstrap", stream.bootstrap)
        async with Client(stream.event_log()) as client:
            for phase in range(2):
                await play(client, phase)
            await released(stream, 2)
            said = await asyncio.to_thread(cli, "forget", CANARY, *place, "--wait", str(WAIT_SECONDS), "--json")
            assert (said.code, said.json["folded"]) == (0, True), said
            for phase in range(2, 4):
                await play(client, phase)
            again = await asyncio.to_thread(cli, "forget", CANARY, *place, "--wait", str(WAIT_SECONDS))
            assert again.code == 0, "their name is in the events of the last rounds"
        blocks = await released(stream, 4)
        assert [0 in found for found in blocks] == [True, True, False, False]
        assert all(1 in found for found in blocks)
        found = await asyncio.to_thread(cli, "verify", *place, "--seed", str(SEED), "--json")
        assert (found.code, found.json["totals"]["changed"]) == (0, 0), found
        exported = await asyncio.to_thread(cli, "topics", "export", copy, *place)
        assert exported.code == 0, exported


async def play(client: Client, phase: int) -> None:
    features = np.random.default_rng(phase).uniform(-0.5, 0.5, 6)
    for user in (CANARY, "bob"):
        event_id = f"{user[0]}{phase}"
        decision = await client.decide(event_id, user, features, timeout=patience(WAIT_SECONDS))
        await client.shown(event_id, user, decision.arm)
        await client.reward(event_id, user, decision.arm, 1.0)
    await client.end_phase(phase)


async def released(stream: StreamSession, least: int) -> list[list[int]]:
    """Whom each release names, once there are so many and a model has been made of them."""
    async with asyncio.timeout(patience(WAIT_SECONDS)):
        while True:
            logs = await stream.logs()
            found = [codec.decode(record.value) for record in logs.part(("releases", 0)).records]
            blocks = [np.frombuffer(f["blocks"], "<i4").tolist() for name, f in found if name == "Release"]
            if len(blocks) >= least:
                return blocks
            await asyncio.sleep(0.2)
