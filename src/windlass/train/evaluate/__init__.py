"""How good a model is, while it trains and afterwards."""
