package rmm

import (
	"fmt"
	"slices"
	"strings"

	"allocsim/internal/bytesize"
	"allocsim/policies"
	"allocsim/policies/internal/heap"
	"allocsim/policies/internal/options"
)

// Fixed makes fixed_size_memory_resource known as "rmm-fixed".
var Fixed = policies.Registration{
	Name:    "rmm-fixed",
	Aliases: []string{"fixed"},
	Doc:     "RAPIDS RMM fixed_size_memory_resource: blocks of one size; larger requests fail",
	Options: "block=1MiB (block size), blocks=128 (blocks taken at a time), " +
		"upstream=cuda (or pool), initial=0, max=0 (of that pool, as for rmm-pool)",
	Parse: func(text string) (*policies.Spec, error) {
		o := options.Parse(text, "block", "blocks", "upstream", "initial", "max")
		b := binConfig{size: bytesize.MiB, count: chunkBlocks}
		o.Size("block", &b.size, 1)
		o.Int("blocks", &b.count, 1, 1<<20)
		b.size = roundUp(b.size)
		c := readUpstream(o, "cuda")
		return newSpec("rmm-fixed", o, func(env policies.Env) (policies.Policy, error) {
			r, err := newResource(env, c, []binConfig{b})
			if err != nil {
				return nil, err
			}
			r.only = true
			return r, nil
		})
	},
}

// Binning makes binning_memory_resource known as "rmm-binning".
var Binning = policies.Registration{
	Name:    "rmm-binning",
	Aliases: []string{"binning"},
	Doc:     "RAPIDS RMM binning_memory_resource: fixed-size bins below, a pool above",
	Options: "from=256KiB, to=4MiB (smallest and largest bin, powers of two), bins= (sizes joined by +, instead), " +
		"upstream=pool (or cuda), initial=0, max=0 (of the pool, as for rmm-pool)",
	Parse: func(text string) (*policies.Spec, error) {
		o := options.Parse(text, "from", "to", "bins", "upstream", "initial", "max")
		bins := readBins(o)
		c := readUpstream(o, "pool")
		return newSpec("rmm-binning", o, func(env policies.Env) (policies.Policy, error) {
			return newResource(env, c, bins)
		})
	},
}

// chunkBlocks is default_blocks_to_preallocate.
const chunkBlocks = 128

// readUpstream reads where chunks and large requests come from: a pool, or the
// device itself (nil).
func readUpstream(o *options.Set, upstream string) *poolConfig {
	o.Choice("upstream", &upstream, "cuda", "pool")
	var c poolConfig
	c.read(o, "initial", "max")
	if upstream == "pool" {
		return &c
	}
	if o.Given("initial") || o.Given("max") {
		o.Fail("options initial and max are for upstream=pool")
	}
	return nil
}

func readBins(o *options.Set) []binConfig {
	if text, ok := o.Text("bins"); ok {
		if o.Given("from") || o.Given("to") {
			o.Fail("options from and to exclude bins")
		}
		var sizes []int64
		for _, part := range strings.Split(text, "+") {
			n, err := bytesize.Parse(part)
			if err != nil || n <= 0 || n > 1<<40 {
				o.Fail("option bins=%s takes sizes joined by +, such as 256KiB+1MiB", text)
				return nil
			}
			sizes = append(sizes, roundUp(n))
		}
		slices.Sort(sizes)
		sizes = slices.Compact(sizes)
		var bins []binConfig
		var normal []string
		for _, n := range sizes {
			bins = append(bins, binConfig{n, chunkBlocks})
			normal = append(normal, options.Size(n))
		}
		o.Keep("bins", strings.Join(normal, "+"))
		return bins
	}
	from, to := int64(256*bytesize.KiB), int64(4*bytesize.MiB)
	o.Size("from", &from, unit)
	o.Size("to", &to, unit)
	if from&(from-1) != 0 || to&(to-1) != 0 || from > to || to > 1<<40 {
		o.Fail("options from and to take powers of two up to 1TiB, the smaller first")
		return nil
	}
	var bins []binConfig
	for n := from; n <= to; n *= 2 {
		bins = append(bins, binConfig{n, chunkBlocks})
	}
	return bins
}

type binConfig struct {
	size  int64 // bytes of a block
	count int64 // blocks in a chunk
}

// bin is a fixed-size resource. Its blocks, free or not, have
// Block.List = -1 - its index, which keeps them out of the pool's hands.
type bin struct {
	binConfig
	queues []queue // by stream
	streams
}

// queue is a first-in first-out list of free blocks by Block.Link.
type queue struct{ head, tail int32 }

// addBin makes the next larger bin and takes its first chunk, which belongs to
// the default stream.
func (r *resource) addBin(c binConfig) error {
	r.bins = append(r.bins, bin{binConfig: c})
	i := int32(len(r.bins) - 1)
	r.bins[i].note(0)
	if err := r.takeChunk(i, 0); err != nil {
		return fmt.Errorf("taking %d blocks of %d bytes at the start: %w", c.count, c.size, err)
	}
	return nil
}

// takeChunk cuts a chunk from upstream into the free blocks of a stream.
func (r *resource) takeChunk(i int32, stream uint16) error {
	b := &r.bins[i]
	if b.size > heap.MaxRequest/b.count {
		return r.Refuse(policies.Shortage{Final: true, Reason: "A chunk of the bin would have more than 1024 TiB.", Err: noRoom("not enough room to grow")})
	}
	c, err := r.upstream(b.size*b.count, stream)
	if err != nil {
		return err
	}
	for n := int64(1); n < b.count; n++ {
		rest := r.Split(c, b.size)
		r.push(i, stream, c)
		c = rest
	}
	r.push(i, stream, c)
	return nil
}

// push puts a free block at the end of a stream's queue.
func (r *resource) push(i int32, stream uint16, b int32) {
	bin := &r.bins[i]
	for int(stream) >= len(bin.queues) {
		bin.queues = append(bin.queues, queue{})
	}
	blk, q := &r.Blocks[b], &bin.queues[stream]
	blk.List, blk.Link = -1-i, 0
	r.CountFree(b)
	if q.tail == 0 {
		q.head = b
	} else {
		r.Blocks[q.tail].Link = b
	}
	q.tail = b
}

// pop takes the first block of a stream's queue; 0 if it is empty.
func (r *resource) pop(i int32, stream uint16) int32 {
	bin := &r.bins[i]
	if int(stream) >= len(bin.queues) || bin.queues[stream].head == 0 {
		return 0
	}
	q := &bin.queues[stream]
	b := q.head
	if q.head = r.Blocks[b].Link; q.head == 0 {
		q.tail = 0
	}
	r.UncountFree(b)
	return b
}

// fromBin returns a block of bin i: from the stream's own queue, else from
// another stream's, else from a new chunk.
func (r *resource) fromBin(i int32, stream uint16) (int32, error) {
	if b := r.pop(i, stream); b != 0 {
		return b, nil
	}
	r.bins[i].note(stream)
	for _, s := range r.bins[i].order {
		if b := r.pop(i, s); b != 0 {
			return b, nil
		}
	}
	if err := r.takeChunk(i, stream); err != nil {
		return 0, err
	}
	return r.pop(i, stream), nil
}
