"""Look inside a model and a run: plots, hooks, statistics, summaries."""
