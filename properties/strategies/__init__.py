"""Recipes for cases: a drawn example is a few numbers, which a seeded NumPy generator expands to many rows."""
