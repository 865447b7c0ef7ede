"""Compiled modules stay beside their sources, also where PYTHONDONTWRITEBYTECODE is set.

Tests start processes by the dozen, each of which would compile all that it imports: eight seconds of a core, not four.
"""

import os
import sys

sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
