package snapshot

import (
	"bytes"
	"cmp"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"allocsim/traces"
)

const (
	bundled = "../../testdata/recordings"
	shared  = "../../../shared"
)

func glob(t testing.TB, patterns ...string) []string {
	t.Helper()
	var out []string
	for _, p := range patterns {
		m, err := filepath.Glob(p)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, m...)
	}
	return out
}

// TestAllRecordings loads the bundled recordings and, where they are at hand,
// all others; what the reader says is compared with the sidecar's own counters.
func TestAllRecordings(t *testing.T) {
	files := glob(t, bundled+"/*.pickle.zst")
	if len(files) == 0 {
		t.Fatal("no bundled recordings")
	}
	more := glob(t, shared+"/recordings/*/*.pickle.zst")
	if len(more) == 0 {
		t.Log("no ../shared/recordings: only the bundled recordings are read")
	}
	for _, f := range append(files, more...) {
		t.Run(filepath.Base(f), func(t *testing.T) {
			t.Parallel()
			rec := mustRead(t, f)
			if len(rec.Devices) != 1 {
				t.Fatalf("%d devices", len(rec.Devices))
			}
			tr := rec.Devices[0]
			checkTrace(t, tr)
			if ring := strings.Contains(f, "__ring"); ring != (tr.Start != nil) {
				t.Fatalf("start state %v, ring %v; notes %q", tr.Start != nil, ring, tr.Notes)
			}
			if tr.Start == nil && len(tr.Notes) > 0 {
				t.Errorf("a complete recording with notes %q", tr.Notes)
			}
			if !tr.Meta.Sidecar || !tr.Meta.ConfKnown || tr.Meta.Torch == "" || tr.Meta.DeviceTotal == 0 {
				t.Errorf("the sidecar is not in Meta: %+v", tr.Meta)
			}
			kinds := tr.CountByKind()
			stats := tr.Recorded.Stats
			if tr.Start == nil {
				if got, want := int64(kinds["alloc"]), stats["allocation.all.allocated"]; got != want {
					t.Errorf("%d allocs, memory_stats says %d", got, want)
				}
				if got, want := int64(kinds["oom"]), stats["num_ooms"]; got != want {
					t.Errorf("%d ooms, memory_stats says %d", got, want)
				}
			}
			var reserved, active, allocated int64
			for _, s := range tr.Recorded.Final.Segments {
				reserved += s.Size
				for _, b := range s.Blocks {
					if b.State != traces.Inactive {
						active += b.Size
					}
					if b.State == traces.ActiveAllocated {
						allocated += b.Size
					}
				}
			}
			for key, got := range map[string]int64{"reserved_bytes.all.current": reserved, "active_bytes.all.current": active, "allocated_bytes.all.current": allocated} {
				if got != stats[key] {
					t.Errorf("%s: %d in the final state, memory_stats says %d", key, got, stats[key])
				}
			}
		})
	}
}

// TestPublicSnapshots reads files from other people's programs.
func TestPublicSnapshots(t *testing.T) {
	dir := shared + "/data/snapshots/"
	if _, err := os.Stat(dir); err != nil {
		t.Skip("no ../shared/data/snapshots: ", err)
	}
	for name, want := range map[string]struct {
		allocs int
		start  bool
	}{
		"s1_97events.pickle":                {36, false},
		"n_forward_backward_100.pickle.zst": {3853, false},
		"w_medium_512_training.pickle.zst":  {7591, true},
		"state_only.pickle":                 {0, false},
		"contradictory_synthetic.pickle":    {-1, false},
	} {
		t.Run(name, func(t *testing.T) {
			data, _ := load(t, dir+name)
			rec, err := Read(context.Background(), bytes.NewReader(data), Options{Source: name})
			if want.allocs < 0 {
				if err == nil || !strings.Contains(err.Error(), "event 0 (alloc of 97606738 bytes at 0x") {
					t.Fatalf("got %v, want a refusal that names the event", err)
				}
				t.Log(err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			tr := rec.Devices[0]
			checkTrace(t, tr)
			if got := tr.CountByKind()["alloc"]; got != want.allocs || (tr.Start != nil) != want.start {
				t.Fatalf("%d allocs, start state %v; want %+v", got, tr.Start != nil, want)
			}
			if want.allocs > 0 {
				if got, all := replayDefault(t, tr); got != all {
					t.Errorf("the default rules give %d of %d recorded addresses", got, all)
				}
			}
		})
	}
}

// fataler is a test, of testing or of rapid.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// checkTrace checks what every trace promises.
func checkTrace(t fataler, tr *traces.Trace) {
	t.Helper()
	r := tr.Recorded
	if len(r.Addr) != tr.NumBlocks {
		t.Fatalf("%d addresses of %d blocks", len(r.Addr), tr.NumBlocks)
	}
	if tr.Stacks != nil && tr.Stacks.ByBlock != nil && len(tr.Stacks.ByBlock) != tr.NumBlocks {
		t.Fatalf("%d stacks of %d blocks", len(tr.Stacks.ByBlock), tr.NumBlocks)
	}
	if !slices.IsSorted(tr.Streams) || len(tr.Streams) == 0 {
		t.Fatalf("streams %v", tr.Streams)
	}
	const unborn, live, pending, gone = 0, 1, 2, 3
	state := make([]int, tr.NumBlocks)
	next, ooms := traces.BlockID(0), 0
	now := int64(0)
	for i, e := range tr.Events {
		if e.TimeUS < now {
			t.Fatalf("event %d: time goes back", i)
		}
		now = e.TimeUS
		if i < tr.StartEvents && (e.TimeUS != 0 || (e.Kind != traces.Alloc && e.Kind != traces.FreeRequested)) {
			t.Fatalf("start event %d is %+v", i, e)
		}
		from, to := live, gone
		switch e.Kind {
		case traces.EmptyCache:
			continue
		case traces.Alloc, traces.OOM:
			if e.ID != next || e.Size <= 0 {
				t.Fatalf("event %d: %+v, want block %d", i, e, next)
			}
			next++
			from, to = unborn, live
			if e.Kind == traces.OOM {
				to = gone
				ooms++
			}
			if (r.Addr[e.ID] == 0) != (e.Kind == traces.OOM) {
				t.Fatalf("event %d: address 0x%x", i, r.Addr[e.ID])
			}
		case traces.FreeRequested:
			to = pending
		case traces.FreeCompleted:
			from = pending
		}
		if state[e.ID] != from {
			t.Fatalf("event %d: %s of block %d in state %d", i, e.Kind, e.ID, state[e.ID])
		}
		state[e.ID] = to
	}
	if int(next) != tr.NumBlocks || ooms != len(r.OOMDeviceFree) {
		t.Fatalf("%d blocks of %d, %d ooms of %d", next, tr.NumBlocks, ooms, len(r.OOMDeviceFree))
	}
	last := uint32(0)
	for i, d := range r.Driver {
		if d.Before < last || int(d.Before) > len(tr.Events) {
			t.Fatalf("driver event %d is before event %d", i, d.Before)
		}
		last = d.Before
		if int(d.Before) < len(tr.Events) {
			switch tr.Events[d.Before].Kind {
			case traces.Alloc, traces.OOM, traces.Free, traces.FreeRequested:
			default:
				t.Fatalf("driver event %d is before a %s", i, tr.Events[d.Before].Kind)
			}
		}
	}
	for _, s := range []*traces.State{tr.Start, r.Final} {
		if s == nil {
			continue
		}
		for i, seg := range s.Segments {
			if i > 0 && s.Segments[i-1].Addr+uint64(s.Segments[i-1].Size) > seg.Addr {
				t.Fatalf("segments overlap at 0x%x", seg.Addr)
			}
			at := seg.Addr
			for _, b := range seg.Blocks {
				if b.Addr != at || b.Size <= 0 || (b.State != traces.Inactive && b.Requested > b.Size) {
					t.Fatalf("segment 0x%x: block %+v, want one at 0x%x", seg.Addr, b, at)
				}
				at += uint64(b.Size)
				if b.ID != traces.NoBlock && r.Addr[b.ID] != b.Addr {
					t.Fatalf("segment 0x%x: block %d at 0x%x, recorded at 0x%x", seg.Addr, b.ID, b.Addr, r.Addr[b.ID])
				}
			}
			if at != seg.Addr+uint64(seg.Size) {
				t.Fatalf("segment 0x%x is not covered", seg.Addr)
			}
		}
	}
	if r.Final != nil && len(tr.Events) > 0 {
		for _, seg := range r.Final.Segments {
			for _, b := range seg.Blocks {
				if b.State != traces.Inactive && b.ID != traces.NoBlock {
					want := live
					if b.State == traces.ActivePendingFree {
						want = pending
					}
					if state[b.ID] != want {
						t.Fatalf("final block %d is %s, by the events %d", b.ID, stateName(b.State), state[b.ID])
					}
					state[b.ID] = gone
				}
			}
		}
		for id, s := range state {
			if s == live || s == pending {
				t.Fatalf("block %d is live at the end and not in the final state", id)
			}
		}
	}
}

// A naive copy of the allocator's default rules (best fit, splitting, merging:
// spec pytorch-allocator A2 and A3), with the driver's answers taken from the
// recording. It shows that a start state is the right one: only then does every
// later address follow.
type naiveBlock struct {
	addr, size uint64
	used       bool
}

type naiveSegment struct {
	stream uint16
	pool   uint8
	small  bool
	blocks []naiveBlock
}

func replayDefault(t testing.TB, tr *traces.Trace) (matched, all int) {
	segs := map[uint64]*naiveSegment{}
	if tr.Start != nil {
		for _, s := range tr.Start.Segments {
			n := &naiveSegment{stream: s.Stream, pool: s.Pool, small: s.Small}
			for _, b := range s.Blocks {
				n.blocks = append(n.blocks, naiveBlock{b.Addr, uint64(b.Size), b.State != traces.Inactive})
			}
			segs[s.Addr] = n
		}
	}
	where := map[traces.BlockID]*naiveSegment{}
	at := map[traces.BlockID]uint64{}
	if tr.Start != nil {
		for _, s := range tr.Start.Segments {
			for _, b := range s.Blocks {
				if b.State != traces.Inactive {
					where[b.ID], at[b.ID] = segs[s.Addr], b.Addr
				}
			}
		}
	}
	driver := tr.Recorded.Driver
	for i, e := range tr.Events[tr.StartEvents:] {
		for len(driver) > 0 && int(driver[0].Before) <= i+tr.StartEvents {
			d := driver[0]
			driver = driver[1:]
			switch d.Action {
			case traces.SegmentAlloc:
				segs[d.Addr] = &naiveSegment{stream: d.Stream, pool: d.Pool, small: d.Size == 2<<20, blocks: []naiveBlock{{d.Addr, uint64(d.Size), false}}}
			case traces.SegmentFree:
				if s := segs[d.Addr]; s == nil || len(s.blocks) != 1 || s.blocks[0].used {
					return matched, all + 1
				}
				delete(segs, d.Addr)
			default:
				t.Fatal("the naive allocator knows no expandable segments")
			}
		}
		switch e.Kind {
		case traces.Alloc:
			all++
			size := max(512, (uint64(e.Size)+511)/512*512)
			small := size <= 1<<20
			var best *naiveSegment
			bi := -1
			for _, s := range segs {
				if s.stream != e.Stream || s.small != small || s.pool != e.Pool {
					continue
				}
				for j, b := range s.blocks {
					if b.used || b.size < size {
						continue
					}
					if bi < 0 || b.size < best.blocks[bi].size || (b.size == best.blocks[bi].size && b.addr < best.blocks[bi].addr) {
						best, bi = s, j
					}
				}
			}
			if bi < 0 {
				return matched, all + 1
			}
			b := &best.blocks[bi]
			b.used = true
			where[e.ID], at[e.ID] = best, b.addr
			if b.addr == tr.Recorded.Addr[e.ID] {
				matched++
			}
			if rest := b.size - size; (small && rest >= 512) || (!small && rest > 1<<20) {
				b.size = size
				best.blocks = slices.Insert(best.blocks, bi+1, naiveBlock{b.addr + size, rest, false})
			}
		case traces.Free, traces.FreeCompleted:
			s := where[e.ID]
			j := slices.IndexFunc(s.blocks, func(b naiveBlock) bool { return b.addr == at[e.ID] })
			s.blocks[j].used = false
			if j+1 < len(s.blocks) && !s.blocks[j+1].used {
				s.blocks[j].size += s.blocks[j+1].size
				s.blocks = slices.Delete(s.blocks, j+1, j+2)
			}
			if j > 0 && !s.blocks[j-1].used {
				s.blocks[j-1].size += s.blocks[j].size
				s.blocks = slices.Delete(s.blocks, j, j+1)
			}
		}
	}
	return matched, all
}

// TestStartState cuts the beginning off complete recordings, as a ring buffer
// would, and demands that the inferred start state holds exactly what was live
// at the cut, and that every later address follows from it.
func TestStartState(t *testing.T) {
	for _, name := range []string{"resnet50_amp__default", "gnn__default", "streams_prefetch__default", "leak_outputs__leakpy", "unet_resolutions__default", "gnn__exp", "fuzz0021", "fuzz0003", "cuda_graph__default"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data, side := load(t, filepath.Join(bundled, name+".pickle.zst"))
			whole, err := Read(context.Background(), bytes.NewReader(data), Options{Sidecar: side})
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for _, tenths := range []int{1, 3, 5, 7, 9} {
				opts := Options{Sidecar: side}
				opts.drop = func(entries int) int { return entries * tenths / 10 }
				cut, err := Read(context.Background(), bytes.NewReader(data), opts)
				if err != nil {
					t.Fatalf("without the first %d tenths: %v", tenths, err)
				}
				tr := cut.Devices[0]
				checkTrace(t, tr)
				compareStart(t, whole.Devices[0], tr)
				if tr.Start != nil {
					n++
				}
				if name == "resnet50_amp__default" || name == "gnn__default" || name == "leak_outputs__leakpy" || name == "streams_prefetch__default" || name == "unet_resolutions__default" {
					if got, all := replayDefault(t, tr); got != all {
						t.Errorf("without the first %d tenths the default rules give %d of %d addresses", tenths, got, all)
					}
				}
			}
			if n == 0 {
				t.Error("no cut left a start state")
			}
		})
	}
	t.Run("ring", func(t *testing.T) {
		tr := mustRead(t, filepath.Join(bundled, "resnet50_amp__ring.pickle.zst")).Devices[0]
		if got, all := replayDefault(t, tr); got != all {
			t.Errorf("the default rules give %d of %d addresses", got, all)
		}
	})
}

// compareStart compares the start state of a cut recording with what the whole
// one says was live at that time.
func compareStart(t *testing.T, whole, cut *traces.Trace) {
	t.Helper()
	type block struct {
		Addr      uint64
		Requested int64
		Stream    uint64
	}
	allocs := 0
	for _, e := range cut.Events[cut.StartEvents:] {
		if e.Kind == traces.Alloc || e.Kind == traces.OOM {
			allocs++
		}
	}
	firstKept := traces.BlockID(whole.NumBlocks - allocs)
	var allocated, pending []block
	if cut.Start != nil {
		for _, s := range cut.Start.Segments {
			for _, b := range s.Blocks {
				x := block{b.Addr, b.Requested, cut.Streams[s.Stream]}
				switch b.State {
				case traces.ActiveAllocated:
					allocated = append(allocated, x)
				case traces.ActivePendingFree:
					pending = append(pending, x)
				}
			}
		}
	}
	// When each block's free was requested; the cut may lie between the two
	// entries of a free, so the request decides.
	freed := make(map[traces.BlockID]int64)
	for _, e := range whole.Events {
		if e.Kind == traces.Free || e.Kind == traces.FreeRequested {
			freed[e.ID] = e.TimeUS + whole.StartUS
		}
	}
	var want []block
	for _, e := range whole.Events {
		if e.Kind != traces.Alloc || e.ID >= firstKept {
			continue
		}
		x := block{whole.Recorded.Addr[e.ID], e.Size, whole.Streams[e.Stream]}
		when, dead := freed[e.ID]
		switch {
		case !dead || when > cut.StartUS:
			want = append(want, x)
		case slices.Contains(pending, x):
			pending = slices.DeleteFunc(pending, func(p block) bool { return p == x })
		case when == cut.StartUS && slices.Contains(allocated, x):
			want = append(want, x) // freed in the microsecond of the cut
		}
	}
	byAddr := func(a, b block) int { return cmp.Compare(a.Addr, b.Addr) }
	slices.SortFunc(want, byAddr)
	slices.SortFunc(allocated, byAddr)
	if d := gocmp.Diff(want, allocated); d != "" {
		t.Fatalf("live at the cut (-want +got):\n%s", d)
	}
	if len(pending) > 0 {
		t.Fatalf("pending at the cut, but not freed before: %v", pending)
	}
}
