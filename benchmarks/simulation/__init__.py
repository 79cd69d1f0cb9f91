"""Clients a second: simulations of fl, of Flower on Ray and of pfl-research, with the same task."""
