"""Full-size CUDA jobs on a machine without a GPU, over a CUDA whose kernels compute nothing."""
