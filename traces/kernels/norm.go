package kernels

// BatchNormStats is the bytes of each of the two arrays (mean and inverse
// deviation, in fp32) that batch normalization makes: as results in training,
// and in evaluation as scratch for bf16, which cuDNN does not take
// (native/Normalization.cpp, _batch_norm_impl_index;
// native/cuda/Normalization.cu, batch_norm_cuda).
func BatchNormStats(channels int64) int64 { return 4 * channels }
