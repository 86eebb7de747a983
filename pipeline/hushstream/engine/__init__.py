"""What every role of every system shares: machine, chain of a journal, state, spending, outcomes."""
