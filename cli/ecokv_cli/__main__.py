"""`python -m ecokv_cli` is the same program as `ecokv`."""

import sys

from ecokv_cli.main import main

sys.exit(main())
