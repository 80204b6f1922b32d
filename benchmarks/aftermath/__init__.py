"""What each way of writing a batch leaves behind after an accident: `python -m benchmarks.aftermath`."""
