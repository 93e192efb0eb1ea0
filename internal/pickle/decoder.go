// Package pickle reads Python pickles that hold plain data (dicts, lists,
// tuples, strings, numbers) as a stream, in protocols 0 to 5.
//
// A pickle is a program for a small stack machine. Only the opcodes that make
// data are run; those that import, build or call something are refused by name
// and byte offset, so that reading a file can never run code.
//
// The tree of objects is never built. A [Handler] is given each dict and each
// list once, when it is complete, and answers with a number that stands for
// whatever it has stored; from then on the container is that 8-byte [Value],
// on the stack and in the memo. Containers that the writer shared through the
// memo therefore stay shared. Strings are interned.
//
// Memory is proportional to the bytes read: lengths in the file are not
// believed until that many bytes have arrived, and memo numbers, stack and
// open containers are bounded.
package pickle

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
)

// Handler stores what a pickle holds. The slices that it gets are reused by
// the decoder. Its errors end the decoding.
type Handler interface {
	// Dict is called once for each dict, when it is complete, with keys and
	// values alternating. A key may repeat: the last one wins. same reports
	// that the keys are one for one those of the call before.
	Dict(d *Decoder, pairs []Value, same bool) (Value, error)
	// Seq is called for each list, tuple or set. Long lists come in several
	// calls: acc is the answer of the call before, 0 at first; last marks the
	// final call.
	Seq(d *Decoder, acc Value, items []Value, last bool) (Value, error)
}

const (
	bufSize = 128 << 10
	// maxOp is more than the longest opcode with its fixed argument.
	maxOp = 16
	// seqChunk is the number of items after which a list is handed on.
	seqChunk = 8192
	// maxStack bounds the values between a mark and the opcode that consumes
	// them. CPython's own pickler stays below 2,002.
	maxStack = 1 << 24
	// maxOpen bounds the containers under construction at one time.
	maxOpen = 1 << 16
)

// ErrTruncated is wrapped by the error for data that end before the pickle
// does.
var ErrTruncated = errors.New("the data end in the middle of the pickle")

// Decoder reads one pickle.
type Decoder struct {
	// Progress, if set, is called now and then with the bytes read so far.
	Progress func(bytesRead int64)

	ctx context.Context
	r   io.Reader
	h   Handler

	buf  []byte
	pos  int   // next byte in buf
	end  int   // end of data in buf
	base int64 // offset of buf[0] in the stream
	eof  bool

	stack  []Value
	marks  []int // stack heights
	items  []Value
	open   []container
	memo   []*[memoPage]Value // 0 = never set; nil = none or packed
	packed []packedPage       // as long as memo
	// memoized counts MEMOIZE opcodes and other puts: the next MEMOIZE slot.
	memoized uint64
	shape    shape
	list     []Value // lastList's items

	strings *interner
	big     []int64
	floats  []float64
	scratch []byte
}

// container is a dict or list under construction. Its content so far is
// items[start:end]; everything in items beyond end belongs to containers
// opened later or is garbage.
type container struct {
	acc        Value // of a long list: the handler's answer so far
	memo       int64 // its memo slot, -1 if none
	start, end uint32
	at         uint32 // its place on the stack
	dict       bool
}

// NewDecoder returns a decoder for one pickle. The strings in known get the
// ids 0, 1, 2, ….
func NewDecoder(ctx context.Context, r io.Reader, h Handler, known ...string) *Decoder {
	d := &Decoder{
		ctx: ctx, r: r, h: h,
		buf:     make([]byte, bufSize+maxOp),
		stack:   make([]Value, 0, 4096),
		items:   make([]Value, 0, 4096),
		strings: newInterner(known),
	}
	for i := range d.shape.texts {
		d.shape.texts[i] = never
	}
	return d
}

// Offset is the number of bytes decoded so far.
func (d *Decoder) Offset() int64 { return d.base + int64(d.pos) }

// NumStrings is the number of distinct strings so far; their ids are below it.
func (d *Decoder) NumStrings() int { return len(d.strings.ends) }

// StringByID is the text of a string by its id.
func (d *Decoder) StringByID(id uint32) string { return string(d.strings.bytes(id)) }

// Release drops what only decoding needs. Values and their accessors stay
// valid.
func (d *Decoder) Release() {
	d.buf, d.stack, d.items, d.open, d.memo, d.packed, d.marks, d.list, d.scratch = nil, nil, nil, nil, nil, nil, nil, nil, nil
}

// fill moves the unread bytes to the front and reads until at least want are
// there or the data end. want ≤ bufSize.
func (d *Decoder) fill(want int) error {
	copy(d.buf, d.buf[d.pos:d.end])
	d.base += int64(d.pos)
	d.end -= d.pos
	d.pos = 0
	for empty := 0; d.end < want && !d.eof; {
		if err := d.ctx.Err(); err != nil {
			return err
		}
		n, err := d.r.Read(d.buf[d.end:bufSize])
		d.end += n
		switch {
		case err == io.EOF:
			d.eof = true
		case err != nil:
			return fmt.Errorf("reading at byte %d: %w", d.base+int64(d.end), err)
		case n == 0:
			if empty++; empty > 100 {
				return fmt.Errorf("reading at byte %d: %w", d.base+int64(d.end), io.ErrNoProgress)
			}
		}
	}
	if d.Progress != nil {
		d.Progress(d.base + int64(d.end))
	}
	clear(d.buf[d.end : d.end+maxOp])
	return nil
}

func (d *Decoder) truncated() error {
	return fmt.Errorf("%w, after %d bytes", ErrTruncated, d.base+int64(d.end))
}

// need makes sure that n bytes from pos on are in buf. n ≤ bufSize.
func (d *Decoder) need(n int) error {
	if d.end-d.pos >= n {
		return nil
	}
	if err := d.fill(n); err != nil {
		return err
	}
	if d.end-d.pos < n {
		return d.truncated()
	}
	return nil
}

// maxString is the longest string or number in bytes: far more than a stack
// frame or the largest metadata need, and little enough to hold.
const maxString = 64 << 20

var errTooLong = fmt.Errorf("a value of more than %d bytes", maxString)

// take returns the next n bytes and moves behind them; the slice is valid
// until the next read. However large n is, no more is allocated than arrives.
func (d *Decoder) take(n uint64) ([]byte, error) {
	if n <= uint64(d.end-d.pos) {
		b := d.buf[d.pos : d.pos+int(n)]
		d.pos += int(n)
		return b, nil
	}
	if n <= bufSize {
		if err := d.need(int(n)); err != nil {
			return nil, err
		}
		b := d.buf[d.pos : d.pos+int(n)]
		d.pos += int(n)
		return b, nil
	}
	if n > maxString {
		if err := d.skip(n); err != nil {
			return nil, err // cut short is the likelier fault
		}
		return nil, errTooLong
	}
	d.scratch = d.scratch[:0]
	for uint64(len(d.scratch)) < n {
		c := min(n-uint64(len(d.scratch)), bufSize)
		if err := d.need(int(c)); err != nil {
			return nil, err
		}
		d.scratch = append(d.scratch, d.buf[d.pos:d.pos+int(c)]...)
		d.pos += int(c)
	}
	return d.scratch, nil
}

// skip moves behind n bytes.
func (d *Decoder) skip(n uint64) error {
	for n > 0 {
		c := min(n, bufSize)
		if err := d.need(int(c)); err != nil {
			return err
		}
		d.pos += int(c)
		n -= c
	}
	return nil
}

// line returns the bytes up to the next newline, without it.
func (d *Decoder) line() ([]byte, error) {
	d.scratch = d.scratch[:0]
	for {
		for i := d.pos; i < d.end; i++ {
			if d.buf[i] == '\n' {
				d.scratch = append(d.scratch, d.buf[d.pos:i]...)
				d.pos = i + 1
				return d.scratch, nil
			}
		}
		if d.scratch = append(d.scratch, d.buf[d.pos:d.end]...); len(d.scratch) > maxString {
			return nil, errTooLong
		}
		d.pos = d.end
		if err := d.need(1); err != nil {
			return nil, err
		}
	}
}

// Decode runs the pickle and returns the value it leaves. Data behind the
// pickle are not read. Errors name the byte offset.
func (d *Decoder) Decode() (Value, error) {
	// The hot loop keeps the position and the stack in local variables; d.pos
	// and d.stack are current whenever a method is called.
	b, p := d.buf, 0
	st := d.stack
	for {
		if d.end-p < maxOp {
			d.pos = p
			if len(st) > maxStack {
				return 0, d.errAt(p, "more than %d values on the pickle's stack", maxStack)
			}
			if !d.eof {
				if err := d.fill(maxOp); err != nil {
					return 0, err
				}
				p = 0
			}
			if p >= d.end || p+1+int(argLen[b[p]]) > d.end {
				return 0, d.truncated()
			}
		}
		op := b[p]
		p++
		switch op {
		case opLongBinGet:
			v, ok := d.memoGet(uint64(binary.LittleEndian.Uint32(b[p:])))
			p += 4
			if !ok {
				var err error
				d.pos, d.stack = p, st
				if v, err = d.memoGetSlow(uint64(binary.LittleEndian.Uint32(b[p-4:])), p-5); err != nil {
					return 0, err
				}
				st = d.stack
			}
			st = append(st, v)
		case opBinGet:
			v, ok := d.memoGet(uint64(b[p]))
			p++
			if !ok {
				var err error
				d.pos, d.stack = p, st
				if v, err = d.memoGetSlow(uint64(b[p-1]), p-2); err != nil {
					return 0, err
				}
				st = d.stack
			}
			st = append(st, v)
		case opMemoize:
			if len(st) > 0 && st[len(st)-1].tag() != tagOpen {
				if slot := d.freeSlot(); slot != nil {
					*slot = st[len(st)-1]
					d.memoized++
					break
				}
			}
			d.pos, d.stack = p, st
			if err := d.put(d.memoized); err != nil {
				return 0, err
			}
		case opBinInt1:
			st = append(st, pack(tagInt, uint64(b[p])))
			p++
		case opBinInt2:
			st = append(st, pack(tagInt, uint64(binary.LittleEndian.Uint16(b[p:]))))
			p += 2
		case opBinInt:
			n := int64(int32(binary.LittleEndian.Uint32(b[p:])))
			st = append(st, Value(uint64(n)<<tagBits|uint64(tagInt)))
			p += 4
		case opLong1:
			n := uint(b[p])
			p++
			if n <= 8 && d.end-p >= 8 {
				var x int64
				if n > 0 {
					shift := 64 - 8*n
					x = int64(binary.LittleEndian.Uint64(b[p:])<<shift) >> shift
				}
				st = append(st, d.intValue(x))
				p += int(n)
				break
			}
			d.pos, d.stack = p, st
			if err := d.long(uint64(n)); err != nil {
				return 0, err
			}
			p, st = d.pos, d.stack
		case opMark:
			if len(d.marks) >= maxOpen {
				return 0, d.errAt(p-1, "more than %d nested marks", maxOpen)
			}
			d.marks = append(d.marks, len(st))
		case opEmptyDict, opEmptyList, opEmptySet:
			if fast && op == opEmptyDict {
				q, s, err := d.repeats(p-1, st)
				if err != nil {
					return 0, err
				}
				if q != p-1 {
					p, st = q, s
					break
				}
			}
			d.pos, d.stack = p, st
			if err := d.newContainer(op == opEmptyDict, len(st)); err != nil {
				return 0, err
			}
			st = d.stack
			if b[p] == opMemoize { // nearly always
				if slot := d.freeSlot(); slot != nil {
					p++
					*slot = st[len(st)-1]
					d.open[len(d.open)-1].memo = int64(d.memoized)
					d.memoized++
				}
			}
		case opShortBinUnicode:
			n := int(b[p])
			p++
			if d.end-p >= n {
				st = append(st, pack(tagString, uint64(d.strings.id(b[p:p+n]))))
				p += n
				break
			}
			d.pos, d.stack = p, st
			if err := d.str(uint64(n)); err != nil {
				return 0, err
			}
			p, st = d.pos, d.stack
		case opSetItems, opAppends, opAddItems:
			if len(d.marks) == 0 {
				d.pos = p
				return 0, d.errAt(p-1, "no mark for %s", opName(op))
			}
			m := d.marks[len(d.marks)-1]
			d.marks = d.marks[:len(d.marks)-1]
			d.pos, d.stack = p, st
			// The usual container gets all it holds at once and is then
			// consumed: it need not be kept under construction.
			if next := b[p]; (op == opSetItems && (next == opEmptyDict || next == opAppends)) || (op == opAppends && next == opSetItems) {
				done, err := d.complete(m, op == opSetItems)
				if err != nil {
					return 0, err
				}
				if done {
					st = st[:m]
					break
				}
			}
			if err := d.extend(m, op == opSetItems); err != nil {
				return 0, err
			}
			st = d.stack
		case opStop:
			d.pos, d.stack = p, st
			if len(st) == 0 || len(d.marks) != 0 {
				return 0, d.errAt(p-1, "the pickle stops with nothing, or with an unfinished container, on its stack")
			}
			top := len(st) - 1
			if err := d.finish(top); err != nil {
				return 0, err
			}
			return d.stack[top], nil
		default:
			d.pos, d.stack = p, st
			if err := d.rare(op); err != nil {
				return 0, err
			}
			p, st = d.pos, d.stack
		}
	}
}

// rare runs the opcodes that are few in a snapshot. d.pos is behind op.
func (d *Decoder) rare(op byte) error {
	at := d.pos - 1
	b := d.buf
	switch op {
	case opProto:
		if b[d.pos] > 5 {
			return d.errAt(at, "pickle protocol %d is not known; protocols 0 to 5 are. Save the file with protocol=4", b[d.pos])
		}
		d.pos++
	case opFrame:
		d.pos += 8
	case opNone:
		d.push(None)
	case opNewTrue:
		d.push(pack(tagBool, 1))
	case opNewFalse:
		d.push(pack(tagBool, 0))
	case opBinFloat:
		d.floats = append(d.floats, math.Float64frombits(binary.BigEndian.Uint64(b[d.pos:])))
		d.push(pack(tagFloat, uint64(len(d.floats)-1)))
		d.pos += 8
	case opLong4:
		n := binary.LittleEndian.Uint32(b[d.pos:])
		d.pos += 4
		if int32(n) < 0 {
			return d.errAt(at, "LONG4 with a negative length")
		}
		return d.long(uint64(n))
	case opBinUnicode:
		n := binary.LittleEndian.Uint32(b[d.pos:])
		d.pos += 4
		return d.str(uint64(n))
	case opBinUnicode8:
		n := binary.LittleEndian.Uint64(b[d.pos:])
		d.pos += 8
		return d.str(n)
	case opShortBinString:
		n := b[d.pos]
		d.pos++
		return d.str(uint64(n))
	case opBinString:
		n := binary.LittleEndian.Uint32(b[d.pos:])
		d.pos += 4
		if int32(n) < 0 {
			return d.errAt(at, "BINSTRING with a negative length")
		}
		return d.str(uint64(n))
	case opShortBinBytes:
		n := b[d.pos]
		d.pos++
		d.push(Opaque)
		return d.skip(uint64(n))
	case opBinBytes:
		n := binary.LittleEndian.Uint32(b[d.pos:])
		d.pos += 4
		d.push(Opaque)
		return d.skip(uint64(n))
	case opBinBytes8:
		n := binary.LittleEndian.Uint64(b[d.pos:])
		d.pos += 8
		d.push(Opaque)
		return d.skip(n)
	case opInt, opLong, opFloat, opString, opUnicode, opGet, opPut:
		return d.text(op, at)
	case opBinPut:
		n := b[d.pos]
		d.pos++
		return d.put(uint64(n))
	case opLongBinPut:
		n := binary.LittleEndian.Uint32(b[d.pos:])
		d.pos += 4
		return d.put(uint64(n))
	case opAppend, opSetItem:
		n := 1
		if op == opSetItem {
			n = 2
		}
		if len(d.stack) < n || len(d.stack)-n < d.floor() {
			return d.errAt(at, "%s finds too few values on the stack", opName(op))
		}
		return d.extend(len(d.stack)-n, op == opSetItem)
	case opDict, opList:
		m, err := d.popMark(op, at)
		if err != nil {
			return err
		}
		// The container goes below the values that follow the mark.
		d.stack = append(d.stack, 0)
		copy(d.stack[m+1:], d.stack[m:])
		for i := len(d.open) - 1; i >= 0 && int(d.open[i].at) >= m; i-- {
			d.open[i].at++
		}
		return d.collect(m, op == opDict)
	case opEmptyTuple:
		return d.tuple(len(d.stack), at)
	case opTuple1, opTuple2, opTuple3:
		n := int(op-opTuple1) + 1
		if len(d.stack)-n < d.floor() {
			return d.errAt(at, "%s finds too few values on the stack", opName(op))
		}
		return d.tuple(len(d.stack)-n, at)
	case opTuple, opFrozenSet:
		m, err := d.popMark(op, at)
		if err != nil {
			return err
		}
		return d.tuple(m, at)
	case opPop:
		if n := len(d.marks); n > 0 && d.marks[n-1] == len(d.stack) {
			d.marks = d.marks[:n-1]
			return nil
		}
		if len(d.stack) == 0 {
			return d.errAt(at, "POP of an empty stack")
		}
		return d.drop(len(d.stack) - 1)
	case opPopMark:
		m, err := d.popMark(op, at)
		if err != nil {
			return err
		}
		return d.drop(m)
	case opDup:
		if len(d.stack) == 0 || len(d.stack) == d.floor() {
			return d.errAt(at, "DUP of an empty stack")
		}
		top := len(d.stack) - 1
		if err := d.finish(top); err != nil {
			return err
		}
		d.push(d.stack[top])
	default:
		if name, ok := refused[op]; ok {
			return d.errAt(at, "opcode %s would import or call Python code and is refused; a memory snapshot holds only plain data", name)
		}
		if name, ok := outOfBand[op]; ok {
			return d.errAt(at, "opcode %s needs protocol 5's out-of-band buffers, which are not in the file; save it without buffer_callback", name)
		}
		return d.errAt(at, "byte 0x%02x is no pickle opcode", op)
	}
	return nil
}

// errAt makes an error about the opcode at buf[at].
func (d *Decoder) errAt(at int, format string, args ...any) error {
	return fmt.Errorf("pickle, byte %d: %w", d.base+int64(at), fmt.Errorf(format, args...))
}

// wrap adds the offset to a handler's error.
func (d *Decoder) wrap(err error) error {
	return fmt.Errorf("pickle, byte %d: %w", d.Offset(), err)
}

func opName(op byte) string {
	switch op {
	case opSetItems:
		return "SETITEMS"
	case opAppends:
		return "APPENDS"
	case opAddItems:
		return "ADDITEMS"
	case opAppend:
		return "APPEND"
	case opSetItem:
		return "SETITEM"
	case opDict:
		return "DICT"
	case opList:
		return "LIST"
	case opTuple:
		return "TUPLE"
	case opTuple1:
		return "TUPLE1"
	case opTuple2:
		return "TUPLE2"
	case opTuple3:
		return "TUPLE3"
	case opFrozenSet:
		return "FROZENSET"
	case opPopMark:
		return "POP_MARK"
	case opGet:
		return "GET"
	case opPut:
		return "PUT"
	}
	return fmt.Sprintf("opcode 0x%02x", op)
}

func (d *Decoder) push(v Value) { d.stack = append(d.stack, v) }

// floor is the height below which the current opcode may not reach.
func (d *Decoder) floor() int {
	if n := len(d.marks); n > 0 {
		return d.marks[n-1]
	}
	return 0
}

func (d *Decoder) popMark(op byte, at int) (int, error) {
	if len(d.marks) == 0 {
		return 0, d.errAt(at, "no mark for %s", opName(op))
	}
	m := d.marks[len(d.marks)-1]
	d.marks = d.marks[:len(d.marks)-1]
	return m, nil
}

// newContainer pushes an empty container that will sit at stack[at].
func (d *Decoder) newContainer(dict bool, at int) error {
	// A dict directly below a new container is complete: a key would stand
	// between them if it were to get the container as a value. Finishing it
	// now keeps the pair stack short in long lists of dicts.
	if top := at - 1; top >= 0 && d.stack[top].tag() == tagOpen && d.open[d.stack[top].num()].dict {
		if err := d.finish(top); err != nil {
			return err
		}
	}
	if len(d.open) >= maxOpen {
		return d.errAt(d.pos-1, "more than %d containers under construction", maxOpen)
	}
	d.stack = append(d.stack, pack(tagOpen, uint64(len(d.open))))
	d.open = append(d.open, container{start: uint32(len(d.items)), end: uint32(len(d.items)), at: uint32(at), memo: -1, dict: dict})
	return nil
}

// finish turns the container at stack[at] into the handler's value; other
// values are left alone.
func (d *Decoder) finish(at int) error {
	v := d.stack[at]
	if v.tag() != tagOpen {
		return nil
	}
	i := int(v.num())
	c := &d.open[i]
	var err error
	if c.dict {
		v, err = d.dict(d.items[c.start:c.end])
	} else {
		v, err = d.h.Seq(d, c.acc, d.items[c.start:c.end], true)
	}
	if err != nil {
		return d.wrap(err)
	}
	d.stack[at] = v
	if c.memo >= 0 {
		d.memo[c.memo/memoPage][c.memo%memoPage] = v
	}
	if i == len(d.open)-1 {
		d.items = d.items[:c.start]
		d.open = d.open[:i]
	}
	return nil
}

// finishAbove finishes the containers in stack[from:], which are about to be
// consumed by an older one; keep is the number of open containers that stay.
func (d *Decoder) finishAbove(from, keep int) error {
	if len(d.open) <= keep {
		return nil
	}
	for i := from; i < len(d.stack); i++ {
		if d.stack[i].tag() == tagOpen {
			if err := d.finish(i); err != nil {
				return err
			}
		}
	}
	d.open = d.open[:min(keep, len(d.open))]
	return nil
}

// complete is extend and finish in one, for an empty container whose items are
// all finished and that the next opcode consumes or leaves behind for good. It
// reports false, and does nothing, if the container is not of that kind.
func (d *Decoder) complete(from int, dict bool) (bool, error) {
	if from < 1 || from-1 < d.floor() || len(d.open) == 0 {
		return false, nil
	}
	i := len(d.open) - 1
	c := &d.open[i]
	if d.stack[from-1] != pack(tagOpen, uint64(i)) || c.dict != dict || c.end != c.start || c.acc != 0 || (dict && (len(d.stack)-from)%2 != 0) {
		return false, nil
	}
	var v Value
	var err error
	if dict {
		v, err = d.dict(d.stack[from:])
	} else {
		v, err = d.h.Seq(d, 0, d.stack[from:], true)
	}
	if err != nil {
		return false, d.wrap(err)
	}
	d.stack[from-1] = v
	if c.memo >= 0 {
		d.memo[c.memo/memoPage][c.memo%memoPage] = v
	}
	d.open = d.open[:i]
	return true, nil
}

// extend adds stack[from:] to the container below it.
func (d *Decoder) extend(from int, dict bool) error {
	if from < 1 || from-1 < d.floor() {
		return d.errAt(d.pos-1, "no container below the values to add")
	}
	v := d.stack[from-1]
	if v.tag() != tagOpen || d.open[v.num()].dict != dict {
		if v.tag() == tagRecord || v.tag() == tagOpaque || v.tag() == tagOpen {
			return d.errAt(d.pos-1, "a container is changed after it was referred to, or is of the wrong type: recursive data are not supported")
		}
		return d.errAt(d.pos-1, "values are added to %s", v.Kind())
	}
	i := int(v.num())
	if err := d.finishAbove(from, i+1); err != nil {
		return err
	}
	if i >= len(d.open) {
		return d.errAt(d.pos-1, "recursive data are not supported")
	}
	if dict && (len(d.stack)-from)%2 != 0 {
		return d.errAt(d.pos-1, "a dict gets a key without a value")
	}
	c := &d.open[i]
	d.items = append(d.items[:c.end], d.stack[from:]...)
	c.end = uint32(len(d.items))
	d.stack = d.stack[:from]
	if dict && c.end-c.start > maxStack {
		return d.errAt(d.pos-1, "a dict of more than %d pairs", maxStack/2)
	}
	if !dict && c.end-c.start >= seqChunk {
		acc, err := d.h.Seq(d, c.acc, d.items[c.start:c.end], false)
		if err != nil {
			return d.wrap(err)
		}
		c.acc = acc
		c.end = c.start
		d.items = d.items[:c.start]
	}
	return nil
}

// collect makes the container at stack[m] from the values above it.
func (d *Decoder) collect(m int, dict bool) error {
	n := len(d.stack) - m - 1
	if dict && n%2 != 0 {
		return d.errAt(d.pos-1, "a dict gets a key without a value")
	}
	keep := len(d.open)
	for i := m + 1; i < len(d.stack); i++ {
		if v := d.stack[i]; v.tag() == tagOpen {
			keep = min(keep, int(v.num()))
			if err := d.finish(i); err != nil {
				return err
			}
		}
	}
	if keep < len(d.open) {
		d.items = d.items[:d.open[keep].start]
		d.open = d.open[:keep]
	}
	if m > 0 {
		if v := d.stack[m-1]; v.tag() == tagOpen && d.open[v.num()].dict {
			if err := d.finish(m - 1); err != nil {
				return err
			}
		}
	}
	if len(d.open) >= maxOpen {
		return d.errAt(d.pos-1, "more than %d containers under construction", maxOpen)
	}
	c := container{start: uint32(len(d.items)), at: uint32(m), memo: -1, dict: dict}
	d.items = append(d.items, d.stack[m+1:]...)
	c.end = uint32(len(d.items))
	d.stack = append(d.stack[:m], pack(tagOpen, uint64(len(d.open))))
	d.open = append(d.open, c)
	return nil
}

// tuple replaces stack[from:] by the handler's value for them.
func (d *Decoder) tuple(from, at int) error {
	keep := len(d.open)
	for i := from; i < len(d.stack); i++ {
		if v := d.stack[i]; v.tag() == tagOpen {
			keep = min(keep, int(v.num()))
			if err := d.finish(i); err != nil {
				return err
			}
		}
	}
	v, err := d.h.Seq(d, 0, d.stack[from:], true)
	if err != nil {
		return d.errAt(at, "%w", err)
	}
	if keep < len(d.open) {
		d.items = d.items[:d.open[keep].start]
		d.open = d.open[:keep]
	}
	d.stack = append(d.stack[:from], v)
	return nil
}

// drop discards stack[from:].
func (d *Decoder) drop(from int) error {
	for i := len(d.stack) - 1; i >= from; i-- {
		if err := d.finish(i); err != nil {
			return err
		}
	}
	d.stack = d.stack[:from]
	return nil
}

// put stores the top of the stack under memo number n.
func (d *Decoder) put(n uint64) error {
	top := len(d.stack) - 1
	if top < d.floor() {
		return d.errAt(d.pos-1, "nothing on the stack to memoize")
	}
	// Every put takes at least one byte, and picklers number them densely.
	if n > uint64(d.Offset()) {
		return d.errAt(d.pos-1, "memo number %d is larger than the file can fill", n)
	}
	slot := d.slot(n)
	if slot.tag() == tagOpen {
		return d.errAt(d.pos-1, "memo entry %d is overwritten while its container is under construction", n)
	}
	v := d.stack[top]
	if v.tag() == tagOpen {
		o := &d.open[v.num()]
		if o.memo >= 0 {
			return d.errAt(d.pos-1, "a container is memoized twice")
		}
		o.memo = int64(n)
	}
	if *slot != 0 {
		d.forgetKeys()
	}
	*slot = v
	// MEMOIZE uses the number of entries; picklers don't mix the two forms.
	d.memoized++
	return nil
}

func (d *Decoder) str(n uint64) error {
	s, err := d.take(n)
	if err != nil {
		return err
	}
	d.push(pack(tagString, uint64(d.strings.id(s))))
	return nil
}

// long pushes a little-endian two's complement integer of n bytes. One that
// does not fit in 64 bits becomes Opaque.
func (d *Decoder) long(n uint64) error {
	s, err := d.take(n)
	if err != nil {
		return err
	}
	for len(s) > 8 {
		last, next := s[len(s)-1], s[len(s)-2]
		if (last == 0 && next < 0x80) || (last == 0xff && next >= 0x80) {
			s = s[:len(s)-1]
			continue
		}
		d.push(Opaque)
		return nil
	}
	var x int64
	if len(s) > 0 {
		for i := len(s) - 1; i >= 0; i-- {
			x = x<<8 | int64(s[i])
		}
		shift := 64 - 8*uint(len(s))
		x = x << shift >> shift
	}
	d.push(d.intValue(x))
	return nil
}

// text runs the opcodes whose argument is a line of text (protocol 0).
func (d *Decoder) text(op byte, at int) error {
	offset := d.base + int64(at)
	bad := func(what string, s []byte) error {
		if len(s) > 40 {
			s = s[:40]
		}
		return fmt.Errorf("pickle, byte %d: %q is no %s", offset, s, what)
	}
	s, err := d.line()
	if err != nil {
		return err
	}
	switch op {
	case opInt, opLong:
		switch {
		case op == opInt && string(s) == "00":
			d.push(pack(tagBool, 0))
			return nil
		case op == opInt && string(s) == "01":
			d.push(pack(tagBool, 1))
			return nil
		}
		if n := len(s); n > 0 && s[n-1] == 'L' {
			s = s[:n-1]
		}
		x, err := strconv.ParseInt(string(s), 10, 64)
		switch {
		case errors.Is(err, strconv.ErrRange):
			d.push(Opaque)
		case err != nil:
			return bad("integer", s)
		default:
			d.push(d.intValue(x))
		}
	case opFloat:
		x, err := strconv.ParseFloat(string(s), 64)
		if err != nil && !errors.Is(err, strconv.ErrRange) {
			return bad("float", s)
		}
		d.floats = append(d.floats, x)
		d.push(pack(tagFloat, uint64(len(d.floats)-1)))
	case opString:
		t, ok := unquote(s)
		if !ok {
			return bad("quoted string", s)
		}
		d.push(pack(tagString, uint64(d.strings.id(t))))
	case opUnicode:
		t, ok := rawUnicode(s)
		if !ok {
			return bad("string in raw-unicode-escape", s)
		}
		d.push(pack(tagString, uint64(d.strings.id(t))))
	case opGet, opPut:
		n, err := strconv.ParseUint(string(s), 10, 63)
		if err != nil {
			return bad("memo number", s)
		}
		if op == opPut {
			return d.put(n)
		}
		v, ok := d.memoGet(n)
		if !ok {
			if v, err = d.memoGetSlow(n, int(offset-d.base)); err != nil {
				return err
			}
		}
		d.push(v)
	}
	return nil
}
