package pickle

// The memo numbers everything that a pickle may refer to again, and a pickler
// numbers all strings and containers. Nearly none of them is ever asked for, but
// that is known only at the end. In a list of dicts of one shape, though, the
// numbers go round: dict, string, list of frames, dict, …, and the handler
// counts what it stores. So a full page is replaced by a formula for each place
// in the round, if that gives the same values, and its memory is used again.
//
// What it bought, in bytes allocated by BenchmarkRead in traces/snapshot: 8.1 MB
// instead of 9.9 for bert_large_varlen__default, 17.9 instead of 21.0 for 32 MB
// of generated entries; in time at most 5 %. The constant fast
// (fast.go) switches it off.

const (
	// memoPage is the number of entries in which the memo grows.
	memoPage = 1 << 13
	// maxRound is the most entries of a round.
	maxRound = 8
)

// packedPage is a full page of the memo: entry i is in column i%len.
type packedPage []memoColumn

// memoColumn holds every nth entry of a page: the ith is base + i*step, or
// base + more[i] if they do not ascend evenly.
type memoColumn struct {
	base, step Value
	more       []uint32
}

func (p packedPage) at(i uint64) Value {
	n := uint64(len(p))
	c := &p[i%n]
	if c.more != nil {
		return c.base + Value(c.more[i/n])
	}
	return c.base + Value(i/n)*c.step
}

// packMemo packs a page if it can; otherwise it returns nil. Pages with entries
// that are missing or under construction are not packed.
func packMemo(page *[memoPage]Value) packedPage {
	for n := 1; n <= maxRound; n++ {
		var even [maxRound]bool
		any := false
		for i := range n {
			even[i] = isEven(page, i, n)
			any = any || even[i]
		}
		if !any {
			continue
		}
		p := make(packedPage, n)
		for i := range p {
			p[i] = memoColumn{base: page[i], step: page[i+n] - page[i]}
			if !even[i] && !p[i].list(page, i, n) {
				return nil
			}
		}
		return p
	}
	return nil
}

// isEven reports whether entries i, i+n, i+2n, … of a page ascend evenly and
// are of one kind, a finished one.
func isEven(page *[memoPage]Value, i, n int) bool {
	if t := page[i].tag(); t == tagUnset || t == tagOpen {
		return false
	}
	step := page[i+n] - page[i]
	if step.tag() != 0 {
		return false
	}
	for j := i + n; j < memoPage; j += n {
		if page[j]-page[j-n] != step {
			return false
		}
	}
	return true
}

// list makes c the column of entries i, i+n, i+2n, … of a page, one by one. It
// reports false if they are too far apart or not all finished.
func (c *memoColumn) list(page *[memoPage]Value, i, n int) bool {
	low, high := page[i], page[i]
	for j := i; j < memoPage; j += n {
		if t := page[j].tag(); t == tagUnset || t == tagOpen {
			return false
		}
		low, high = min(low, page[j]), max(high, page[j])
	}
	if high-low >= 1<<32 {
		return false
	}
	*c = memoColumn{base: low, more: make([]uint32, 0, (memoPage-i+n-1)/n)}
	for j := i; j < memoPage; j += n {
		c.more = append(c.more, uint32(page[j]-low))
	}
	return true
}

// memoGet is false for an empty slot, for a container under construction and
// for an entry that is packed. It is as short as it is to be inlined.
func (d *Decoder) memoGet(n uint64) (Value, bool) {
	if c := n / memoPage; c < uint64(len(d.memo)) && d.memo[c] != nil {
		v := d.memo[c][n%memoPage]
		return v, v.tag()-1 < tagOpen-1
	}
	return 0, false
}

// memoGetAny is memoGet for packed entries, too.
func (d *Decoder) memoGetAny(n uint64) (Value, bool) {
	if c := n / memoPage; c < uint64(len(d.packed)) && d.packed[c] != nil {
		return d.packed[c].at(n % memoPage), true
	}
	return d.memoGet(n)
}

// memoGetSlow is what is left when memoGet is false. A reference to a container
// that is still on the stack completes it, because only recursive data would
// change it later. at is the place of the opcode in buf.
func (d *Decoder) memoGetSlow(n uint64, at int) (Value, error) {
	if v, ok := d.memoGetAny(n); ok {
		return v, nil
	}
	c := n / memoPage
	if c >= uint64(len(d.memo)) || d.memo[c] == nil || d.memo[c][n%memoPage] == 0 {
		return 0, d.errAt(at, "a reference to memo entry %d, which does not exist", n)
	}
	i := d.memo[c][n%memoPage].num()
	if i >= uint64(len(d.open)) || int(d.open[i].at) >= len(d.stack) {
		return 0, d.errAt(at, "a reference to memo entry %d, which was discarded", n)
	}
	top := int(d.open[i].at)
	if err := d.finish(top); err != nil {
		return 0, err
	}
	return d.stack[top], nil
}

// freeSlot is the memo slot for the next MEMOIZE if it is there and unused.
func (d *Decoder) freeSlot() *Value {
	if c := d.memoized / memoPage; c < uint64(len(d.memo)) && d.memo[c] != nil {
		if slot := &d.memo[c][d.memoized%memoPage]; *slot == 0 {
			return slot
		}
	}
	return nil
}

// slot returns memo slot n for writing.
func (d *Decoder) slot(n uint64) *Value {
	c := n / memoPage
	for uint64(len(d.memo)) <= c {
		d.memo = append(d.memo, nil)
		d.packed = append(d.packed, nil)
	}
	if d.memo[c] == nil {
		if p := d.packed[c]; p != nil {
			d.packed[c] = nil
			d.memo[c] = new([memoPage]Value)
			for i := range d.memo[c] {
				d.memo[c][i] = p.at(uint64(i))
			}
		} else {
			d.memo[c] = d.newPage(c)
		}
	}
	return &d.memo[c][n%memoPage]
}

// newPage returns an empty page c: that of the page before the last, which
// nothing is under construction in any more, if it can be packed.
func (d *Decoder) newPage(c uint64) *[memoPage]Value {
	if fast && c >= 2 && d.memo[c-2] != nil {
		if p := packMemo(d.memo[c-2]); p != nil {
			page := d.memo[c-2]
			d.memo[c-2], d.packed[c-2] = nil, p
			clear(page[:])
			return page
		}
	}
	return new([memoPage]Value)
}
