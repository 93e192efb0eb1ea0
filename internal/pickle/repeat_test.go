package pickle_test

import (
	"bytes"
	"context"
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
}

func (j *journal) write(d *pickle.Decoder, what string, items []pickle.Value) pickle.Value {
	fmt.Fprintf(&j.sum, "%s %d %d:", what, d.Offset(), len(items))
	for _, v := range items {
		use(d, v)
		n, _ := d.Int(v)
		f, _ := d.Float(v)
		fmt.Fprintf(&j.sum, " %x %d %x %q", uint64(v), n, f, d.String(v))
	}
	j.n++
	return pickle.Record(j.n)
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
	return j.write(d, fmt.Sprint("dict ", same), pairs), nil
}

func (j *journal) Seq(d *pickle.Decoder, acc pickle.Value, items []pickle.Value, last bool) (pickle.Value, error) {
	return j.write(d, fmt.Sprint("seq ", uint64(acc), last), items), nil
}

// compareWays decodes data once with the fast way for dicts that repeat and
// once byte by byte, so that there is never enough ahead for it. The handler's
// calls and the outcome must be the same.
func compareWays(t interface{ Fatalf(string, ...any) }, data []byte) {
	seed := maphash.MakeSeed()
	run := func(r io.Reader) string {
		j := &journal{}
		j.sum.SetSeed(seed)
		v, err := pickle.NewDecoder(context.Background(), r, j, "a", "action").Decode()
		if j.bad != "" {
			t.Fatalf("%s", j.bad)
		}
		return fmt.Sprintf("%x after %d calls with digest %x, %v", uint64(v), j.n, j.sum.Sum64(), err)
	}
	// The fast way needs data ahead, even at the end.
	padded := append(slices.Clone(data), make([]byte, 1024)...)
	if fast, slow := run(bytes.NewReader(padded)), run(iotest.OneByteReader(bytes.NewReader(padded))); fast != slow {
		t.Fatalf("%q:\nfast %s\nslow %s", data, fast, slow)
	}
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
		compareWays(t, pickletest.Marshal(repeating(t), 4))
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
		compareWays(t, data)
	})
}
