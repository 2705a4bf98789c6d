"""What must hold: one file a family, which draws recipes from `properties.strategies` and `check`s their cases."""
