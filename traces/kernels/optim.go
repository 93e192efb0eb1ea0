package kernels

// NormPartials is the bytes of the partial results of _foreach_norm: for each of
// the tensors one fp32 per chunk of 65,536 elements of the largest, whose number
// of elements is most (native/cuda/ForeachReduceOp.cu, foreach_tensor_norm_cuda).
func NormPartials(tensors int, most int64) int64 {
	return 4 * int64(tensors) * max(ceilDiv(most, 65536), 1)
}
