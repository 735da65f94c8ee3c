"""The command as it is installed, by the interpreter that runs the tests."""

import sys

from app.entry import main

sys.exit(main())
