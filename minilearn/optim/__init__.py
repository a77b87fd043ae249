"""Optimizers by name, parameter groups, freezing, learning-rate schedules."""
