"""Numbers for Prometheus: what this machine exports, and what a server knows of a fleet."""
