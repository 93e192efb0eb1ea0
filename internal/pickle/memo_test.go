package pickle

import (
	"context"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestPackMemo: a packed page has the entries of the page.
func TestPackMemo(t *testing.T) {
	packed := 0
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, maxRound+1).Draw(t, "round")
		var page [memoPage]Value
		anyEven := false
		for i := range n {
			v := pack(tagRecord, rapid.Uint64Range(0, MaxRecord).Draw(t, "number"))
			step := Value(rapid.Uint64Range(0, 3).Draw(t, "step")) << tagBits
			even := rapid.Bool().Draw(t, "even")
			anyEven = anyEven || even
			bits := rapid.IntRange(0, 34).Draw(t, "bits")
			for j := i; j < memoPage; j += n {
				page[j] = v
				v += step
				if !even {
					v = page[i] ^ Value(uint64(j)*0x9E3779B97F4A7C15>>(64-bits))<<tagBits
				}
			}
		}
		damage := rapid.SampledFrom([]Value{pack(tagRecord, 5), pack(tagOpen, 5), 0}).Draw(t, "damage")
		damaged := rapid.IntRange(0, 3).Draw(t, "damaged") == 0
		if damaged {
			page[rapid.IntRange(0, memoPage-1).Draw(t, "at")] = damage
		}
		p := packMemo(&page)
		if p == nil {
			return
		}
		packed++
		if damaged && damage.tag() != tagRecord {
			t.Fatalf("a page with an entry %x is packed", uint64(damage))
		}
		for i, v := range page {
			if got := p.at(uint64(i)); got != v {
				t.Fatalf("entry %d is %x, was %x", i, uint64(got), uint64(v))
			}
		}
	})
	if packed == 0 {
		t.Error("no page was packed")
	}
}

// numbers is a handler that numbers the containers and keeps the last list.
type numbers struct {
	n    uint64
	list []Value
}

func (h *numbers) Dict(*Decoder, []Value, bool) (Value, error) { h.n++; return Record(h.n), nil }

func (h *numbers) Seq(_ *Decoder, _ Value, items []Value, _ bool) (Value, error) {
	h.n++
	h.list = append(h.list[:0], items...)
	return Record(h.n), nil
}

// TestPackedMemo refers to entries of packed pages and changes them.
func TestPackedMemo(t *testing.T) {
	get := func(n uint64) string {
		return "j" + string(binary.LittleEndian.AppendUint32(nil, uint32(n)))
	}
	put := func(n uint64) string {
		return "r" + string(binary.LittleEndian.AppendUint32(nil, uint32(n)))
	}
	const dicts = 5 * memoPage / 2
	// Entry 0 is the key, 2i+1 the ith dict and 2i+2 its string.
	data := "\x80\x04](\x8c\x01k\x940" + strings.Repeat("}\x94(h\x00\x8c\x03N/A\x94u", dicts) + "e0"
	h := &numbers{}
	decode := func(tail string) (*Decoder, error) {
		*h = numbers{}
		d := NewDecoder(context.Background(), strings.NewReader(data+tail+"."), h, "k", "N/A", "new")
		_, err := d.Decode()
		return d, err
	}
	d, err := decode("](" + get(1) + get(2) + get(4*memoPage-1) + get(4*memoPage) + "e")
	if err != nil {
		t.Fatal(err)
	}
	packed := 0
	for c := range d.packed {
		if d.packed[c] != nil {
			packed++
		}
		if (d.packed[c] != nil) == (d.memo[c] != nil) {
			t.Errorf("page %d: packed %v, plain %v", c, d.packed[c] != nil, d.memo[c] != nil)
		}
	}
	if fast && packed < 3 || !fast && packed > 0 {
		t.Errorf("%d pages of %d are packed", packed, len(d.packed))
	}
	want := []Value{Record(1), pack(tagString, 1), Record(2 * memoPage), pack(tagString, 1)}
	if !slices.Equal(h.list, want) {
		t.Errorf("got %x, want %x", h.list, want)
	}

	n := uint64(2*memoPage + 1)
	if d, err = decode("](\x8c\x03new" + put(n) + get(n) + get(n+1) + get(n+2) + "e"); err != nil {
		t.Fatal(err)
	}
	want = []Value{pack(tagString, 2), pack(tagString, 2), pack(tagString, 1), Record(memoPage + 2)}
	if !slices.Equal(h.list, want) || d.packed[2] != nil {
		t.Errorf("got %x, want %x", h.list, want)
	}
	if _, err := decode("](" + get(2*dicts+1) + "e"); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("got %v", err)
	}
}
