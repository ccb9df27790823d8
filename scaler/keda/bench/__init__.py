"""What answering KEDA costs, and how long it takes: `python -m scaler.keda.bench`."""
