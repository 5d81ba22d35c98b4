"""The tab "hosts": many machines in one screen, and the way down to one of them."""
