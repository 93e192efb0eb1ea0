package snapshot

import (
	"bytes"
	"context"
	"testing"

	"allocsim/internal/pickle/pickletest"
)

// FuzzRead: whatever the bytes, Read returns an error or a trace that keeps
// what traces promise, and does not panic.
func FuzzRead(f *testing.F) {
	kv := pickletest.KV
	entry := func(action string, addr, size int) pickletest.Dict {
		return pickletest.Dict{kv("action", action), kv("addr", addr), kv("size", size), kv("stream", 0), kv("time_us", 1000)}
	}
	block := func(size int, state string) pickletest.Dict {
		return pickletest.Dict{kv("size", size), kv("requested_size", size), kv("state", state), kv("frames", pickletest.List{})}
	}
	segment := func(blocks ...any) pickletest.Dict {
		return pickletest.Dict{kv("device", 0), kv("address", 4096), kv("total_size", 4096), kv("stream", 0), kv("segment_type", "large"),
			kv("segment_pool_id", pickletest.Tuple{0, 0}), kv("is_expandable", false), kv("blocks", pickletest.List(blocks))}
	}
	seeds := []any{
		pickletest.Dict{
			kv("segments", pickletest.List{segment(block(1024, "active_allocated"), block(3072, "inactive"))}),
			kv("device_traces", pickletest.List{pickletest.List{entry("segment_alloc", 4096, 4096), entry("alloc", 4096, 1024)}}),
			kv("allocator_settings", pickletest.Dict{kv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")}),
			kv("external_annotations", pickletest.List{}),
		},
		pickletest.Dict{
			kv("segments", pickletest.List{segment(block(2048, "active_pending_free"), block(2048, "inactive"))}),
			kv("device_traces", pickletest.List{pickletest.List{entry("free_requested", 6144, 512), entry("free_completed", 6144, 512), entry("free_requested", 4096, 2048)}}),
		},
		pickletest.List{segment(block(4096, "inactive"))},
	}
	for i, v := range seeds {
		if _, err := Read(context.Background(), bytes.NewReader(pickletest.Marshal(v, i)), Options{}); err != nil {
			f.Fatalf("seed %d: %v", i, err)
		}
		f.Add(pickletest.Marshal(v, 4), int64(0))
		f.Add(pickletest.Marshal(v, i), int64(1000))
	}
	f.Fuzz(func(t *testing.T, data []byte, note int64) {
		if len(data) > 1<<16 {
			return
		}
		side := &Sidecar{Notes: []Note{{Kind: "empty_cache", T: note}}}
		rec, err := Read(context.Background(), bytes.NewReader(data), Options{Sidecar: side})
		if err != nil {
			return
		}
		for _, tr := range rec.Devices {
			checkTrace(t, tr)
		}
	})
}
