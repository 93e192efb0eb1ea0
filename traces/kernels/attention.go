package kernels

// Attention is one call of scaled_dot_product_attention: queries
// [Batch, Heads, Seq, HeadDim], keys and values [Batch, KVHeads, KVSeq, ·].
type Attention struct {
	Batch, Heads, KVHeads, Seq, KVSeq int64
	// HeadDim is the width of a query and a key, ValueDim that of a value and
	// of the result.
	HeadDim, ValueDim int64
	DType             DType
	// Saves says that backward will run: auxiliary results are made.
	Saves bool
}

// CuDNNForward is the bytes of cuDNN's log-sum-exp and of the workspace of its
// forward kernel. Source: native/cudnn/MHA.cpp for the former; the latter
// measured (decoding one token needs none).
func (a Attention) CuDNNForward() (logsumexp, workspace int64) {
	if a.Saves {
		logsumexp = 4 * a.Batch * a.Heads * a.Seq
	}
	if a.Seq > 1 {
		workspace = 256
	}
	return logsumexp, workspace
}

// CuDNNBackward is the workspace of cuDNN's backward kernel in bytes: the
// gradient of the queries and the row sums in fp32 and, for grouped queries, the
// gradients of keys and values per query head. Measured.
func (a Attention) CuDNNBackward() int64 {
	rows := a.Batch * a.Heads * a.Seq
	ws := 4*rows*(a.HeadDim+1) + 256
	if a.KVHeads != a.Heads {
		ws += 2 * (a.DType.Size() * rows * a.HeadDim)
	}
	return ws
}

// FlashLSE is the bytes of FlashAttention-2's log-sum-exp; its state of the
// random generator is two 8-byte integers
// (native/transformers/cuda/flash_attn/flash_api.cpp, mha_fwd).
func (a Attention) FlashLSE() int64 { return 4 * a.Batch * a.Heads * a.Seq }

// FlashBackward is the plan of FlashAttention-2's backward after its results:
// the softmax sums and the fp32 accumulator of the queries' gradient with rows
// rounded to 128 and columns to 32 and, for grouped queries, the gradients of
// keys and values per query head
// (native/transformers/cuda/flash_attn/flash_api.cpp, mha_bwd). From source; no
// recording covers it.
func (a Attention) FlashBackward() Plan {
	rows, cols := roundUp(a.Seq, 128), roundUp(a.HeadDim, 32)
	var p Plan
	sums := p.Scratch(4 * a.Batch * a.Heads * rows)
	acc := p.Scratch(4 * a.Batch * rows * a.Heads * cols)
	dk, dv := -1, -1
	if a.KVHeads != a.Heads {
		n := a.DType.Size() * a.Batch * a.KVSeq * a.Heads * a.HeadDim
		dk, dv = p.Scratch(n), p.Scratch(n)
	}
	p.Drop(sums, acc, dk, dv)
	return p
}

// EfficientLSE is the bytes of the memory-efficient kernel's log-sum-exp, whose
// rows are rounded to 32 (native/transformers/cuda/attention.cu,
// _efficient_attention_forward).
func (a Attention) EfficientLSE() int64 {
	if !a.Saves {
		return 0
	}
	return 4 * a.Batch * a.Heads * roundUp(a.Seq, 32)
}

// EfficientBackward is the plan of the memory-efficient kernel's backward after
// its results: the row sums of gradient times result, made contiguous; then the
// accumulators of the queries' gradient, a lock and an fp32 tile per 64 queries
// (native/transformers/cuda/attention_backward.cu,
// _efficient_attention_backward, and
// mem_eff_attention/kernel_backward.h, workspace_size).
func (a Attention) EfficientBackward() Plan {
	rows := a.Batch * a.Seq * a.Heads
	var p Plan
	prod := p.Scratch(4 * rows * a.ValueDim)
	sum := p.Scratch(4 * rows)
	delta := p.Scratch(4 * rows)
	p.Drop(sum, prod)
	ws := p.Scratch(a.Batch * a.Heads * ceilDiv(a.Seq, 64) * (16 + 64*64*ceilDiv(a.HeadDim, 64)*4))
	p.Drop(delta, ws)
	return p
}
