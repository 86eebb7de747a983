"""Lists every command with its module and the first line of its help, so that listing commands imports nothing else."""

from __future__ import annotations

from hushstream.cli.lazy import LazyGroup, Part

_REPLAYS = ("hushstream.cli.research.replays",)
_EVALUATIONS = ("hushstream.cli.research.evaluations",)
_WORKERS = ("hushstream.cli.operate.workers",)
_DEPLOYMENTS = ("hushstream.cli.configure.deployments",)
_PROMISES = ("hushstream.cli.configure.promises",)
_OPERATIONS = ("hushstream.cli.operate.operations",)
_USERS = ("hushstream.cli.operate.users",)


class Commands(LazyGroup):
    """The commands of hushstream."""

    parts = {  # noqa: RUF012 - read by click alone, and a mapping by its type
        "demo": Part(
            _REPLAYS,
            "The main job: 3,600 visitors of a shop, a broker, three workers; does a private start help new users?",
        ),
        "quickstart": Part(
            ("hushstream.cli.research.quickstarts",),
            "A live deployment on this machine, with visitors and a page: watch the reward climb, kill the learner, "
            "edit.",
        ),
        "replay": Part(_REPLAYS, "Play a dataset through a system, as an application would, and write a report."),
        "experiment": Part(_REPLAYS, "A table or figure of a paper, as CSV, JSON, PNG and a page, with its targets."),
        "datasets": Part(_REPLAYS, "Datasets: list, fetch with checksums, inspect."),
        "evaluate": Part(
            _EVALUATIONS, "Replay the log of another policy through the agents: what would they have earned?"
        ),
        "shadow": Part(
            _OPERATIONS,
            "Estimate what a deployment's answers would have earned, where an application did not show them.",
        ),
        "audit": Part(
            _EVALUATIONS,
            "Attack a mechanism's noise and print the proven lower bound on epsilon beside the claim; exit 1 above it.",
        ),
        "guarantee": Part(_PROMISES, "Show what a configuration guarantees, to whom, over a lifetime; nothing is run."),
        "plan": Part(
            ("hushstream.cli.configure.plans",),
            "Predict what a deployment will bring, before it runs, from public numbers only.",
        ),
        "model": Part(
            ("hushstream.cli.operate.models",), "Show what a released model prefers, for whom, and how sure it is."
        ),
        "prepare": Part(
            _DEPLOYMENTS,
            "Make a deployment's folder: check the configuration, and prepare the files that its system needs.",
        ),
        "statement": Part(
            _PROMISES, "Write what a data-protection officer needs to know about a deployment, as a page or as JSON."
        ),
        "config": Part(
            (*_DEPLOYMENTS, "hushstream.cli.configure.config_options", "hushstream.cli.configure.migration"),
            "Look at a configuration.",
        ),
        "keys": Part(_DEPLOYMENTS, "Make and check the key files of the trust zones."),
        "topics": Part(
            (*_OPERATIONS, "hushstream.cli.operate.archives", "hushstream.cli.repairs"),
            "Plan, create and check a deployment's topics; export them, trim their journals, and list what is foreign.",
        ),
        "marks": Part((*_OPERATIONS, "hushstream.cli.repairs"), "Release marks of a zone."),
        "worker": Part(
            _WORKERS, "Run one role of a deployment, a gateway to it, or an auditor of a role, until SIGTERM."
        ),
        "broker": Part(
            _WORKERS,
            "Run the embedded broker alone (for one machine, demos and tests); see ``hushstream broker --help``.",
        ),
        "dev": Part(
            ("hushstream.cli.research.dev",), "For a deployment on the embedded broker, while it is developed."
        ),
        "verify": Part(_OPERATIONS, "Recompute what was published from the logs."),
        "budget": Part(
            _OPERATIONS, "Show what has been spent and is left, by scope and mechanism, with the configured limits."
        ),
        "lift": Part(
            _OPERATIONS, "Show what the model is worth over the hold-out, with an interval, from released counts only."
        ),
        "forget": Part(
            _USERS,
            "Erase a user's state, and say what stays and what is deleted later; needs the client's rights.",
        ),
        "item": Part(
            ("hushstream.cli.operate.catalogue",),
            "Former name of `items retire` and `items add`.",
            hidden=True,
        ),
        "items": Part(
            ("hushstream.cli.operate.catalogue",),
            "Change the catalogue of a deployment whose items have names, by public records; needs the client's "
            "rights. No worker restarts, and no epsilon is spent.",
        ),
        "dead-letters": Part(_OPERATIONS, "Records that a role refused."),
        "bench": Part(_OPERATIONS, "Measure what the project promises to reach; ratios within one run, medians."),
        "sizes": Part(
            _WORKERS,
            "Measure the disk, memory and CPU of an interaction here, and what a rate needs; see ``--help``.",
        ),
        "soak": Part(_USERS, "Give many users their interactions on one learner, and print its memory against a cap."),
        "metrics-table": Part(
            ("hushstream.cli.metrics_table",),
            "Every metric of a worker, a gateway and an auditor as a Markdown table (for deploy/docs/metrics.md).",
            hidden=True,
        ),
    }
