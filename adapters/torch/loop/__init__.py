"""A training loop that believes in data parallelism over all ranks, on top of a plan that may be anything.

Each rank calls the model with its own batch. The batches of the ranks that make up one copy of the model are put
together, divided into the plan's micro-batches and run through its stages within the call.
"""
