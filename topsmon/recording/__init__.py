"""Recordings: the event stream in a file, and what can be done with it afterwards."""
