"""Worlds and logged datasets to replay, the runners that replay them, experiments and figures."""
