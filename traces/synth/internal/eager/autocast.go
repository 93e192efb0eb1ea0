package eager

// autocast is torch.autocast's state: the target type and the cache of cast
// parameters, which lives as long as the outermost region.
type autocast struct {
	dt    DType // 0: off
	depth int
	cache []castEntry
	index map[*Tensor]int
}

type castEntry struct{ src, cast *Tensor }

// Autocast runs f in an autocast region of the given type; F32 or 0 runs it
// plainly.
func (e *Engine) Autocast(dt DType, f func()) {
	if !dt.Half() {
		f()
		return
	}
	old := e.amp.dt
	e.amp.dt = dt
	e.amp.depth++
	defer func() {
		e.amp.dt = old
		e.amp.depth--
		if e.amp.depth == 0 {
			e.clearCasts()
		}
	}()
	f()
}

func (e *Engine) clearCasts() {
	cache := e.amp.cache
	e.amp.cache, e.amp.index = nil, nil
	for _, c := range cache {
		c.cast.release()
	}
}

// cast is at::autocast::cached_cast to the region's type: only fp32 leaves
// that want a gradient are cached; views and activations never are.
func (e *Engine) cast(t *Tensor) *Tensor {
	if e.amp.dt == 0 || t == nil || !t.DType.Float() || t.DType == e.amp.dt {
		return t
	}
	cacheable := t.DType == F32 && t.RequiresGrad && t.fn == nil && t.base == nil
	if !cacheable {
		return e.To(t, e.amp.dt)
	}
	if i, ok := e.amp.index[t]; ok {
		return e.amp.cache[i].cast
	}
	c := e.To(t, e.amp.dt)
	c.refs++
	if e.amp.index == nil {
		e.amp.index = make(map[*Tensor]int)
	}
	e.amp.index[t] = len(e.amp.cache)
	e.amp.cache = append(e.amp.cache, castEntry{t, c})
	return c
}

// castF32 is the cast of operations on autocast's fp32 list.
func (e *Engine) castF32(t *Tensor) *Tensor {
	if e.amp.dt == 0 || t == nil || !t.DType.Half() {
		return t
	}
	return e.To(t, F32)
}
