"""`python -m hushstream.broker`."""

import sys

from hushstream.broker.command import main

sys.exit(main())
