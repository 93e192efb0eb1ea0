package traces

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// before is the rule of DriverEvent.Before, written the slow way: the first
// request at or after event i.
func before(events []Event, i int) uint32 {
	for ; i < len(events); i++ {
		switch events[i].Kind {
		case Alloc, OOM, Free, FreeRequested:
			return uint32(i)
		}
	}
	return uint32(len(events))
}

func TestWithEmptyCaches(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := NewBuilder(0)
		var live, pending []BlockID
		var places []int // event index at which a driver event stands
		n := rapid.IntRange(0, 30).Draw(t, "events")
		now := int64(0)
		for range n {
			now += rapid.Int64Range(0, 3).Draw(t, "dt")
			if rapid.Bool().Draw(t, "driver") {
				places = append(places, b.Len())
			}
			switch k := rapid.IntRange(0, 5).Draw(t, "kind"); {
			case k == 0 && len(live) > 0:
				b.Free(now, live[0])
				live = live[1:]
			case k == 1 && len(live) > 0:
				b.FreeRequested(now, live[0])
				pending, live = append(pending, live[0]), live[1:]
			case k == 2 && len(pending) > 0:
				b.FreeCompleted(now, pending[0])
				pending = pending[1:]
			case k == 3:
				b.EmptyCache(now)
			case k == 4:
				b.OOM(now, 512, 0, 0)
			default:
				live = append(live, b.Alloc(now, 512, b.Stream(0), 0))
			}
		}
		tr, _, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		tr.Recorded = &Recorded{}
		for i, p := range places {
			tr.Recorded.Driver = append(tr.Recorded.Driver, DriverEvent{Addr: uint64(i), Before: before(tr.Events, p)})
		}
		original := slices.Clone(tr.Recorded.Driver)
		at := rapid.SliceOfN(rapid.IntRange(0, len(tr.Events)), 0, 6).Draw(t, "before")
		got := WithEmptyCaches(tr, at)

		// Without the new events, the events are the old ones, in order.
		if len(got.Events) != len(tr.Events)+len(at) {
			t.Fatalf("%d events from %d and %d calls", len(got.Events), len(tr.Events), len(at))
		}
		sorted := slices.Sorted(slices.Values(at))
		i, k := 0, 0
		moved := make([]int, len(tr.Events)+1)
		for j, e := range got.Events {
			if j > 0 && e.TimeUS < got.Events[j-1].TimeUS {
				t.Fatalf("time goes back at event %d", j)
			}
			if k < len(sorted) && sorted[k] == i {
				if e.Kind != EmptyCache || e.ID != NoBlock {
					t.Fatalf("event %d is %v, not the inserted call", j, e)
				}
				k++
				continue
			}
			if e != tr.Events[i] {
				t.Fatalf("event %d is %v, want the old event %d", j, e, i)
			}
			moved[i] = j
			i++
		}
		moved[len(tr.Events)] = len(got.Events)
		for j, d := range got.Recorded.Driver {
			if int(d.Before) != moved[original[j].Before] {
				t.Fatalf("driver event %d is before event %d, want %d", j, d.Before, moved[original[j].Before])
			}
		}
		if !slices.Equal(tr.Recorded.Driver, original) {
			t.Fatal("the original trace was changed")
		}
	})
}

func TestWithEmptyCachesOutOfRange(t *testing.T) {
	b := NewBuilder(0)
	b.Alloc(0, 1, b.Stream(0), 0)
	tr, _, _ := b.Build()
	tr.StartEvents = 1
	for _, i := range []int{-1, 0, 2} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("index %d was taken", i)
				}
			}()
			WithEmptyCaches(tr, []int{i})
		}()
	}
}
