"""An installed hushstream without extras: every command explains itself, and data is played, judged and drawn."""

import subprocess
import sys
import tempfile
from pathlib import Path

LOG = "who,device,shown,liked\n" + "".join(
    f"u{row % 20},{'phone' if row % 3 else 'desk'},{row * 7 % 2},{row % 2}\n" for row in range(200)
)


def run(*arguments: str) -> str:
    """What a command prints; it must succeed."""
    found = subprocess.run([sys.argv[1], *arguments], capture_output=True, text=True, encoding="utf-8")
    assert found.returncode == 0, f"hushstream {' '.join(arguments)}: {found.stderr}"
    return found.stdout


listed = run("--help").partition("\nRun:\n")[2].splitlines()
names = [line.split()[0] for line in listed if line.startswith("  ") and line[2:3].isalpha()]
assert {"demo", "replay", "evaluate", "experiment", "guarantee", "worker"} <= set(names), names
for name in names:
    run(name, "--help")
with tempfile.TemporaryDirectory() as folder:
    log = Path(folder) / "log.csv"
    log.write_text(LOG, encoding="utf-8")
    shop = Path(folder) / "shop.yaml"
    run("init", str(shop), "--from", str(log), "--visits", "50000")
    drafts = ["--mapping", str(shop.with_suffix(".map.yaml")), "--deployment", str(shop)]
    run("evaluate", "--log", str(log), *drafts, "--out", str(Path(folder) / "evaluation"))
    run("replay", "--limit", "20", "--world", "rounds=2", "--set", "encoder.codes=4", "--report", folder)
    figure = next(line.split()[0] for line in run("experiment").splitlines() if line.split()[0].endswith("-fig3"))
    run("experiment", figure, "--quick", "--out", folder)
    assert (Path(folder) / "rewards.png").exists()
print(f"installed: {len(names)} commands, as expected")
