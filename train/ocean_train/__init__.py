"""Train Ocean Transformers with gradients through time."""
