"""The one runtime: a Program's queues on torch.distributed."""
