"""What the HuggingFace Trainer and accelerate need beside a DeepSpeed engine: times in the log, a stage to read."""
