"""Neural networks: layers, optimizers, state and data sets, over Tensor."""
