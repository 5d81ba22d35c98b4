"""Many hosts at once: the latest of every device, distributions, and the worst of them."""
