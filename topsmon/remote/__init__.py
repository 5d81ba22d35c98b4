"""Other machines: a `topsmon stream` on each, read through the user's own ssh."""
