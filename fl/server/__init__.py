"""The aggregation server: rounds, the dispatch of tasks, admission and collection of updates, checkpoints.

May import netq, fl.messages, fl.report, fl.errors, fl.tensors, fl.aggregation, fl.strategies and fl.callbacks.
"""
