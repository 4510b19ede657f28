"""A federation over time: its set-up from a run file, rounds, evaluation, checkpoints, and what is read back of it."""
