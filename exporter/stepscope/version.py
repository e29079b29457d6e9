"""The installed version."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("stepscope")
except PackageNotFoundError:  # imported from a source tree that is not installed
    __version__ = "unknown"
