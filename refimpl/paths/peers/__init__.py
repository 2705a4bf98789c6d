"""Other engines' local reductions, written anew from what they publish; each file names its path like itself.

They are here to be looked at, not to be used: a path keeps what its engine does, corner cases included. Inputs that the
engine gates out are refused; what it is known to answer otherwise than the full gather stands, with its reason, in
``refimpl/paths/expected_divergences.txt``. `docs/paths.md` compares them all.
"""
