package kernels_test

import (
	"testing"

	"allocsim/internal/bend"
)

// TestBends bends rules of kernels; calls on the H200 must tell.
func TestBends(t *testing.T) {
	const real = "TestH200"
	bend.Run(t, []bend.Bend{
		{Rule: "a reduction splits over half as many blocks", File: "reduce.go", Test: real,
			Old: "target := sms * (2048 / (bw * bh))", Bent: "target := sms * (1024 / (bw * bh))"},
		{Rule: "staging holds fp16 partial sums", File: "ops_reduce.go", Test: real,
			Old: "return reducer{t.Accumulate().Size(), 4}", Bent: "return reducer{t.Size(), 4}"},
		{Rule: "a variance keeps one number", File: "ops_reduce.go", Test: real,
			Old: "return reducer{16, 2}", Bent: "return reducer{4, 2}"},
		{Rule: "semaphores are given back last", File: "ops_reduce.go", Test: real,
			Old: "b := p.Scratch(sem)\n\tp.Drop(b, a)", Bent: "b := p.Scratch(sem)\n\tp.Drop(a, b)"},
		{Rule: "layer norm's backward reads any gradient", File: "ops_norm.go", Test: real,
			Old: "g := p.Scratch(copyOf(o.tensor(\"grad_out\")))", Bent: "g := -1"},
		{Rule: "group norm makes no scale and shift", File: "ops_norm.go", Test: real,
			Old: "a := p.Scratch(4 * n * ch)\n\tb := p.Scratch(4 * n * ch)\n\tp.Drop(b, a, c)", Bent: "a, b := -1, -1\n\tp.Drop(b, a, c)\n\t_ = n"},
		{Rule: "dropout asks for its result before its mask", File: "rules.go", Test: real,
			Old: `"aten::native_dropout":    resultsInOrder(1, 0)`, Bent: `"aten::native_dropout":    resultsInOrder(0, 1)`},
		{Rule: "the loss's storage is one number", File: "ops_loss.go", Test: real,
			Old: "case keeps:\n\t\t\tp.ResultOf(0, t.Bytes())\n\t\t\tlosses = p.Scratch(t.Bytes())", Bent: "case keeps:\n\t\t\tp.ResultOf(0, t.Bytes())"},
		{Rule: "cuDNN attention asks for its result first", File: "ops_attention.go", Test: real,
			Old: "[]int{6, 7, 0, 1}", Bent: "[]int{0, 1, 6, 7}"},
		{Rule: "grouped queries need no gradients per head", File: "attention.go", Test: real,
			Old: "ws += 2 * (a.DType.Size() * rows * a.HeadDim)", Bent: "ws += 0"},
		{Rule: "log-sum-exp of tiles of 32 queries", File: "attention.go", Test: real,
			Old: "ceilDiv(a.Seq, 64) * (16", Bent: "ceilDiv(a.Seq, 32) * (16"},
		{Rule: "a gradient of 3,073 indices is not sorted", File: "embedding.go", Test: real,
			Old: "if n <= 3072 {", Bent: "if n <= 8192 {"},
		{Rule: "rows of partial sums are not rounded to 32", File: "embedding.go", Test: real,
			Old: "roundUp(width, 32)", Bent: "roundUp(width, 4)"},
		{Rule: "positions of a mask are 4 bytes", File: "ops_index.go", Test: real,
			Old: "held = append(held, p.Scratch(8*int64(max(len(t.Shape), 1))*selected))", Bent: "held = append(held, p.Scratch(4*int64(max(len(t.Shape), 1))*selected))"},
		{Rule: "a running sum of booleans needs no copy", File: "ops_index.go", Test: real,
			Old: "copied = p.Scratch(t.Numel() * out.DType.Size())", Bent: "copied = -1"},
		{Rule: "topk of long slices runs in one block", File: "ops_index.go", Test: real,
			Old: "if !many {", Bent: "if !many || n <= 20 {"},
		{Rule: "keys of 4,096 are sorted by segments", File: "ops_index.go", Test: real,
			Old: "case size <= 4096:", Bent: "case size <= 512:"},
		{Rule: "a matrix with steps is read as it is", File: "ops_matmul.go", Test: real,
			Old: "copies = append(copies, p.Scratch(matrixCopy(o.tensor(n))))", Bent: "copies = append(copies, p.Scratch(0*matrixCopy(o.tensor(n))))"},
		{Rule: "pooling reads a broadcast gradient as it is", File: "rules.go", Test: real,
			Old: "if g := o.tensor(\"grad_output\"); g != nil && !g.channelsLast() {", Bent: "if g := o.tensor(\"grad_output\"); g == nil {"},
		{Rule: "a convolution in the table is answered by its relative", File: "conv_table.go", Test: real,
			Old: "return o.ws[p]\n\t\t}", Bent: "return o.ws[p] / 2\n\t\t}"},
		{Rule: "the workspace of a weight gradient is that of the forward pass", File: "ops_conv.go", Test: real,
			Old: "part(1, weightPass)", Bent: "part(1, forwardPass)"},
		{Rule: "a recurrent layer takes ten times 8 MiB", File: "ops_conv.go", Test: real,
			Old: "terms := [7]float64{l * d * (8 << 20)", Bent: "terms := [7]float64{l * d * (80 << 20)"},
	})
}
