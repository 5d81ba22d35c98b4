"""Watching training runs: the recorder inside a run, its ring file, and the readers of it."""
