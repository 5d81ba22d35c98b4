"""A recording for other programs: tables as CSV or Parquet, counters as a trace."""
