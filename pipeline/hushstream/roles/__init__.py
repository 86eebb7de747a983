"""The machine of each role: a pure fold of its input logs, driven alike by worker, direct runner and verify."""
