"""`python -m minilearn` is the command `minilearn`."""

import sys

from minilearn.cli import main

sys.exit(main())
