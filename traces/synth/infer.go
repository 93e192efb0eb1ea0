package synth

import (
	"allocsim/traces/synth/internal/eager"
)

// kvCache holds the keys and values of a decoder's layers.
type kvCache struct {
	e      *eager.Engine
	paged  bool
	gen    bool  // generation, as against a training forward with use_cache
	block  int64 // tokens per page
	k, v   []*eager.Tensor
	pages  [][]*eager.Tensor // by layer
	tokens []int64           // by layer
}

func newKVCache(e *eager.Engine, o *Options, layers int) *kvCache {
	return &kvCache{e: e, paged: o.KVCache == "paged", block: o.KVBlock,
		k: make([]*eager.Tensor, layers), v: make([]*eager.Tensor, layers),
		pages: make([][]*eager.Tensor, layers), tokens: make([]int64, layers)}
}

// cached puts the new keys and values [B,KV,S,D] of layer i into the cache and
// returns what attention reads.
func (n *net) cached(i int, k, v *eager.Tensor) (*eager.Tensor, *eager.Tensor) {
	c := n.cache
	if c == nil {
		return k, v
	}
	if c.paged {
		return c.appendPages(i, k, v)
	}
	if c.k[i] == nil {
		// DynamicCache concatenates with an empty tensor: a copy.
		kk, vv := c.e.Cat(-2, k), c.e.Cat(-2, v)
		c.k[i], c.v[i] = kk, vv
		c.e.Keep(c.e.Retain(kk))
		c.e.Keep(c.e.Retain(vv))
		return kk, vv
	}
	kk := c.e.Cat(-2, c.k[i], k)
	c.k[i].Release()
	c.k[i] = c.e.Keep(c.e.Retain(kk))
	vv := c.e.Cat(-2, c.v[i], v)
	c.v[i].Release()
	c.v[i] = c.e.Keep(c.e.Retain(vv))
	return kk, vv
}

// appendPages grows the cache by whole pages per item: each holds the keys and
// values of block tokens of one layer. Attention reads the pages in place.
func (c *kvCache) appendPages(i int, k, v *eager.Tensor) (*eager.Tensor, *eager.Tensor) {
	items, kv, d := k.Dim(0), k.Dim(1), k.Dim(3)
	have := (c.tokens[i] + c.block - 1) / c.block
	c.tokens[i] += k.Dim(2)
	want := (c.tokens[i] + c.block - 1) / c.block
	for range (want - have) * items {
		c.pages[i] = append(c.pages[i], c.e.Buffer(k.DType, 2, c.block, kv, d))
	}
	var kk, vv *eager.Tensor
	c.e.Meta(func() {
		kk = c.e.Empty(k.DType, items, kv, c.tokens[i], d)
		vv = c.e.Empty(v.DType, items, kv, c.tokens[i], d)
	})
	return kk, vv
}

func (c *kvCache) free() {
	for i := range c.k {
		if c.k[i] != nil {
			c.k[i].Release()
			c.v[i].Release()
		}
		for _, p := range c.pages[i] {
			p.Release()
		}
	}
}

// cacher is a decoder, which takes a cache.
type cacher interface{ setCache(*kvCache) }

// setCache gives a decoder its cache.
func (n *net) setCache(c *kvCache) { n.cache = c }

// infer runs the batches of inference under no_grad.
func (p *program) infer() {
	e, o := p.e, p.o
	e.NoGrad(func() {
		steps := p.newForecast()
		for step := range o.Steps {
			steps.begin()
			p.mark(step, false)
			items, length := p.s.next()
			p.amp(func() {
				if p.m.decoder() {
					p.generate(items, length)
					return
				}
				e.Phase("forward")
				out := e.Scope(func() *eager.Tensor {
					b := p.net.newBatch(items, length)
					h := p.body(b, nil)
					return p.net.head(h)
				})
				p.keepOrDrop(out)
			})
			if o.EmptyCacheEvery > 0 && (step+1)%o.EmptyCacheEvery == 0 {
				e.EmptyCache()
			}
			p.mark(step, true)
			steps.end(o.Steps - step - 1)
		}
	})
}

func (p *program) keepOrDrop(out *eager.Tensor) {
	if p.o.Fault == KeepOutputs {
		p.kept = append(p.kept, p.e.Keep(out))
		return
	}
	p.e.Drop(out)
}

// bookkeeping is the tensors of a few bytes that generate() makes for each
// token: cache positions, stopping criteria, mask checks.
func (p *program) bookkeeping(items int64) {
	for range 4 {
		p.e.Transient(8)
		p.e.Transient(8 * items)
		p.e.Transient(1)
	}
}

// generate is greedy generation as transformers' generate() does it: the whole
// prompt once, then one token at a time; the head runs on the last position.
func (p *program) generate(items, length int64) {
	e, o := p.e, p.o
	cache := newKVCache(e, o, p.net.blocks())
	cache.gen = true
	p.net.(cacher).setCache(cache)
	e.Do(func() {
		ids := e.Empty(eager.I64, items, length)
		x := ids
		for t := range o.NewTokens {
			phase := "prefill"
			if t > 0 {
				phase = "decode"
			}
			e.Phase(phase)
			p.bookkeeping(items)
			next := e.Scope(func() *eager.Tensor {
				logits := e.Scope(func() *eager.Tensor {
					h := p.body(batch{x: x, n: items, len: x.Dim(1)}, nil)
					return p.net.head(e.Slice(h, 1, h.Dim(1)-1, 1))
				})
				f := e.Empty(eager.F32, items, logits.Dim(-1))
				if p.o.Fault == KeepOutputs {
					p.kept = append(p.kept, e.Keep(e.Retain(logits)))
				}
				e.Drop(logits)
				n := e.Empty(eager.I64, items)
				e.Drop(f)
				return n
			})
			old := ids
			ids = e.Cat(1, ids, e.Unsqueeze(next, 1))
			if x != old {
				e.Drop(x)
			}
			e.Drop(old)
			x = next
			x = e.View(next, items, 1)
			e.Drop(next)
		}
	})
	cache.free()
	p.net.(cacher).setCache(nil)
}
