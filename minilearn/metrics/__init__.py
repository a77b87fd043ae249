"""Losses and metrics of each epoch: MetricsCB and the metric functions."""
