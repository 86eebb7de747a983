"""The protocol of the hosted personaliser that was shut down in October 2026, so that its clients can go on."""
