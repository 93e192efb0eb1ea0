package snapshot

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"

	"allocsim/internal/pickle/pickletest"
)

// TestDetect: pickles of every protocol are taken, other formats are not.
func TestDetect(t *testing.T) {
	v := pickletest.Dict{pickletest.KV("segments", pickletest.List{}), pickletest.KV("device_traces", pickletest.List{})}
	for protocol := 0; protocol <= 5; protocol++ {
		for _, v := range []any{v, pickletest.List{v, v}} {
			if data := pickletest.Marshal(v, protocol); !Detect(data) {
				t.Errorf("protocol %d is not detected: % x", protocol, data[:8])
			}
		}
	}
	for _, s := range []string{"", "(", "{}", "[1]", "PK\x03\x04", "\x1f\x8b\x08", "time_us,action", "(list of things)", "]]", "\x80", "\x80\xff"} {
		if Detect([]byte(s)) {
			t.Errorf("%q is detected", s)
		}
	}
}

// TestShared: a list that many owners share through the memo would let a small
// file ask for quadratic work.
func TestShared(t *testing.T) {
	kv := pickletest.KV
	entries := &pickletest.List{pickletest.Dict{kv("action", "alloc"), kv("addr", 4096), kv("size", 512), kv("stream", 0), kv("time_us", 1)}}
	blocks := &pickletest.List{pickletest.Dict{kv("size", 4096), kv("state", "inactive")}}
	segment := func(addr int) pickletest.Dict {
		return pickletest.Dict{kv("device", 0), kv("address", addr), kv("total_size", 4096), kv("segment_type", "large"), kv("blocks", blocks)}
	}
	for want, v := range map[string]any{
		"shares its entries with another device": pickletest.Dict{kv("segments", pickletest.List{}), kv("device_traces", pickletest.List{entries, entries})},
		"shares its list of blocks":              pickletest.Dict{kv("segments", pickletest.List{segment(0x1000), segment(0x2000)}), kv("device_traces", pickletest.List{})},
	} {
		_, err := Read(context.Background(), bytes.NewReader(pickletest.Marshal(v, 4)), Options{Source: "x"})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "x: ") {
			t.Errorf("got %v, want %q", err, want)
		}
	}

	// A shared entry is an entry each time, like in a list of its own.
	one := &pickletest.Dict{kv("action", "snapshot"), kv("addr", 0), kv("size", 0), kv("stream", 0), kv("time_us", 1)}
	other := pickletest.Dict{kv("action", "segment_alloc"), kv("addr", 4096), kv("size", 4096), kv("stream", 0), kv("time_us", 1)}
	third := pickletest.Dict{kv("action", "segment_alloc"), kv("addr", 8192), kv("size", 4096), kv("stream", 0), kv("time_us", 1)}
	v := pickletest.Dict{kv("device_traces", pickletest.List{pickletest.List{one, other, one, one, third}})}
	rec, err := Read(context.Background(), bytes.NewReader(pickletest.Marshal(v, 4)), Options{})
	if err != nil || len(rec.Devices[0].Recorded.Driver) != 2 {
		t.Errorf("%v", err)
	}
}

// TestMemoryIsProportional: files made to need much memory get a fixed amount
// and at most 64 bytes for each of their own, counting what was thrown away.
func TestMemoryIsProportional(t *testing.T) {
	const n = 600_000
	header := "\x80\x04"
	for name, data := range map[string]string{
		"empty lists":     header + "](" + strings.Repeat("]", n) + "e.",
		"lists of lists":  header + "](" + strings.Repeat("]](]]e", n/6) + "e.",
		"empty dicts":     header + "](" + strings.Repeat("}", n) + "e.",
		"one entry":       header + "}\x94\x8c\x06action\x94\x8c\x05alloc\x94s](" + strings.Repeat("h\x00", n) + "e.",
		"one snapshot":    header + "}\x94\x8c\x06action\x94\x8c\x08snapshot\x94s](" + strings.Repeat("h\x00", n) + "e.",
		"frames":          header + "}\x94\x8c\x04line\x94K\x01s](" + strings.Repeat("](h\x00h\x00e", n/5) + "e.",
		"one long stack":  header + "}\x94\x8c\x04line\x94K\x01s](" + strings.Repeat("h\x00", n) + "e.",
		"different dicts": header + "](" + strings.Repeat("}\x8c\x01aK\x01s", n/6) + "e.",
		"marks":           header + strings.Repeat("(", n),
		"pools":           header + "](" + strings.Repeat("K\x01K\x02\x86", n/5) + "e.",
		"memo":            header + "N" + strings.Repeat("\x94", n) + ".",
		"strings":         header + "](" + strings.Repeat("\x8c\x00", n/2) + "e.",
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := Read(context.Background(), strings.NewReader(data), Options{})
			runtime.ReadMemStats(&after)
			if err == nil {
				t.Error("no error")
			}
			const fixed = 16 << 20
			if got, limit := after.TotalAlloc-before.TotalAlloc, uint64(fixed+64*len(data)); got > limit {
				t.Errorf("%d bytes were allocated for a file of %d (%v)", got, len(data), err)
			}
		})
	}
}

func TestCancel(t *testing.T) {
	data, _ := load(t, bundled+"/gnn__default.pickle.zst")
	ctx, cancel := context.WithCancel(context.Background())
	opts := Options{Source: "x", Progress: func(n int64) {
		if n > 100_000 {
			cancel()
		}
	}}
	if _, err := Read(ctx, bytes.NewReader(data), opts); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
}

func TestProgress(t *testing.T) {
	data, _ := load(t, bundled+"/gnn__default.pickle.zst")
	var calls int
	var last int64
	opts := Options{Progress: func(n int64) {
		if n < last {
			t.Errorf("progress goes back from %d to %d", last, n)
		}
		calls, last = calls+1, n
	}}
	if _, err := Read(context.Background(), bytes.NewReader(data), opts); err != nil {
		t.Fatal(err)
	}
	if last != int64(len(data)) || calls < 2 {
		t.Errorf("%d calls, the last with %d of %d bytes", calls, last, len(data))
	}
}

// TestSizesOverflow: block sizes whose sum wraps around to the segment's.
func TestSizesOverflow(t *testing.T) {
	kv := pickletest.KV
	const huge = 1<<63 - 1
	block := func(size int, state string) pickletest.Dict {
		return pickletest.Dict{kv("size", size), kv("requested_size", 16), kv("state", state)}
	}
	for _, addr := range []int{0, 1, 8, 4096, huge} {
		for total, blocks := range map[int]pickletest.List{
			1: {block(huge, "inactive"), block(huge, "active_allocated"), block(2, "inactive"), block(1, "inactive")},
			0: {block(huge, "inactive"), block(huge, "inactive"), block(2, "inactive")},
		} {
			v := pickletest.Dict{
				kv("segments", pickletest.List{pickletest.Dict{
					kv("device", 0), kv("address", addr), kv("total_size", total), kv("segment_type", "large"), kv("stream", 0), kv("blocks", blocks),
				}}),
				kv("device_traces", pickletest.List{pickletest.List{
					pickletest.Dict{kv("action", "snapshot"), kv("addr", 0), kv("size", 0), kv("stream", 0), kv("time_us", 1)},
				}}),
			}
			_, err := Read(context.Background(), bytes.NewReader(pickletest.Marshal(v, 4)), Options{})
			if err == nil || !strings.Contains(err.Error(), "the final segment at") {
				t.Errorf("segment of %d bytes at %d: %v", total, addr, err)
			}
		}
	}
}

// TestStreamMinusOne: the first stream of a file may have any handle.
func TestStreamMinusOne(t *testing.T) {
	kv := pickletest.KV
	entry := func(addr, stream int) pickletest.Dict {
		return pickletest.Dict{kv("action", "segment_alloc"), kv("addr", addr), kv("size", 1<<20), kv("stream", stream), kv("time_us", 1)}
	}
	v := pickletest.Dict{kv("device_traces", pickletest.List{pickletest.List{entry(1<<30, -1), entry(1<<31, 7)}})}
	rec, err := Read(context.Background(), bytes.NewReader(pickletest.Marshal(v, 4)), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got := rec.Devices[0].Streams; len(got) != 2 || got[0] != 7 || got[1] != 1<<64-1 {
		t.Errorf("streams %d", got)
	}
}

// TestRootWithoutSettings: what trace entries have under keys of the root is
// not the root's.
func TestRootWithoutSettings(t *testing.T) {
	kv := pickletest.KV
	entry := func(conf string) pickletest.Dict {
		return pickletest.Dict{
			kv("action", "segment_alloc"), kv("addr", 1<<30), kv("size", 1<<20), kv("stream", 0), kv("time_us", 1),
			kv("allocator_settings", pickletest.Dict{kv("PYTORCH_CUDA_ALLOC_CONF", conf)}),
		}
	}
	v := pickletest.Dict{kv("device_traces", pickletest.List{pickletest.List{entry("first")}})}
	rec, err := Read(context.Background(), bytes.NewReader(pickletest.Marshal(v, 4)), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if m := rec.Devices[0].Meta; m.Conf != "" || len(m.Settings) > 0 {
		t.Errorf("configuration %q, settings %v", m.Conf, m.Settings)
	}
}
