// Package snapshottest writes recordings back as PyTorch snapshots, for tests
// that need a part of one: a history that begins in the middle, as a ring
// buffer leaves it.
package snapshottest

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"allocsim/internal/pickle/pickletest"
	"allocsim/traces"
)

// Cut is the snapshot of a recording of which only the last n entries of the
// history are left (n < 0: all), as PyTorch writes it. The trace must come from
// a snapshot with its history and its final segments, one device, without
// private pools. entries is how many there are in all.
func Cut(tr *traces.Trace, n int) (snapshot []byte, entries int) {
	history := entriesOf(tr)
	entries = len(history)
	if n >= 0 && n < len(history) {
		history = history[len(history)-n:]
	}
	var settings pickletest.Dict
	for _, k := range slices.Sorted(maps.Keys(tr.Meta.Settings)) {
		settings = append(settings, pickletest.KV(k, settingOf(tr.Meta.Settings[k])))
	}
	return pickletest.Marshal(pickletest.Dict{
		pickletest.KV("segments", segmentsOf(tr)),
		pickletest.KV("device_traces", pickletest.List{history}),
		pickletest.KV("allocator_settings", settings),
	}, 2), entries
}

func entriesOf(tr *traces.Trace) pickletest.List {
	var out pickletest.List
	size := make([]int64, tr.NumBlocks)
	add := func(action string, addr uint64, bytes int64, stream uint16, us int64) {
		out = append(out, pickletest.Dict{
			pickletest.KV("action", action), pickletest.KV("addr", int64(addr)), pickletest.KV("size", bytes),
			pickletest.KV("stream", int64(tr.Streams[stream])), pickletest.KV("time_us", us), pickletest.KV("frames", pickletest.List{}),
		})
	}
	driver, oom := tr.Recorded.Driver, 0
	before := func(k int, us int64) {
		for ; len(driver) > 0 && int(driver[0].Before) <= k; driver = driver[1:] {
			d := driver[0]
			add(d.Action.String(), d.Addr, d.Size, d.Stream, us)
		}
	}
	for k, e := range tr.Events {
		us := tr.StartUS + e.TimeUS
		if e.Kind != traces.EmptyCache {
			before(k, us)
		}
		switch e.Kind {
		case traces.Alloc:
			size[e.ID] = e.Size
			add("alloc", tr.Recorded.Addr[e.ID], e.Size, e.Stream, us)
		case traces.Free:
			add("free_requested", tr.Recorded.Addr[e.ID], size[e.ID], e.Stream, us)
			add("free_completed", tr.Recorded.Addr[e.ID], size[e.ID], e.Stream, us)
		case traces.FreeRequested:
			add("free_requested", tr.Recorded.Addr[e.ID], size[e.ID], e.Stream, us)
		case traces.FreeCompleted:
			add("free_completed", tr.Recorded.Addr[e.ID], size[e.ID], e.Stream, us)
		case traces.OOM:
			free := int64(-1)
			if oom < len(tr.Recorded.OOMDeviceFree) {
				free = tr.Recorded.OOMDeviceFree[oom]
			}
			oom++
			entry := pickletest.Dict{
				pickletest.KV("action", "oom"), pickletest.KV("size", e.Size), pickletest.KV("stream", int64(tr.Streams[e.Stream])),
				pickletest.KV("time_us", us), pickletest.KV("frames", pickletest.List{}),
			}
			if free >= 0 {
				entry = append(entry, pickletest.KV("device_free", free))
			}
			out = append(out, entry)
		}
	}
	before(len(tr.Events), tr.StartUS+tr.Duration())
	return out
}

func segmentsOf(tr *traces.Trace) pickletest.List {
	var out pickletest.List
	states := map[traces.BlockState]string{
		traces.Inactive: "inactive", traces.ActiveAllocated: "active_allocated", traces.ActivePendingFree: "active_pending_free",
	}
	for _, s := range tr.Recorded.Final.Segments {
		var blocks pickletest.List
		var allocated, active int64
		for _, b := range s.Blocks {
			if b.State != traces.Inactive {
				active += b.Size
			}
			if b.State == traces.ActiveAllocated {
				allocated += b.Size
			}
			blocks = append(blocks, pickletest.Dict{
				pickletest.KV("address", int64(b.Addr)), pickletest.KV("size", b.Size), pickletest.KV("requested_size", b.Requested),
				pickletest.KV("state", states[b.State]), pickletest.KV("frames", pickletest.List{}),
			})
		}
		kind := "large"
		if s.Small {
			kind = "small"
		}
		out = append(out, pickletest.Dict{
			pickletest.KV("device", int64(tr.Device)), pickletest.KV("address", int64(s.Addr)), pickletest.KV("total_size", s.Size),
			pickletest.KV("allocated_size", allocated), pickletest.KV("active_size", active), pickletest.KV("stream", int64(tr.Streams[s.Stream])),
			pickletest.KV("segment_type", kind), pickletest.KV("segment_pool_id", pickletest.Tuple{int64(0), int64(0)}),
			pickletest.KV("is_expandable", s.Expandable), pickletest.KV("frames", pickletest.List{}), pickletest.KV("blocks", blocks),
		})
	}
	return out
}

// settingOf is a setting as the snapshot had it: numbers, truth values and
// tables of numbers (KEY:VALUE, separated by commas) are not text there.
func settingOf(text string) any {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n
	}
	if f, err := strconv.ParseFloat(text, 64); err == nil {
		return f
	}
	switch text {
	case "true", "True":
		return true
	case "false", "False":
		return false
	}
	var table pickletest.Dict
	for part := range strings.SplitSeq(text, ",") {
		k, v, ok := strings.Cut(part, ":")
		n, err := strconv.ParseInt(v, 10, 64)
		if _, e := strconv.ParseInt(k, 10, 64); !ok || err != nil || e != nil {
			return text
		}
		table = append(table, pickletest.KV(k, n))
	}
	return table
}
