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

// fsdp is torch.distributed.fsdp.fully_shard applied to every block and to the
// rest (embedding, head): each rank keeps 1/DP of every parameter along its
// first dimension, gathers a unit's parameters before its forward and backward,
// and reduce-scatters the unit's gradients after its backward.
type fsdp struct {
	e       *eager.Engine
	ranks   int64
	reshard bool // ZeRO-3: free the gathered parameters after forward
	units   []*shardUnit
	root    *shardUnit
	gather  *eager.Tensor // buffer of the last all-gather, freed by the next
	scatter *eager.Tensor // input of the last reduce-scatter, freed by the next
}

type shardUnit struct {
	full   []*eager.Tensor // what the model computes with
	shards []*eager.Tensor // what the optimizer updates
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

// unshard gathers a unit: one flat buffer for the all-gather, then the
// parameters copied out of it. The buffer lives until the next gather.
func (f *fsdp) unshard(u *shardUnit) {
	if u.ready || len(u.full) == 0 {
		return
	}
	u.ready = true
	e := f.e
	var n int64
	for i, p := range u.full {
		n += u.shards[i].Numel() * f.ranks * p.DType.Size()
	}
	buf := e.Buffer(eager.I8, n)
	if f.gather != nil {
		f.gather.Release()
	}
	f.gather = buf
	for _, p := range u.full {
		e.AllocStorage(p)
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

// reduce is post_backward: the unit's gradients go through a flat buffer into
// shards of the parameter type of the optimizer.
func (f *fsdp) reduce(u *shardUnit) {
	if u.done || len(u.full) == 0 {
		return
	}
	u.done = true
	e := f.e
	var n int64
	dt := u.full[0].DType
	for _, s := range u.shards {
		n += s.Numel() * f.ranks
	}
	in := e.Buffer(dt, n)
	if f.scatter != nil {
		f.scatter.Release()
	}
	f.scatter = in
	for _, p := range u.full {
		p.FreeGrad()
	}
	f.free(u)
	for _, s := range u.shards {
		if s.Grad == nil {
			s.Grad = e.Buffer(s.DType, s.Shape...)
		} else {
			e.Do(func() { e.Empty(s.DType, s.Shape...) })
		}
	}
}

// beginStep gathers the root unit, whose parameters stay for the forward.
func (f *fsdp) beginStep() {
	for _, u := range f.units {
		u.done = false
	}
	f.root.done = false
	f.unshard(f.root)
}

// endBackward reduces what is left.
func (f *fsdp) endBackward() {
	f.reduce(f.root)
	if f.gather != nil {
		f.gather.Release()
		f.gather = nil
	}
	if f.scatter != nil {
		f.scatter.Release()
		f.scatter = nil
	}
}
