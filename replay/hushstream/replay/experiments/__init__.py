"""The papers' tables and figures, run in batches; the figures of speed; and their plots."""
