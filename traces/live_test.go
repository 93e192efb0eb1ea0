package traces_test

import (
	"testing"

	"pgregory.net/rapid"

	"allocsim/traces"
)

// TestLive adds up random traces from scratch after every event.
func TestLive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := traces.NewBuilder(0)
		var held, pending []traces.BlockID
		take := func(list *[]traces.BlockID) traces.BlockID {
			i := rapid.IntRange(0, len(*list)-1).Draw(t, "which")
			id := (*list)[i]
			*list = append((*list)[:i:i], (*list)[i+1:]...)
			return id
		}
		for range rapid.IntRange(0, 30).Draw(t, "events") {
			size := rapid.Int64Range(1, 9).Draw(t, "size")
			switch what := rapid.IntRange(0, 5).Draw(t, "what"); {
			case what == 0 && len(held) > 0:
				b.Free(0, take(&held))
			case what == 1 && len(held) > 0:
				id := take(&held)
				b.FreeRequested(0, id)
				pending = append(pending, id)
			case what == 2 && len(pending) > 0:
				b.FreeCompleted(0, take(&pending))
			case what == 3:
				b.OOM(0, size, 0, 0)
			case what == 4:
				b.EmptyCache(0)
			default:
				held = append(held, b.Alloc(0, size, 0, 0))
			}
		}
		tr, _, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		live := tr.Live()
		for i := range tr.Events {
			live.See(&tr.Events[i])
			var allocated, active int64
			for j, e := range tr.Events[:i+1] {
				if e.Kind != traces.Alloc {
					continue
				}
				given, completed := false, false
				for _, later := range tr.Events[j+1 : i+1] {
					if later.ID != e.ID {
						continue
					}
					given = given || later.Kind != traces.FreeCompleted
					completed = completed || later.Kind != traces.FreeRequested
				}
				if !given {
					allocated += e.Size
				}
				if !completed {
					active += e.Size
				}
			}
			if live.Allocated != allocated || live.Active != active {
				t.Fatalf("after event %d: %d allocated, %d active, want %d, %d: %v", i, live.Allocated, live.Active, allocated, active, tr.Events[:i+1])
			}
		}
	})
}

func TestReserves(t *testing.T) {
	var none *traces.State
	if n := none.Reserved(); n != 0 {
		t.Errorf("no state reserves %d", n)
	}
	state := &traces.State{Segments: []traces.Segment{{Size: 20}, {Size: 2}}}
	at := state.Reserved()
	for _, step := range []struct {
		action traces.Action
		size   int64
		want   int64
	}{
		{traces.SegmentAlloc, 5, 27}, {traces.SegmentMap, 2, 29}, {traces.SegmentFree, 20, 9}, {traces.SegmentUnmap, 9, 0},
	} {
		d := traces.DriverEvent{Action: step.action, Size: step.size}
		if at += d.Reserves(); at != step.want {
			t.Errorf("after %s of %d: %d reserved, want %d", step.action, step.size, at, step.want)
		}
		if d.Action.Releases() != (d.Reserves() < 0) {
			t.Errorf("%s: releases %v", step.action, d.Action.Releases())
		}
	}
}
