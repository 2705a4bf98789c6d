"""Finite cases without gaps or repeats, as rows of large batches whose right tokens are constructed beside them."""
