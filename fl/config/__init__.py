"""The TOML files of an aggregator: typed access with clear errors, and the objects that they describe.

May import all of fl but fl.simulation and fl.flower, which may import it.
"""
