"""Reference implementations of the draft-head argmax, and the ranks they run on."""

__version__ = "0.1.0"
