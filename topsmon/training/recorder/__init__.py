"""The recorder: runs inside a training process, with the standard library and that run's torch.

It is loaded by path under another package name, so that the training environment need not have
topsmon: nothing in here imports anything of topsmon but its own siblings, relatively.
"""
