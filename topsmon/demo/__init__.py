"""Small real training programs to watch: standard library and torch only, run by path."""
