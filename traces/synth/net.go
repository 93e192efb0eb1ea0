package synth

import (
	"fmt"

	"allocsim/traces/synth/internal/eager"
)

// network is a model built on an engine: what the training and inference loops
// need from a family.
type network interface {
	// parameters is module.parameters(): the optimizer's order.
	parameters() []*eager.Tensor
	// blocks is the number of repeated blocks of this rank.
	blocks() int
	// newBatch allocates one batch of n items, each of the given length (tokens
	// or pixels), and its labels, in the open scope.
	newBatch(n, length int64) batch
	// begin runs everything before the blocks, in the scope that is open
	// while the blocks run. h is nil on a later pipeline rank.
	begin(b batch) (h *eager.Tensor, v env)
	// block runs block i of this rank.
	block(i int, h *eager.Tensor, v env) *eager.Tensor
	// end runs what follows the blocks inside the model's body.
	end(h *eager.Tensor) *eager.Tensor
	// head makes the logits.
	head(h *eager.Tensor) *eager.Tensor
	// loss makes the loss; keep is what the model returns besides it.
	loss(logits *eager.Tensor, b batch) *eager.Tensor
	// buffers are the model's tensors that are not parameters; sharding leaves
	// them whole.
	buffers() []*eager.Tensor
	// blockParams are the parameters of block i, a unit of sharding.
	blockParams(i int) []*eager.Tensor
}

// env is what the blocks share besides the hidden state.
type env struct{ cos, sin, mask *eager.Tensor }

func (v env) tensors() []*eager.Tensor {
	var ts []*eager.Tensor
	for _, t := range []*eager.Tensor{v.cos, v.sin, v.mask} {
		if t != nil {
			ts = append(ts, t)
		}
	}
	return ts
}

// batch is one batch on the device.
type batch struct {
	x, y *eager.Tensor
	n    int64 // items
	len  int64 // tokens per item, or pixels per side
	// mask is the attention mask of a padded batch; nil without padding.
	mask *eager.Tensor
}

// net is what all families share.
type net struct {
	e      *eager.Engine
	m      Model
	o      *Options
	dt     eager.DType // of the parameters
	train  bool
	tp     int64 // tensor-parallel ranks
	lo, hi int   // this pipeline rank's blocks
	first  bool  // has the embedding
	last   bool  // has the head
	quant  bool  // int8 weights
	ps     []*eager.Tensor
	perBlk [][]*eager.Tensor
	bufs   []*eager.Tensor
	cache  *kvCache
}

func newNet(e *eager.Engine, m Model, o *Options) net {
	n := net{e: e, m: m, o: o, train: o.Mode == Train, dt: o.Precision.paramType(), quant: o.Precision == Int8,
		tp: int64(o.TP), first: true, last: true}
	layers := m.blockCount()
	n.hi = layers
	if o.PP > 1 {
		// Ranks take layers evenly, the first ones one more when it does not
		// divide.
		q, r := layers/o.PP, layers%o.PP
		n.lo = o.PPRank*q + min(o.PPRank, r)
		n.hi = n.lo + q
		if o.PPRank < r {
			n.hi++
		}
		n.first, n.last = o.PPRank == 0, o.PPRank == o.PP-1
	}
	return n
}

func (n *net) parameters() []*eager.Tensor       { return n.ps }
func (n *net) buffers() []*eager.Tensor          { return n.bufs }
func (n *net) blocks() int                       { return n.hi - n.lo }
func (n *net) blockParams(i int) []*eager.Tensor { return n.perBlk[i] }
func (n *net) add(ps ...*eager.Tensor)           { n.ps = append(n.ps, ps...) }
func (n *net) addBlock(i int, ps ...*eager.Tensor) {
	n.add(ps...)
	n.perBlk[i] = append(n.perBlk[i], ps...)
}

// buffer makes a tensor that is not a parameter.
func (n *net) buffer(dt eager.DType, shape ...int64) *eager.Tensor {
	t := n.e.Buffer(dt, shape...)
	n.bufs = append(n.bufs, t)
	return t
}

// module runs f as a named module.
func (n *net) module(name string, f func() *eager.Tensor) *eager.Tensor {
	return n.e.Module(name, f)
}

// lin is a linear layer (or HF's Conv1D); w may be int8 with a scale.
type lin struct {
	w, b, scale *eager.Tensor
	conv1d      bool
	shape       []int64 // of the weight
}

// dense makes a linear layer of out×in with its parameters in construction
// order.
func (n *net) dense(in, out int64, bias bool) lin {
	l := lin{shape: []int64{out, in}}
	n.fill(&l, out, bias)
	return l
}

// conv1D makes HF's Conv1D: the weight is in×out.
func (n *net) conv1D(in, out int64) lin {
	l := lin{shape: []int64{in, out}, conv1d: true}
	n.fill(&l, out, true)
	return l
}

func (n *net) fill(l *lin, out int64, bias bool) {
	if n.quant {
		l.w = n.e.Buffer(eager.I8, l.shape...)
		l.scale = n.e.Buffer(eager.F32, out)
	} else {
		l.w = n.e.Param(n.dt, l.shape...)
	}
	if bias {
		l.b = n.e.Param(n.dt, out)
	}
}

func (l lin) params() []*eager.Tensor {
	var ps []*eager.Tensor
	if l.w.RequiresGrad {
		ps = append(ps, l.w)
	}
	if l.b != nil {
		ps = append(ps, l.b)
	}
	return ps
}

// apply runs the layer. Int8 weights are expanded to the activation type for
// the time of the call.
func (n *net) apply(l lin, x *eager.Tensor) *eager.Tensor {
	if n.quant {
		return n.e.Scope(func() *eager.Tensor {
			w := n.e.Empty(x.DType, l.shape...)
			return n.product(lin{w: w, b: l.b, conv1d: l.conv1d, shape: l.shape}, x)
		})
	}
	return n.product(l, x)
}

func (n *net) product(l lin, x *eager.Tensor) *eager.Tensor {
	if !l.conv1d {
		return n.e.Linear(x, l.w, l.b)
	}
	return n.e.Scope(func() *eager.Tensor {
		k := x.Dim(-1)
		y := n.e.Addmm(l.b, n.e.View(x, x.Numel()/k, k), l.w)
		shape := append([]int64(nil), x.Shape...)
		shape[len(shape)-1] = l.shape[1]
		return n.e.View(y, shape...)
	})
}

// norm is a LayerNorm (b set) or an RMSNorm.
type norm struct{ w, b *eager.Tensor }

func (n *net) layerNorm(h int64) norm {
	return norm{n.e.Param(n.dt, h), n.e.Param(n.dt, h)}
}

func (s norm) params() []*eager.Tensor {
	if s.b == nil {
		return []*eager.Tensor{s.w}
	}
	return []*eager.Tensor{s.w, s.b}
}

func (n *net) ln(s norm, x *eager.Tensor) *eager.Tensor { return n.e.LayerNorm(x, s.w, s.b) }

func (n *net) drop(x *eager.Tensor, p float64) *eager.Tensor { return n.e.Dropout(x, p, n.train) }

// tokenBatch is a batch of token ids that are their own labels.
func (n *net) tokenBatch(items, length int64) batch {
	x := n.e.Empty(eager.I64, items, length)
	b := batch{x: x, y: x, n: items, len: length}
	if n.o.padded() {
		b.mask = n.e.Empty(eager.I64, items, length)
	}
	return b
}

// paddingMask is transformers' boolean mask [B,1,S,S] of a padded batch, with
// the small tensors that lead to it; nil without padding.
func (n *net) paddingMask(b batch) *eager.Tensor {
	if b.mask == nil {
		return nil
	}
	e := n.e
	return e.Scope(func() *eager.Tensor {
		e.Empty(eager.Bool, b.n, b.len)
		e.Transient(1)
		e.Empty(eager.I64, b.n)
		e.Empty(eager.I64)
		e.Empty(eager.I64, b.len)
		for range 3 {
			e.Transient(8 * b.len)
		}
		e.Transient(b.len)
		idx := e.Empty(eager.I64, b.n, b.len)
		e.Transient(8 * b.n * b.len)
		e.Empty(eager.Bool, b.n, b.len)
		e.Drop(idx)
		return e.Empty(eager.Bool, b.n, 1, b.len, b.len)
	})
}

// maskTemps are the small tensors of transformers' create_causal_mask, which
// looks for packed sequences in the position ids and finds that no mask is
// needed.
func (n *net) maskTemps(b batch) {
	e := n.e
	e.Do(func() {
		first := e.Empty(eager.I64, b.n, 1)
		joined := e.Empty(eager.I64, b.n, b.len+1)
		diff := e.Empty(eager.I64, b.n, b.len)
		e.Drop(joined)
		jump := e.Empty(eager.Bool, b.n, b.len)
		sum := e.Empty(eager.I64, b.n, b.len)
		e.Drop(e.Empty(eager.I64, b.n, b.len), jump)
		last := e.Empty(eager.Bool, b.n)
		all := e.Empty(eager.Bool)
		e.Drop(last, all, first, diff, sum)
	})
}

// imageBatch is a batch of fp32 images. The class labels are made after the
// model has run, by classLoss.
func (n *net) imageBatch(items, side int64) batch {
	x := n.e.Scope(func() *eager.Tensor {
		// Networks with 16-bit parameters get their input cast by the caller.
		return n.e.To(n.e.Empty(eager.F32, items, n.m.channels(), side, side), n.dt)
	})
	return batch{x: x, n: items, len: side}
}

// classLoss is the cross-entropy with class labels.
func (n *net) classLoss(logits *eager.Tensor, b batch) *eager.Tensor {
	return n.e.Scope(func() *eager.Tensor {
		y := b.y
		if y == nil {
			y = n.e.Empty(eager.I64, b.n)
		}
		return n.e.CrossEntropy(logits, y)
	})
}

// heads splits a projection [B,S,A·D] into [B,A,S,D].
func (n *net) heads(x *eager.Tensor, heads, dim int64) *eager.Tensor {
	return n.e.Scope(func() *eager.Tensor {
		return n.e.Transpose(n.e.View(x, x.Dim(0), x.Dim(1), heads, dim), 1, 2)
	})
}

// project is a linear layer split into heads.
func (n *net) project(l lin, x *eager.Tensor, heads, dim int64) *eager.Tensor {
	return n.e.Scope(func() *eager.Tensor { return n.heads(n.apply(l, x), heads, dim) })
}

// merge undoes heads: [B,A,S,D] to [B,S,A·D], with HF's contiguous().
func (n *net) merge(x *eager.Tensor) *eager.Tensor {
	return n.e.Scope(func() *eager.Tensor {
		t := n.e.ContiguousCopy(n.e.Transpose(x, 1, 2))
		return n.e.Reshape(t, t.Dim(0), t.Dim(1), t.Dim(2)*t.Dim(3))
	})
}

// attend is transformers' sdpa_attention_forward and the reshape after it.
func (n *net) attend(q, k, v *eager.Tensor, env env, causal bool, dropout float64) *eager.Tensor {
	return n.e.Scope(func() *eager.Tensor {
		if env.mask != nil && q.Dim(1) != k.Dim(1) {
			// A mask rules out grouped queries: keys and values are repeated.
			r := q.Dim(1) / k.Dim(1)
			k, v = n.e.RepeatInterleave(k, r), n.e.RepeatInterleave(v, r)
		}
		s := n.e.SDPA(q, k, v, env.mask, causal && env.mask == nil && q.Dim(2) > 1, dropout)
		return n.merge(s)
	})
}

// causalLoss is transformers' ForCausalLMLoss: the logits in fp32, labels
// shifted by one.
func (n *net) causalLoss(logits *eager.Tensor, b batch) *eager.Tensor {
	e := n.e
	return e.Scope(func() *eager.Tensor {
		lf := e.To(logits, eager.F32)
		padded := e.Empty(eager.I64, b.n, b.len+1)
		shifted := e.Empty(eager.I64, b.n, b.len)
		v := lf.Dim(-1)
		flat := e.View(lf, b.n*b.len, v)
		loss := e.CrossEntropy(flat, e.View(shifted, b.n*b.len))
		e.Drop(flat, lf, padded)
		return loss
	})
}

func layerName(prefix string, i int) string { return fmt.Sprintf("%s.%d", prefix, i) }

// build makes the network of m on e.
func build(e *eager.Engine, m Model, o *Options) network {
	switch m.Family {
	case "bert":
		return newBERT(e, m, o)
	case "gpt2":
		return newGPT2(e, m, o)
	case "llama":
		return newLlama(e, m, o)
	case "vit":
		return newViT(e, m, o)
	case "resnet":
		return newResNet(e, m, o)
	case "mobilenet-v3":
		return newMobileNet(e, m, o)
	}
	panic("synth: no builder for family " + m.Family)
}
