"""Closed-loop worlds: simulators and labelled datasets that answer any chosen arm with its reward."""
