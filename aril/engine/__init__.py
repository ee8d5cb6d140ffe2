"""The engine: compiles the kernels of a schedule, runs them, replays captured batches."""
