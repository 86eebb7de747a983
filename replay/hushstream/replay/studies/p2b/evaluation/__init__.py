"""The evaluation of another policy's log: the loop, its estimates, the verdict and the page."""
