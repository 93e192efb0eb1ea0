package synth

import (
	"testing"

	"allocsim/internal/bend"
)

// TestBends bends what synthetic programs request; hand arithmetic and real runs
// on the H200 must tell.
func TestBends(t *testing.T) {
	const runs = "TestMeasured"
	bend.Run(t, []bend.Bend{
		{Rule: "DDP's first bucket is as large as the others", File: "parallel.go", Test: "TestBuckets",
			Old: "assign(rev, 1*mib, 25*mib)", Bent: "assign(rev, 25*mib, 25*mib)"},
		{Rule: "buckets are filled from the first parameter", File: "parallel.go", Test: "TestBuckets",
			Old: "slices.Reverse(rev)\n", Bent: "_ = rev\n"},
		{Rule: "a bucket is closed before it is full", File: "parallel.go", Test: "TestBuckets",
			Old: "if n >= limit {", Bent: "if n >= limit/2 {"},
		{Rule: "partial norms of the smallest gradient", File: "optimizer.go", Test: "TestClipNorm",
			Old: "most = max(most, p.Grad.Numel())", Bent: "most = p.Grad.Numel()"},
		{Rule: "more ranks than key-value heads are refused", File: "options.go", Test: "TestTensorParallel",
			Old: "m.kvHeads()%tp != 0 && tp%m.kvHeads() != 0", Bent: "m.kvHeads()%tp != 0"},
		{Rule: "ranks that do not divide the heads are taken", File: "options.go", Test: "TestTensorParallel",
			Old: "(m.Heads%tp != 0 || m.Intermediate%tp != 0)", Bent: "(m.Heads%tp != 0 && m.Intermediate%tp != 0)"},
		{Rule: "Adam has one state", File: "optimizer.go", Test: runs,
			Old: "o.states[i] = []*eager.Tensor{like(o.e, p), like(o.e, p)}", Bent: "o.states[i] = []*eager.Tensor{like(o.e, p)}"},
		{Rule: "Adam's step makes no temporaries", File: "optimizer.go", Test: runs,
			Old: "tmp = append(tmp, o.e.Empty(p.DType, p.Shape...))", Bent: "_ = p.DType"},
		{Rule: "momentum comes anew each step", File: "optimizer.go", Test: runs,
			Old: "if p.Grad != nil && o.states[i] == nil {\n\t\t\to.states[i] = []*eager.Tensor{like(o.e, p.Grad)}", Bent: "if p.Grad != nil {\n\t\t\to.states[i] = []*eager.Tensor{like(o.e, p.Grad)}"},
		{Rule: "Adafactor keeps whole variances", File: "optimizer.go", Test: runs,
			Old: "if len(p.Shape) > 1 {\n\t\t\to.states[i]", Bent: "if len(p.Shape) > 9 {\n\t\t\to.states[i]"},
		{Rule: "zero_grad keeps gradients", File: "optimizer.go", Test: runs,
			Old: "p.FreeGrad()\n", Bent: "_ = p\n"},
		{Rule: "autograd frees saved tensors at the end of backward", File: "internal/eager/autograd.go", Test: runs,
			Old: "if !retain {\n\t\tn.dropSaved()", Bent: "if retain {\n\t\tn.dropSaved()"},
		{Rule: "gradients are never added in place", File: "internal/eager/autograd.go", Test: runs,
			Old: "if old.refs == 1 && old.st.refs == 1 &&", Bent: "if old.refs == 9 && old.st.refs == 1 &&"},
		{Rule: "casts of parameters are not cached", File: "internal/eager/autocast.go", Test: runs,
			Old: "cacheable := t.DType == F32 && t.RequiresGrad", Bent: "cacheable := t.DType == F16 && t.RequiresGrad"},
		{Rule: "the backward thread shares cuBLAS's workspace", File: "internal/eager/engine.go", Test: runs,
			Old: "if e.gemmWS[e.thread] == nil {", Bent: "if e.gemmWS[0] == nil {"},
		{Rule: "a reduction is not split", File: "../kernels/reduce.go", Test: runs,
			Old: "if c <= 1 {", Bent: "if c >= 0 {"},
		{Rule: "convolutions take no workspace for the weight", File: "../kernels/conv.go", Test: runs,
			Old: "case c.Depthwise(), c.OH*c.OW == 1:\n\t\treturn 0\n\tcase c.matrix():\n\t\tx, y, _", Bent: "case true:\n\t\treturn 0\n\tcase c.matrix():\n\t\tx, y, _"},
	})
}
