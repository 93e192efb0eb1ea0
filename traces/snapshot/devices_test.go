package snapshot

import (
	"bytes"
	"context"
	"testing"

	"allocsim/internal/pickle/pickletest"
)

// TestSeveralDevices: what belongs to one device goes to that one.
func TestSeveralDevices(t *testing.T) {
	kv := pickletest.KV
	frames := pickletest.List{pickletest.Dict{kv("name", "f"), kv("filename", "a.py"), kv("line", 1)}}
	var segments, devices, marks pickletest.List
	for dev := range 3 {
		size := (dev + 1) << 21
		addr := 0x10000000 * (dev + 1)
		segments = append(segments, pickletest.Dict{
			kv("device", dev), kv("address", addr), kv("total_size", size), kv("stream", 10*dev), kv("segment_type", "large"),
			kv("blocks", pickletest.List{pickletest.Dict{kv("address", addr), kv("size", size), kv("state", "inactive")}}),
		})
		entry := pickletest.Dict{kv("action", "segment_alloc"), kv("addr", addr), kv("size", size), kv("stream", 10*dev), kv("time_us", 100*(dev+1))}
		oom := pickletest.Dict{kv("action", "oom"), kv("size", 512), kv("stream", 10*dev), kv("time_us", 100*(dev+1)), kv("frames", frames)}
		list := pickletest.List{entry}
		if dev == 1 {
			list = append(list, oom)
		}
		devices = append(devices, list)
		marks = append(marks, pickletest.Dict{kv("name", "step"), kv("stage", "START"), kv("device", dev), kv("time_us", 150)})
	}
	root := pickletest.Dict{kv("segments", segments), kv("device_traces", devices), kv("external_annotations", marks)}
	side := &Sidecar{Stats: map[string]any{"reserved_bytes.all.current": float64(3 << 21), "ratio": 0.5}, TraceEntries: 4}
	rec, err := Read(context.Background(), bytes.NewReader(pickletest.Marshal(root, 4)), Options{Sidecar: side})
	if err != nil {
		t.Fatal(err)
	}
	if len(rec.Devices) != 3 {
		t.Fatalf("%d devices", len(rec.Devices))
	}
	for dev, tr := range rec.Devices {
		checkTrace(t, tr)
		if (tr.Recorded.Stats != nil) != (dev == 2) {
			t.Errorf("device %d: statistics %v; they describe the segments of device 2", dev, tr.Recorded.Stats)
		}
		if len(tr.Annotations) != 1 || tr.Annotations[0].TimeUS != int64(150-100*(dev+1)) {
			t.Errorf("device %d: annotations %+v", dev, tr.Annotations)
		}
		if tr.Streams[0] != uint64(10*dev) || tr.StartUS != int64(100*(dev+1)) || len(tr.Notes) > 0 {
			t.Errorf("device %d: streams %v, start %d, notes %q", dev, tr.Streams, tr.StartUS, tr.Notes)
		}
		if tr.Stacks == nil || len(tr.Stacks.Stack) != 1 || len(tr.Stacks.ByBlock) != tr.NumBlocks {
			t.Errorf("device %d: stacks %+v", dev, tr.Stacks)
		}
	}

	side.TraceEntries = 7
	side.Conf = new(string)
	rec, err = Read(context.Background(), bytes.NewReader(pickletest.Marshal(root, 4)), Options{Sidecar: side})
	if err != nil || len(rec.Devices[0].Notes) != 1 {
		t.Errorf("a sidecar of another recording goes unnoticed: %v %q", err, rec.Devices[0].Notes)
	}
}
