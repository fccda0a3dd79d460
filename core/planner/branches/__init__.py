"""Stages that form a graph (GraphPipe, Jeon et al., 2025): branches of a model side by side on devices of their own."""

# The engine that a plan from here names.
NAME = "branches"
