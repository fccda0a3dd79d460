"""Graphs of profiled nodes, as the files of other planners have them, exactly planned under those planners' costs."""
