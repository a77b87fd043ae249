"""The loop and its contract: what every other room stands on. Imports torch alone."""
