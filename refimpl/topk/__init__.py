"""Top-k over a sharded vocabulary: the contract, the reference, a local reduction and a third opinion.

Heads that draft several candidates a step (trees, DFlash2) reduce the top k as others reduce the argmax. `contract`
says what a path is; each path's file names it like itself.
"""
