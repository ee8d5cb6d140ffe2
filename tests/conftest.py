"""What all tests share: a cache of their own, not the user's; property tests without deadlines."""

import atexit
import os
import shutil
import tempfile

from hypothesis import settings

# Before aril is imported. Workers of pytest-xdist inherit it, so they share compiled kernels.
if "ARIL_CACHE" not in os.environ:
    os.environ["ARIL_CACHE"] = _folder = tempfile.mkdtemp(prefix="aril-tests-")
    atexit.register(shutil.rmtree, _folder, ignore_errors=True)

# The machine may be busy (two workers, kernels on all cores): a slow example is no failure.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")
