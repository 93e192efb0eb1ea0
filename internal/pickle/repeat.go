package pickle

import "encoding/binary"

// Most of a snapshot is one list of dicts with the same keys, written with the
// same opcodes: EMPTY_DICT MEMOIZE MARK, a key out of the memo and a plain
// value for each pair, SETITEMS. This file decodes such dicts without the stack
// and the table of open containers. Whatever does not fit is put where the
// general way expects it, and that goes on from there; so the two differ in
// nothing but speed.
//
// What it bought, least of 6 runs of BenchmarkRead in traces/snapshot on two
// idle cores, with nothing but this way off: bert_large_varlen__default 13.1 ms
// instead of 19.0, 32 MB of generated entries 61 instead of 77, entries with call
// stacks (resnet50_amp__pystack) 3.6 instead of 4.3. The constant fast (fast.go)
// switches it off.

const (
	// maxShape is the most pairs of a dict that is decoded this way.
	maxShape = 16
	// shapeRoom is more than such a dict takes without what is checked while it
	// is decoded (the texts of strings and the items of a list), plus what is
	// read ahead.
	shapeRoom = 512
)

// shape is the keys of the dict that was last given to the handler.
type shape struct {
	n     int                 // pairs; 0 if the dict had none or too many
	pairs [2 * maxShape]Value // keys, and room for the values
	keys  [maxShape]literal   // how each key was last written
	texts [maxShape]literal   // the last short string in the place of each value
}

// literal is up to 8 bytes of pickle and the value that they push.
type literal struct {
	mask, bits uint64 // bytes b are this literal if b&mask == bits
	len        int
	v          Value
}

// never is a literal that no bytes match.
var never = literal{bits: 1}

func (l *literal) set(b []byte, n int, v Value) {
	mask := ^uint64(0) >> (64 - 8*n)
	*l = literal{mask: mask, bits: binary.LittleEndian.Uint64(b) & mask, len: n, v: v}
}

// dict hands a complete dict to the handler.
func (d *Decoder) dict(pairs []Value) (Value, error) {
	same := d.learn(pairs)
	return d.h.Dict(d, pairs, same)
}

// learn makes the keys of pairs the shape and reports whether they were it.
func (d *Decoder) learn(pairs []Value) bool {
	s := &d.shape
	if len(pairs) == 2*s.n && s.n > 0 {
		i := 0
		for i < len(pairs) && pairs[i] == s.pairs[i&(2*maxShape-1)] {
			i += 2
		}
		if i == len(pairs) {
			return true
		}
	}
	s.n = 0
	if len(pairs) <= len(s.pairs) {
		s.n = len(pairs) / 2
		for i := range s.n {
			s.pairs[2*i] = pairs[2*i]
			s.keys[i] = never
		}
	}
	return false
}

// forgetKeys makes the keys be looked up in the memo again, which has changed.
func (d *Decoder) forgetKeys() {
	for i := range d.shape.keys {
		d.shape.keys[i] = never
	}
}

// sameKey is the slow way to recognise key i at b[q]: it looks the memo up.
func (d *Decoder) sameKey(i int, b []byte, q int) bool {
	s := &d.shape
	var n uint64
	size := 2
	switch b[q] {
	case opBinGet:
		n = uint64(b[q+1])
	case opLongBinGet:
		n = uint64(binary.LittleEndian.Uint32(b[q+1:]))
		size = 5
	default:
		return false
	}
	if v, ok := d.memoGetAny(n); !ok || v != s.pairs[2*i] {
		return false
	}
	s.keys[i].set(b[q:], size, s.pairs[2*i])
	return true
}

// repeats decodes as many dicts of the current shape as follow each other from
// buf[p] on, where an EMPTY_DICT is, and pushes them on st. It returns where to
// go on and the stack; neither has changed if there was none.
func (d *Decoder) repeats(p int, st []Value) (int, []Value, error) {
	s := &d.shape
	if top := len(st) - 1; s.n == 0 || len(d.open) >= maxOpen || len(d.marks) >= maxOpen ||
		(top >= 0 && st[top].tag() == tagOpen && d.open[st[top].num()].dict) {
		return p, st, nil
	}
	b := d.buf
	end := d.end - shapeRoom
	pairs := s.pairs[:2*s.n]
	for p <= end && b[p] == opEmptyDict && b[p+1] == opMemoize && b[p+2] == opMark {
		slot := d.freeSlot()
		if slot == nil {
			break
		}
		number := d.memoized
		d.memoized++
		q := p + 3
		i := 0
	pair:
		for ; i < len(pairs); i += 2 {
			k := &s.keys[i/2&(maxShape-1)]
			if binary.LittleEndian.Uint64(b[q:])&k.mask != k.bits && !d.sameKey(i/2, b, q) {
				break
			}
			q += k.len
			var v Value
			switch b[q] {
			case opLongBinGet:
				var ok bool
				if v, ok = d.memoGet(uint64(binary.LittleEndian.Uint32(b[q+1:]))); !ok {
					if v, ok = d.memoGetAny(uint64(binary.LittleEndian.Uint32(b[q+1:]))); !ok {
						i++
						break pair
					}
				}
				q += 5
			case opBinGet:
				var ok bool
				if v, ok = d.memoGet(uint64(b[q+1])); !ok {
					if v, ok = d.memoGetAny(uint64(b[q+1])); !ok {
						i++
						break pair
					}
				}
				q += 2
			case opBinInt1:
				v = pack(tagInt, uint64(b[q+1]))
				q += 2
			case opBinInt2:
				v = pack(tagInt, uint64(binary.LittleEndian.Uint16(b[q+1:])))
				q += 3
			case opBinInt:
				v = Value(uint64(int64(int32(binary.LittleEndian.Uint32(b[q+1:]))))<<tagBits | uint64(tagInt))
				q += 5
			case opLong1:
				n := uint(b[q+1])
				x := int64(binary.LittleEndian.Uint64(b[q+2:])) << (64 - 8*n) >> (64 - 8*n)
				if n-1 >= 8 || x<<tagBits>>tagBits != x {
					i++
					break pair
				}
				v = Value(uint64(x)<<tagBits | uint64(tagInt))
				q += 2 + int(n)
			case opShortBinUnicode:
				t := &s.texts[i/2&(maxShape-1)]
				if word := binary.LittleEndian.Uint64(b[q:]); word&t.mask == t.bits {
					v = t.v
					q += t.len
				} else {
					n := int(b[q+1])
					if q+n > end {
						i++
						break pair
					}
					v = pack(tagString, uint64(d.strings.id(b[q+2:q+2+n])))
					if n <= 6 {
						t.set(b[q:], 2+n, v)
					}
					q += 2 + n
				}
				if b[q] == opMemoize {
					slot := d.freeSlot()
					if slot == nil {
						pairs[i+1] = v
						i += 2
						break pair
					}
					*slot = v
					d.memoized++
					q++
				}
			case opEmptyList: // of frames, in a snapshot
				var ok bool
				var err error
				if i+2 == len(pairs) {
					q, v, ok, err = d.lastList(q)
				}
				if err != nil {
					return 0, nil, err
				}
				if !ok {
					i++
					break pair
				}
			case opNone:
				v = None
				q++
			case opNewTrue:
				v = pack(tagBool, 1)
				q++
			case opNewFalse:
				v = pack(tagBool, 0)
				q++
			default:
				i++
				break pair
			}
			pairs[i+1] = v
		}
		if i == len(pairs) && b[q] == opSetItems && (b[q+1] == opEmptyDict || b[q+1] == opAppends) {
			d.pos = q + 1
			v, err := d.h.Dict(d, pairs, true)
			if err != nil {
				return 0, nil, d.wrap(err)
			}
			*slot = v
			st = append(st, v)
			p = q + 1
			continue
		}
		// The general way finds the dict under construction.
		i = min(i, len(pairs))
		*slot = pack(tagOpen, uint64(len(d.open)))
		d.open = append(d.open, container{start: uint32(len(d.items)), end: uint32(len(d.items)), at: uint32(len(st)), memo: int64(number), dict: true})
		st = append(st, *slot)
		d.marks = append(d.marks, len(st))
		return q, append(st, pairs[:i]...), nil
	}
	return p, st, nil
}

// lastList decodes the list at buf[q] if it is all references to the memo and
// the dict that it is the last value of can be completed behind it. It returns
// the place behind the list and its value; otherwise false and nothing has
// changed.
func (d *Decoder) lastList(q int) (int, Value, bool, error) {
	b := d.buf
	slot := d.freeSlot()
	if slot == nil || b[q+1] != opMemoize || b[q+2] != opMark {
		return q, 0, false, nil
	}
	// The dict that it is in is neither in open nor in marks.
	if len(d.open)+1 >= maxOpen || len(d.marks)+1 >= maxOpen {
		return q, 0, false, nil
	}
	items := d.list[:0]
	p := q + 3
	for ; p+maxOp <= d.end; p += 2 {
		n := uint64(b[p+1])
		switch b[p] {
		case opBinGet:
		case opLongBinGet:
			n = uint64(binary.LittleEndian.Uint32(b[p+1:]))
			p += 3
		case opAppends:
			d.list = items
			if b[p+1] != opSetItems || (b[p+2] != opEmptyDict && b[p+2] != opAppends) {
				return q, 0, false, nil
			}
			d.pos = p + 1
			v, err := d.h.Seq(d, 0, items, true)
			if err != nil {
				return 0, 0, false, d.wrap(err)
			}
			*slot = v
			d.memoized++
			return p + 1, v, true, nil
		default:
			return q, 0, false, nil
		}
		v, ok := d.memoGet(n)
		if !ok {
			if v, ok = d.memoGetAny(n); !ok {
				return q, 0, false, nil
			}
		}
		items = append(items, v)
	}
	return q, 0, false, nil
}
