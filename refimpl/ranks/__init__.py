"""Real ranks: a supervisor per launched process, an executor per tp rank, and the driver that judges none of them."""
