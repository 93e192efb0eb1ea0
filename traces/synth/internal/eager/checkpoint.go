package eager

// Non-reentrant activation checkpointing (torch/utils/checkpoint.py): the
// forward saves placeholders; the first of them that backward asks for reruns
// the forward, which stops as soon as the last placeholder has its tensor.

// ckpt is a _CheckpointFrame.
type ckpt struct {
	e       *Engine
	fn      func(*Tensor) *Tensor
	arg     *Tensor
	extra   []*Tensor // what the closure of fn holds
	amp     DType
	path    []uint32
	holders []*holder
	live    int // placeholders that a node still holds, plus one during forward
	ready   bool
}

type holder struct {
	c    *ckpt
	t    *Tensor // recomputed; an owned reference until unpacked
	dead bool
}

type stopRecompute struct{ c *ckpt }

// Checkpoint runs fn(x) under checkpoint(use_reentrant=False). fn must make
// the same operations each time it is called; extra are the other tensors that
// it uses, which live as long as it may be called.
func (e *Engine) Checkpoint(x *Tensor, extra []*Tensor, fn func(*Tensor) *Tensor) *Tensor {
	if e.noGrad > 0 {
		return fn(x)
	}
	c := &ckpt{e: e, fn: fn, arg: x, extra: extra, amp: e.amp.dt, path: append([]uint32(nil), e.stacks.path...), live: 1}
	x.refs++
	for _, t := range extra {
		t.refs++
	}
	e.hooks = append(e.hooks, saveHooks{pack: func(t *Tensor) savedVar {
		h := &holder{c: c}
		c.holders = append(c.holders, h)
		c.live++
		return savedVar{h: h}
	}})
	out := fn(x)
	e.hooks = e.hooks[:len(e.hooks)-1]
	c.unref()
	return out
}

func (c *ckpt) unref() {
	c.live--
	if c.live == 0 && c.arg != nil {
		a := c.arg
		c.arg = nil
		a.release()
		for _, t := range c.extra {
			t.release()
		}
	}
}

func (h *holder) drop() {
	if h.dead {
		return
	}
	h.dead = true
	if h.t != nil {
		t := h.t
		h.t = nil
		t.release()
	}
	h.c.unref()
}

// unpack returns the recomputed tensor, whose reference goes to the open
// scope: it dies when the node's rule returns.
func (h *holder) unpack(e *Engine) *Tensor {
	if !h.c.ready {
		h.c.recompute()
	}
	t := h.t
	if t == nil {
		panic("eager: a checkpointed tensor was asked for twice")
	}
	h.t = nil
	e.own(t)
	return t
}

func (c *ckpt) recompute() {
	e := c.e
	c.ready = true
	i := 0
	nScopes, nPending, nHooks, nOps := len(e.scopes), len(e.pending), len(e.hooks), len(e.stacks.ops)
	oldPath, oldNoGrad, oldAmp := e.stacks.path, e.noGrad, e.amp
	e.hooks = append(e.hooks, saveHooks{pack: func(t *Tensor) savedVar {
		h := c.holders[i]
		i++
		if !h.dead {
			h.t = e.detached(t)
		}
		if i == len(c.holders) {
			panic(stopRecompute{c})
		}
		return savedVar{t: e.detached(t)}
	}})
	e.noGrad = 0
	e.amp = autocast{}
	e.recomp++
	e.stacks.path = c.path
	e.open()
	func() {
		defer func() {
			e.recomp--
			if r := recover(); r != nil {
				if s, ok := r.(stopRecompute); !ok || s.c != c {
					panic(r)
				}
				// The exception unwinds: innermost frames first.
				for len(e.scopes) > nScopes {
					e.close()
				}
				for len(e.pending) > nPending {
					n := e.pending[len(e.pending)-1]
					e.pending = e.pending[:len(e.pending)-1]
					n.release()
				}
			}
		}()
		e.Autocast(c.amp, func() { c.fn(c.arg) })
		e.close()
	}()
	e.hooks = e.hooks[:nHooks]
	e.stacks.path, e.noGrad, e.amp = oldPath, oldNoGrad, oldAmp
	e.stacks.ops = e.stacks.ops[:nOps]
}
