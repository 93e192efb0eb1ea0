// Package pickletest writes small pickles of plain data for tests, opcode for
// opcode as Python's pickle module does in each protocol.
package pickletest

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
)

// Dict is a Python dict with its order. A pointer to one is written once and
// then referred to through the memo.
type Dict []Pair

// Pair is a key and its value.
type Pair struct {
	Key   string
	Value any
}

// KV makes a Pair.
func KV(key string, value any) Pair { return Pair{Key: key, Value: value} }

// List is a Python list; a pointer to one is shared like that to a Dict.
type List []any

// Tuple is a Python tuple.
type Tuple []any

// Bytes are Python bytes (protocol 3 and later).
type Bytes []byte

// Writer appends pickle opcodes to Buf.
type Writer struct {
	Buf      []byte
	Protocol int

	next    int
	strings map[string]int
	shared  map[any]int
}

// Marshal pickles a value made of Dict, List, Tuple, string, int, int64,
// float64, bool, Bytes and nil.
func Marshal(v any, protocol int) []byte {
	w := NewWriter(protocol)
	w.Value(v)
	return w.Stop()
}

// NewWriter begins a pickle.
func NewWriter(protocol int) *Writer {
	w := &Writer{Protocol: protocol, strings: map[string]int{}, shared: map[any]int{}}
	if protocol >= 2 {
		w.op(0x80, byte(protocol))
	}
	return w
}

// Stop ends the pickle and returns what has not been taken from Buf.
func (w *Writer) Stop() []byte {
	w.op('.')
	return w.Buf
}

func (w *Writer) op(b ...byte) { w.Buf = append(w.Buf, b...) }

// memoize gives the top of the stack the next memo number.
func (w *Writer) memoize() int {
	n := w.next
	w.next++
	switch {
	case w.Protocol >= 4:
		w.op(0x94)
	case w.Protocol == 0:
		w.op('p')
		w.Buf = append(strconv.AppendInt(w.Buf, int64(n), 10), '\n')
	case n < 256:
		w.op('q', byte(n))
	default:
		w.op('r')
		w.Buf = binary.LittleEndian.AppendUint32(w.Buf, uint32(n))
	}
	return n
}

func (w *Writer) get(n int) {
	switch {
	case w.Protocol == 0:
		w.op('g')
		w.Buf = append(strconv.AppendInt(w.Buf, int64(n), 10), '\n')
	case n < 256:
		w.op('h', byte(n))
	default:
		w.op('j')
		w.Buf = binary.LittleEndian.AppendUint32(w.Buf, uint32(n))
	}
}

// Value writes one value.
func (w *Writer) Value(v any) {
	switch v := v.(type) {
	case nil:
		w.op('N')
	case bool:
		w.boolean(v)
	case int:
		w.integer(int64(v))
	case int64:
		w.integer(v)
	case float64:
		w.float(v)
	case string:
		w.str(v)
	case Bytes:
		if len(v) < 256 {
			w.op('C', byte(len(v)))
		} else {
			w.op('B')
			w.Buf = binary.LittleEndian.AppendUint32(w.Buf, uint32(len(v)))
		}
		w.op(v...)
		w.memoize()
	case *Dict:
		if n, ok := w.shared[v]; ok {
			w.get(n)
			return
		}
		w.shared[v] = w.BeginDict()
		w.pairs(*v)
	case Dict:
		w.BeginDict()
		w.pairs(v)
	case *List:
		if n, ok := w.shared[v]; ok {
			w.get(n)
			return
		}
		w.shared[v] = w.BeginList()
		w.Items(*v)
	case List:
		w.BeginList()
		w.Items(v)
	case Tuple:
		w.tuple(v)
	default:
		panic(fmt.Sprintf("pickletest: a %T", v))
	}
}

func (w *Writer) boolean(v bool) {
	switch {
	case w.Protocol >= 2 && v:
		w.op(0x88)
	case w.Protocol >= 2:
		w.op(0x89)
	case v:
		w.op([]byte("I01\n")...)
	default:
		w.op([]byte("I00\n")...)
	}
}

func (w *Writer) integer(n int64) {
	switch {
	case w.Protocol == 0:
		w.op(fmt.Appendf(nil, "L%dL\n", n)...)
	case n >= 0 && n < 256:
		w.op('K', byte(n))
	case n >= 0 && n < 1<<16:
		w.op('M', byte(n), byte(n>>8))
	case n == int64(int32(n)):
		w.op('J')
		w.Buf = binary.LittleEndian.AppendUint32(w.Buf, uint32(n))
	case w.Protocol >= 2:
		b := binary.LittleEndian.AppendUint64(nil, uint64(n))
		for len(b) > 1 && (b[len(b)-1] == 0 && b[len(b)-2] < 0x80 || b[len(b)-1] == 0xff && b[len(b)-2] >= 0x80) {
			b = b[:len(b)-1]
		}
		w.op(0x8a, byte(len(b)))
		w.op(b...)
	default:
		w.op(fmt.Appendf(nil, "L%dL\n", n)...)
	}
}

func (w *Writer) float(f float64) {
	if w.Protocol == 0 {
		w.op(fmt.Appendf(nil, "F%s\n", strconv.FormatFloat(f, 'g', -1, 64))...)
		return
	}
	w.op('G')
	w.Buf = binary.BigEndian.AppendUint64(w.Buf, math.Float64bits(f))
}

func (w *Writer) str(s string) {
	if n, ok := w.strings[s]; ok {
		w.get(n)
		return
	}
	switch {
	case w.Protocol == 0:
		w.op('V')
		for _, r := range s {
			switch {
			case r > 0xffff:
				w.op(fmt.Appendf(nil, "\\U%08x", r)...)
			case r > 0xff || r == '\\' || r == '\n' || r == '\r' || r == 0 || r == 0x1a:
				w.op(fmt.Appendf(nil, "\\u%04x", r)...)
			default:
				w.op(byte(r))
			}
		}
		w.op('\n')
	case w.Protocol >= 4 && len(s) < 256:
		w.op(0x8c, byte(len(s)))
		w.op([]byte(s)...)
	default:
		w.op('X')
		w.Buf = binary.LittleEndian.AppendUint32(w.Buf, uint32(len(s)))
		w.op([]byte(s)...)
	}
	w.strings[s] = w.memoize()
}

// BeginDict writes an empty dict and returns its memo number.
func (w *Writer) BeginDict() int {
	if w.Protocol == 0 {
		w.op('(', 'd')
	} else {
		w.op('}')
	}
	return w.memoize()
}

// BeginList writes an empty list and returns its memo number.
func (w *Writer) BeginList() int {
	if w.Protocol == 0 {
		w.op('(', 'l')
	} else {
		w.op(']')
	}
	return w.memoize()
}

func (w *Writer) pairs(d Dict) {
	if w.Protocol == 0 || len(d) == 1 {
		for _, p := range d {
			w.str(p.Key)
			w.Value(p.Value)
			w.op('s')
		}
		return
	}
	for len(d) > 0 {
		n := min(len(d), 1000)
		w.op('(')
		for _, p := range d[:n] {
			w.str(p.Key)
			w.Value(p.Value)
		}
		w.op('u')
		d = d[n:]
	}
}

// Items adds items to the list below, as one batch of a pickler per 1,000.
func (w *Writer) Items(l List) {
	if w.Protocol == 0 || len(l) == 1 {
		for _, v := range l {
			w.Value(v)
			w.op('a')
		}
		return
	}
	for len(l) > 0 {
		n := min(len(l), 1000)
		w.op('(')
		for _, v := range l[:n] {
			w.Value(v)
		}
		w.op('e')
		l = l[n:]
	}
}

func (w *Writer) tuple(t Tuple) {
	switch {
	case len(t) == 0 && w.Protocol > 0:
		w.op(')')
		return
	case len(t) <= 3 && len(t) > 0 && w.Protocol >= 2:
		for _, v := range t {
			w.Value(v)
		}
		w.op(0x84 + byte(len(t)))
	default:
		w.op('(')
		for _, v := range t {
			w.Value(v)
		}
		w.op('t')
	}
	w.memoize()
}
