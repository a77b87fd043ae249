"""What knows nothing of training: batches, random states, modes, state dicts, files, text."""
