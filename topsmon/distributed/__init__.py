"""One rank of several: standard library, torch and `topsmon.probes` alone.

Started by path under torchrun, srun or mpirun, also by interpreters that have no topsmon. Rank 0
writes the measurements of all ranks as one JSON document.
"""
