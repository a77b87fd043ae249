"""The loop and its contract: events, callbacks, cancels. It needs torch alone."""
