package synth

import (
	"slices"

	"allocsim/traces/synth/internal/eager"
)

// ddp is DistributedDataParallel's gradient buckets: besides the gradients, a
// flat copy of them lives for good (gradient_as_bucket_view=False).
type ddp struct {
	e       *eager.Engine
	params  []*eager.Tensor
	buckets []*eager.Tensor
	rebuilt bool
}

const mib = 1 << 20

func newDDP(e *eager.Engine, params []*eager.Tensor) *ddp {
	d := &ddp{e: e, params: params}
	e.Phase("DistributedDataParallel")
	// Parameters are broadcast from rank 0 through flat buffers of 250 MiB.
	for _, b := range assign(params, 250*mib, 250*mib) {
		e.Do(func() { e.Bytes(b) })
	}
	d.build()
	return d
}

// build allocates the buckets: 1 MiB, then 25 MiB, in reverse order of
// parameters().
func (d *ddp) build() {
	rev := slices.Clone(d.params)
	slices.Reverse(rev)
	for _, b := range assign(rev, 1*mib, 25*mib) {
		d.buckets = append(d.buckets, d.e.Buffer(eager.I8, b))
	}
}

// afterBackward rebuilds the buckets once, in the order in which gradients
// became ready.
func (d *ddp) afterBackward() {
	if d.rebuilt {
		return
	}
	d.rebuilt = true
	for _, b := range d.buckets {
		b.Release()
	}
	d.buckets = nil
	d.build()
}

// assign packs parameters into buckets of at least the given bytes each.
func assign(ps []*eager.Tensor, firstCap, capBytes int64) []int64 {
	var out []int64
	n, limit := int64(0), firstCap
	for _, p := range ps {
		n += p.Bytes()
		if n >= limit {
			out = append(out, n)
			n, limit = 0, capBytes
		}
	}
	if n > 0 {
		out = append(out, n)
	}
	return out
}

// partition is ZeroRedundancyOptimizer's assignment: the largest parameters
// first, each to the rank with the least. It returns rank 0's parameters in
// parameters() order.
func partition(params []*eager.Tensor, ranks int) []*eager.Tensor {
	order := slices.Clone(params)
	slices.SortStableFunc(order, func(a, b *eager.Tensor) int {
		switch {
		case a.Numel() > b.Numel():
			return -1
		case a.Numel() < b.Numel():
			return 1
		}
		return 0
	})
	load := make([]int64, ranks)
	mine := make(map[*eager.Tensor]bool)
	for _, p := range order {
		r := 0
		for i, l := range load {
			if l < load[r] {
				r = i
			}
		}
		load[r] += p.Numel()
		if r == 0 {
			mine[p] = true
		}
	}
	var out []*eager.Tensor
	for _, p := range params {
		if mine[p] {
			out = append(out, p)
		}
	}
	return out
}

// fsdp is torch.distributed.fsdp.fully_shard (FSDP2) applied to every block and
// to the whole model: each rank keeps 1/DP of every parameter along its first
// dimension, gathers a unit's parameters before its forward and backward, and
// reduce-scatters the unit's gradients after its backward. The root unit
// (embedding, final norm, head) stays gathered between forward and backward, as
// is the default.
type fsdp struct {
	e       *eager.Engine
	ranks   int64
	reshard bool // ZeRO-3: free the gathered parameters after forward
	units   []*shardUnit
	root    *shardUnit
	back    bool          // a backward is running
	held    *eager.Tensor // buffer of the last all-gather in forward
	scatter *eager.Tensor // input of the last reduce-scatter, freed by the next
}

// The streams on which fully_shard allocates besides the default one: the
// copy-in of all-gathers and the reduce-scatters.
const (
	gatherStream = 1
	reduceStream = 2
)

type shardUnit struct {
	full   []*eager.Tensor // what the model computes with
	shards []*eager.Tensor // what the optimizer updates
	gather *eager.Tensor   // buffer of an all-gather under way
	ready  bool            // gathered
	done   bool            // gradients reduced in this backward
}

// newFSDP shards a network whose parameters were built without memory. shard
// is the type of the sharded parameters.
func newFSDP(e *eager.Engine, net network, o *Options, shard eager.DType) *fsdp {
	f := &fsdp{e: e, ranks: int64(o.DP), reshard: o.Zero == 3}
	e.Phase("fully_shard")
	inBlock := make(map[*eager.Tensor]bool)
	for i := range net.blocks() {
		u := &shardUnit{full: net.blockParams(i)}
		for _, p := range u.full {
			inBlock[p] = true
		}
		f.units = append(f.units, u)
	}
	f.root = &shardUnit{}
	for _, p := range net.parameters() {
		if !inBlock[p] {
			f.root.full = append(f.root.full, p)
		}
	}
	for _, u := range append(slices.Clone(f.units), f.root) {
		for _, p := range u.full {
			s := slices.Clone(p.Shape)
			s[0] = (s[0] + f.ranks - 1) / f.ranks
			u.shards = append(u.shards, e.Param(shard, s...))
		}
	}
	return f
}

// parameters are the shards in the optimizer's order: root first, as the
// modules that hold them come first.
func (f *fsdp) parameters() []*eager.Tensor {
	ps := slices.Clone(f.root.shards)
	for _, u := range f.units {
		ps = append(ps, u.shards...)
	}
	return ps
}

// padded is the elements of parameter i of a unit, all ranks' shards together.
func (f *fsdp) padded(u *shardUnit, i int) int64 { return u.shards[i].Numel() * f.ranks }

// start issues a unit's all-gather into one flat buffer.
func (f *fsdp) start(u *shardUnit) {
	if u.ready || u.gather != nil || len(u.full) == 0 {
		return
	}
	var n int64
	for i, p := range u.full {
		n += f.padded(u, i) * p.DType.Size()
	}
	f.e.OnStream(gatherStream, func() { u.gather = f.e.Buffer(eager.I8, n) })
}

// unshard waits for a unit's all-gather and copies the parameters out of its
// buffer, which in forward lives until the next unit's.
func (f *fsdp) unshard(u *shardUnit) {
	if u.ready || len(u.full) == 0 {
		return
	}
	f.start(u)
	u.ready = true
	for i, p := range u.full {
		f.e.AllocStorage(p, f.padded(u, i)*p.DType.Size())
	}
	buf := u.gather
	u.gather = nil
	if f.held != nil {
		f.held.Release()
		f.held = nil
	}
	if f.back {
		buf.Release()
	} else {
		f.held = buf
	}
}

func (f *fsdp) free(u *shardUnit) {
	if !u.ready {
		return
	}
	u.ready = false
	for _, p := range u.full {
		f.e.FreeStorage(p)
	}
}

// afterForward is the root's post-forward.
func (f *fsdp) afterForward() {
	if f.held != nil {
		f.held.Release()
		f.held = nil
	}
}

// preBackward makes unit i ready and issues the all-gather of the one before.
func (f *fsdp) preBackward(i int) {
	f.unshard(f.units[i])
	if i > 0 {
		f.start(f.units[i-1])
	}
}

// reduce is post_backward: the unit's parameters are freed, its gradients go
// through a flat buffer into one buffer of shards of the optimizer's type.
func (f *fsdp) reduce(u *shardUnit) {
	if u.done || len(u.full) == 0 {
		return
	}
	u.done = true
	e := f.e
	dt := u.full[0].DType
	f.free(u)
	if f.scatter != nil {
		f.scatter.Release()
	}
	var n int64
	for i := range u.full {
		n += f.padded(u, i)
	}
	f.scatter = e.Buffer(dt, n)
	for _, p := range u.full {
		p.FreeGrad()
	}
	e.OnStream(reduceStream, func() { f.shardGrads(u, dt, n) })
}

// shardGrads makes the result of a reduce-scatter of n elements the gradients
// of a unit's shards.
func (f *fsdp) shardGrads(u *shardUnit, dt eager.DType, n int64) {
	e := f.e
	e.Do(func() {
		out := e.Empty(dt, n/f.ranks)
		out = e.To(out, u.shards[0].DType)
		first := u.shards[0].Grad == nil
		off := e.Flat(out, u.shards)
		for i, s := range u.shards {
			if first { // the gradients are views of the buffer
				s.Grad = e.Keep(off[i])
			}
		}
	})
}

// beginForward gathers the root unit, whose parameters stay for the backward.
func (f *fsdp) beginForward() {
	f.back = false
	for _, u := range f.units {
		u.done = false
	}
	f.root.done = false
	f.unshard(f.root)
}

// beginBackward issues the first all-gather of the backward.
func (f *fsdp) beginBackward() {
	f.back = true
	f.unshard(f.root)
	f.start(f.units[len(f.units)-1])
}

// endBackward reduces what is left.
func (f *fsdp) endBackward() {
	f.reduce(f.root)
	if f.scatter != nil {
		f.scatter.Release()
		f.scatter = nil
	}
	f.back = false
}
