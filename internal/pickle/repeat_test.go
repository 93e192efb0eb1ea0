package pickle_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"allocsim/internal/pickle"
	"allocsim/internal/pickle/pickletest"
)

// journal is a handler that digests everything it is told.
type journal struct {
	sum  maphash.Hash
	n    uint64
	keys []pickle.Value // of the last dict
	bad  string
	fail uint64 // the call that fails, 0 if none
}

var errJournal = errors.New("the journal is full")

func (j *journal) write(d *pickle.Decoder, what string, items []pickle.Value) (pickle.Value, error) {
	fmt.Fprintf(&j.sum, "%s %d %d:", what, d.Offset(), len(items))
	for _, v := range items {
		use(d, v)
		n, _ := d.Int(v)
		f, _ := d.Float(v)
		fmt.Fprintf(&j.sum, " %x %d %x %q", uint64(v), n, f, d.String(v))
	}
	if j.n++; j.n == j.fail {
		return 0, errJournal
	}
	return pickle.Record(j.n), nil
}

func (j *journal) Dict(d *pickle.Decoder, pairs []pickle.Value, same bool) (pickle.Value, error) {
	var keys []pickle.Value
	for i := 0; i < len(pairs); i += 2 {
		keys = append(keys, pairs[i])
	}
	if same && !slices.Equal(keys, j.keys) {
		j.bad = fmt.Sprintf("the keys %v are not the same as %v", keys, j.keys)
	}
	j.keys = keys
	return j.write(d, fmt.Sprint("dict ", same), pairs)
}

func (j *journal) Seq(d *pickle.Decoder, acc pickle.Value, items []pickle.Value, last bool) (pickle.Value, error) {
	return j.write(d, fmt.Sprint("seq ", uint64(acc), last), items)
}

// compareWays decodes data once with the fast way for dicts that repeat and
// once byte by byte, so that there is never enough ahead for it. The handler's
// calls and the outcome, which it returns, must be the same. Call number fail
// ends in an error.
func compareWays(t interface{ Fatalf(string, ...any) }, data []byte, fail uint64) string {
	seed := maphash.MakeSeed()
	run := func(r io.Reader) string {
		j := &journal{fail: fail}
		j.sum.SetSeed(seed)
		v, err := pickle.NewDecoder(context.Background(), r, j, "a", "action").Decode()
		if j.bad != "" {
			t.Fatalf("%s", j.bad)
		}
		return fmt.Sprintf("%x after %d calls with digest %x, %v", uint64(v), j.n, j.sum.Sum64(), err)
	}
	// The fast way needs data ahead, even at the end.
	padded := append(slices.Clone(data), make([]byte, 1024)...)
	fast, slow := run(bytes.NewReader(padded)), run(iotest.OneByteReader(bytes.NewReader(padded)))
	if fast != slow {
		t.Fatalf("%q:\nfast %s\nslow %s", data[:min(len(data), 10_000)], fast, slow)
	}
	return fast
}

// repeating is a list of dicts of one shape, as a snapshot's entries are, and a
// few of others.
func repeating(t *rapid.T) pickletest.List {
	n := rapid.IntRange(1, 18).Draw(t, "keys")
	frame := &pickletest.Dict{pickletest.KV("line", 7)}
	stack := &pickletest.List{frame, frame}
	value := func() any {
		switch rapid.IntRange(0, 11).Draw(t, "kind") {
		case 0:
			return nil
		case 1:
			return rapid.Bool().Draw(t, "bool")
		case 2, 3:
			return rapid.Int().Draw(t, "int")
		case 4, 5:
			return rapid.IntRange(0, 1<<17).Draw(t, "small")
		case 6:
			return "N/A"
		case 7:
			return strings.Repeat("x", rapid.IntRange(0, 300).Draw(t, "length"))
		case 8:
			return frame
		case 9:
			return pickletest.List{frame, frame, frame}
		case 10:
			return pickletest.List{}
		}
		return stack
	}
	var l pickletest.List
	for range rapid.IntRange(3, 40).Draw(t, "dicts") {
		var d pickletest.Dict
		for k := range n {
			if rapid.IntRange(0, 60).Draw(t, "less") == 0 {
				break
			}
			d = append(d, pickletest.KV(fmt.Sprintf("key%d", k), value()))
		}
		l = append(l, d)
	}
	return l
}

// TestRepeating: dicts that repeat are decoded like any others.
func TestRepeating(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		compareWays(t, pickletest.Marshal(repeating(t), 4), rapid.Uint64Range(0, 60).Draw(t, "fail"))
	})
}

// TestRepeatingDamaged: so they are where something else comes between.
func TestRepeatingDamaged(t *testing.T) {
	ops := []byte("(.01NJKMXaehjpqrstu}]\x85\x86\x88\x8a\x8c\x8f\x94\x95")
	rapid.Check(t, func(t *rapid.T) {
		data := pickletest.Marshal(repeating(t), 4)
		for range rapid.IntRange(1, 4).Draw(t, "changes") {
			i := rapid.IntRange(2, len(data)-1).Draw(t, "at")
			switch b := rapid.SampledFrom(ops).Draw(t, "op"); rapid.IntRange(0, 2).Draw(t, "change") {
			case 0:
				data[i] = b
			case 1:
				data = slices.Insert(data, i, b)
			default:
				data = slices.Delete(data, i, min(i+rapid.IntRange(1, 9).Draw(t, "bytes"), len(data)))
				if len(data) < 3 {
					return
				}
			}
		}
		compareWays(t, data, 0)
	})
}

// TestRepeatingAcrossPages: the memo grows in pages, which may end at the
// dict, at a string or at the list in it, and are packed. Old entries are asked
// for in between, and all at the end.
func TestRepeatingAcrossPages(t *testing.T) {
	get := func(n int) string { return "j" + string(binary.LittleEndian.AppendUint32(nil, uint32(n))) }
	for pad := range 5 {
		const dicts, each = 7_000, 4
		var data strings.Builder
		data.WriteString("\x80\x04](\x8c\x01k\x94\x8c\x01l\x94" + strings.Repeat("N\x94", pad))
		for i := range dicts {
			old := get(pad + 3 + i/2)
			fmt.Fprintf(&data, "}\x94(h\x00\x8c\x03N/A\x94h\x01\x8c\x04%04d\x94h\x00%sh\x01]\x94(h\x00%sh\x01eu", i, old, old)
		}
		data.WriteString("e](")
		for n := range pad + 2 + dicts*each {
			data.WriteString(get(n))
		}
		if got := compareWays(t, []byte(data.String()+"e\x86."), 0); !strings.HasSuffix(got, "<nil>") {
			t.Errorf("%s", got)
		}
	}
}

// TestRepeatingExceptions: the memo entry that was a key becomes another value;
// a dict refers to itself; a reference leads nowhere; the data end.
func TestRepeatingExceptions(t *testing.T) {
	dicts := strings.Repeat("}\x94(h\x00K\x01h\x01](h\x00h\x00eu", 20) + strings.Repeat("}\x94(h\x00K\x01j\x01\x00\x00\x00]\x94(h\x00h\x00eu", 20)
	for middle, want := range map[string]string{
		"\x8c\x01mq\x00":                     "<nil>",
		"}\x94(h\x00h\x3eh\x01K\x02u":        "recursive",
		"}\x94(h\x00K\x01h\x01h\xffu":        "entry 255, which does not exist",
		"}\x94(h\x00K\x01h\x01](h\xffeu":     "entry 255, which does not exist",
		"}\x94(h\x00K\x01h\x01]\x94(h\xffeu": "entry 255, which does not exist",
		"}\x94(h\x00j\xff\xff\x00\x00u":      "entry 65535, which does not exist",
		"}\x94(\x8c\x01kK\x01h\x01K\x02u":    "<nil>",
		"}\x94(h\x01K\x01h\x00K\x02u":        "<nil>",
		"}\x94(h\xffK\x01u":                  "entry 255, which does not exist",
		"}\x94(h\x00K\x01h\x01]\x94(" + strings.Repeat("h\x00", 1<<20) + "eu": "<nil>",
	} {
		data := "\x80\x04](\x8c\x01k\x94\x8c\x01l\x94" + dicts + middle + dicts + "e."
		if got := compareWays(t, []byte(data), 0); !strings.Contains(got, want) {
			t.Errorf("%.40q: %s", middle, got)
		}
	}
	for fail := range uint64(100) {
		want := "<nil>"
		if fail > 0 && fail <= 81 {
			want = "journal is full"
		}
		if got := compareWays(t, []byte("\x80\x04](\x8c\x01k\x94\x8c\x01l\x94"+dicts+"e."), fail); !strings.Contains(got, want) {
			t.Errorf("call %d: %s", fail, got)
		}
	}
}

// TestRepeatingAtTheLimit: a dict that repeats is refused at the same depth as
// any other, and so is the list in it.
func TestRepeatingAtTheLimit(t *testing.T) {
	const dict = "}\x94(h\x00K\x01h\x01]\x94(h\x00eu"
	const maxOpen = 1 << 16 // as in the decoder
	for _, open := range []string{"]", "("} {
		for depth := maxOpen - 3; depth <= maxOpen; depth++ {
			data := "\x80\x04](\x8c\x01k\x94\x8c\x01l\x94" + dict + dict + "e0" + strings.Repeat(open, depth) + dict + "}."
			want := "more than 65536"
			if depth <= maxOpen-2 {
				want = ""
			}
			if got := compareWays(t, []byte(data), 0); !strings.Contains(got, want) {
				t.Errorf("%d times %s: %.200q", depth, open, got[max(len(got)-200, 0):])
			}
		}
	}
}
