"""The background benchmark workers: standard library and torch alone, Python 3.9 and newer.

This folder runs as `python -m topsmon.probes` and, under any other interpreter that has torch, as
`python /path/to/topsmon/probes`; nothing here imports another part of topsmon.
"""
