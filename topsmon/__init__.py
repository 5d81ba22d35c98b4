"""topsmon: live achieved TOPS beside the right theoretical ceiling."""

__version__ = "0.1.0"
