"""A causal simulator of synchronous data-parallel training, and the lab around it."""
