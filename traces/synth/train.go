package synth

import (
	"fmt"

	"allocsim/traces/synth/internal/eager"
)

// program runs one model on one engine.
type program struct {
	e   *eager.Engine
	m   Model
	o   *Options
	net network
	s   *sampler

	ddp    *ddp
	fsdp   *fsdp
	scaler *scaler
	params []*eager.Tensor // what the optimizer updates
	opt    *optimizer
	marks  []mark

	prevLoss *eager.Tensor
	held     [3]*eager.Tensor // input, labels and mask that loop variables hold
	kept     []*eager.Tensor  // what a fault keeps
	old      []*optimizer
}

type mark struct {
	us   int64
	name string
	end  bool
}

func (p *program) mark(step int, end bool) {
	p.marks = append(p.marks, mark{p.e.NowUS(), fmt.Sprintf("ProfilerStep#%d", step), end})
}

// setup builds the model and what surrounds it.
func (p *program) setup() {
	e, o := p.e, p.o
	e.Phase("model")
	switch {
	case o.Zero >= 2:
		// Built on the meta device. Under mixed precision fully_shard gathers
		// 16-bit parameters (MixedPrecisionPolicy) in place of autocast.
		inner := *o
		if a := o.Precision.amp(); a != 0 {
			inner.Precision = BF16
			if a == eager.F16 {
				inner.Precision = FP16
			}
		}
		e.Meta(func() { p.net = build(e, p.m, &inner) })
		for _, b := range p.net.buffers() {
			e.AllocStorage(b, 0)
		}
		p.fsdp = newFSDP(e, p.net, o, o.Precision.paramType())
		p.params = p.fsdp.parameters()
	default:
		p.net = build(e, p.m, o)
		p.params = p.net.parameters()
		if o.Mode == Train && o.DP > 1 {
			p.ddp = newDDP(e, p.params)
		}
		if o.Zero == 1 {
			p.params = partition(p.params, o.DP)
		}
	}
	if o.Precision == FP16AMP {
		p.scaler = &scaler{e: e, skip: o.SkippedSteps}
	}
}

// amp runs f under the program's autocast.
func (p *program) amp(f func()) {
	if p.fsdp != nil {
		f()
		return
	}
	p.e.Autocast(p.o.Precision.amp(), f)
}

// body runs the model from its input to the hidden state after the last block
// of this rank.
func (p *program) body(b batch, in *eager.Tensor) *eager.Tensor {
	e := p.e
	return e.Scope(func() *eager.Tensor {
		h, v := p.net.begin(b)
		if in != nil {
			h = e.Retain(in)
		}
		n := p.net.blocks()
		size := p.segment(n)
		for i := 0; i < n; {
			j := i + size
			plain := p.o.Checkpoint == SqrtCheckpoint && j/size >= isqrt(n)
			if plain {
				j = i + 1
			}
			next := p.run(i, j, h, v, plain)
			if next != h {
				e.Drop(h)
			}
			h = next
			i = j
		}
		return p.net.end(h)
	})
}

// segment is how many blocks are checkpointed together: with √n segments, as
// torch.utils.checkpoint.checkpoint_sequential does, all but the last, which
// takes the remainder and is not checkpointed.
func (p *program) segment(n int) int {
	if p.o.Checkpoint == SqrtCheckpoint && p.o.Mode == Train {
		return n / isqrt(n)
	}
	return 1
}

// run runs blocks i to j, checkpointed unless plain.
func (p *program) run(i, j int, h *eager.Tensor, v env, plain bool) *eager.Tensor {
	e := p.e
	f := func(x *eager.Tensor) *eager.Tensor {
		return e.Scope(func() *eager.Tensor {
			y := x
			for k := i; k < j; k++ {
				next := p.sharded(k, y, v)
				if y != x {
					e.Drop(y)
				}
				y = next
			}
			return y
		})
	}
	if p.o.Mode == Train && p.o.Checkpoint != NoCheckpoint && !plain {
		return e.Checkpoint(h, v.tensors(), f)
	}
	return f(h)
}

// sharded runs one block with its parameters gathered.
func (p *program) sharded(i int, x *eager.Tensor, v env) *eager.Tensor {
	f := p.fsdp
	if f == nil {
		return p.net.block(i, x, v)
	}
	u := f.units[i]
	f.unshard(u)
	back := p.e.InBackward() // a recomputation: the parameters stay
	if !back {
		// The block's backward begins when its result gets a gradient and
		// ends when its input does.
		x.HookGradFirst(func() { f.reduce(u) })
	}
	y := p.net.block(i, x, v)
	if !back {
		y.HookGrad(func() { f.preBackward(i) })
		if f.reshard {
			f.free(u)
		}
	}
	return y
}

// forward makes a batch and runs the model on it: the loss.
func (p *program) forward() (loss *eager.Tensor) {
	e := p.e
	return e.Scope(func() *eager.Tensor {
		b := p.nextBatch()
		if p.fsdp != nil {
			p.fsdp.beginForward()
		}
		cache := p.trainCache()
		h := p.body(b, nil)
		logits := p.net.head(h)
		if p.m.image() {
			e.Drop(h, b.x) // the call returns; the labels come next
		}
		if p.o.Fault == KeepOutputs {
			p.kept = append(p.kept, logits)
			e.Keep(e.Retain(logits))
		}
		loss := p.net.loss(logits, b)
		if p.fsdp != nil {
			p.fsdp.afterForward()
		}
		e.Drop(h, logits)
		if cache != nil {
			cache.free()
			p.net.(cacher).setCache(nil)
		}
		return loss
	})
}

// nextBatch makes a batch in the open scope, or with HoldBatch under a name
// that lives until the next.
func (p *program) nextBatch() batch {
	e := p.e
	items, length := p.s.next()
	b := p.net.newBatch(items, length)
	if !p.o.HoldBatch {
		return b
	}
	// Each name gives its old tensor up when the new one is there.
	hold := func(i int, t *eager.Tensor) {
		if t == nil {
			return
		}
		e.Keep(e.Retain(t))
		if p.held[i] != nil {
			p.held[i].Release()
		}
		p.held[i] = t
	}
	hold(0, b.x)
	if b.y == nil {
		b.y = e.Empty(eager.I64, items)
		hold(1, b.y)
	}
	hold(2, b.mask)
	return b
}

// trainCache gives a decoder a cache for one forward when the options ask for
// it; checkpointing switches it off.
func (p *program) trainCache() *kvCache {
	if !p.o.UseCache || !p.m.decoder() || p.o.Checkpoint != NoCheckpoint {
		return nil
	}
	c := newKVCache(p.e, p.o, p.net.blocks())
	c.paged = false
	p.net.(cacher).setCache(c)
	return c
}

// micro is one forward and backward of a micro-batch.
func (p *program) micro() {
	e, o := p.e, p.o
	e.Phase("forward")
	var loss *eager.Tensor
	p.amp(func() {
		loss = p.forward()
		if o.Accumulate > 1 {
			l := e.MulScalar(loss)
			e.Drop(loss)
			loss = l
		}
	})
	if p.prevLoss != nil {
		p.prevLoss.Release()
	}
	p.prevLoss = e.Keep(loss)
	retain := o.Fault == KeepGraph
	if retain {
		p.kept = append(p.kept, loss)
		p.prevLoss = nil
	}
	e.Phase("backward")
	if p.fsdp != nil {
		p.fsdp.beginBackward()
	}
	if p.scaler != nil {
		e.Do(func() { e.Backward(p.scaler.scaled(loss), nil, retain) })
	} else {
		e.Backward(loss, nil, retain)
	}
	if p.fsdp != nil {
		p.fsdp.endBackward()
	}
}

// update is the optimizer's part of a step.
func (p *program) update() {
	e, o := p.e, p.o
	if p.ddp != nil {
		e.Phase("DistributedDataParallel")
		p.ddp.afterBackward()
	}
	switch {
	case p.opt == nil:
		p.opt = newOptimizer(e, o.Optimizer, p.params)
	case o.Fault == NewOptimizer:
		p.opt.free()
		p.opt = newOptimizer(e, o.Optimizer, p.params)
	case o.Fault == LeakOptimizer:
		p.old = append(p.old, p.opt)
		p.opt = newOptimizer(e, o.Optimizer, p.params)
	}
	e.Phase("optimizer.step")
	if o.ClipNorm {
		p.opt.clipNorm()
	}
	if p.scaler != nil {
		p.scaler.step(p.opt.step)
	} else {
		p.opt.step()
	}
	if !o.ZeroGradFirst {
		p.zeroGrad()
	}
}

func (p *program) zeroGrad() {
	p.e.Phase("zero_grad")
	for _, t := range p.net.parameters() {
		t.FreeGrad()
	}
	if p.fsdp != nil && p.opt != nil {
		p.opt.zeroGrad()
	}
}

// train runs the training steps.
func (p *program) train() {
	e, o := p.e, p.o
	steps, micros := p.newForecast(), p.newForecast()
	for step := range o.Steps {
		steps.begin()
		p.mark(step, false)
		if o.ZeroGradFirst && step > 0 {
			p.zeroGrad()
		}
		if o.PP > 1 {
			p.pipeline()
		} else {
			for i := range o.Accumulate {
				micros.begin()
				p.micro()
				micros.end(o.Steps*o.Accumulate - step*o.Accumulate - i - 1)
			}
		}
		p.update()
		if o.EmptyCacheEvery > 0 && (step+1)%o.EmptyCacheEvery == 0 {
			e.EmptyCache()
		}
		p.mark(step, true)
		steps.end(o.Steps - step - 1)
	}
}

// forecast tells early that a program of many equal rounds makes too many
// events, from the shortest of the first few.
type forecast struct {
	e     *eager.Engine
	share int // a round to come makes at least 1/share of the least events; 0: unknown
	first int // events when the round began
	least int // events of the shortest round
	seen  int
}

func (p *program) newForecast() *forecast {
	f := &forecast{e: p.e, share: 1}
	// Where the lengths vary, so do a few choices of kernels, and the pages of
	// a cache without any bound that the first rounds would show.
	if l := p.s.l.kind; l != "fixed" || len(p.o.Batches) > 0 {
		f.share = 16
		if p.o.KVCache == "paged" {
			f.share = 0
		}
	}
	return f
}

func (f *forecast) begin() { f.first = f.e.Events() }

// end is called after a round, of which left are to come. The first rounds are
// peculiar (no gradients yet, no optimizer states), so it takes three.
func (f *forecast) end(left int) {
	n := f.e.Events() - f.first
	if f.seen++; f.seen == 1 || n < f.least {
		f.least = n
	}
	if f.seen >= 3 && f.share > 0 {
		f.e.Foresee(f.least / f.share * left)
	}
}

// pipeline is one step of a 1F1B schedule on this stage: as many forwards as
// there are later stages, then one forward and one backward in turn, then the
// rest of the backwards. Activations come from and go to the neighbours in
// buffers of their own.
func (p *program) pipeline() {
	e, o := p.e, p.o
	type flight struct{ in, out *eager.Tensor }
	var queue []flight
	first, last := o.PPRank == 0, o.PPRank == o.PP-1
	dt := o.Precision.paramType()
	fwd := func() {
		e.Phase("forward")
		items, length := p.s.next()
		var fl flight
		p.amp(func() {
			e.Do(func() {
				tokens := length
				if p.m.Family == "vit" {
					tokens = (p.m.Image/p.m.Patch)*(p.m.Image/p.m.Patch) + 1
				}
				var b batch
				if first || last {
					b = p.net.newBatch(items, length)
				} else {
					b = batch{n: items, len: length}
				}
				if !first {
					fl.in = e.Param(dt, items, tokens, p.m.Hidden) // received
				}
				h := p.body(b, fl.in)
				if last {
					l := p.net.head(h)
					h = p.net.loss(l, b)
					if p.prevLoss != nil {
						p.prevLoss.Release()
					}
					p.prevLoss = e.Keep(e.Retain(h))
				}
				fl.out = e.Keep(h)
			})
		})
		queue = append(queue, fl)
	}
	bwd := func() {
		e.Phase("backward")
		fl := queue[0]
		queue = queue[1:]
		if last {
			e.Backward(fl.out, nil, false)
		} else {
			e.Do(func() {
				g := e.Empty(fl.out.DType, fl.out.Shape...) // received
				e.Backward(fl.out, g, false)
			})
		}
		fl.out.Release()
		if fl.in != nil {
			fl.in.Release() // with its gradient, which has been sent
		}
	}
	warm := min(o.PP-o.PPRank-1, o.Accumulate)
	for range warm {
		fwd()
	}
	for range o.Accumulate - warm {
		fwd()
		bwd()
	}
	for range warm {
		bwd()
	}
}
