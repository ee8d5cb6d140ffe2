"""The runtime room: memory, compilation and launch, one file a device. In come compiled kernels; out goes work done."""
