"""Differential privacy: a model says little of any one device, with a number for how little.

docs/explanation/differential-privacy.md has what is promised, to whom, and how the number is found.
"""
